//! A look at the whole machine: what is free on its nodes, which processes run, on which nodes, and where
//! their memory lies. It takes no samples and changes nothing.
//!
//! One small file is read of every process, and more only of the busiest. The kernel is asked where pages lie
//! that are evenly spread over a process's memory (`move_pages(2)`). So a look costs as much for a terabyte.

mod files;
mod memory;

pub use memory::RegionUse;

use crate::kernel::LiveKernel;
use crate::process::Stat;
use files::{Balancing, CpuTicks, ticks_per_second};
use memory::Shares;
use nodewise_engine::{PAGE_BYTES, Pid};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One look at the machine. Rates are those since the look before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Overview {
    /// How long ago the look before was.
    pub seconds: f64,
    /// All nodes.
    pub nodes: Vec<NodeUse>,
    /// The kernel's NUMA balancing.
    pub balancing: BalancingUse,
    /// The processes that used most CPU time, and among those that used as much the largest. None of them is
    /// a thread of the kernel.
    pub processes: Vec<ProcessUse>,
    /// All processes.
    pub process_count: usize,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeUse {
    /// Its number.
    pub node: NodeId,
    /// Its CPUs that are online.
    pub cpus: usize,
    /// Share of their time in which they were not idle; none without CPUs, and where it is unknown.
    pub busy_percent: Option<f64>,
    /// Its memory; none where that is unknown.
    pub total_bytes: Option<u64>,
    /// Its memory that is free.
    pub free_bytes: Option<u64>,
    /// Memory that was allocated on it from other nodes' CPUs, in a second (`numastat`, `other_node`).
    pub allocated_from_afar_bytes_per_s: Option<f64>,
}

/// Events of the kernel's NUMA balancing in a second (`/proc/vmstat`).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BalancingUse {
    /// Whether it is on (`kernel.numa_balancing`); none on a kernel that has none.
    pub is_on: Option<bool>,
    /// Hint faults.
    pub hint_faults_per_s: f64,
    /// Their share that met a page of the CPU's own node; none without any.
    pub near_percent: Option<f64>,
    /// Memory that it moved.
    pub moved_bytes_per_s: f64,
}

/// A process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessUse {
    /// Its number.
    pub pid: Pid,
    /// Its program, as the kernel knows it: up to 15 bytes of any kind.
    pub program: String,
    /// CPU time that it used, in percent of one CPU.
    pub cpu_percent: f64,
    /// Its resident memory.
    pub resident_bytes: u64,
    /// Share of its CPU time on each node, in the order of [`Overview::nodes`]; none if it used none.
    pub runs_on: Option<Vec<f64>>,
    /// Share of its memory on each node; none where that may not be asked, or too little was found.
    pub lies_on: Option<Vec<f64>>,
    /// The least share of its accesses that are far if it uses all of its memory alike, in percent. Threads
    /// of a node find near no more than the share of memory that lies there.
    pub far_at_least_percent: Option<f64>,
    /// The threads that ran, the busiest first.
    pub threads: Vec<ThreadUse>,
}

impl ProcessUse {
    /// CPU time that at least went to far memory, as far as is known, in percent of one CPU.
    #[must_use]
    pub fn far_cpu_percent(&self) -> f64 {
        self.cpu_percent * self.far_at_least_percent.unwrap_or(0.0) / 100.0
    }
}

/// A thread of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ThreadUse {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// CPU time that it used, in percent of one CPU.
    pub cpu_percent: f64,
    /// The node on which it ran last.
    pub node: Option<NodeId>,
}

/// Threads that are looked at in one look, of all processes together: a file each, some 15 us.
const THREADS: usize = 4096;
/// How often it is asked where a process's memory lies, at most.
const PLACES_EVERY: Duration = Duration::from_secs(5);
/// How often where it rests.
const PLACES_EVERY_RESTING: Duration = Duration::from_secs(30);
/// And no sooner than so many times as long as the answer took.
const PLACES_COST: u32 = 100;

/// Looks at the machine again and again.
#[derive(Debug)]
pub struct Census {
    topology: Topology,
    kernel: LiveKernel,
    most: usize,
    followed: Option<Pid>,
    ticks_per_second: f64,
    before: Option<Before>,
    known: BTreeMap<u32, Known>,
}

/// The counts at the last look.
#[derive(Debug)]
struct Before {
    at: Instant,
    cpus: BTreeMap<u32, CpuTicks>,
    allocated: Vec<Option<u64>>,
    balancing: Balancing,
}

/// A process as it was at the last look.
#[derive(Debug, Default)]
struct Known {
    start_time: u64,
    ticks: u64,
    threads: BTreeMap<u32, u64>,
    lies_on: Option<Places>,
}

/// The places of its memory when the kernel was asked last.
#[derive(Debug)]
struct Places {
    asked: Instant,
    took: Duration,
    shares: Option<Shares>,
}

impl Census {
    /// A census that looks closer at so many processes at most.
    #[must_use]
    pub fn new(topology: Topology, most: usize) -> Self {
        let kernel = LiveKernel::default();
        let ticks_per_second = ticks_per_second();
        Self {
            topology,
            kernel,
            most,
            followed: None,
            ticks_per_second,
            before: None,
            known: BTreeMap::new(),
        }
    }

