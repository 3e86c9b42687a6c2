//! How many samples a second one core takes in, from observation to decisions, and how many bytes a tracked
//! page needs.
//!
//! `cargo bench -p nodewise-engine --bench ingest` first prints the table for docs/results.md, then lets
//! criterion measure each shape.
#![forbid(unsafe_code)]

use criterion::{BatchSize, Criterion, Throughput};
use nodewise_engine::{
    Access, Carrefour, CarrefourSettings, Counters, DataSource, Decision, Engine, EngineSettings, Machine,
    Mapping, MappingKind, Measure, Observation, Outcome, PAGE_BYTES, PageRange, PageSize, Pid, ProcessState,
    Sample, SamplingRate, Tid, VirtAddr,
};
use nodewise_topology::{NodeIndex, Topology};
use std::convert::Infallible;
use std::time::Instant;

const NODES: usize = 8;
const SAMPLES: u64 = 1_000_000;
const BASE: u64 = 0x7_0000_0000;

/// A pattern of accesses over some pages.
struct Shape {
    name: &'static str,
    pages: u64,
    /// The accessor of a page, given random bits.
    accessor: fn(page: u64, pages: u64, random: u64) -> u64,
    home: fn(page: u64, pages: u64) -> u64,
}

const fn quarter(page: u64, pages: u64) -> u64 {
    page * 4 / pages
}

/// Memory is where it should be: what is measured is the steady state, not the moving.
const SHAPES: [Shape; 6] = [
    Shape {
        name: "4 GB in four patterns",
        pages: 1 << 20,
        accessor: |page, pages, _| quarter(page, pages),
        home: quarter,
    },
    Shape {
        name: "1 TB in four patterns, sparse",
        pages: 1 << 28,
        accessor: |page, pages, _| quarter(page, pages),
        home: quarter,
    },
    Shape {
        name: "1 GB, private pages finely mixed",
        pages: 1 << 18,
        accessor: |page, _, _| page % 8,
        home: |page, _| page % 8,
    },
    Shape {
        name: "16 GB, private pages finely mixed",
        pages: 1 << 22,
        accessor: |page, _, _| page % 8,
        home: |page, _| page % 8,
    },
    Shape {
        name: "256 MB shared by all, hot",
        pages: 1 << 16,
        accessor: |_, _, random| random % 8,
        home: |page, _| page % 8,
    },
    Shape {
        name: "16 GB shared by all",
        pages: 1 << 22,
        accessor: |_, _, random| random % 8,
        home: |page, _| page % 8,
    },
];

struct Replay {
    topology: Topology,
    next: Option<Observation>,
}

impl Machine for Replay {
    type Error = Infallible;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Observation, Infallible> {
        Ok(self.next.take().expect("one observation for each step"))
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
        Ok(vec![Outcome::default(); decisions.len()])
    }

    fn set_sampling(&mut self, _: SamplingRate) -> Result<(), Infallible> {
        Ok(())
    }
}

/// `SplitMix64`.
const fn random(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn observation(shape: &Shape, interval: u64) -> Observation {
    let sample = |i: u64| {
        let bits = random(interval * SAMPLES + i);
        let page = ((u128::from(bits) * u128::from(shape.pages)) >> 64) as u64;
        let more = random(bits);
        Sample {
            time_ns: i,
            address: VirtAddr((BASE + page) * PAGE_BYTES + more % PAGE_BYTES),
            pid: Pid(7),
            tid: Tid(8),
            accessor: NodeIndex((shape.accessor)(page, shape.pages, more >> 20) as u8),
            home: Some(NodeIndex((shape.home)(page, shape.pages) as u8)),
            access: if more >> 60 == 0 { Access::Write } else { Access::Read },
            source: DataSource::Unknown,
            page_size: PageSize::Base,
            latency_cycles: 0,
            weight: 1000,
        }
    };
    Observation {
        end_ns: interval * 1_000_000_000,
        duration_ns: 1_000_000_000,
        counters: Counters {
            access_rate: Measure::Measured(1000.0),
            ..Counters::unknown(vec![1 << 40; NODES], vec![2 << 40; NODES])
        },
        samples: (0..SAMPLES).map(sample).collect(),
        samples_lost: 0,
        processes: vec![ProcessState {
            pid: Pid(7),
            fresh: interval == 0,
            resident_pages: shape.pages,
            mappings: Some(vec![Mapping {
                range: PageRange::new(BASE, BASE + shape.pages),
                writable: true,
                kind: MappingKind::Anonymous,
            }]),
            hints: None,
            confined: None,
            bound: Vec::new(),
            to_interleave: Vec::new(),
            asked: false,
            unmoved: Vec::new(),
        }],
    }
}

fn start() -> (Engine, Replay) {
    let topology = Topology::synthetic(NODES, 16, 2 << 40);
    let policy = Box::new(Carrefour::new(CarrefourSettings::default()));
    (Engine::new(&topology, policy, EngineSettings::default()), Replay { topology, next: None })
}

fn table() {
    const INTERVALS: u64 = 6;
    println!(
        "| memory | samples/s | slowest interval | regions | tracked pages | bytes/tracked page | heap bytes |"
    );
    println!("|---|---|---|---|---|---|---|");
    for shape in &SHAPES {
        let (mut engine, mut replay) = start();
        let (mut seconds, mut slowest) = (0.0, 0.0_f64);
        let mut footprint = None;
        for interval in 0..INTERVALS {
            replay.next = Some(observation(shape, interval));
            let before = Instant::now();
            let round = engine.step(&mut replay).expect("the replay cannot fail");
            let took = before.elapsed().as_secs_f64();
            seconds += took;
            slowest = took.max(slowest);
            footprint = Some(round.footprint);
        }
        let f = footprint.expect("at least one interval");
        let per_page = if f.tracked_pages > 0 {
            format!("{:.1}", f.heap_bytes as f64 / f.tracked_pages as f64)
        } else {
            "-".into()
        };
        let rate = INTERVALS as f64 * SAMPLES as f64 / seconds / 1e6;
        let least = SAMPLES as f64 / slowest / 1e6;
        println!(
            "| {} | {rate:.1} M | {least:.1} M | {} | {} | {per_page} | {} |",
            shape.name, f.regions, f.tracked_pages, f.heap_bytes
        );
    }
}

fn main() {
    table();
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut group = criterion.benchmark_group("ingest");
    group.throughput(Throughput::Elements(SAMPLES));
    for shape in &SHAPES {
        let (mut engine, mut replay) = start();
        let mut interval = 0;
        group.bench_function(shape.name, |bencher| {
            bencher.iter_batched(
                || {
                    interval += 1;
                    observation(shape, interval - 1)
                },
                |observation| {
                    replay.next = Some(observation);
                    engine.step(&mut replay)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
    criterion.final_summary();
}
