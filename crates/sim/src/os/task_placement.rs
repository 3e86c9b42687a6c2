//! Which threads NUMA balancing of Linux 6 moves to other CPUs (`kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: an idle CPU on the preferred node unless that unbalances the nodes, else a thread to swap
//! with. Left out: the kernel's other load balancing, other processes, and distances between nodes (machines whose nodes are all alike).

use super::task::{Faults, Task};

/// What has to be gained by a swap (`SMALLIMP`), in thousandths of a thread's faults.
const LEAST: f64 = 30.0;
/// Threads that a node may have more than another, if it has no more than an eighth of its CPUs running (`NUMA_IMBALANCE_MIN`, `imb_numa_nr`).
const SMALL_IMBALANCE: usize = 2;

/// Where a thread goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To a core that runs none.
    To(usize),
    /// Where this one runs, which comes here.
    Swap(usize),
}

/// Who is where, and would rather be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    pub(super) tasks: &'a [Task],
    /// Faults of the threads that share pages, and whether several nodes are active in it.
    pub(super) group: &'a Faults,
    pub(super) several_active: bool,
    pub(super) node_of_core: &'a [usize],
    /// Core and node of each thread, and those that run.
    pub(super) threads: &'a [(usize, usize)],
    pub(super) running: &'a [usize],
}

impl Situation<'_> {
    /// What a thread does about not being on the node it prefers (`task_numa_migrate`).
    pub(super) fn step(&self, thread: usize, preferred: usize) -> Option<Step> {
        let from = self.threads[thread].1;
        let grouped = self.tasks[thread].grouped;
        let mut best: Option<(Step, f64)> = None;
        let others = (0..self.group.cpu.len()).filter(|&node| node != preferred && node != from);
        for (turn, to) in [preferred].into_iter().chain(others).enumerate() {
            if turn == 1 && best.is_some() && !(grouped && self.several_active) {
                break;
            }
            let own = self.gain(thread, from, to);
            let of_group = if grouped { self.group.weight(to) - self.group.weight(from) } else { 0.0 };
            if turn > 0 && own < 0.0 && of_group < 0.0 {
                continue;
            }
            self.compare(thread, to, own, of_group, &mut best);
        }
        best.map(|best| best.0)
    }

    /// What a thread's own faults say about going from a node to another, in thousandths.
    fn gain(&self, thread: usize, from: usize, to: usize) -> f64 {
        let faults = &self.tasks[thread].past;
        faults.weight(to) - faults.weight(from)
    }

    /// The best that can be done on a node, where a thread's own faults and those of its group say so much for going there (`task_numa_find_cpu`,
    /// `task_numa_compare`).
    fn compare(&self, thread: usize, to: usize, own: f64, of_group: f64, best: &mut Option<(Step, f64)>) {
        let Situation { tasks, threads, running, .. } = *self;
        let from = threads[thread].1;
        let on = |node: usize| running.iter().filter(|&&thread| threads[thread].1 == node).count();
        let cores = || (0..self.node_of_core.len()).filter(|&core| self.node_of_core[core] == to);
        let idle = cores().find(|&core| threads.iter().all(|thread| thread.0 != core));
        if let Some(core) = idle {
            let (there, here) = (on(to) + 1, on(from).saturating_sub(1));
            let surplus = there.saturating_sub(here);
            let few = there <= (cores().count() / 8).max(1);
            if surplus == 0 || few && surplus <= SMALL_IMBALANCE {
                *best = Some((Step::To(core), 0.0));
                return;
            }
        }
        let comes_home = |other: usize| tasks[other].preferred == Some(from);
        for &other in running.iter().filter(|&&other| threads[other].1 == to) {
            let swap = match *best {
                Some((Step::Swap(other), _)) => Some(comes_home(other)),
                _ => None,
            };
            let mates = tasks[thread].grouped == tasks[other].grouped;
            // Of mates none has to suffer while there are idle CPUs.
            if swap == Some(true) && !comes_home(other) || mates && idle.is_some() {
                continue;
            }
            let mut gain = if mates || !tasks[thread].grouped { own } else { of_group };
            gain += self.gain(other, to, from);
            if mates && tasks[thread].grouped {
                gain -= gain / 16.0;
            }
            if tasks[other].preferred == Some(to) {
                gain -= gain / 16.0;
            } else if comes_home(other) {
                gain += gain / 8.0;
            }
            let enough = gain >= LEAST && gain > best.map_or(0.0, |best| best.1) + LEAST / 2.0;
            if enough || swap == Some(false) && comes_home(other) {
                *best = Some((Step::Swap(other), gain));
                if comes_home(other) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the first of threads on cores of two nodes of four does, whose faults are on memory of these nodes, in hundreds.
    fn step(cores: &[usize], faults: &[[u32; 2]], grouped: bool) -> Option<Step> {
        let node_of_core = [0, 0, 0, 0, 1, 1, 1, 1];
        let mut group = Faults::new(2);
        let mut tasks = Vec::new();
        for on in faults {
            let mut task = Task { grouped, ..Task::new(2, 0) };
            task.past.shared = on.map(|faults| f64::from(100 * faults)).to_vec();
            task.preferred = task.past.most();
            group.add(1.0, &task.past);
            tasks.push(task);
        }
        let threads: Vec<_> = cores.iter().map(|&core| (core, node_of_core[core])).collect();
        let running: Vec<_> = (0..cores.len()).collect();
        let situation = Situation {
            tasks: &tasks,
            group: &group,
            several_active: true,
            node_of_core: &node_of_core,
            threads: &threads,
            running: &running,
        };
        situation.step(0, tasks[0].preferred.unwrap())
    }

    #[test]
    fn a_thread_goes_to_an_idle_cpu_where_its_memory_is() {
        assert_eq!(step(&[0], &[[0, 1]], false), Some(Step::To(4)));
    }

    #[test]
    fn it_stays_where_it_would_unbalance_the_nodes() {
        assert_eq!(step(&[0, 4], &[[0, 1], [0, 1]], false), None);
    }

    #[test]
    fn threads_that_sit_on_each_others_memory_swap_if_no_cpu_is_idle() {
        let faults = [[0, 1], [1, 0], [1, 0], [1, 0], [1, 2], [1, 0], [0, 1], [0, 1]];
        assert_eq!(step(&[0, 4], &faults[4..6], false), None);
        assert_eq!(
            step(&[0, 4, 5, 6, 7], &[[0, 1], [0, 1], [0, 1], [0, 1], [1, 0]], false),
            Some(Step::Swap(4))
        );
        // One that would rather be there comes before one that would not.
        let all: Vec<_> = (0..8).collect();
        assert_eq!(step(&all, &faults, false), Some(Step::Swap(5)));
    }

    #[test]
    fn threads_that_share_everything_stay() {
        for core in 4..8 {
            let cores: Vec<_> = [core].into_iter().chain((0..8).filter(|&other| other != core)).collect();
            assert_eq!(step(&cores, &[[1, 0]; 8], true), None);
        }
    }
}
