//! Threads that go from node to node. Memory that was placed for one is far from it afterwards.

use crate::bounds::{MAPS_TIME, THREADS};
use crate::ending::Until;
use crate::process::{OnePercent, Process, Processes, ReadCost};
use nodewise_engine::{Pid, Tid};
use nodewise_topology::{CpuId, NodeIndex, Topology};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Where threads ran last. Samples would not tell: few are taken of a program whose memory is well placed.
#[derive(Default)]
pub(crate) struct Threads {
    nodes: HashMap<(Pid, Tid), NodeIndex>,
    due: OnePercent,
    pub(crate) cost: ReadCost,
}

impl Threads {
    /// How many threads ran on another node last than at the look before. Takes no more than 1 % of the time:
    /// 0 while no look is due.
    pub(crate) fn moved(&mut self, processes: &Processes, topology: &Topology) -> u64 {
        if !self.due.is_due() {
            return 0;
        }
        let begin = Instant::now();
        let spent_ns = self.cost.time_ns;
        let until = Until { at: begin + MAPS_TIME, ending: processes.ending().clone() };
        let mut nodes = HashMap::new();
        for process in processes.iter() {
            for (tid, cpu) in self.cpus(process, THREADS.saturating_sub(nodes.len()), &until) {
                if let Some(node) = topology.node_of_cpu(CpuId(cpu)) {
                    nodes.insert((process.pid, tid), node);
                }
            }
        }
        self.due.took(Duration::from_nanos(self.cost.time_ns - spent_ns));
        let before = std::mem::replace(&mut self.nodes, nodes);
        let is_elsewhere = |(thread, node)| before.get(thread).is_some_and(|before| before != node);
        self.nodes.iter().filter(|&seen| is_elsewhere(seen)).count() as u64
    }

    /// The CPUs on which a process's threads ran last, as many as there is room and time for.
    fn cpus(&mut self, process: &Process, most: usize, until: &Until) -> Vec<(Tid, u32)> {
        match process.last_cpu {
            Some(cpu) if most > 0 => vec![(Tid(process.pid.0), cpu)],
            Some(_) => Vec::new(),
            None => self.cost.last_cpus(process.pid, most, until),
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
            moved.push(threads.moved(&processes, &topology));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(moved, [0, 1, 0, 1]);
        processes.update();
        threads.due = OnePercent::default();
        assert_eq!((threads.moved(&processes, &topology), threads.nodes.len()), (0, 0), "it has ended");
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
        assert!(threads.cpus(process, THREADS, &until).len() > 1);
        assert_eq!(threads.cpus(process, 1, &until).len(), 1);
        assert_eq!(threads.cpus(process, THREADS, &Until::from(Instant::now())).len(), 0);
        drop(end);
        waits.join().unwrap().unwrap_err();
    }
}
