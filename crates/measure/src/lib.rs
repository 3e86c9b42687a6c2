//! Latency and bandwidth of this machine's memory and caches, node by node.
//!
//! # By task
//!
//! - **Know what there is to measure.** [`Machine::live`]: nodes, the CPUs that this process may use, caches.
//! - **Choose.** [`Options`] and [`Part`].
//! - **Measure.** [`measure`] gives [`Results`], which serialize as JSON.
//! - **Write them for others.** [`mlc::text`] as Intel's Memory Latency Checker does, [`preset::text`] as a
//!   machine that `nodewise-hardware` reads.
//!
//! Every thread stays on one CPU, and all memory is bound to its node. A figure is the median of several
//! passes, and has their quartiles, its lowest and its highest beside it.
//!
//! The crate contains `unsafe` in `chase`, `core`, `slice` and `stream`, as the compiler must neither leave
//! out nor merge an access. Each block says why it is sound.
//!
//! ```no_run
//! use nodewise_measure::{Machine, Options, Part, measure};
//!
//! let options = Options { parts: vec![Part::Latency], quick: true, ..Options::default() };
//! let results = measure(&Machine::live()?, &options, |_done, _all, _what| ())?;
//! for row in &results.idle_latency {
//!     println!("from node {} to node {}: {} ns", row.cpu_node, row.memory_node, row.latency_ns.median);
//! }
//! # Ok::<(), nodewise_measure::Error>(())
//! ```

mod cache;
mod chase;
mod core;
mod error;
mod figure;
mod machine;
mod memory;
pub mod mlc;
mod plan;
pub mod preset;
mod results;
mod run;
mod slice;
mod stream;
mod team;

/// The page that is shown to readers.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

pub use error::{Error, ErrorKind};
pub use figure::Figure;
pub use machine::{CacheFacts, Machine, Place};
pub use plan::{Options, Part};
pub use results::{
    AllCpus, Bandwidth, CoreFigures, IdleLatency, LoadedLatency, NodeFacts, PageLatency, Peak, Results,
    Transfer,
};
pub use run::measure;
pub use stream::{NON_TEMPORAL_STORES, Traffic};