    /// The machine's nodes.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// From now on looks closely at this process, too, however little it does.
    pub const fn follow(&mut self, pid: Option<Pid>) {
        self.followed = pid;
    }

    /// Looks. The first look has no rates: they are since boot, and since each process began.
    pub fn look(&mut self) -> Overview {
        let now = Instant::now();
        let before = self.before.take();
        let seconds = before.as_ref().map_or_else(files::uptime_s, |before| (now - before.at).as_secs_f64());
        let next = Before {
            at: now,
            cpus: files::cpu_ticks(),
            allocated: self.topology.nodes().iter().map(|node| files::allocated_from_afar(node.id)).collect(),
            balancing: Balancing::read(),
        };
        let nodes = self.nodes(&next, before.as_ref(), seconds);
        let balancing = next.balancing.since(before.map(|before| before.balancing).as_ref(), seconds);
        self.before = Some(next);
        let (processes, process_count) = self.processes(now, seconds);
        Overview { seconds, nodes, balancing, processes, process_count }
    }

    fn nodes(&self, next: &Before, before: Option<&Before>, seconds: f64) -> Vec<NodeUse> {
        let busy = |cpus: &[u32]| {
            let (mut busy, mut all) = (0, 0);
            for cpu in cpus {
                let last = before.and_then(|before| before.cpus.get(cpu)).copied().unwrap_or_default();
                let now = next.cpus.get(cpu)?;
                busy += now.busy.saturating_sub(last.busy);
                all += now.all.saturating_sub(last.all);
            }
            (all > 0).then(|| 100.0 * busy as f64 / all as f64)
        };
        let nodes = self.topology.nodes().iter().enumerate();
        nodes
            .map(|(at, node)| {
                let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.0).collect();
                let (total_bytes, free_bytes) = files::memory(node.id);
                let last = before.and_then(|before| before.allocated[at]).unwrap_or(0);
                let pages = next.allocated[at].map(|pages| pages.saturating_sub(last));
                NodeUse {
                    node: node.id,
                    cpus: cpus.len(),
                    busy_percent: busy(&cpus),
                    total_bytes,
                    free_bytes,
                    allocated_from_afar_bytes_per_s: pages
                        .map(|pages| pages as f64 * PAGE_BYTES as f64 / seconds),
                }
            })
            .collect()
    }

    fn processes(&mut self, now: Instant, seconds: f64) -> (Vec<ProcessUse>, usize) {
        let mut known = std::mem::take(&mut self.known);
        let mut found: Vec<(u64, Stat, Known)> = Vec::new();
        for pid in files::pids() {
            let Some(stat) = Stat::read(&format!("/proc/{pid}/stat")).filter(|stat| !stat.of_the_kernel)
            else {
                continue;
            };
            let mut known = known.remove(&pid).filter(|known| known.start_time == stat.start_time);
            let last = known.as_ref().map_or(0, |known| known.ticks);
            let mut process = known.take().unwrap_or_default();
            (process.start_time, process.ticks) = (stat.start_time, stat.ticks);
            found.push((stat.ticks.saturating_sub(last), stat, process));
        }
        let count = found.len();
        found.sort_by_key(|(ticks, stat, _)| std::cmp::Reverse((*ticks, stat.resident_pages)));
        let mut threads_left = THREADS;
        let mut shown = Vec::new();
        for (at, (ticks, stat, mut process)) in found.into_iter().enumerate() {
            if at < self.most || self.followed == Some(Pid(stat.id)) {
                shown.push(self.process(now, seconds, ticks, &stat, &mut process, &mut threads_left));
            }
            self.known.insert(stat.id, process);
        }
        (shown, count)
    }

    fn process(
        &mut self,
        now: Instant,
        seconds: f64,
        ticks: u64,
        stat: &Stat,
        known: &mut Known,
        threads_left: &mut usize,
    ) -> ProcessUse {
        let pid = Pid(stat.id);
        let (mut threads, mut runs_on) = (Vec::new(), vec![0.0; self.topology.node_count()]);
        let mut counts = BTreeMap::new();
        // One that rests is asked nothing more.
        if ticks > 0 {
            for thread in files::threads(stat, threads_left) {
                counts.insert(thread.id, thread.ticks);
                let last = known.threads.get(&thread.id).copied();
                // Threads of a process that was not looked at before are weighed by all of their time.
                let used = thread.ticks.saturating_sub(last.unwrap_or(0));
                let node = self.node_of(thread.cpu);
                if used > 0 {
                    if let Some(node) = node {
                        runs_on[node.get()] += used as f64;
                    }
                    threads.push((used, thread, node));
                }
            }
        }
        let all: u64 = threads.iter().map(|(used, ..)| used).sum();
        let percent = 100.0 / (self.ticks_per_second * seconds);
        let scale = ticks as f64 / all.max(1) as f64 * percent;
        threads.sort_by_key(|(used, thread, _)| (std::cmp::Reverse(*used), thread.id));
        let threads = threads
            .into_iter()
            .map(|(used, thread, node)| ThreadUse {
                tid: thread.id,
                name: thread.name,
                cpu_percent: used as f64 * scale,
                node: node.map(|node| self.topology.id_of(node)),
            })
            .collect();
        // One that rests goes on from there.
        if ticks > 0 {
            known.threads = counts;
        }
        let every = if ticks > 0 { PLACES_EVERY } else { PLACES_EVERY_RESTING };
        if known
            .lies_on
            .as_ref()
            .is_none_or(|places| now - places.asked >= every.max(places.took * PLACES_COST))
        {
            let begin = Instant::now();
            let shares = memory::shares(&mut self.kernel, &self.topology, pid);
            known.lies_on = Some(Places { asked: now, took: begin.elapsed(), shares });
        }
        let runs_on = shares_of(&runs_on);
        let lies_on = known.lies_on.as_ref().and_then(|places| places.shares.clone());
        ProcessUse {
            pid,
            program: stat.name.clone(),
            cpu_percent: ticks as f64 * percent,
            resident_bytes: stat.resident_pages * PAGE_BYTES,
            far_at_least_percent: far_at_least_percent(runs_on.as_deref(), lies_on.as_deref()),
            runs_on,
            lies_on,
            threads,
        }
    }

    fn node_of(&self, cpu: u32) -> Option<NodeIndex> {
        self.topology.node_of_cpu(nodewise_topology::CpuId(cpu))
    }

    /// The mappings of a process with memory in them, the largest first.
    #[must_use]
    pub fn regions(&mut self, pid: Pid) -> Vec<RegionUse> {
        memory::regions(&mut self.kernel, &self.topology, pid)
    }
}

