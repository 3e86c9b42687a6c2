//! Threads by node. Memory that was placed for one is far from it when it goes to another node. How much they
//! do there tells how much each node uses memory that several share.

use crate::bounds::{MAPS_TIME, THREADS};
use crate::ending::Until;
use crate::process::{OnePercent, Process, Processes, ReadCost};
use nodewise_engine::{Pid, Tid};
use nodewise_topology::{CpuId, NodeIndex, Topology};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// So much of the CPU time counts a look later.
const FADES: f64 = 0.98;
/// With less CPU time, in clock ticks, it is chance which nodes have it.
const MIN_TICKS: f64 = 100.0;

/// Where threads ran last. Samples would not tell: few are taken of a program whose memory is well placed.
#[derive(Default)]
pub(crate) struct Threads {
    seen: HashMap<(Pid, Tid), Seen>,
    /// Clock ticks of CPU time of late, by node, of processes with several threads.
    ticks: BTreeMap<Pid, Vec<f64>>,
    due: OnePercent,
    pub(crate) cost: ReadCost,
}

/// A thread as it was looked at.
#[derive(Clone, Copy)]
struct Seen {
    node: NodeIndex,
    /// Its CPU time; none where only one thread is there to have any.
    ticks: Option<u64>,
}

impl Threads {
    /// Looks at the threads. Returns how many ran on another node last than at the look before. Takes no more
    /// than 1 % of the time: 0 while no look is due.
    pub(crate) fn look(&mut self, processes: &Processes, topology: &Topology) -> u64 {
        if !self.due.is_due() {
            return 0;
        }
        let begin = Instant::now();
        let spent_ns = self.cost.time_ns;
        let until = Until { at: begin + MAPS_TIME, ending: processes.ending().clone() };
        let mut seen = HashMap::new();
        for process in processes.iter() {
            for (tid, cpu, ticks) in self.threads(process, THREADS.saturating_sub(seen.len()), &until) {
                if let Some(node) = topology.node_of_cpu(CpuId(cpu)) {
                    seen.insert((process.pid, tid), Seen { node, ticks });
                }
            }
        }
        self.due.took(Duration::from_nanos(self.cost.time_ns - spent_ns));
        let before = std::mem::replace(&mut self.seen, seen);
        // Another program's CPU time says nothing of this one's memory.
        let goes_on: HashSet<Pid> = processes.iter().filter(|p| !p.fresh).map(|p| p.pid).collect();
        self.ticks.retain(|pid, _| goes_on.contains(pid));
        self.ticks.values_mut().flatten().for_each(|ticks| *ticks *= FADES);
        let mut moved = 0;
        for (thread, now) in &self.seen {
            let Some(before) = before.get(thread) else { continue };
            moved += u64::from(before.node != now.node);
            if let (Some(before), Some(ticks)) = (before.ticks, now.ticks) {
                let by_node = self.ticks.entry(thread.0).or_insert_with(|| vec![0.0; topology.node_count()]);
                by_node[now.node.get()] += ticks.saturating_sub(before) as f64;
            }
        }
        moved
    }

    /// Shares of the nodes in the CPU time that processes with several threads have had of late.
    pub(crate) fn cpu_time(&self) -> impl Iterator<Item = (Pid, Vec<f64>)> + '_ {
        self.ticks.iter().filter_map(|(&pid, ticks)| {
            let all: f64 = ticks.iter().sum();
            (all >= MIN_TICKS).then(|| (pid, ticks.iter().map(|ticks| ticks / all).collect()))
        })
    }

    /// The CPUs on which a process's threads ran last, and their CPU time, as many as there is room and time
    /// for.
    fn threads(&mut self, process: &Process, most: usize, until: &Until) -> Vec<(Tid, u32, Option<u64>)> {
        match process.last_cpu {
            Some(cpu) if most > 0 => vec![(Tid(process.pid.0), cpu, None)],
            Some(_) => Vec::new(),
            None => {
                let threads = self.cost.threads(process.pid, most, until).into_iter();
                threads.map(|thread| (Tid(thread.id), thread.cpu, Some(thread.ticks))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::{sched_getaffinity, sched_setaffinity};
    use std::process::Command;

    /// Runs a shell that counts, on one CPU after the other.
    #[test]
    fn a_thread_has_moved_if_it_ran_elsewhere_last() {
        let allowed = sched_getaffinity(0).unwrap();
        let cpus: Vec<u32> = allowed.iter().collect();
        // On one CPU there is nowhere to go.
        let [first, .., last] = cpus[..] else { return };
        let topology = Topology::synthetic(last as usize + 1, 1, 1 << 30);
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = Pid(child.id());
        let mut processes = Processes::new(&[pid], true, true).unwrap();
        let mut threads = Threads::default();
        let mut moved = Vec::new();
        for cpu in [first, last, last, first] {
            sched_setaffinity(pid.0 as i32, &[cpu].into_iter().collect()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            processes.update();
            threads.due = OnePercent::default();
            moved.push(threads.look(&processes, &topology));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(moved, [0, 1, 0, 1]);
        processes.update();
        threads.due = OnePercent::default();
        assert_eq!((threads.look(&processes, &topology), threads.seen.len()), (0, 0), "it has ended");
    }

    /// The main thread's line would not tell of the others.
    #[test]
    fn all_threads_are_looked_at_as_far_as_there_is_room() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let waits = std::thread::spawn(move || wait.recv());
        let mut processes = Processes::new(&[Pid(std::process::id())], false, false).unwrap();
        processes.update();
        let process = processes.iter().next().unwrap();
        let until = Until::from(Instant::now() + Duration::from_secs(10));
        let mut threads = Threads::default();
        assert!(threads.threads(process, THREADS, &until).len() > 1);
        assert_eq!(threads.threads(process, 1, &until).len(), 1);
        assert_eq!(threads.threads(process, THREADS, &Until::from(Instant::now())).len(), 0);
        drop(end);
        waits.join().unwrap().unwrap_err();
    }
}
