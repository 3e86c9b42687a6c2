//! Which threads NUMA balancing of Linux 6 moves to other CPUs (`kernel/sched/fair.c`, Linux 6.12), for one process.
//!
//! As the kernel does it: faults by node of the memory, a preferred node, an idle CPU there unless that unbalances the nodes, else a thread to swap
//! with. Left out: the kernel's other load balancing, other processes, distances between nodes (machines whose nodes are all alike), and that a thread asks
//! again every 16th of its scan period; here all ask when somebody scans.

/// What has to be gained by a swap (`SMALLIMP`), in thousandths of a thread's faults.
const LEAST: f64 = 30.0;
/// Threads that a node may have more than another, if it has no more than an eighth of its CPUs running (`NUMA_IMBALANCE_MIN`, `imb_numa_nr`).
const SMALL_IMBALANCE: usize = 2;
/// A node whose CPUs made more than this part of the most faults is active (`ACTIVE_NODE_FRACTION`).
pub(super) const ACTIVE: f64 = 1.0 / 3.0;

/// Where a thread goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// To a core that runs none.
    To(usize),
    /// Where this one runs, which comes here.
    Swap(usize),
}

/// What the kernel remembers of threads.
#[derive(Clone, Debug)]
pub(crate) struct TaskPlacement {
    node_of: Vec<usize>,
    nodes: usize,
    /// Of each thread, faults by node of the memory, halved at each pass of the scanner; and those since the last.
    faults: Vec<Vec<f64>>,
    fresh: Vec<Vec<f64>>,
    preferred: Vec<Option<usize>>,
    /// Threads that were seen to share pages are a group.
    grouped: Vec<bool>,
}

impl TaskPlacement {
    pub(crate) fn new(threads: usize, nodes: usize, node_of: Vec<usize>) -> TaskPlacement {
        let none = vec![vec![0.0; nodes]; threads];
        TaskPlacement {
            node_of,
            nodes,
            faults: none.clone(),
            fresh: none,
            preferred: vec![None; threads],
            grouped: vec![false; threads],
        }
    }

    /// A fault on pages that are on a node now (`task_numa_fault`).
    pub(crate) fn note(&mut self, thread: usize, home: usize, pages: usize) {
        self.fresh[thread][home] += pages as f64;
    }

    /// Two threads fault on the same page (`task_numa_group`).
    pub(crate) fn group(&mut self, one: usize, other: usize) {
        (self.grouped[one], self.grouped[other]) = (true, true);
    }

    /// All memory was scanned once more (`task_numa_placement`).
    pub(crate) fn renew(&mut self) {
        for (faults, fresh) in self.faults.iter_mut().zip(&mut self.fresh) {
            for (faults, fresh) in faults.iter_mut().zip(fresh) {
                *faults = *faults / 2.0 + std::mem::take(fresh);
            }
        }
        let group = self.group_faults();
        for (thread, preferred) in self.preferred.iter_mut().enumerate() {
            let faults = if self.grouped[thread] { &group } else { &self.faults[thread] };
            let most = faults.iter().copied().fold(0.0, f64::max);
            *preferred = faults.iter().position(|&faults| faults > 0.0 && faults >= most);
        }
    }

    fn group_faults(&self) -> Vec<f64> {
        let mut sum = vec![0.0; self.nodes];
        for (faults, _) in self.faults.iter().zip(&self.grouped).filter(|(_, grouped)| **grouped) {
            sum.iter_mut().zip(faults).for_each(|(sum, faults)| *sum += faults);
        }
        sum
    }

    /// What a thread does about not being where it wants to be (`task_numa_migrate`). `threads` are cores and nodes of all, `running` those that run, `cpu_shares`
    /// faults by node of the CPU.
    pub(crate) fn step(
        &mut self,
        thread: usize,
        threads: &[(usize, usize)],
        running: &[usize],
        cpu_shares: &[f64],
    ) -> Option<Step> {
        let from = threads[thread].1;
        let wanted = self.preferred[thread].filter(|&wanted| wanted != from)?;
        let group = self.group_faults();
        let weigh = |faults: &[f64], node: usize| {
            1000.0 * faults[node] / faults.iter().sum::<f64>().max(f64::MIN_POSITIVE)
        };
        let own = |thread: usize, to: usize, from: usize| {
            weigh(&self.faults[thread], to) - weigh(&self.faults[thread], from)
        };
        let mut best: Option<(Step, f64)> = None;
        let most = cpu_shares.iter().copied().fold(0.0, f64::max);
        let active = cpu_shares.iter().filter(|&&faults| faults > most * ACTIVE).count();
        let others = (0..self.nodes).filter(|&node| node != wanted && node != from);
        for (turn, to) in [wanted].into_iter().chain(others).enumerate() {
            if turn == 1 && best.is_some() && !(self.grouped[thread] && active > 1) {
                break;
            }
            let improvement = own(thread, to, from);
            let of_group = weigh(&group, to) - weigh(&group, from);
            if turn > 0 && improvement < 0.0 && of_group < 0.0 {
                continue;
            }
            self.compare(thread, to, improvement, threads, running, &own, &mut best);
        }
        let (step, _) = best?;
        self.preferred[thread] = Some(match step {
            Step::To(core) => self.node_of[core],
            Step::Swap(other) => threads[other].1,
        });
        Some(step)
    }

