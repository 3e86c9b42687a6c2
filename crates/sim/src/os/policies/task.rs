//! The record that NUMA balancing of Linux 6 keeps of a thread (`kernel/sched/fair.c`, Linux 6.12): its hint
//! faults, and how often it scans.

/// Time between scans at least and at most, and before the first (`scan_period_min_ms`, `scan_period_max_ms`,
/// `scan_delay_ms`).
const PERIOD_MIN_MS: f64 = 1000.0;
const PERIOD_MAX_MS: f64 = 60_000.0;
pub(crate) const DELAY_MS: f64 = 1000.0;
/// Memory marked in a scan (`scan_size_mb`), and the most in a second (`MAX_SCAN_WINDOW`).
pub(crate) const SCAN_MIB: f64 = 256.0;
const MOST_MIB_PER_S: f64 = 2560.0;
/// Local share of faults, in tenths, from which scans become slower (`NUMA_PERIOD_THRESHOLD`) and the slots a
/// period is adapted by (`NUMA_PERIOD_SLOTS`).
const THRESHOLD: f64 = 7.0;
const SLOTS: f64 = 10.0;

/// Hint faults, in pages.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Faults {
    /// By the node that the pages are on now: those that another thread faulted on before, and others.
    pub(crate) shared: Vec<f64>,
    pub(crate) private: Vec<f64>,
    /// By the node of the CPU.
    pub(crate) cpu: Vec<f64>,
}

impl Faults {
    pub(crate) fn new(nodes: usize) -> Self {
        let none = vec![0.0; nodes];
        Self { shared: none.clone(), private: none.clone(), cpu: none }
    }

    /// On pages of a node.
    pub(crate) fn on(&self, node: usize) -> f64 {
        self.shared[node] + self.private[node]
    }

    /// On shared pages and on private ones.
    pub(crate) fn by_sharing(&self) -> (f64, f64) {
        (self.shared.iter().sum(), self.private.iter().sum())
    }

    /// On pages of a node, in thousandths (`task_weight`, `group_weight`).
    pub(crate) fn weight(&self, node: usize) -> f64 {
        let (shared, private) = self.by_sharing();
        1000.0 * self.on(node) / (shared + private).max(f64::MIN_POSITIVE)
    }

    /// The first of the nodes with the most, if there are any.
    pub(crate) fn most(&self) -> Option<usize> {
        let nodes = 0..self.shared.len();
        let most = nodes.clone().map(|node| self.on(node)).fold(0.0, f64::max);
        nodes.clone().find(|&node| most > 0.0 && self.on(node) >= most)
    }

    /// Adds another's faults, after these have been multiplied.
    pub(crate) fn add(&mut self, kept: f64, more: &Self) {
        let all = |faults: &mut Vec<f64>, more: &[f64]| {
            faults.iter_mut().zip(more).for_each(|(faults, more)| *faults = *faults * kept + more);
        };
        all(&mut self.shared, &more.shared);
        all(&mut self.private, &more.private);
        all(&mut self.cpu, &more.cpu);
    }
}

/// A thread.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Between two looks whether to scan, of running time (`numa_scan_period`).
    pub(crate) period_ms: f64,
    /// The running time from which the period counts (`node_stamp`), and that of the timer's next interrupt,
    /// before which it does not look.
    pub(crate) stamp_ps: u64,
    pub(crate) tick_ps: u64,
    /// The scanner's sequence at the thread's last placement, its time then and its running time.
    pub(crate) sequence: i32,
    pub(crate) placed: Time,
    /// Faults since, and before, of which each placement counts half as much as the next.
    pub(crate) fresh: Faults,
    pub(crate) past: Faults,
    /// Pages faulted on at home and not, and whether a migration failed (`numa_faults_locality`).
    pub(crate) local: f64,
    pub(crate) remote: f64,
    pub(crate) failed: bool,
    /// The node it should be on.
    pub(crate) preferred: Option<usize>,
    /// The group of threads that it shares pages with.
    pub(crate) group: Option<usize>,
    /// When it asks for a CPU there again, and whether it does now.
    pub(crate) retry_ps: u64,
    pub(crate) asks: bool,
}

