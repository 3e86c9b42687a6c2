//! The properties that hold for every program, sampler and machine.

mod toy;

use nodewise_engine::{Access, Action, Mapping, MappingKind, PageRange, RegionMap};
use proptest::prelude::*;
use toy::{BASE, Sampling, Toy, engine, run};

/// A program of phases: in each, parts of the memory are used in some way.
#[derive(Clone, Debug)]
struct Phase {
    /// For each of the parts: who uses it.
    uses: Vec<Use>,
    rounds: usize,
    /// Memory that is unmapped at its end, in pages from the start.
    unmap: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum Use {
    Nobody,
    One(u8),
    All,
    Mixed,
}

const NODES: u64 = 4;

fn usage() -> impl Strategy<Value = Use> {
    prop_oneof![Just(Use::Nobody), (0..NODES as u8).prop_map(Use::One), Just(Use::All), Just(Use::Mixed),]
}

fn phase(pages: u64) -> impl Strategy<Value = Phase> {
    let unmap = prop::option::of((0..pages, 1..pages));
    (prop::collection::vec(usage(), 1..6), 1_usize..8, unmap).prop_map(|(uses, rounds, unmap)| Phase {
        uses,
        rounds,
        unmap,
    })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    prop_oneof![
        (1_u64..100).prop_map(|percent| Sampling::HintFaults { percent }),
        (1_u64..5000).prop_map(|samples| Sampling::Hardware { samples }),
        (1_u64..5).prop_map(|windows| Sampling::Windows { windows }),
    ]
}

fn pattern(uses: Vec<Use>, pages: u64) -> toy::Pattern {
    Box::new(move |page, random| {
        let part = (page - BASE) * uses.len() as u64 / pages;
        let node = match uses[part as usize] {
            Use::Nobody => return None,
            Use::One(node) => node,
            Use::All => (random % NODES) as u8,
            Use::Mixed => (page % NODES) as u8,
        };
        Some((node, if random >> 60 < 4 { Access::Write } else { Access::Read }))
    })
}

fn check_map(map: &RegionMap) {
    for pair in map.regions().windows(2) {
        assert!(pair[0].range.end <= pair[1].range.start, "regions are disjoint and in order");
    }
    for (at, region) in map.regions().iter().enumerate() {
        let inside = |range: PageRange| {
            map.mappings().iter().any(|m| m.range.start <= range.start && range.end <= m.range.end)
        };
        assert!(!region.range.is_empty() && inside(region.range), "regions lie inside mappings: {region:?}");
        let reach = map.reach(at);
        assert!(inside(reach) && reach.intersect(region.range) == region.range, "{reach} of {region:?}");
        let e = &region.evidence;
        let homes: f32 = e.homes().iter().sum();
        assert!(e.reads().iter().chain(e.writes()).chain(e.homes()).all(|&count| count >= 0.0), "{e:?}");
        assert!(e.local() <= homes * 1.001 + 0.001, "not more local than located: {e:?}");
        assert!(e.unknown() <= e.total() * 1.001 + 0.001, "{e:?}");
    }
    for pair in map.regions().windows(2) {
        assert!(map.reach(0).start <= pair[0].range.start);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_program_is_managed_soundly_and_reproducibly(
        pages in 8_u64..3000,
        phases in prop::collection::vec(phase(3000), 1..5),
        sampling in sampling(),
        seed in 0_u64..1000,
        huge in any::<bool>(),
        budget in prop_oneof![Just(u64::MAX), 0_u64..2000],
    ) {
        let pages = if huge { pages / 100 * 512 + 512 } else { pages };
        let history = || {
            let mut toy = Toy::new(NODES as usize, pages, pattern(vec![Use::Nobody], pages)).seed(seed);
            toy.sampling = sampling;
            toy.huge = huge;
            toy.budget = budget;
            let mut engine = engine(&toy);
            let mut rounds = Vec::new();
            for phase in &phases {
                toy.pattern = pattern(phase.uses.clone(), pages);
                for _ in 0..phase.rounds {
                    let before = total(&engine);
                    let round = run(&mut engine, &mut toy, 1).remove(0);
                    let map = engine.regions(toy::PID).expect("the process lives");
                    check_map(map);
                    // Nothing appears from nowhere: evidence is what was and what came.
                    prop_assert!(total(&engine) <= (before + round.samples as f32) * 1.001 + 0.01);
                    for (decision, outcome) in &round.decisions {
                        let sum = outcome.moved + outcome.deferred + outcome.busy + outcome.node_full + outcome.vanished;
                        prop_assert_eq!(outcome.planned, sum);
                        prop_assert!(map.mappings().iter().any(|m| {
                            m.range.start <= decision.range.start && decision.range.end <= m.range.end
                        }), "decisions are about mapped memory");
                        if let Action::CollocateEach { pages } = &decision.action {
                            prop_assert!(pages.windows(2).all(|p| p[0].page < p[1].page));
                            prop_assert!(pages.iter().all(|p| decision.range.contains(p.page)));
                        }
                    }
                    rounds.push(serde_json::to_string(&round).expect("a round is data"));
                }
                if let (Some((start, count)), false) = (phase.unmap, huge) {
                    toy.unmap(PageRange::new(BASE + start, BASE + start + count / 3));
                }
            }
            Ok(rounds)
        };
        let (first, second) = (history()?, history()?);
        prop_assert_eq!(first, second, "same observations, same bytes");
    }
}

fn total(engine: &nodewise_engine::Engine) -> f32 {
    engine.regions(toy::PID).map_or(0.0, |map| map.regions().iter().map(|r| r.evidence.total()).sum())
}

#[test]
fn mappings_in_any_order_and_overlapping_are_survived() {
    let mut toy = Toy::new(4, 1000, pattern(vec![Use::One(2), Use::All], 1000));
    let mapping = |start: u64, end: u64, writable| Mapping {
        range: PageRange::new(BASE + start, BASE + end),
        writable,
        kind: MappingKind::Anonymous,
    };
    let mut engine = engine(&toy);
    let lists = [
        vec![mapping(500, 1000, true), mapping(0, 500, true)],
        vec![mapping(0, 700, true), mapping(300, 1000, false), mapping(900, 900, true)],
        vec![],
        vec![mapping(0, 10, true), mapping(10, 20, false), mapping(990, 1000, true)],
    ];
    for list in lists.iter().cycle().take(12) {
        toy.mappings.clone_from(list);
        run(&mut engine, &mut toy, 2);
        check_map(engine.regions(toy::PID).expect("the process lives"));
    }
}