    /// The best that can be done on a node (`task_numa_find_cpu`, `task_numa_compare`).
    #[expect(clippy::too_many_arguments, reason = "what is compared with what")]
    fn compare(
        &self,
        thread: usize,
        to: usize,
        improvement: f64,
        threads: &[(usize, usize)],
        running: &[usize],
        own: &impl Fn(usize, usize, usize) -> f64,
        best: &mut Option<(Step, f64)>,
    ) {
        let from = threads[thread].1;
        let on = |node: usize| running.iter().filter(|&&thread| threads[thread].1 == node).count();
        let cores = || (0..self.node_of.len()).filter(|&core| self.node_of[core] == to);
        let idle = cores().find(|&core| threads.iter().all(|thread| thread.0 != core));
        if let Some(core) = idle {
            let (there, here) = (on(to) + 1, on(from).saturating_sub(1));
            let surplus = there.saturating_sub(here);
            let few = there <= (cores().count() / 8).max(1);
            if surplus == 0 || few && surplus <= SMALL_IMBALANCE {
                *best = best.or(Some((Step::To(core), 0.0)));
                return;
            }
        }
        for &other in running.iter().filter(|&&other| threads[other].1 == to) {
            let mates = self.grouped[thread] && self.grouped[other];
            if mates && idle.is_some() {
                continue;
            }
            let mut gain = improvement + own(other, from, to);
            if mates {
                gain -= gain / 16.0;
            }
            match self.preferred[other] {
                Some(node) if node == to => gain -= gain / 16.0,
                Some(node) if node == from => gain += gain / 8.0,
                _ => {}
            }
            if gain >= LEAST && gain > best.map_or(0.0, |best| best.1) + LEAST / 2.0 {
                *best = Some((Step::Swap(other), gain));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of four cores.
    fn placement(threads: usize) -> TaskPlacement {
        TaskPlacement::new(threads, 2, vec![0, 0, 0, 0, 1, 1, 1, 1])
    }

    #[test]
    fn a_thread_goes_to_an_idle_cpu_where_its_memory_is() {
        let mut placement = placement(1);
        placement.note(0, 1, 100);
        assert_eq!(placement.step(0, &[(0, 0)], &[0], &[100.0, 0.0]), None);
        placement.renew();
        assert_eq!(placement.step(0, &[(0, 0)], &[0], &[100.0, 0.0]), Some(Step::To(4)));
        assert_eq!(placement.step(0, &[(4, 1)], &[0], &[100.0, 0.0]), None);
    }

    #[test]
    fn it_stays_where_it_would_unbalance_the_nodes() {
        let mut placement = placement(2);
        placement.note(0, 1, 100);
        placement.note(1, 1, 100);
        placement.renew();
        assert_eq!(placement.step(0, &[(0, 0), (4, 1)], &[0, 1], &[100.0, 100.0]), None);
    }

    #[test]
    fn threads_that_sit_on_each_others_memory_swap() {
        let mut placement = placement(2);
        placement.note(0, 1, 100);
        placement.note(1, 0, 100);
        placement.renew();
        assert_eq!(placement.step(0, &[(0, 0), (4, 1)], &[0, 1], &[100.0, 100.0]), Some(Step::Swap(1)));
    }

    #[test]
    fn threads_that_share_everything_stay() {
        let mut placement = placement(8);
        for thread in 0..8 {
            placement.note(thread, 0, 100);
            placement.group(thread, (thread + 1) % 8);
        }
        placement.renew();
        let threads: Vec<_> = (0..8).map(|core| (core, core / 4)).collect();
        let all: Vec<_> = (0..8).collect();
        for thread in 0..8 {
            assert_eq!(placement.step(thread, &threads, &all, &[400.0, 400.0]), None);
        }
    }
}
