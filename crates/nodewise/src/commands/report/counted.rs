//! The machine's own counts of its traffic, of which the program's samples stand for a part.

use nodewise_engine::{DataSource, Measure, Observation, TrafficMatrix};
use nodewise_topology::NodeIndex;
use serde::Serialize;

/// The traffic of the whole machine while a program was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// DRAM accesses.
    pub accesses: f64,
    /// Their shares from each node (row) to each node's memory (column).
    pub traffic_percent: Vec<Vec<f64>>,
    /// The share of them that the program's samples stand for.
    pub sampled_percent: f64,
    /// The share that all programs made, and not the kernel; none where they are not told apart.
    pub user_percent: Option<f64>,
    /// The shares of programs' accesses, as `traffic_percent`.
    pub user_traffic_percent: Option<Vec<Vec<f64>>>,
}

/// Counts of the intervals so far.
pub struct Sums {
    all: TrafficMatrix,
    users: TrafficMatrix,
    sampled: f64,
    /// Whether each interval so far has had all its counts, and those of programs.
    are_complete: bool,
    have_users: bool,
}

impl Sums {
    pub fn new(nodes: usize) -> Self {
        let (all, users) = (TrafficMatrix::new(nodes), TrafficMatrix::new(nodes));
        Self { all, users, sampled: 0.0, are_complete: true, have_users: true }
    }

    pub fn take_in(&mut self, seen: &Observation) {
        match &seen.counters.traffic {
            Measure::Measured(traffic) => self.all.merge(traffic),
            _ => self.are_complete = false,
        }
        match &seen.counters.user_traffic {
            Measure::Measured(traffic) => self.users.merge(traffic),
            _ => self.have_users = false,
        }
        let is_drams =
            |source: DataSource| matches!(source, DataSource::LocalDram | DataSource::RemoteDram { .. });
        let of_dram = seen.samples.iter().filter(|sample| is_drams(sample.source));
        self.sampled += of_dram.map(|sample| f64::from(sample.weight)).sum::<f64>();
    }

    /// None where the machine does not count.
    pub fn finish(&self, nodes: usize) -> Option<Counted> {
        let accesses = self.all.total();
        if !self.are_complete || accesses <= 0.0 {
            return None;
        }
        let shares = |of: &TrafficMatrix| -> Vec<Vec<f64>> {
            let total = of.total().max(1.0);
            let index = |node: usize| NodeIndex(node as u8);
            let row = |from| (0..nodes).map(|to| 100.0 * of.get(index(from), index(to)) / total).collect();
            (0..nodes).map(row).collect()
        };
        let percent = |part: f64| (100.0 * part / accesses).min(100.0);
        Some(Counted {
            accesses,
            traffic_percent: shares(&self.all),
            sampled_percent: percent(self.sampled),
            user_percent: self.have_users.then(|| percent(self.users.total())),
            user_traffic_percent: self.have_users.then(|| shares(&self.users)),
        })
    }
}

impl Counted {
    /// Whose the accesses are, in words.
    pub fn words(&self) -> String {
        let counted = format!("The machine counted {} accesses to memory meanwhile", short(self.accesses));
        let sampled = format!("This program's samples stand for {:.0} %", self.sampled_percent);
        match self.user_percent {
            Some(users) => format!(
                "{counted}: {users:.0} % are programs', and {:.0} % the kernel's. {sampled}; what is prefetched \
                 is never sampled.",
                100.0 - users
            ),
            None => format!("{counted}. {sampled}; the rest is others', or was prefetched."),
        }
    }
}

/// A count in few digits.
fn short(count: f64) -> String {
    match count {
        1e9.. => format!("{:.1} billion", count / 1e9),
        1e6.. => format!("{:.1} million", count / 1e6),
        _ => format!("{count:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Access, Counters, PageSize, Pid, Sample, Tid, VirtAddr};

    fn traffic(from: usize, accesses: f64) -> Measure<TrafficMatrix> {
        let mut traffic = TrafficMatrix::new(2);
        traffic.add(NodeIndex(from as u8), NodeIndex(0), accesses);
        Measure::Measured(traffic)
    }

    fn seen(counters: Counters, source: DataSource) -> Observation {
        let sample = Sample {
            time_ns: 1,
            address: VirtAddr(4096),
            pid: Pid(1),
            tid: Tid(1),
            accessor: NodeIndex(0),
            home: Some(NodeIndex(0)),
            access: Access::Read,
            source,
            page_size: PageSize::Base,
            latency_cycles: 0,
            weight: 250,
        };
        Observation {
            end_ns: 1,
            duration_ns: 1,
            counters,
            samples: vec![sample],
            samples_lost: 0,
            processes: Vec::new(),
        }
    }

    #[test]
    fn the_machines_accesses_are_shared_out() {
        let mut sums = Sums::new(2);
        let nothing = || Counters::unknown(Vec::new(), Vec::new());
        for from in [0, 1] {
            let (traffic, user_traffic) = (traffic(from, 1000.0), traffic(from, 300.0));
            sums.take_in(&seen(Counters { traffic, user_traffic, ..nothing() }, DataSource::LocalDram));
        }
        let counted = sums.finish(2).unwrap();
        let half = vec![vec![50.0, 0.0], vec![50.0, 0.0]];
        assert_eq!((&counted.traffic_percent, counted.user_traffic_percent.as_ref()), (&half, Some(&half)));
        let said = counted.words();
        let expected = "The machine counted 2000 accesses to memory meanwhile: 30 % are programs', and 70 % the \
                        kernel's. This program's samples stand for 25 %; what is prefetched is never sampled.";
        assert_eq!(said, expected);

        // A cache's are none of memory's.
        let traffic = traffic(0, 8e6);
        sums.take_in(&seen(Counters { traffic, ..nothing() }, DataSource::RemoteCache { modified: true }));
        let said = sums.finish(2).unwrap().words();
        assert!(
            said.contains("8.0 million") && said.ends_with("the rest is others', or was prefetched."),
            "{said}"
        );
        sums.take_in(&seen(nothing(), DataSource::LocalDram));
        assert_eq!(sums.finish(2), None, "an interval has no counts");
        assert_eq!(Sums::new(2).finish(2), None);
    }
}
