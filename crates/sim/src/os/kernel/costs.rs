//! The costs that the operating system charges.

use nodewise_hardware::Preset;

/// Kernel time of each thing the operating system does, in nanoseconds.
///
/// Copies are not in here: they go through the machine's controllers and links. All are our estimates for
/// x86-64 of the 2010s, of the order that `perf trace` and lmbench show; none was calibrated with a published
/// row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// First touch of a 4 KiB page: the fault, allocation and zeroing.
    pub page_fault_ns: u64,
    /// First touch of a huge page: mostly zeroing 2 MiB, at about 10 GB/s.
    pub huge_page_fault_ns: u64,
    /// A NUMA hint fault, without what it leads to.
    pub hint_fault_ns: u64,
    /// Marking a page for a hint fault.
    pub mark_page_ns: u64,
    /// Moving or copying a page (or huge page), besides its bytes: isolation, allocation, page tables.
    pub move_page_ns: u64,
    /// Moving a thread to another core: waking the thread that stops it, run queues. The losses of its caches
    /// come on top.
    pub move_thread_ns: u64,
    /// Splitting a huge page's mapping.
    pub split_ns: u64,
    /// A TLB shootdown, for who asks.
    pub shootdown_ns: u64,
    /// The same, for every other core that runs the process: the interrupt, and the misses it leaves behind.
    pub interrupted_ns: u64,
    /// Pages that one shootdown covers when a list of pages is moved (`NR_MAX_BATCHED_MIGRATION`,
    /// mm/migrate.c, Linux 6.3: 512).
    pub pages_per_shootdown: u64,
    /// Taking a sample: the interrupt and its handler.
    pub sample_ns: u64,
    /// Getting past a barrier, once everyone is there.
    pub barrier_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            page_fault_ns: 1000,
            huge_page_fault_ns: 200_000,
            hint_fault_ns: 1000,
            mark_page_ns: 20,
            move_page_ns: 2000,
            move_thread_ns: 10_000,
            split_ns: 5000,
            shootdown_ns: 2000,
            interrupted_ns: 1000,
            pages_per_shootdown: 512,
            sample_ns: 1000,
            barrier_ns: 500,
        }
    }
}

impl Costs {
    /// The costs of a machine: on one without caches as the ACE study has them (`studies/ace/run.rs`), else
    /// the default.
    #[must_use]
    pub fn of(preset: &Preset) -> Self {
        let default = Self::default();
        if preset.uncached.is_none() {
            return default;
        }
        Self {
            page_fault_ns: 1_000_000,
            hint_fault_ns: 1_000_000,
            move_page_ns: 0,
            shootdown_ns: 100_000,
            interrupted_ns: 0,
            pages_per_shootdown: 1,
            ..default
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cost_has_its_source() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fidelity/operating-system.md");
        let text = std::fs::read_to_string(path).unwrap();
        let costs = format!("{:#?}", Costs::default());
        let costs: Vec<_> =
            costs.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(": ")).collect();
        assert!(!costs.is_empty());
        for (name, value) in costs {
            let row = format!("| `{name}` | {value} | ");
            let source = text.lines().find_map(|line| line.strip_prefix(&row)?.strip_suffix(" |"));
            assert!(source.is_some_and(|source| !source.is_empty()), "where from? {row}");
        }
    }
}
