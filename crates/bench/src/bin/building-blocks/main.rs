//! `building-blocks`: uses the runtime library on a machine with several nodes and says what came of it, for
//! the tests in guests.
#![forbid(unsafe_code)]

mod hints;
mod layouts;
mod machine;
mod pages;
mod pool;
mod replicated;

use clap::{Parser, Subcommand};
use layouts::weight;
use nodewise_runtime::Layout;
use nodewise_topology::NodeId;
use std::path::PathBuf;
use std::time::Duration;

/// Use the runtime library, and print the outcome
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    block: Block,
}

#[derive(Subcommand)]
enum Block {
    /// Print each layout's pages, as the kernel sees them: a line of JSON each, with runs of pages and their
    /// node
    Layouts {
        /// Put those that are on one node here
        on: u32,
        /// Weight the weighted ones so, as in NODE:WEIGHT
        #[arg(value_parser = weight)]
        weights: Vec<(NodeId, u32)>,
    },
    /// Print the pages of a node that has no room for the memory that is to lie there
    Full {
        /// The node
        node: u32,
    },
    /// Print on which nodes blocks are worked on, and where workers run
    Blocks {
        /// The node of an array to work on, instead of an array in blocks
        on: Option<u32>,
    },
    /// Print the placements that leave out a node of memory only
    Apart {
        /// The node
        node: u32,
    },
    /// Take a CPU online and offline again, and print what the library says of it, a line of JSON each time
    Plug {
        /// The CPU
        cpu: u32,
    },
    /// Print which nodes are near a device, where a thread bound to them runs, and where an arena lies
    Near {
        /// The device
        device: String,
    },
    /// Wait for a manager, say how two arrays on node 0 are used, and write one from all nodes for so many
    /// seconds
    Hints {
        /// How long
        seconds: u64,
    },
    /// Update a replicated value by all nodes at once, and print a line of JSON for each node's copy
    Log,
    /// Print how many pages of replicated values, and of all they have, each node finds on another: a line of
    /// JSON for each size
    Copies,
    /// Run tasks on all nodes for so many seconds, and fail if one of the first runs on another node
    ///
    /// The first after a refresh count, too
    Pool {
        /// How long
        seconds: u64,
        /// The file that tells it to refresh
        refresh: Option<PathBuf>,
    },
}

/// Pages of an array, where nothing else is said.
const PAGES: usize = 2048;

fn main() -> anyhow::Result<()> {
    match Args::parse().block {
        Block::Layouts { on, weights } => layouts::layouts(NodeId(on), weights),
        Block::Full { node } => layouts::full(NodeId(node)),
        Block::Blocks { on } => pool::blocks(on.map_or(Layout::Blocked, |node| Layout::On(NodeId(node)))),
        Block::Apart { node } => machine::apart(NodeId(node)),
        Block::Plug { cpu } => machine::plug(cpu),
        Block::Near { device } => machine::near(&device),
        Block::Hints { seconds } => hints::hints(Duration::from_secs(seconds)),
        Block::Log => replicated::log(),
        Block::Copies => replicated::copies(),
        Block::Pool { seconds, refresh } => pool::pool(Duration::from_secs(seconds), refresh),
    }
}
