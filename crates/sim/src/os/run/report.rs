//! The report of a run.

use nodewise_engine::imbalance_percent;
use nodewise_hardware::{Counters, Preset};
use serde::Serialize;

/// The figures of a run, from its first instruction to its last.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The policy, by name.
    pub policy: String,
    /// Simulated time from start to end.
    pub run_time_s: f64,
    /// Local access ratio: share of DRAM accesses that went to the accessor's own node, in percent; none
    /// without accesses.
    pub local_access_percent: Option<f64>,
    /// Mean latency of DRAM accesses in core cycles, waiting included.
    pub dram_latency_cycles: f64,
    /// Sample standard deviation (n-1) of the accesses to each controller over their mean, in percent.
    pub controller_imbalance_percent: Option<f64>,
    /// The same of the bytes of each link.
    pub link_imbalance_percent: Option<f64>,
    /// Share of the run in which a link was busy, in percent: mean of all links.
    pub link_use_percent: f64,
    /// The same of the busiest link.
    pub busiest_link_percent: f64,
    /// Misses of the last-level caches for every thousand instructions.
    pub llc_misses_per_kilo_instruction: f64,
    /// Cache lines that went from one node to another: fills from another node's memory or caches, and lines
    /// written back to another node's memory.
    pub lines_between_nodes: u64,
    /// The same for each of the program's additions, tasks or elements, if it has such.
    pub lines_between_nodes_per_item: Option<f64>,
    /// Additions, tasks or elements a second, if the program has such. From its first barrier on: until then
    /// memory is touched for the first time.
    pub items_per_s: Option<f64>,
    /// Instructions a cycle of the CPUs that have a thread.
    pub instructions_per_cycle: f64,
    /// Instructions of all CPUs.
    pub instructions: u64,
    /// Base pages that moved, each time they did.
    pub pages_migrated: u64,
    /// Pages that every node was given a copy of.
    pub pages_replicated: u64,
    /// Replicated pages that lost their copies because somebody wrote.
    pub pages_collapsed: u64,
    /// Huge pages that were split.
    pub pages_split: u64,
    /// Hint faults of NUMA balancing.
    pub hint_faults: u64,
    /// How often it moved a thread to another CPU.
    pub threads_moved: u64,
    /// Samples taken for the engine.
    pub samples: u64,
    /// Time of all threads in the program, waiting for data included.
    pub user_s: f64,
    /// Time of all threads in the kernel.
    pub kernel_s: f64,
    /// Time of all threads at barriers, and after their end.
    pub waiting_s: f64,
    /// DRAM accesses, a row for each accessor node, a column for each home node.
    pub traffic: Vec<Vec<u64>>,
    /// Bytes through each controller.
    pub controller_bytes: Vec<u64>,
    /// Share of the run in which each controller was busy, in percent.
    pub controller_use_percent: Vec<f64>,
    /// Each link's load.
    pub links: Vec<LinkReport>,
    /// Pages of the program on each node at the end, copies included.
    pub resident_pages: Vec<u64>,
    /// The program's pages, a huge one counted once: as many as can be placed apart.
    pub placeable_pages: u64,
}

/// The load of a link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkReport {
    /// From this node
    pub from: usize,
    /// to this one.
    pub to: usize,
    /// Bytes that went over it.
    pub bytes: u64,
    /// Share of the run in which it was busy, in percent.
    pub use_percent: f64,
}

/// Times of a run, in picoseconds.
pub(crate) struct Times {
    pub(crate) run_ps: u64,
    pub(crate) first_barrier_ps: u64,
    pub(crate) kernel_ps: u64,
    pub(crate) waiting_ps: u64,
    pub(crate) threads: usize,
}

impl Report {
    /// From the counters of the whole run; the placeable pages are the caller's to say.
    pub(crate) fn new(
        policy: String,
        preset: &Preset,
        counters: &Counters,
        times: &Times,
        done: crate::os::kernel::machine::OsCounters,
        items: Option<u64>,
        resident_pages: Vec<u64>,
    ) -> Self {
        let nodes = counters.nodes;
        let seconds = |ps: u64| ps as f64 / 1e12;
        let run_ps = times.run_ps.max(1);
        let percent = |busy_ps: u64| 100.0 * busy_ps as f64 / run_ps as f64;
        let traffic: Vec<Vec<u64>> =
            (0..nodes).map(|from| (0..nodes).map(|to| counters.dram_between(from, to)).collect()).collect();
        let accesses: u64 = counters.dram.iter().sum();
        let local: u64 = (0..nodes).map(|node| traffic[node][node]).sum();
        let by_home: Vec<f64> =
            (0..nodes).map(|home| traffic.iter().map(|row| row[home]).sum::<u64>() as f64).collect();
        let serves = |node: &nodewise_hardware::Node| node.memory_bytes > 0 && node.cores > 0;
        let balanced: Vec<bool> = preset.nodes.iter().map(serves).collect();
        let links: Vec<LinkReport> = preset
            .links
            .iter()
            .zip(&counters.links)
            .map(|(link, load)| LinkReport {
                from: link.from,
                to: link.to,
                bytes: load.bytes,
                use_percent: percent(load.busy_ps),
            })
            .collect();
        let link_bytes: Vec<f64> = links.iter().map(|link| link.bytes as f64).collect();
        let instructions: u64 = counters.instructions.iter().sum();
        let cycles = times.run_ps as f64 / preset.cycle_ps() * times.threads as f64;
        let lines_between_nodes = counters.lines_between_nodes();
        let threads_ps = times.run_ps * times.threads as u64;
        Self {
            policy,
            run_time_s: seconds(times.run_ps),
            local_access_percent: (accesses > 0).then(|| 100.0 * local as f64 / accesses as f64),
            dram_latency_cycles: counters.mean_dram_latency_ps() / preset.cycle_ps(),
            controller_imbalance_percent: imbalance_percent(&by_home, &balanced),
            link_imbalance_percent: imbalance_percent(&link_bytes, &vec![true; links.len()]),
            link_use_percent: links.iter().fold(0.0, |sum, link| sum + link.use_percent)
                / links.len().max(1) as f64,
            busiest_link_percent: links.iter().map(|link| link.use_percent).fold(0.0, f64::max),
            llc_misses_per_kilo_instruction: counters.llc_misses.iter().sum::<u64>() as f64 * 1000.0
                / instructions.max(1) as f64,
            lines_between_nodes,
            lines_between_nodes_per_item: items.map(|items| lines_between_nodes as f64 / items.max(1) as f64),
            items_per_s: items.map(|items| items as f64 / seconds(run_ps - times.first_barrier_ps)),
            instructions_per_cycle: instructions as f64 / cycles.max(1.0),
            instructions,
            pages_migrated: done.migrated,
            pages_replicated: done.replicated,
            pages_collapsed: done.collapsed,
            pages_split: done.split,
            hint_faults: done.hint_faults,
            threads_moved: done.threads_moved,
            samples: done.samples,
            user_s: seconds(threads_ps.saturating_sub(times.kernel_ps + times.waiting_ps)),
            kernel_s: seconds(times.kernel_ps),
            waiting_s: seconds(times.waiting_ps),
            traffic,
            controller_use_percent: counters.controllers.iter().map(|load| percent(load.busy_ps)).collect(),
            controller_bytes: counters.controllers.iter().map(|load| load.bytes).collect(),
            links,
            resident_pages,
            placeable_pages: 0,
        }
    }
}
