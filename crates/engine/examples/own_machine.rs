//! A machine of one's own. The engine sees 256 pages on node 0, half of them used by node 1, and moves these.
//!
//! `cargo run -p nodewise-engine --example own_machine`

use nodewise_engine::{
    Access, Action, Carrefour, CarrefourSettings, Counters, DataSource, Decision, Engine, EngineSettings,
    Machine, Mapping, MappingKind, Measure, Observation, Outcome, PAGE_BYTES, PageRange, PageSize, Pid,
    ProcessState, Sample, SamplingRate, Tid, VirtAddr,
};
use nodewise_topology::{NodeIndex, Topology};
use std::convert::Infallible;

const FIRST: u64 = 0x1000;
const PAGES: usize = 256;

struct OwnMachine {
    topology: Topology,
    /// The node of each page.
    homes: Vec<NodeIndex>,
    now_ns: u64,
}

/// The node whose threads use a page.
fn user(page: usize) -> NodeIndex {
    NodeIndex(u8::from(page >= PAGES / 2))
}

impl Machine for OwnMachine {
    type Error = Infallible;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Tells the reads of one second, one of a thousand, and the process with its one mapping.
    fn observe(&mut self) -> Result<Observation, Infallible> {
        let fresh = self.now_ns == 0;
        self.now_ns += 1_000_000_000;
        let sample = |(page, &home)| Sample {
            time_ns: self.now_ns,
            address: VirtAddr((FIRST + page as u64) * PAGE_BYTES),
            pid: Pid(1),
            tid: Tid(1),
            accessor: user(page),
            home: Some(home),
            access: Access::Read,
            source: DataSource::Unknown,
            page_size: PageSize::Base,
            latency_cycles: 0,
            weight: 1000,
        };
        let range = PageRange::new(FIRST, FIRST + PAGES as u64);
        let process = ProcessState {
            pid: Pid(1),
            fresh,
            resident_pages: PAGES as u64,
            confined: None,
            asked: false,
            bound: Vec::new(),
            to_interleave: Vec::new(),
            mappings: Some(vec![Mapping { range, writable: true, kind: MappingKind::Anonymous }]),
            hints: None,
            unmoved: Vec::new(),
        };
        let memory = Counters::unknown(vec![1 << 29; 2], vec![1 << 30; 2]);
        Ok(Observation {
            end_ns: self.now_ns,
            duration_ns: 1_000_000_000,
            // The policy leaves programs alone that hardly use memory. This one makes 500 accesses in a
            // microsecond.
            counters: Counters { access_rate: Measure::Measured(500.0), ..memory },
            samples: self.homes.iter().enumerate().map(sample).collect(),
            samples_lost: 0,
            processes: vec![process],
        })
    }

    /// Moves all pages of a range to one node. A whole machine also does the other actions.
    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
        let mut outcomes = Vec::new();
        for decision in decisions {
            let Action::Collocate { to } = decision.action else {
                outcomes.push(Outcome { only_reported: true, ..Outcome::default() });
                continue;
            };
            let (start, end) = (decision.range.start.0 - FIRST, decision.range.end.0 - FIRST);
            let homes = &mut self.homes[start as usize..end as usize];
            let moved = homes.iter().filter(|&&home| home != to).count() as u64;
            homes.fill(to);
            println!("{moved} pages move to node {}", to.0);
            outcomes.push(Outcome { planned: moved, moved, ..Outcome::default() });
        }
        Ok(outcomes)
    }

    fn set_sampling(&mut self, _rate: SamplingRate) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Runs five rounds.
pub fn main() {
    let homes = vec![NodeIndex(0); PAGES];
    let mut machine = OwnMachine { topology: Topology::synthetic(2, 4, 1 << 30), homes, now_ns: 0 };
    let policy = Box::new(Carrefour::new(CarrefourSettings::default()));
    let mut engine = Engine::new(machine.topology(), policy, EngineSettings::default());
    for _ in 0..5 {
        let Ok(round) = engine.step(&mut machine);
        println!("round {}: {} samples", round.number, round.samples);
    }
    assert!(machine.homes.iter().enumerate().all(|(page, &home)| home == user(page)));
}