/// A moment, and how long a thread had been running until then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Time {
    pub(crate) now_ps: u64,
    pub(crate) running_ps: u64,
}

impl Task {
    /// `init_numa_balancing`.
    pub(crate) fn new(nodes: usize, stamp_ps: u64) -> Self {
        Self {
            period_ms: DELAY_MS,
            stamp_ps,
            tick_ps: 0,
            sequence: 0,
            placed: Time::default(),
            fresh: Faults::new(nodes),
            past: Faults::new(nodes),
            local: 0.0,
            remote: 0.0,
            failed: false,
            preferred: None,
            group: None,
            retry_ps: 0,
            asks: false,
        }
    }

    /// Makes past faults of fresh ones, those by node of the CPU in proportion to all, and to how much of the
    /// time the thread ran (`task_numa_placement`). Returns the fresh ones on shared pages and on private
    /// ones.
    pub(crate) fn renew(&mut self, time: Time) -> (f64, f64) {
        let ran = time.running_ps.saturating_sub(self.placed.running_ps) as f64
            / (time.now_ps.saturating_sub(self.placed.now_ps) + 1) as f64;
        let weight = ran / (self.local + self.remote + 1.0);
        self.placed = time;
        let sums = self.fresh.by_sharing();
        self.fresh.cpu.iter_mut().for_each(|faults| *faults *= weight);
        self.past.add(0.5, &self.fresh);
        self.fresh = Faults::new(self.past.cpu.len());
        sums
    }

    /// It has had hint faults.
    pub(crate) fn has_faulted(&self) -> bool {
        [&self.fresh, &self.past].map(Faults::by_sharing) != [(0.0, 0.0); 2]
    }

    /// `update_task_scan_period`, after so many shared and private faults, with bounds as they were before
    /// these counted and as they are. False if they say nothing.
    pub(crate) fn adapt(&mut self, shared: f64, private: f64, before: Bounds, bounds: Bounds) -> bool {
        if self.local + shared == 0.0 || self.failed {
            // It forgets nothing then: after a failed migration its scans become ever slower (until
            // 6.12.117).
            self.period_ms = (2.0 * self.period_ms).min(before.most_ms);
            return false;
        }
        let slot = (self.period_ms / SLOTS).ceil();
        let tenths = |part: f64, rest: f64| (part * SLOTS / (part + rest).max(1.0)).floor();
        let (private, local) = (tenths(private, shared), tenths(self.local, self.remote));
        self.period_ms += if private >= THRESHOLD {
            (private - THRESHOLD).max(1.0) * slot
        } else if local >= THRESHOLD {
            (local - THRESHOLD).max(1.0) * slot
        } else {
            -(THRESHOLD - private.max(local)) * slot
        };
        self.period_ms = self.period_ms.clamp(bounds.least_ms, bounds.most_ms);
        (self.local, self.remote) = (0.0, 0.0);
        true
    }
}

/// The bounds of a thread's period.
#[expect(clippy::struct_field_names, reason = "units go last")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    /// `task_scan_min`.
    pub(crate) least_ms: f64,
    /// `task_scan_start`.
    pub(crate) first_ms: f64,
    /// `task_scan_max`.
    pub(crate) most_ms: f64,
}

