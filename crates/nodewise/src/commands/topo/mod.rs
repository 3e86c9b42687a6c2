//! `nodewise topo`: the machine as a drawing with its numbers, or as JSON.

mod block;
mod drawing;
mod tables;

use crate::commands::{Exit, exit};
use crate::output::print;
use crate::terminal;
use block::{ASCII, BOX_DRAWING, Block, Line};
use nodewise_topology::{Allowed, Error, ErrorKind, Topology};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show the machine: nodes, CPUs, memory, caches, distances, devices
///
/// The drawing has boxes in boxes: packages, nodes, shared caches, CPUs. Below it are each node's memory and
/// CPUs, the distances and the speeds of memory (HMAT) that the firmware gives, and devices with their node.
/// The last part is the kernel's settings of huge pages and NUMA balancing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  nodewise topo                      draw this machine
  nodewise topo --json | jq .nodes   the same as data
  nodewise topo --from captures/db1  a machine captured by hwloc-gather-topology

Exit status:
  0   done
  1   the tree is no machine's; where single files are missing or cannot be read, a warning says so
  2   the command line could not be understood
  77  the directory of CPUs may not be read")]
pub struct Args {
    /// Print JSON: nodes, packages, cores, caches, memory tiers, devices, settings
    ///
    /// Sizes are in bytes, and numbers are the kernel's.
    #[arg(long)]
    json: bool,
    /// Read a captured tree instead: a directory with sys and proc in it, in place of /
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = match &args.from {
        Some(root) => Topology::from_root(root),
        None => Topology::live(),
    };
    let machine = machine.map_err(explain)?;
    let text = if !args.json {
        let mut text = render(&machine, terminal::width(), terminal::is_utf8());
        if args.from.is_none() {
            text += &confinement(&machine)?;
        }
        text
    } else if terminal::is_terminal() {
        serde_json::to_string_pretty(&machine)? + "\n"
    } else {
        serde_json::to_string(&machine)? + "\n"
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn explain(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let message = format!("{:#}", anyhow::Error::new(error));
            Exit { code: exit::NOT_PERMITTED, message }.into()
        }
        _ => error.into(),
    }
}

/// A line for processes in a container or under taskset, which may not use all that is drawn.
fn confinement(machine: &Topology) -> anyhow::Result<String> {
    let allowed = Allowed::of_this_thread(machine).map_err(explain)?;
    if allowed == Allowed::everything(machine) {
        return Ok(String::new());
    }
    let (cpus, nodes) = (allowed.cpus, allowed.memory_nodes);
    Ok(format!("\nthis process may use CPUs {cpus} and memory of nodes {nodes} only\n"))
}

fn render(machine: &Topology, width: usize, utf8: bool) -> String {
    let canvas = drawing::Canvas { width, glyphs: if utf8 { &BOX_DRAWING } else { &ASCII } };
    let mut page: Block = drawing::draw(machine, &canvas);
    page.push(Line::default());
    page.below(tables::all(machine, width));
    page.render()
}

/// A size in the unit that suits it: `15.9 GiB`, `32 KiB`.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let rounded = (value * 10.0).round() / 10.0;
    if rounded.fract() == 0.0 {
        format!("{rounded:.0} {}", units[unit])
    } else {
        format!("{rounded:.1} {}", units[unit])
    }
}
