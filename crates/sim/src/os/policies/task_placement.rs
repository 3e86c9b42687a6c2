//! Which threads NUMA balancing of Linux 6 moves to other CPUs (`kernel/sched/fair.c`, Linux 6.12), for one
//! process.
//!
//! As the kernel does it: an idle CPU on the preferred node unless that unbalances the nodes, else a thread
//! to swap with. Left out: the kernel's other load balancing, other processes, and distances between nodes
//! (machines whose nodes are all alike).

use crate::os::policies::group::Group;
use crate::os::policies::task::Task;

/// The least gain of a swap (`SMALLIMP`), in thousandths of a thread's faults.
const LEAST: f64 = 30.0;
/// Threads that a node may have more than another, if it has no more than an eighth of its CPUs running
/// (`NUMA_IMBALANCE_MIN`, `imb_numa_nr`).
const SMALL_IMBALANCE: usize = 2;

/// Where a thread goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To a CPU that runs none.
    To(usize),
    /// Where this one runs, which comes here.
    Swap(usize),
}

/// The place of each thread, and the place that it would rather have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation<'a> {
    pub(crate) tasks: &'a [Task],
    pub(crate) groups: &'a [Group],
    pub(crate) node_of_cpu: &'a [usize],
    /// Hardware threads of a core, whose CPUs follow each other.
    pub(crate) threads_of_core: usize,
    /// CPU and node of each thread, and those that run.
    pub(crate) threads: &'a [(usize, usize)],
    pub(crate) running: &'a [usize],
}

