//! The engine decides the same wherever it runs: recordings that the simulator's engine and the one of
//! `nodewise run` (`crates/nodewise/src/manage`) play again, to the same bytes.

use nodewise_engine::recording::{Interval, Recorder, play};
use nodewise_engine::{
    Access, DataSource, Decision, Machine, Measure, Observation, Outcome, PAGE_BYTES, SamplingRate, VirtAddr,
};
use nodewise_hardware::Preset;
use nodewise_sim::{Settings, SimMachine};
use nodewise_topology::{NodeIndex, Topology};
use std::convert::Infallible;
use std::path::PathBuf;

/// Cores of a node of the machine that was recorded.
const CORES: usize = 12;

fn path(name: &str) -> PathBuf {
    format!("{}/../engine/tests/recordings/{name}.jsonl", env!("CARGO_MANIFEST_DIR")).into()
}

fn lines(intervals: &[Interval]) -> String {
    let line = |interval| serde_json::to_string(interval).unwrap() + "\n";
    intervals.iter().map(line).collect()
}

/// With `NODEWISE_RECORD` it writes the recordings anew, after the engine was changed on purpose: read the
/// difference before committing it.
#[test]
fn recorded_input_gives_recorded_decisions() {
    if std::env::var_os("NODEWISE_RECORD").is_some() {
        write_recordings();
    }
    for name in ["hint-faults", "hardware-samples"] {
        let recorded = std::fs::read_to_string(path(name)).unwrap();
        let intervals: Vec<Interval> =
            recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(intervals.iter().any(|interval| !interval.decisions.is_empty()), "{name} has decisions");
        let counters = &intervals[0].seen.counters;
        let topology = Topology::synthetic(counters.total_bytes.len(), CORES, counters.total_bytes[0]);
        let mut engine = Settings::scaled(1.0).engine(&topology);
        let again = play(&mut engine, topology, intervals);
        let again = again.unwrap_or_else(|departure| panic!("{name}: {departure}; {ANEW}"));
        for (number, (now, then)) in lines(&again).lines().zip(recorded.lines()).enumerate() {
            assert!(now == then, "{name}: interval {number} came out otherwise; {ANEW}");
        }
    }
}

const ANEW: &str = "if the engine was changed on purpose, record anew: \
    NODEWISE_RECORD=1 cargo test -p nodewise-sim --test recordings";

/// A machine whose samples tell as little as the kernel's hint faults do: who came, once a page and interval,
/// not what was done, how often or how fast.
struct HintFaults(SimMachine);

impl Machine for HintFaults {
    type Error = Infallible;

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self) -> Result<Observation, Infallible> {
        let mut seen = self.0.observe()?;
        seen.samples.sort_by_key(|sample| (sample.address.page(), sample.time_ns));
        seen.samples.dedup_by_key(|sample| sample.address.page());
        for sample in &mut seen.samples {
            (sample.access, sample.source) = (Access::Unknown, DataSource::Unknown);
            (sample.latency_cycles, sample.weight) = (0, 1);
        }
        let counters = &mut seen.counters;
        counters.access_rate = Measure::Proxy(seen.samples.len() as f64);
        counters.traffic = Measure::Unknown;
        counters.controller_loads = Measure::Unknown;
        counters.read_percent = Measure::Unknown;
        Ok(seen)
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
        self.0.apply(decisions)
    }

    fn replicates(&self) -> bool {
        self.0.replicates()
    }

    fn set_sampling(&mut self, _: SamplingRate) -> Result<(), Infallible> {
        self.0.set_sampling(SamplingRate::Accurate)
    }
}

/// Two mappings that node 0 touched: the quarters of one are used by a node each, all nodes write the other.
fn record<M: Machine<Error = Infallible>>(
    wrap: impl FnOnce(SimMachine) -> M,
    machine: impl Fn(&mut M) -> &mut SimMachine,
    intervals: u64,
    lines_each: u64,
) -> String {
    const PAGES: u64 = 48;
    let preset = Preset::named("xeon-e7-4830v3-4n").unwrap().scaled(1e-3);
    let mut inner = SimMachine::with_processes(&preset, &[vec![PAGES, PAGES]]);
    let pid = inner.pid(0);
    let ranges = [0, 1].map(|mapping| inner.mapping(pid, mapping));
    let address = |mapping: usize, page: u64, line: u64| {
        VirtAddr((ranges[mapping].start.0 + page) * PAGE_BYTES + line % 64 * 64)
    };
    for mapping in 0..2 {
        (0..PAGES).for_each(|page| inner.touch(NodeIndex(0), address(mapping, page, 0), Access::Write));
    }
    let mut engine = Settings::scaled(1.0).engine(inner.topology());
    let mut recorder = Recorder::new(wrap(inner));
    let Ok(()) = recorder.machine().set_sampling(SamplingRate::Accurate);
    for interval in 0..intervals {
        for line in 0..lines_each {
            for page in 0..PAGES {
                let inner = machine(recorder.machine());
                let user = NodeIndex((page * 4 / PAGES) as u8);
                inner.touch(user, address(0, page, interval + line), Access::Write);
                let user = NodeIndex(((page + line) % 4) as u8);
                inner.touch(user, address(1, page, interval + line), Access::Write);
            }
        }
        let Ok(_) = engine.step(&mut recorder);
    }
    lines(recorder.intervals())
}

fn write_recordings() {
    std::fs::create_dir_all(path("x").parent().unwrap()).unwrap();
    std::fs::write(path("hint-faults"), record(HintFaults, |machine| &mut machine.0, 10, 24)).unwrap();
    std::fs::write(path("hardware-samples"), record(|machine| machine, |machine| machine, 8, 36)).unwrap();
}
