//! The toy is held to what every machine must do.

mod toy;

use nodewise_engine::conformance::{Part, Testbed, check};
use nodewise_engine::{Access, Mapping, MappingKind, PAGE_BYTES, PageNumber, PageRange, Pid};
use nodewise_topology::{NodeIndex, Topology};
use std::collections::BTreeMap;
use toy::{BASE, PID, Toy};

struct ToyTestbed {
    toy: Toy,
    parts: Vec<Vec<PageRange>>,
}

impl ToyTestbed {
    fn new(processes: &[Vec<Part>], change: impl FnOnce(Toy) -> Toy) -> Self {
        let (mut next, mut homes, mut users) = (BASE, BTreeMap::new(), BTreeMap::new());
        let mut lay = |part: &Part| {
            let range = PageRange::new(next, next + part.pages);
            next += part.pages + 10;
            homes.extend((range.start.0..range.end.0).map(|page| (page, part.touched_on.0)));
            users.extend((range.start.0..range.end.0).zip(std::iter::repeat(part.used_on)));
            range
        };
        let parts: Vec<Vec<PageRange>> =
            processes.iter().map(|parts| parts.iter().map(&mut lay).collect()).collect();
        let pattern = move |page, _| Some((users.get(&page).copied().flatten()?.0, Access::Write));
        let mut toy = change(Toy::new(4, 1, Box::new(pattern)));
        let mapping = |&range| Mapping { range, writable: true, kind: MappingKind::Anonymous };
        toy.mappings = parts.iter().flatten().map(mapping).collect();
        for &home in homes.values() {
            toy.free[usize::from(home)] -= 1;
        }
        toy.homes = homes;
        let whole = |parts: &Vec<PageRange>| PageRange { end: parts[parts.len() - 1].end, ..parts[0] };
        toy.others = (PID.0 + 1..).map(Pid).zip(parts[1..].iter().map(whole)).collect();
        Self { toy, parts }
    }
}

impl Testbed for ToyTestbed {
    type Machine = Toy;

    fn machine(&mut self) -> &mut Toy {
        &mut self.toy
    }

    fn pid(&self, process: usize) -> Pid {
        Pid(PID.0 + process as u32)
    }

    fn range(&self, process: usize, part: usize) -> PageRange {
        self.parts[process][part]
    }

    fn homes(&mut self, pid: Pid, range: PageRange) -> Vec<Option<NodeIndex>> {
        let toy = &self.toy;
        let mine = |page: &u64| toy.pid_of(PageNumber(*page)) == pid;
        let home = |page| toy.homes.get(&page).filter(|_| mine(&page)).map(|&home| NodeIndex(home));
        (range.start.0..range.end.0).map(home).collect()
    }

    // The toy's time passes when it is observed.
    fn pass(&mut self) {}

    fn end(&mut self, process: usize) {
        let pid = self.pid(process);
        self.toy.others.remove(&pid);
        self.toy.gone |= pid == PID;
        self.parts[process].iter().for_each(|&range| self.toy.unmap(range));
    }

    fn unmap(&mut self, process: usize, part: usize) -> bool {
        self.toy.unmap(self.parts[process][part]);
        true
    }

    fn fill(&mut self, node: NodeIndex) -> bool {
        self.toy.free[node.get()] = 1000;
        true
    }
}

#[test]
fn with_any_sampling() {
    check(|processes| ToyTestbed::new(processes, |toy| toy));
    check(|processes| ToyTestbed::new(processes, |toy| toy.hardware(500)));
}

#[test]
fn with_a_small_budget() {
    check(|processes| {
        ToyTestbed::new(processes, |mut toy| {
            toy.budget = 100;
            toy
        })
    });
}

#[test]
fn with_two_nodes_and_little_memory() {
    let bytes = 64 << 20;
    check(|processes| {
        ToyTestbed::new(processes, |mut toy| {
            toy.free = vec![bytes / PAGE_BYTES; 2];
            toy.topology(Topology::synthetic(2, 2, bytes))
        })
    });
}

/// A machine that says it moved what it did not is found out.
mod liar {
    use super::*;
    use nodewise_engine::{Decision, Machine, Observation, Outcome, SamplingRate};
    use std::convert::Infallible;

    struct Liar(ToyTestbed);

    impl Machine for Liar {
        type Error = Infallible;
        fn topology(&self) -> &Topology {
            &self.0.toy.topology
        }
        fn observe(&mut self) -> Result<Observation, Infallible> {
            self.0.toy.observe()
        }
        fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
            let mut outcomes = self.0.toy.apply(decisions)?;
            for outcome in outcomes.iter_mut().filter(|outcome| outcome.node_full > 0) {
                outcome.moved += std::mem::take(&mut outcome.node_full);
            }
            Ok(outcomes)
        }
        fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Infallible> {
            self.0.toy.set_sampling(rate)
        }
    }

    impl Testbed for Liar {
        type Machine = Self;
        fn machine(&mut self) -> &mut Self {
            self
        }
        fn pid(&self, process: usize) -> Pid {
            self.0.pid(process)
        }
        fn range(&self, process: usize, part: usize) -> PageRange {
            self.0.range(process, part)
        }
        fn homes(&mut self, pid: Pid, range: PageRange) -> Vec<Option<NodeIndex>> {
            self.0.homes(pid, range)
        }
        fn pass(&mut self) {}
        fn end(&mut self, process: usize) {
            self.0.end(process);
        }
        fn fill(&mut self, node: NodeIndex) -> bool {
            self.0.fill(node)
        }
    }

    #[test]
    #[should_panic(expected = "pages that moved")]
    fn is_found_out() {
        check(|processes| Liar(ToyTestbed::new(processes, |toy| toy)));
    }
}