impl Situation<'_> {
    /// The step of a thread that is not on the node it prefers (`task_numa_migrate`).
    pub(crate) fn step(&self, thread: usize, preferred: usize) -> Option<Step> {
        let from = self.threads[thread].1;
        let several_active = self.group_of(thread).is_some_and(|group| group.active > 1);
        let mut best: Option<(Step, f64)> = None;
        let nodes = self.tasks[thread].past.cpu.len();
        let others = (0..nodes).filter(|&node| node != preferred && node != from);
        for (turn, to) in [preferred].into_iter().chain(others).enumerate() {
            if turn == 1 && best.is_some() && !several_active {
                break;
            }
            let (own, of_group) = (self.gain(thread, from, to), self.gain_of_group(thread, from, to));
            if turn > 0 && own < 0.0 && of_group.unwrap_or(0.0) < 0.0 {
                continue;
            }
            self.compare(thread, to, &mut best);
        }
        best.map(|best| best.0)
    }

    fn group_of(&self, thread: usize) -> Option<&Group> {
        self.tasks[thread].group.map(|group| &self.groups[group])
    }

    /// The gain of going from a node to another by a thread's own faults, in thousandths.
    fn gain(&self, thread: usize, from: usize, to: usize) -> f64 {
        let faults = &self.tasks[thread].past;
        faults.weight(to) - faults.weight(from)
    }

    /// The gain by the faults of its group, if it is in one.
    fn gain_of_group(&self, thread: usize, from: usize, to: usize) -> Option<f64> {
        self.group_of(thread).map(|group| group.faults.weight(to) - group.faults.weight(from))
    }

    /// The best that can be done on a node (`task_numa_find_cpu`, `task_numa_compare`).
    fn compare(&self, thread: usize, to: usize, best: &mut Option<(Step, f64)>) {
        let Situation { tasks, threads, running, .. } = *self;
        let from = threads[thread].1;
        let on = |node: usize| running.iter().filter(|&&thread| threads[thread].1 == node).count();
        let cpus = || (0..self.node_of_cpu.len()).filter(|&cpu| self.node_of_cpu[cpu] == to);
        let is_idle = |&cpu: &usize| threads.iter().all(|thread| thread.0 != cpu);
        // Rather on a core that runs none at all (`numa_idle_core`).
        let is_on_idle_core = |&cpu: &usize| {
            let first = cpu - cpu % self.threads_of_core;
            (first..first + self.threads_of_core).all(|cpu| is_idle(&cpu))
        };
        let idle = cpus().find(is_on_idle_core).or_else(|| cpus().find(is_idle));
        if let Some(cpu) = idle {
            let (there, here) = (on(to) + 1, on(from).saturating_sub(1));
            let surplus = there.saturating_sub(here);
            let few = there <= (cpus().count() / 8).max(1);
            if surplus == 0 || few && surplus <= SMALL_IMBALANCE {
                *best = Some((Step::To(cpu), 0.0));
                return;
            }
        }
        let comes_home = |other: usize| tasks[other].preferred == Some(from);
        for other in cpus().filter_map(|cpu| running.iter().copied().find(|&other| threads[other].0 == cpu)) {
            let swap = match *best {
                Some((Step::Swap(other), _)) => Some(comes_home(other)),
                _ => None,
            };
            let (own, others) = (self.gain(thread, from, to), self.gain(other, to, from));
            let same_group = tasks[thread].group == tasks[other].group;
            // A thread of the same group never has to suffer while there are idle CPUs.
            if swap == Some(true) && !comes_home(other) || same_group && idle.is_some() {
                continue;
            }
            let (of_group, of_others) =
                (self.gain_of_group(thread, from, to), self.gain_of_group(other, to, from));
            let mut gain = match (of_group, of_others) {
                (Some(_), _) if same_group => (own + others) * 15.0 / 16.0,
                (Some(of_group), Some(of_others)) => of_group + of_others,
                (of_group, _) => of_group.unwrap_or(own) + others,
            };
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

    /// The step of the first of threads on CPUs of two nodes of four. Their faults are on memory of these
    /// nodes, in hundreds, and `group` says which are in groups.
    fn in_groups(
        cpus: &[usize],
        faults: &[[u32; 2]],
        group: impl Fn(usize) -> Option<usize>,
    ) -> Option<Step> {
        on_cores_of(1, cpus, faults, group)
    }

    /// The same, where a core has so many CPUs.
    fn on_cores_of(
        threads_of_core: usize,
        cpus: &[usize],
        faults: &[[u32; 2]],
        group: impl Fn(usize) -> Option<usize>,
    ) -> Option<Step> {
        let node_of_cpu = [0, 0, 0, 0, 1, 1, 1, 1];
        let mut groups = vec![Group::new(2); 8];
        let mut tasks = Vec::new();
        for (thread, on) in faults.iter().enumerate() {
            let mut task = Task { group: group(thread), ..Task::new(2, 0) };
            task.past.shared = on.map(|faults| f64::from(100 * faults)).to_vec();
            task.preferred = task.past.most();
            if let Some(group) = task.group {
                groups[group].faults.add(1.0, &task.past);
                groups[group].active = 2;
            }
            tasks.push(task);
        }
        let threads: Vec<_> = cpus.iter().map(|&cpu| (cpu, node_of_cpu[cpu])).collect();
        let running: Vec<_> = (0..cpus.len()).collect();
        let situation = Situation {
            tasks: &tasks,
            groups: &groups,
            node_of_cpu: &node_of_cpu,
            threads_of_core,
            threads: &threads,
            running: &running,
        };
        situation.step(0, tasks[0].preferred.unwrap())
    }

    /// The same of threads in one group or in none.
    fn step(cpus: &[usize], faults: &[[u32; 2]], grouped: bool) -> Option<Step> {
        in_groups(cpus, faults, |_| grouped.then_some(0))
    }

    #[test]
    fn a_thread_goes_to_an_idle_cpu_where_its_memory_is() {
        assert_eq!(step(&[0], &[[0, 1]], false), Some(Step::To(4)));
    }

    #[test]
    fn it_goes_to_an_idle_core_rather_than_to_an_idle_cpu_of_one() {
        let alone = |_| None;
        let faults = [[0, 1], [0, 1], [1, 0], [1, 0]];
        assert_eq!(on_cores_of(1, &[0, 4, 1, 2], &faults, alone), Some(Step::To(5)));
        assert_eq!(on_cores_of(2, &[0, 4, 1, 2], &faults, alone), Some(Step::To(6)));
        let faults = [[0, 1], [0, 1], [0, 1], [1, 0], [1, 0], [1, 0]];
        assert_eq!(on_cores_of(2, &[0, 4, 7, 1, 2, 3], &faults, alone), Some(Step::To(5)));
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
    fn between_groups_their_faults_are_compared() {
        // The first thread's own memory is on node 1 and its group's on node 0; the other way round with
        // those there.
        let faults = [[1, 2], [9, 0], [9, 0], [9, 0], [2, 1], [0, 9], [0, 9], [0, 9]];
        let all: Vec<_> = (0..8).collect();
        assert_eq!(in_groups(&all, &faults, |thread| Some(thread / 4)), None);
        assert_eq!(in_groups(&all, &faults, |_| None), Some(Step::Swap(4)));
        // Threads of one group go by their own faults.
        assert_eq!(in_groups(&all, &faults, |_| Some(0)), Some(Step::Swap(4)));
    }

    #[test]
    fn threads_that_share_everything_stay() {
        for cpu in 4..8 {
            let cpus: Vec<_> = [cpu].into_iter().chain((0..8).filter(|&other| other != cpu)).collect();
            assert_eq!(step(&cpus, &[[1, 0]; 8], true), None);
        }
    }
}
