//! The engine believes what programs say of their own memory, as far as it is theirs.

mod toy;

use nodewise_engine::{
    Access, Action, Carrefour, CarrefourSettings, Engine, EngineSettings, Hint, Hinted, MappingKind,
    PageNumber, PageRange, Pid, RegionSettings,
};
use proptest::prelude::*;
use toy::{BASE, PID, Toy, decided, engine, moved, run};

const PAGES: u64 = 8192;

fn hinted(pages: std::ops::Range<u64>, hint: Hint) -> Hinted {
    Hinted { range: PageRange::new(BASE + pages.start, BASE + pages.end), hint, interleaved: false }
}

#[expect(clippy::unnecessary_wraps, reason = "a pattern")]
fn by_any(_: u64, random: u64) -> Option<(u8, Access)> {
    Some(((random >> 32) as u8 % 4, Access::Write))
}

/// How many of these pages are on each node.
fn homes(toy: &Toy, pages: std::ops::Range<u64>) -> [u64; 4] {
    let mut homes = [0; 4];
    for (_, &home) in toy.homes.range(BASE + pages.start..BASE + pages.end) {
        homes[usize::from(home)] += 1;
    }
    homes
}

/// To a twentieth of the pages.
fn is_even(homes: [u64; 4]) -> bool {
    let pages: u64 = homes.iter().sum();
    homes.iter().all(|home| home.abs_diff(pages / 4) <= pages / 20)
}

#[test]
fn what_is_said_to_be_written_by_many_is_spread_before_anybody_uses_it() {
    let mut toy = Toy::new(4, PAGES, Box::new(|_, _| None));
    toy.hints = vec![hinted(0..PAGES / 2, Hint::WriteShared)];
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 1);
    assert!(is_even(homes(&toy, 0..PAGES / 2)), "{:?}", homes(&toy, 0..PAGES / 2));
    assert_eq!(homes(&toy, PAGES / 2..PAGES)[0], PAGES / 2, "nothing was said of the rest");
    toy.pattern = Box::new(by_any);
    run(&mut engine, &mut toy, 20);
    assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
}

/// Programs have no such word: a file belongs to others, too.
#[test]
fn a_file_is_interleaved_at_the_users_word() {
    for (hinted_only, expected) in [(true, false), (false, true)] {
        let mut toy = Toy::new(4, PAGES, Box::new(|_, _| None));
        toy.mappings[0].kind = MappingKind::File;
        if hinted_only {
            toy.hints = vec![hinted(0..PAGES, Hint::WriteShared)];
        } else {
            toy.to_interleave = vec![PageRange::new(BASE, BASE + PAGES)];
        }
        toy.budget = 1000;
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 10);
        assert_eq!(is_even(homes(&toy, 0..PAGES)), expected, "{:?}", homes(&toy, 0..PAGES));
        assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
        assert_eq!(decided(&run(&mut engine, &mut toy, 10)), 0);
    }
}

#[test]
fn what_was_put_off_is_spread_later() {
    let mut toy = Toy::new(4, PAGES, Box::new(|_, _| None));
    toy.hints = vec![hinted(0..PAGES, Hint::WriteShared)];
    toy.budget = 1000;
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 10);
    assert!(is_even(homes(&toy, 0..PAGES)), "{:?}", homes(&toy, 0..PAGES));
    assert_eq!(decided(&run(&mut engine, &mut toy, 10)), 0);
}

#[test]
fn what_is_said_to_be_private_is_never_spread() {
    let mut toy = Toy::new(4, PAGES, Box::new(by_any));
    toy.hints = vec![hinted(0..PAGES / 2, Hint::Private)];
    let mut e = engine(&toy);
    run(&mut e, &mut toy, 20);
    assert_eq!(homes(&toy, 0..PAGES / 2)[0], PAGES / 2);
    assert!(homes(&toy, PAGES / 2..PAGES)[0] < PAGES / 4, "the rest is: {:?}", homes(&toy, PAGES / 2..PAGES));
    let mut private = Toy::new(4, PAGES, Box::new(|_, _| Some((2, Access::Write))));
    private.hints = vec![hinted(0..PAGES, Hint::Private)];
    let mut e = engine(&private);
    run(&mut e, &mut private, 10);
    assert_eq!(homes(&private, 0..PAGES)[2], PAGES, "but collocated");
}