/// The parts of a whole, if there is one.
fn shares_of(counts: &[f64]) -> Option<Vec<f64>> {
    let all: f64 = counts.iter().sum();
    (all > 0.0).then(|| counts.iter().map(|count| count / all).collect())
}

fn far_at_least_percent(runs_on: Option<&[f64]>, lies_on: Option<&[f64]>) -> Option<f64> {
    let near: f64 = runs_on?.iter().zip(lies_on?).map(|(runs, lies)| runs.min(*lies)).sum();
    Some(100.0 * (1.0 - near).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn what_cannot_be_near_is_far() {
        let far = |runs: &[f64], lies: &[f64]| far_at_least_percent(Some(runs), Some(lies));
        assert_eq!(far(&[0.0, 1.0], &[1.0, 0.0]), Some(100.0));
        assert_eq!(far(&[0.25; 4], &[1.0, 0.0, 0.0, 0.0]), Some(75.0));
        // Each may be using its own part.
        assert_eq!(far(&[0.25; 4], &[0.25; 4]), Some(0.0));
        assert_eq!(far_at_least_percent(None, Some(&[1.0])), None);
    }

    #[test]
    fn a_busy_thread_of_this_process_is_found_with_its_memory() {
        const BYTES: u64 = 128 << 20;
        let memory = vec![1_u8; BYTES as usize];
        let mut census = Census::new(Topology::live().unwrap(), 1000);
        let pid = Pid(std::process::id());
        let own = |look: &Overview| look.processes.iter().find(|process| process.pid == pid).cloned();
        let before = own(&census.look()).unwrap();
        assert!(before.resident_bytes >= BYTES, "{before:?}");
        let stop = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let busy = std::thread::Builder::new().name("census busy".to_owned());
            let spin = || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            };
            busy.spawn_scoped(scope, spin).unwrap();
            // On a busy machine it waits long for a CPU.
            let end = Instant::now() + Duration::from_secs(60);
            let seen = std::iter::from_fn(|| {
                std::thread::sleep(Duration::from_millis(100));
                (Instant::now() < end).then(|| own(&census.look()).unwrap())
            });
            let is_busy = |own: &ProcessUse| own.threads.iter().any(|thread| thread.name == "census busy");
            let seen = { seen }.find(is_busy);
            stop.store(true, Ordering::Relaxed);
            seen.expect("the thread is seen")
        });
        assert!(seen.cpu_percent > 0.0, "{seen:?}");
        for shares in [seen.runs_on.unwrap(), seen.lies_on.unwrap()] {
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
        let regions = census.regions(pid);
        let resident: u64 = regions.iter().map(|region| region.resident_bytes).sum();
        assert!(regions[0].resident_bytes >= BYTES / 10 * 9, "{:?}", regions[0]);
        // Other tests run in this process.
        assert!(resident.abs_diff(seen.resident_bytes) < seen.resident_bytes / 3, "{resident}: {regions:?}");
        drop(memory);
    }

    #[test]
    fn nodes_have_what_their_files_say() {
        let mut census = Census::new(Topology::live().unwrap(), 4);
        let look = census.look();
        assert_eq!(look.nodes.len(), census.topology().node_count());
        for node in &look.nodes {
            assert!(node.free_bytes <= node.total_bytes, "{node:?}");
            assert!(node.busy_percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)), "{node:?}");
        }
        assert!(look.processes.len() <= 4 && look.seconds > 0.0);
    }
}