impl Bounds {
    /// For memory of so many scans; in a group of threads longer by the part of its faults that is shared,
    /// and by how many they are.
    pub(crate) fn new(scans: f64, group: Option<(&Faults, usize)>) -> Self {
        let longer = group.map_or(1.0, |(faults, threads)| {
            let (shared, private) = faults.by_sharing();
            (threads as f64 * (shared + 1.0) / (private + shared + 1.0)).max(1.0)
        });
        let least_ms = (PERIOD_MIN_MS / scans).max(1000.0 / (MOST_MIB_PER_S / SCAN_MIB));
        let most_ms = least_ms.max(PERIOD_MAX_MS / scans * longer);
        Self { least_ms, first_ms: least_ms * longer, most_ms }
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "all are small whole numbers")]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds::new(1.0, None)
    }

    #[test]
    fn a_period_is_within_bounds_that_go_with_the_memory() {
        let of = |scans| {
            let bounds = Bounds::new(scans, None);
            (bounds.least_ms, bounds.first_ms, bounds.most_ms)
        };
        assert_eq!(of(1.0), (1000.0, 1000.0, 60_000.0));
        assert_eq!(of(4.0), (250.0, 250.0, 15_000.0));
        // 2560 MiB a second at most.
        assert_eq!(of(100.0), (100.0, 100.0, 600.0));
    }

    #[test]
    fn the_first_and_the_longest_grow_with_what_threads_share() {
        let bounds = |shared, private| {
            let faults = Faults { shared: vec![shared], private: vec![private], cpu: vec![0.0] };
            let bounds = Bounds::new(1.0, Some((&faults, 4)));
            (bounds.least_ms, bounds.first_ms, bounds.most_ms)
        };
        assert_eq!(bounds(10.0, 0.0), (1000.0, 4000.0, 240_000.0));
        assert_eq!(bounds(0.0, 1.0), (1000.0, 2000.0, 120_000.0));
        assert_eq!(bounds(0.0, 10.0), (1000.0, 1000.0, 60_000.0));
    }

    #[test]
    fn scans_become_slower_where_there_is_little_to_gain_and_faster_else() {
        let after = |private, shared, local, remote| {
            let mut task = Task { period_ms: 10_000.0, local, remote, ..Task::new(2, 0) };
            assert_eq!(task.adapt(shared, private, bounds(), bounds()), local + shared > 0.0);
            task.period_ms
        };
        // By tenths of the period: of ten shared faults at home three more than seven, of ten private ones
        // too; five are two fewer.
        assert_eq!(after(0.0, 100.0, 100.0, 0.0), 13_000.0);
        assert_eq!(after(100.0, 0.0, 1.0, 99.0), 13_000.0);
        assert_eq!(after(70.0, 30.0, 30.0, 70.0), 11_000.0);
        assert_eq!(after(40.0, 60.0, 50.0, 50.0), 8000.0);
        // Nothing is at home or shared.
        assert_eq!(after(0.0, 0.0, 0.0, 0.0), 20_000.0);
        assert_eq!(after(100.0, 0.0, 0.0, 100.0), 20_000.0);
    }

    #[test]
    fn after_a_migration_that_failed_scans_become_ever_slower() {
        let mut task = Task { failed: true, local: 1.0, ..Task::new(2, 0) };
        for period_ms in [2000.0, 4000.0, 8000.0] {
            assert!(!task.adapt(1.0, 1.0, bounds(), bounds()));
            assert_eq!(task.period_ms, period_ms);
        }
    }

    #[test]
    fn faults_count_half_as_much_after_each_placement_and_less_of_threads_that_waited() {
        let mut task = Task::new(2, 0);
        let fault = |task: &mut Task, now_ps, running_ps| {
            task.fresh.private[1] += 15.0;
            task.fresh.cpu[0] += 15.0;
            task.local = 15.0;
            task.renew(Time { now_ps, running_ps })
        };
        assert_eq!(fault(&mut task, 999, 1000), (0.0, 15.0));
        assert_eq!((task.past.private[1], task.past.cpu[0]), (15.0, 15.0 / 16.0));
        // It ran for half of the time.
        fault(&mut task, 2998, 2000);
        assert_eq!((task.past.private[1], task.past.cpu[0]), (22.5, 15.0 / 16.0));
    }
}
