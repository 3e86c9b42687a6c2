//! Counts of events by the kernel, most of them machine-wide, before and after a run.

use std::collections::BTreeMap;
use std::fs::read_to_string;

/// Counts so far, by name.
pub struct Events(BTreeMap<String, u64>);

/// The beginnings of the names in `/proc/vmstat` that matter: NUMA, migrations, huge pages, faults, and
/// flushes of TLBs.
const VMSTAT: [&str; 6] = ["numa_", "pgmigrate_", "thp_", "pgfault", "pgmajfault", "nr_tlb_"];

impl Events {
    /// The counts now. A count that the kernel does not keep is left out.
    pub fn now() -> Self {
        let mut counts = BTreeMap::new();
        let vmstat = read_to_string("/proc/vmstat").unwrap_or_default();
        for (name, count) in vmstat.lines().filter_map(|line| line.split_once(' ')) {
            let matters = VMSTAT.iter().any(|begin| name.starts_with(begin));
            if let (true, Ok(count)) = (matters, count.parse()) {
                counts.insert(name.to_owned(), count);
            }
        }
        let stat = read_to_string("/proc/stat").unwrap_or_default();
        let switches = stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
        counts.extend(switches.map(|count| ("context switches, machine-wide".to_owned(), count)));
        counts.extend(shootdowns().map(|count| ("TLB shootdowns".to_owned(), count)));
        Self(counts)
    }

    /// The events since these counts.
    pub fn since(&self, before: &Self) -> BTreeMap<String, f64> {
        let since = |(name, after): (&String, &u64)| {
            Some((name.clone(), after.saturating_sub(*before.0.get(name)?) as f64))
        };
        self.0.iter().filter_map(since).collect()
    }
}

/// Requests to CPUs to flush their TLBs, so far and machine-wide.
pub fn shootdowns() -> Option<u64> {
    summed(&read_to_string("/proc/interrupts").ok()?)
}

/// The sum over all CPUs.
fn summed(interrupts: &str) -> Option<u64> {
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("TLB:"))?;
    Some(line.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shootdowns_are_summed_over_cpus() {
        let text = "            CPU0       CPU1\n  0:   5  6  IO-APIC\nTLB:   10   32   TLB shootdowns\n";
        assert_eq!(summed(text), Some(42));
        assert_eq!(summed("  0: 5\n"), None);
    }

    #[test]
    fn faults_of_this_program_are_seen() {
        let before = Events::now();
        std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(Events::now().since(&before)["pgfault"] >= 1.0);
    }
}