#[test]
fn what_is_said_to_be_shared_is_never_collocated() {
    for hint in [Hint::ReadShared, Hint::WriteShared] {
        for mixed in [false, true] {
            let owner = move |page: u64| if mixed { (page % 4) as u8 } else { 2 };
            let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Read))));
            toy.hints = vec![Hinted { interleaved: true, ..hinted(0..PAGES / 2, hint) }];
            let mut engine = engine(&toy);
            let rounds = run(&mut engine, &mut toy, 20);
            assert_eq!(homes(&toy, 0..PAGES / 2)[0], PAGES / 2, "{hint:?}, mixed {mixed}");
            assert!(toy.homes.range(BASE + PAGES / 2..).all(|(&page, &home)| home == owner(page)));
            let decisions = rounds.iter().flat_map(|round| &round.decisions);
            let copies: u64 = decisions
                .filter(|(decision, _)| decision.action == Action::Replicate)
                .map(|(decision, _)| decision.range.pages())
                .sum();
            assert_eq!(copies, if hint == Hint::ReadShared { PAGES / 2 } else { 0 }, "reported once");
        }
    }
}

#[test]
fn what_the_program_has_spread_itself_is_not_spread_again() {
    let mut toy = Toy::new(4, PAGES, Box::new(by_any));
    toy.homes.iter_mut().for_each(|(page, home)| *home = (page % 4) as u8);
    toy.hints = vec![Hinted { interleaved: true, ..hinted(0..PAGES, Hint::WriteShared) }];
    let mut engine = engine(&toy);
    assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0);
}

/// A program says something about other memory each time, all of it its own.
#[test]
fn what_is_said_without_end_is_forgotten() {
    const EACH: u64 = 1022;
    let mut toy = Toy::new(4, 1024, Box::new(by_any));
    toy.mappings[0].range = PageRange::new(BASE, BASE + (1 << 28));
    let mut engine = engine(&toy);
    let mut footprint = None;
    for round in 0..200 {
        let hint = [Hint::Private, Hint::ReadShared, Hint::WriteShared];
        let at = |i| 1024 + (round * EACH + i) * 16;
        toy.hints = (0..EACH).map(|i| hinted(at(i)..at(i) + 1, hint[i as usize % 3])).collect();
        let round = run(&mut engine, &mut toy, 1).pop().unwrap();
        assert!(round.decisions.len() > 1000 && round.decisions.len() < 3000, "{}", round.decisions.len());
        footprint = Some(round.footprint);
    }
    let footprint = footprint.unwrap();
    assert!(footprint.heap_bytes < 4 << 20, "{footprint:?}");
    assert!(footprint.ranges_dropped > 10_000, "{footprint:?}");
}

/// Each process alone has fewer pages than all together may have records of.
#[test]
fn records_of_pages_are_bounded_over_all_processes() {
    let mut toy = Toy::new(4, 4 * 512, Box::new(by_any));
    let whole = toy.mappings[0];
    toy.mappings.clear();
    for at in 0..4 {
        let range = PageRange::new(BASE + at * 512, BASE + (at + 1) * 512);
        toy.mappings.push(nodewise_engine::Mapping { range, ..whole });
        if at > 0 {
            toy.others.insert(Pid(PID.0 + at as u32), range);
        }
    }
    let regions = RegionSettings { max_tracked_pages: 1000, ..RegionSettings::default() };
    let settings = EngineSettings { regions, ..EngineSettings::default() };
    let policy = Box::new(Carrefour::new(CarrefourSettings::default()));
    let mut engine = Engine::new(&toy.topology, policy, settings);
    for round in run(&mut engine, &mut toy, 5) {
        let footprint = round.footprint;
        assert!(footprint.tracked_pages <= 1000, "{footprint:?}");
        assert!(footprint.pages_dropped > 500, "{footprint:?}");
    }
}

fn any_hint() -> impl Strategy<Value = Hinted> {
    let page = prop_oneof![any::<u64>(), BASE.saturating_sub(100)..BASE + PAGES + 100];
    let hint = prop_oneof![Just(Hint::Private), Just(Hint::ReadShared), Just(Hint::WriteShared)];
    (page.clone(), page, hint, any::<bool>()).prop_map(|(start, end, hint, interleaved)| Hinted {
        range: PageRange { start: PageNumber(start), end: PageNumber(end) },
        hint,
        interleaved,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn whatever_is_said_decisions_stay_within_the_process(hints in proptest::collection::vec(any_hint(), 0..50)) {
        let mut toy = Toy::new(4, 1024, Box::new(by_any));
        toy.hints = hints;
        let mut engine = engine(&toy);
        let own = toy.mappings[0].range;
        for round in run(&mut engine, &mut toy, 3) {
            prop_assert!(round.decisions.len() < 10_000);
            for (decision, _) in round.decisions {
                prop_assert_eq!(decision.pid, PID);
                prop_assert_eq!(decision.range.intersect(own), decision.range);
            }
        }
    }
}
