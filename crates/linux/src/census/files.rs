//! The files of `/proc` and `/sys` that a census reads (proc(5), `Documentation/admin-guide/numastat.rst`).

use super::BalancingUse;
use crate::kernel::vmstat_count;
use crate::process::Stat;
use nodewise_engine::PAGE_BYTES;
use nodewise_topology::NodeId;
use std::collections::BTreeMap;
use std::fs;

fn read(path: &str) -> Option<String> {
    // A program's name may hold any bytes.
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

pub(super) fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

pub(super) fn uptime_s() -> f64 {
    let uptime = read("/proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok());
    uptime.unwrap_or(1.0)
}

/// Clock ticks of a CPU since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTicks {
    pub(super) busy: u64,
    pub(super) all: u64,
}

/// The ticks of each CPU, by its number.
pub(super) fn cpu_ticks() -> BTreeMap<u32, CpuTicks> {
    parse_cpu_ticks(&read("/proc/stat").unwrap_or_default())
}

fn parse_cpu_ticks(text: &str) -> BTreeMap<u32, CpuTicks> {
    let cpu = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = words.next()?.parse().ok()?;
        // User, nice, system, idle, iowait, irq, softirq, steal; guests' time is users' time.
        let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
        let all = ticks.iter().sum::<u64>();
        let idle: u64 = ticks.get(3..5)?.iter().sum();
        Some((cpu, CpuTicks { busy: all - idle, all }))
    };
    // The first line is all of them together.
    text.lines().filter(|line| !line.starts_with("cpu ")).filter_map(cpu).collect()
}

/// Pages that were allocated on the node from other nodes' CPUs.
pub(super) fn allocated_from_afar(node: NodeId) -> Option<u64> {
    let text = read(&format!("/sys/devices/system/node/node{node}/numastat"))?;
    text.lines().find_map(|line| line.strip_prefix("other_node "))?.trim().parse().ok()
}

/// All memory of a node and what is free of it, in bytes.
pub(super) fn memory(node: NodeId) -> (Option<u64>, Option<u64>) {
    let text = read(&format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        Some(line.split_ascii_whitespace().rev().nth(1)?.parse::<u64>().ok()? * 1024)
    };
    (field("MemTotal:"), field("MemFree:"))
}

/// Counts of the kernel's NUMA balancing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Balancing {
    is_on: Option<bool>,
    faults: u64,
    near: u64,
    moved: u64,
}

impl Balancing {
    pub(super) fn read() -> Self {
        let text = read("/proc/vmstat").unwrap_or_default();
        let count = |name| vmstat_count(&text, name);
        Self {
            is_on: read("/proc/sys/kernel/numa_balancing").map(|text| text.trim() != "0"),
            faults: count("numa_hint_faults"),
            near: count("numa_hint_faults_local"),
            moved: count("numa_pages_migrated"),
        }
    }

    pub(super) fn since(&self, before: Option<&Self>, seconds: f64) -> BalancingUse {
        let none = Self::default();
        let before = before.unwrap_or(&none);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let (faults, near) = (rate(self.faults, before.faults), rate(self.near, before.near));
        BalancingUse {
            is_on: self.is_on,
            hint_faults_per_s: faults,
            near_percent: (faults > 0.0).then(|| 100.0 * near / faults),
            moved_bytes_per_s: rate(self.moved, before.moved) * PAGE_BYTES as f64,
        }
    }
}

/// Numbers of all processes.
pub(super) fn pids() -> Vec<u32> {
    numbers("/proc")
}

fn numbers(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The threads of a process; none where they are more than are `left` to be looked at.
pub(super) fn threads(process: &Stat, left: &mut usize) -> Vec<Stat> {
    let id = process.id;
    let count = process.thread_count as usize;
    if count == 1 {
        return vec![process.clone()];
    }
    if count > *left {
        return Vec::new();
    }
    *left -= count;
    let threads = numbers(&format!("/proc/{id}/task"));
    threads.into_iter().filter_map(|tid| Stat::read(&format!("/proc/{id}/task/{tid}/stat"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process's own line would tell all of its time as that of its first thread.
    #[test]
    fn threads_that_are_too_many_to_look_at_are_not_made_up() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || wait.recv());
        let stat = Stat::read("/proc/self/stat").unwrap();
        let (mut enough, mut few) = (1000, 1);
        assert!(threads(&stat, &mut enough).len() > 1);
        assert!(threads(&stat, &mut few).is_empty() && few == 1);
        drop(end);
        assert!(waits.join().unwrap().is_err());
    }

    #[test]
    fn idle_time_is_not_busy() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 1 5 70 4 3 2 5 8 0\ncpu12 1 0 0 1 0 0 0 0 0 0\nintr 1\n";
        let ticks = parse_cpu_ticks(text);
        assert_eq!(ticks.len(), 2);
        assert_eq!(ticks[&0], CpuTicks { busy: 26, all: 100 });
        assert_eq!(ticks[&12], CpuTicks { busy: 1, all: 2 });
    }

    #[test]
    fn rates_are_since_the_look_before() {
        let before = Balancing { is_on: Some(true), faults: 100, near: 40, moved: 10 };
        let now = Balancing { is_on: Some(true), faults: 300, near: 90, moved: 60 };
        let used = now.since(Some(&before), 2.0);
        let rates = (used.hint_faults_per_s, used.near_percent, used.moved_bytes_per_s);
        assert_eq!(rates, (100.0, Some(25.0), 25.0 * 4096.0));
        assert_eq!(now.since(Some(&now), 2.0).near_percent, None);
    }
}
