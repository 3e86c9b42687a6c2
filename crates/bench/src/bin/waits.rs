//! `waits`: how long threads wait for pages that are being moved, beside how long the calls take that move
//! them.
#![forbid(unsafe_code)]

use anyhow::ensure;
use clap::Parser;
use nodewise_bench::{first_touch, pin_to_node};
use nodewise_engine::{PageNumber, PageRange};
use nodewise_linux::kernel::LiveKernel;
use nodewise_linux::mover::{Job, Mover, MoverSettings};
use nodewise_sys::{Advice, Mapping, MappingOptions};
use nodewise_topology::Topology;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measure how long threads wait for pages that are being moved
///
/// One thread on each node but the first writes to every page again and again, while one on the first moves
/// all of them to the next node: in calls that take about 20 ms or move 2 MiB, as Nodewise does, and in calls
/// of up to 32 MiB. Times are in milliseconds.
#[derive(Parser)]
#[command(after_help = "Example:
  nodewise rig --nodes 4 -- target/release/waits")]
struct Args {
    /// Move this much memory, in MiB
    #[arg(long, default_value_t = 32)]
    mebibytes: usize,
    /// Take so many turns, each with both kinds of groups
    #[arg(long, default_value_t = 5)]
    turns: u32,
}

const WORDS_PER_PAGE: usize = 512;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let topology = Topology::live()?;
    ensure!(topology.node_count() > 1, "this needs two nodes or more; try it under nodewise rig --nodes 4");
    let options = MappingOptions { align_bytes: 2 << 20, ..MappingOptions::default() };
    let memory = Mapping::new(args.mebibytes << 20, options)?;
    memory.advise(0..memory.bytes(), Advice::NoHugePage)?;
    pin_to_node(&topology, 0)?;
    first_touch(&memory);

    let stop = AtomicBool::new(false);
    let longest_ns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for node in 1..topology.node_count() {
            let (topology, memory, stop, longest_ns) = (&topology, &memory, &stop, &longest_ns);
            scope.spawn(move || {
                pin_to_node(topology, node).expect("a node's own CPUs are there");
                let mut before = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    for word in memory.as_atomics().iter().step_by(WORDS_PER_PAGE) {
                        word.fetch_add(1, Ordering::Relaxed);
                        let now = Instant::now();
                        longest_ns.fetch_max((now - before).as_nanos() as u64, Ordering::Relaxed);
                        before = now;
                    }
                }
            });
        }
        println!("calls        pages  longest call  longest wait  longest wait at rest");
        let most = |node| Some((topology.id_of(node), topology.most_memory_bytes(node)?));
        let node_bytes = || topology.node_indices().filter_map(most).collect();
        let mover = |call_ns| {
            let settings = MoverSettings { call_ns, ..MoverSettings::default() };
            Mover::new(LiveKernel::default(), settings, node_bytes())
        };
        let mut movers = [("20 ms", mover(MoverSettings::default().call_ns)), ("long", mover(u64::MAX))];
        let nodes: Vec<_> = topology.nodes().iter().map(|node| node.id).collect();
        for turn in 0..args.turns as usize {
            for (which, (name, mover)) in movers.iter_mut().enumerate() {
                let to = nodes[(2 * turn + which + 1) % nodes.len()];
                let first = PageNumber(memory.address() / 4096);
                let range = PageRange::new(first.0, first.0 + memory.pages() as u64);
                let target = |_, _, _| Some(to);
                let jobs = [Job { range, mappers: &Vec::new, target: &target, whole_folios: true }];
                std::thread::sleep(Duration::from_millis(300));
                let at_rest = longest_ns.swap(0, Ordering::Relaxed);
                let outcome = mover.carry_out(std::process::id(), &jobs, u64::MAX)[0];
                let waited = longest_ns.swap(0, Ordering::Relaxed);
                let ms = |ns: u64| ns as f64 / 1e6;
                println!(
                    "{name:<10} {:>7} {:>13.1} {:>13.1} {:>21.1}",
                    outcome.moved,
                    ms(outcome.longest_call_ns),
                    ms(waited),
                    ms(at_rest),
                );
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}
