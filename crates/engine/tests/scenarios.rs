//! The engine with the article's policy, scenario by scenario.

mod toy;

use nodewise_engine::{Access, Action, Decision, Finding, Mapping, MappingKind, Outcome, PageRange};
use nodewise_topology::{NodeIndex, Topology};
use std::cell::Cell;
use std::rc::Rc;
use toy::{BASE, Sampling, Toy, decided, engine, moved, part, run};

const PAGES: u64 = 8192;

fn random_node(random: u64, nodes: u64) -> u8 {
    (random >> 32) as u8 % nodes as u8
}

#[test]
fn private_quarters_are_collocated_and_then_all_is_silent() {
    for nodes in [2, 4, 8] {
        for hardware in [false, true] {
            let owner = move |page| part(page, PAGES, nodes);
            let mut toy =
                Toy::new(nodes as usize, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write))));
            if hardware {
                toy = toy.hardware(2000);
            }
            let mut engine = engine(&toy);
            run(&mut engine, &mut toy, 10);
            assert!(toy.placed(owner) >= 0.99, "{nodes} nodes, hardware {hardware}: {}", toy.placed(owner));
            let later = run(&mut engine, &mut toy, 10);
            assert_eq!(decided(&later), 0, "{nodes} nodes, hardware {hardware}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
        }
    }
}

#[test]
fn what_was_put_off_is_carried_through_though_samples_end() {
    let owner = |page| part(page, PAGES, 4);
    let silent = Rc::new(Cell::new(false));
    let ended = Rc::clone(&silent);
    let pattern = move |page, _| (!ended.get()).then(|| (owner(page), Access::Write));
    let mut toy = Toy::new(4, PAGES, Box::new(pattern)).hardware(20_000);
    toy.budget = 1000;
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 4);
    assert!(toy.placed(owner) < 0.7, "{}", toy.placed(owner));
    silent.set(true);
    run(&mut engine, &mut toy, 12);
    assert!(toy.placed(owner) >= 1.0, "{}", toy.placed(owner));
    assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
}

#[test]
fn pages_written_by_all_are_spread_evenly_and_none_moves_twice() {
    for nodes in [2, 3, 4, 8] {
        for seed in 0..6 {
            for hardware in [false, true] {
                let pattern = move |_, random| Some((random_node(random, nodes), Access::Write));
                let mut toy = Toy::new(nodes as usize, PAGES, Box::new(pattern)).seed(seed);
                if hardware {
                    toy = toy.hardware(20_000);
                }
                let mut engine = engine(&toy);
                run(&mut engine, &mut toy, 15);
                let even = 1.0 / nodes as f64;
                let shares = toy.shares();
                assert!(
                    shares.iter().all(|share| (share - even).abs() <= 0.05),
                    "{nodes} nodes, seed {seed}, {hardware}: {shares:?}"
                );
                assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
                let later = run(&mut engine, &mut toy, 10);
                assert_eq!(moved(&later), 0, "{nodes} nodes, seed {seed}, hardware {hardware}");
            }
        }
    }
}

#[test]
fn pages_swept_over_by_all_in_turn_are_not_taken_for_private() {
    for scans in [1, 2, 3] {
        for seed in 0..20 {
            let pattern = move |_, random| Some((random_node(random, 4), Access::Write));
            let mut toy = Toy::new(4, PAGES, Box::new(pattern)).seed(seed);
            toy.sampling = toy::Sampling::Sweeps { scans };
            let mut engine = engine(&toy);
            run(&mut engine, &mut toy, 20);
            let shares = toy.shares();
            let off = shares.iter().map(|share| (share - 0.25).abs()).fold(0.0, f64::max);
            // With one scan an interval some runs look private for long, and are interleaved late.
            let limit = if scans == 1 { 0.1 } else { 0.05 };
            assert!(off <= limit, "{scans} scans, seed {seed}: {shares:.3?}");
            assert!(
                toy.moves.values().all(|&moves| moves == 1),
                "{scans} scans, seed {seed}: a page moved twice"
            );
        }
    }
}

#[test]
fn pages_read_by_all_are_reported_once_and_spread_where_there_are_no_copies() {
    let kinds = [(false, MappingKind::File), (true, MappingKind::Anonymous)];
    for (nodes, hardware, kernel) in
        [2, 4, 8].into_iter().flat_map(|n| [(n, false, false), (n, true, false), (n, false, true)])
    {
        for (writable, kind) in kinds {
            let pattern = move |_, random| Some((random_node(random, nodes), Access::Read));
            let mut toy = Toy::new(nodes as usize, PAGES, Box::new(pattern));
            (toy.mappings[0].writable, toy.mappings[0].kind) = (writable, kind);
            (toy.kernel, toy.accounts, toy.tells_reads) = (kernel, kernel, true);
            if hardware {
                toy = toy.hardware(20_000);
            }
            let case = format!("{nodes} nodes, hardware {hardware}, kernel {kernel}, {kind:?}");
            let mut engine = engine(&toy);
            let rounds = run(&mut engine, &mut toy, 20);
            let even = 1.0 / nodes as f64;
            let shares = toy.shares();
            assert!(shares.iter().all(|share| (share - even).abs() <= 0.05), "{case}: {shares:.3?}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: no page moved twice");
            let actions: Vec<_> = rounds.iter().flat_map(|round| &round.decisions).collect();
            let copies = actions.iter().filter(|(d, _)| d.action == Action::Replicate);
            assert!(copies.clone().all(|(_, outcome)| outcome.only_reported), "{case}");
            let pages: u64 = copies.map(|(decision, _)| decision.range.pages()).sum();
            assert!((PAGES * 99 / 100..=PAGES).contains(&pages), "{case}: {pages} of {PAGES} reported");
            if !kernel {
                assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0, "{case}");
            }
        }
    }
}

#[test]
fn an_idle_or_well_placed_program_is_left_alone() {
    let mut idle = Toy::new(4, PAGES, Box::new(|_, _| None));
    let mut e = engine(&idle);
    assert_eq!(decided(&run(&mut e, &mut idle, 10)), 0);
    let mut placed = Toy::new(4, PAGES, Box::new(|page, _| Some((part(page, PAGES, 4), Access::Write))));
    placed.homes.iter_mut().for_each(|(&page, home)| *home = part(page, PAGES, 4));
    let mut e = engine(&placed);
    assert_eq!(decided(&run(&mut e, &mut placed, 10)), 0);
}

#[test]
fn finely_mixed_private_pages_are_collocated_one_by_one() {
    let owner = |page: u64| (page % 4) as u8;
    for hardware in [false, true] {
        let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write))));
        if hardware {
            toy = toy.hardware(20_000);
        }
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 15);
        assert!(toy.placed(owner) >= 0.99, "hardware {hardware}: {}", toy.placed(owner));
        assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0, "hardware {hardware}");
        assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
        // The threads change places.
        let next = move |page: u64| (owner(page) + 1) % 4;
        toy.pattern = Box::new(move |page, _| Some((next(page), Access::Write)));
        run(&mut engine, &mut toy, 30);
        assert!(toy.placed(next) >= 0.99, "hardware {hardware}: {}", toy.placed(next));
    }
}

/// Such is a page of small objects of several threads, amid the pages of single ones.
#[test]
fn a_page_that_two_nodes_use_now_and_then_does_not_go_back_and_forth() {
    let rare = |page: u64| page % 16 == 0;
    let owner = |page: u64| (page % 4) as u8;
    for (seldom, hardware) in [(2, false), (4, false), (12, false), (24, false), (2, true), (12, true)] {
        let users = move |page, random: u64| match random % seldom {
            _ if !rare(page) => Some((owner(page), Access::Write)),
            user @ 0..2 => Some((user as u8, Access::Write)),
            _ => None,
        };
        let mut toy = Toy::new(4, PAGES, Box::new(users));
        toy.homes.iter_mut().for_each(|(_, home)| *home = 3);
        if hardware {
            toy = toy.hardware(20_000);
        }
        let case = format!("one round in {seldom}, hardware {hardware}");
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 300);
        let twice = toy.moves.iter().filter(|&(&page, &moves)| rare(page) && moves > 1).count() as u64;
        assert!(twice * 100 <= PAGES / 16, "{case}: {twice} of {} pages were moved again", PAGES / 16);
        let mut private = (BASE..BASE + PAGES).filter(|&page| !rare(page));
        let is_placed = |page| toy.homes[&page] == owner(page) && toy.moves.get(&page) <= Some(&1);
        assert!(private.all(is_placed), "{case}");
    }
}

/// The others stay, so that the memory as a whole looks as before.
#[test]
fn two_threads_that_change_places_are_followed_page_by_page() {
    let owner = |page: u64| (page % 8) as u8;
    let swapped = move |page: u64| match owner(page) {
        node @ 0..2 => 1 - node,
        node => node,
    };
    for hardware in [false, true] {
        let mut toy = Toy::new(8, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write))));
        if hardware {
            toy = toy.hardware(20_000);
        }
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 20);
        assert!(toy.placed(owner) >= 0.99, "hardware {hardware}: {}", toy.placed(owner));
        toy.pattern = Box::new(move |page, _| Some((swapped(page), Access::Write)));
        run(&mut engine, &mut toy, 40);
        assert!(toy.placed(swapped) >= 0.99, "hardware {hardware}: {}", toy.placed(swapped));
    }
}

#[test]
fn a_process_that_moves_to_another_node_is_followed() {
    let mut toy = Toy::new(4, PAGES, Box::new(|_, _| Some((0, Access::Write))));
    let mut engine = engine(&toy);
    assert_eq!(decided(&run(&mut engine, &mut toy, 10)), 0);
    toy.pattern = Box::new(|_, _| Some((3, Access::Write)));
    run(&mut engine, &mut toy, 5);
    assert!(toy.placed(|_| 3) >= 0.99, "{:?}", toy.shares());
    toy.pattern = Box::new(|_, _| Some((1, Access::Write)));
    run(&mut engine, &mut toy, 15);
    assert!(toy.placed(|_| 1) >= 0.99, "{:?}", toy.shares());
}

#[test]
fn a_process_confined_to_a_node_is_followed_by_what_was_never_sampled_too() {
    let run_confined = |confined, cpus_per_node| {
        // The kernel gives no samples of three quarters.
        let mut toy =
            Toy::new(4, PAGES, Box::new(|page, _| (part(page, PAGES, 4) == 3).then_some((2, Access::Write))));
        let mapping = |from, to| Mapping { range: PageRange::new(BASE + from, BASE + to), ..toy.mappings[0] };
        toy.mappings = vec![mapping(0, PAGES / 2), mapping(PAGES / 2, PAGES), mapping(1 << 30, 1 << 31)];
        toy.confined = confined;
        toy = toy.topology(Topology::synthetic(4, cpus_per_node, 64 << 30));
        let mut engine = engine(&toy);
        let rounds = run(&mut engine, &mut toy, 10);
        assert_eq!(decided(&rounds[8..]), 0);
        assert!(toy.moves.values().all(|&moves| moves == 1));
        toy.placed(|_| 2)
    };
    assert!(run_confined(Some(NodeIndex(2)), 2) >= 0.9999);
    assert!(run_confined(None, 2) < 0.3);
    assert!(run_confined(Some(NodeIndex(2)), 0) < 0.3, "what is cold may lie on a node without CPUs");
}

/// Half of the load is one node's own. Once the rest is interleaved as far as that helps, the imbalance that
/// stays is explained.
#[test]
fn a_rule_that_is_on_and_decides_nothing_says_why() {
    let users = |page: u64, random: u64| {
        let node = if page - BASE < PAGES / 2 { (random >> 32) as u8 % 4 } else { 3 };
        Some((node, Access::Write))
    };
    for sampling in [Sampling::Windows { windows: 4 }, Sampling::HintFaults { percent: 20 }] {
        for seed in 0..5 {
            let mut toy = Toy::new(4, PAGES, Box::new(users)).seed(seed);
            (toy.sampling, toy.kernel) = (sampling, true);
            let mut engine = engine(&toy);
            let mut idle = 0;
            for round in run(&mut engine, &mut toy, 100) {
                let rule = |name: &str| round.rules.iter().find(|rule| rule.name == name).unwrap();
                let acts =
                    |(decision, _): &(Decision, Outcome)| matches!(decision.action, Action::Interleave(_));
                let acts = round.decisions.iter().any(acts);
                let is_on = rule("enable").enabled && rule("interleave").enabled;
                assert!(acts || !is_on || rule("interleave").idle.is_some(), "seed {seed}");
                assert!(!acts || rule("interleave").idle.is_none(), "seed {seed}");
                idle += usize::from(rule("interleave").idle.is_some());
            }
            assert!(idle > 0, "seed {seed}, {sampling:?}");
        }
    }
}

/// However many samples there are: those of one interval hang together.
#[test]
fn one_look_moves_nothing() {
    for (mixed, samples) in [(false, 20_000), (true, 20_000), (true, 200_000)] {
        let owner = move |page: u64| if mixed { (page % 4) as u8 } else { part(page, PAGES, 4) };
        let pattern = move |page: u64, _: u64| Some((owner(page), Access::Write));
        let mut toy = Toy::new(4, PAGES, Box::new(pattern)).hardware(samples);
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 1);
        // Nothing more is seen.
        toy.pattern = Box::new(|_, _| None);
        run(&mut engine, &mut toy, 10);
        assert_eq!(toy.moves.len(), 0, "mixed {mixed}, {samples} samples");
        toy.pattern = Box::new(pattern);
        run(&mut engine, &mut toy, 5);
        assert!(toy.moves.len() as u64 > PAGES / 2, "a second look: {}", toy.moves.len());
    }
}

/// A PMU samples bound memory as all other; the kernel's balancing leaves it alone.
#[test]
fn what_a_program_has_bound_itself_stays_whatever_samples_say() {
    let owners = |page: u64, random: u64| -> Option<(u8, Access)> {
        match part(page, PAGES, 4) {
            0 => Some((2, Access::Write)),
            1 => Some(((page % 4) as u8, Access::Write)),
            _ => Some(((random >> 32) as u8 % 4, Access::Write)),
        }
    };
    for to_eighth in [false, true] {
        let mut toy = Toy::new(4, PAGES, Box::new(owners)).hardware(20_000);
        // The first half of each quarter, or all of it.
        let length = if to_eighth { PAGES / 8 } else { PAGES / 4 };
        let bound =
            |quarter: u64| PageRange::new(BASE + quarter * PAGES / 4, BASE + quarter * PAGES / 4 + length);
        toy.bound = (0..4).map(bound).collect();
        let bound = toy.bound.clone();
        let is_bound =
            |page: u64| bound.iter().any(|range| range.contains(nodewise_engine::PageNumber(page)));
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 30);
        assert!(toy.moves.keys().all(|&page| !is_bound(page)), "to an eighth {to_eighth}");
        assert_eq!(toy.moves.is_empty(), !to_eighth, "the rest is placed");
    }
}

#[test]
fn what_a_confined_process_has_bound_itself_stays() {
    let mut toy =
        Toy::new(4, PAGES, Box::new(|page, _| (part(page, PAGES, 4) == 3).then_some((2, Access::Write))));
    toy.confined = Some(NodeIndex(2));
    let bound = PageRange::new(BASE, BASE + PAGES / 4);
    toy.bound = vec![bound];
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 10);
    assert!(
        !toy.moves.is_empty()
            && toy.moves.keys().all(|&page| !bound.contains(nodewise_engine::PageNumber(page)))
    );
    assert!((0.74..=0.76).contains(&toy.placed(|_| 2)), "{}", toy.placed(|_| 2));
}

/// Threads work on a part each, then one alone on something else while the others have ended, again and
/// again: between two phases the process may run on its first thread's node only.
#[test]
fn between_two_parallel_phases_memory_stays_with_those_who_will_be_back() {
    for (parallel, serial) in [(10, 5), (20, 15), (6, 2), (40, 40)] {
        for hardware in [false, true] {
            let case = format!("{parallel} and {serial} intervals, hardware {hardware}");
            let owner = |page| part(page, PAGES, 4);
            let alone = Rc::new(Cell::new(false));
            let phase = Rc::clone(&alone);
            let pattern = move |page, _| (!phase.get()).then(|| (owner(page), Access::Write));
            let mut toy = Toy::new(4, PAGES, Box::new(pattern));
            if hardware {
                toy = toy.hardware(20_000);
            }
            let mut engine = engine(&toy);
            for turn in 0..4 {
                alone.set(false);
                toy.confined = None;
                run(&mut engine, &mut toy, parallel);
                assert!(toy.placed(owner) >= 0.99, "{case}, turn {turn}: {}", toy.placed(owner));
                alone.set(true);
                toy.confined = Some(NodeIndex(0));
                run(&mut engine, &mut toy, serial);
                assert!(toy.placed(owner) >= 0.99, "{case}, after turn {turn}: {}", toy.placed(owner));
            }
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: a page moved twice");
        }
    }
}

#[test]
fn a_process_that_stays_confined_is_followed_though_it_ran_elsewhere_before() {
    let mut toy = Toy::new(4, PAGES, Box::new(|page, _| Some((part(page, PAGES, 4), Access::Write))));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 20);
    toy.pattern = Box::new(|page, _| (page < BASE + 100).then_some((2, Access::Write)));
    toy.confined = Some(NodeIndex(2));
    run(&mut engine, &mut toy, 80);
    assert!(toy.placed(|_| 2) >= 0.99, "{:?}", toy.shares());
}

#[test]
fn a_process_that_never_stays_is_followed_ever_less() {
    let mut toy = Toy::new(4, PAGES, Box::new(|_, _| None));
    let mut engine = engine(&toy);
    let mut moves = Vec::new();
    for phase in 0..60_u64 {
        toy.pattern = Box::new(move |_, _| Some(((phase % 4) as u8, Access::Write)));
        moves.push(moved(&run(&mut engine, &mut toy, 6)));
    }
    let early: u64 = moves[..20].iter().sum();
    let late: u64 = moves[40..].iter().sum();
    assert!(early > 0 && late * 3 <= early, "{moves:?}");
}

#[test]
fn falsely_shared_huge_pages_are_found_page_by_page() {
    // Every quarter of a huge page is used by another node; every second huge page is truly shared.
    let pages = 32 * 512;
    let pattern = move |page: u64, random: u64| {
        let node = if page / 512 % 2 == 0 { (page % 512 / 128) as u8 } else { random_node(random, 4) };
        Some((node, Access::Write))
    };
    let mut toy = Toy::new(4, pages, Box::new(pattern)).huge();
    toy.sampling = toy::Sampling::HintFaults { percent: 100 };
    let mut engine = engine(&toy);
    let rounds = run(&mut engine, &mut toy, 40);
    let mut found: Vec<u64> = rounds
        .iter()
        .flat_map(|round| &round.findings)
        .map(|finding| match finding {
            Finding::FalselySharedHugePage { page, samples, .. } => {
                assert!(samples.len() >= 12, "with the samples as evidence");
                page.0
            }
        })
        .collect();
    found.sort_unstable();
    let wanted: Vec<u64> = (BASE..BASE + pages).step_by(1024).collect();
    assert_eq!(found, wanted);
    assert!(toy.moves.values().all(|&moves| moves <= 1), "not bounced: {:?}", toy.moves);
}

#[test]
fn a_full_node_receives_nothing() {
    let mut toy = Toy::new(4, PAGES, Box::new(|_, random| Some((random_node(random, 4), Access::Write))));
    toy.free[2] = 100;
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 20);
    let shares = toy.shares();
    assert!(toy.homes.values().all(|&home| home != 2), "{shares:?}");
    assert!([0, 1, 3].iter().all(|&node: &usize| (shares[node] - 1.0 / 3.0).abs() < 0.05), "{shares:?}");
}

#[test]
fn half_private_half_shared_is_told_apart() {
    let pattern = |page, random| {
        Some((if page - BASE < PAGES / 2 { 3 } else { random_node(random, 4) }, Access::Write))
    };
    let mut toy = Toy::new(4, PAGES, Box::new(pattern));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 15);
    let half = |from: u64| {
        let mut shares = [0.0; 4];
        toy.homes
            .range(from..from + PAGES / 2)
            .for_each(|(_, &h)| shares[usize::from(h)] += 2.0 / PAGES as f64);
        shares
    };
    assert!(half(BASE)[3] > 0.98, "{:?}", half(BASE));
    // The private half loads node 3, so the shared one goes rather to the others; nowhere does it stay as it
    // was.
    assert!(half(BASE + PAGES / 2)[0] < 0.5, "{:?}", half(BASE + PAGES / 2));
    assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
}

#[test]
fn first_touch_by_one_thread_is_forgotten() {
    let owner = |page| part(page, PAGES, 4);
    let mut toy = Toy::new(4, PAGES, Box::new(|_, _| Some((0, Access::Write))));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 2);
    toy.pattern = Box::new(move |page, random| {
        Some((if random >> 20 & 0x3f < 1 { 0 } else { owner(page) }, Access::Write))
    });
    run(&mut engine, &mut toy, 8);
    assert!(toy.placed(owner) >= 0.99, "{}", toy.placed(owner));
    assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0);
}

#[test]
fn memory_unmapped_in_the_middle_is_forgotten() {
    let mut toy = Toy::new(4, PAGES, Box::new(|page, _| Some((part(page, PAGES, 4), Access::Write))));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 2);
    let hole = PageRange::new(BASE + 1000, BASE + 5000);
    toy.unmap(hole);
    let rounds = run(&mut engine, &mut toy, 10);
    let inside = |range: PageRange| !range.intersect(hole).is_empty();
    assert!(!rounds.iter().flat_map(|r| &r.decisions).any(|(decision, _)| inside(decision.range)));
    assert!(toy.placed(|page| part(page, PAGES, 4)) >= 0.99);
}

#[test]
fn a_budget_is_used_up_interval_by_interval() {
    for shared in [false, true] {
        let pattern = move |page, random| {
            Some((if shared { random_node(random, 4) } else { part(page, PAGES, 4) }, Access::Write))
        };
        let mut toy = Toy::new(4, PAGES, Box::new(pattern));
        toy.budget = 500;
        let mut engine = engine(&toy);
        let rounds = run(&mut engine, &mut toy, 40);
        assert!(rounds.iter().all(|round| moved(std::slice::from_ref(round)) <= 500));
        if shared {
            let shares = toy.shares();
            assert!(shares.iter().all(|share| (share - 0.25).abs() <= 0.05), "{shares:?}");
        } else {
            assert!(toy.placed(|page| part(page, PAGES, 4)) >= 0.99);
        }
        assert!(toy.moves.values().all(|&moves| moves == 1), "no page moved twice");
    }
}

#[test]
fn a_dry_run_is_not_believed() {
    let mut toy = Toy::new(4, PAGES, Box::new(|page, _| Some((part(page, PAGES, 4), Access::Write))));
    toy.dry_run = true;
    let mut engine = engine(&toy);
    assert!(decided(&run(&mut engine, &mut toy, 5)) > 0);
    toy.dry_run = false;
    run(&mut engine, &mut toy, 5);
    assert!(toy.placed(|page| part(page, PAGES, 4)) >= 0.99);
}

#[test]
fn a_process_that_exits_is_forgotten() {
    let mut toy = Toy::new(4, PAGES, Box::new(|page, _| Some((part(page, PAGES, 4), Access::Write))));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 1);
    toy.gone = true;
    assert_eq!(decided(&run(&mut engine, &mut toy, 3)), 0);
    assert!(engine.regions(toy::PID).is_none());
}

/// Private parts, sampled in every way one can think of, with bounds on time.
#[test]
fn private_memory_is_found_however_it_is_sampled() {
    use toy::Sampling::{Hardware, HintFaults, Windows};
    let cases = [
        (8192, 4, HintFaults { percent: 5 }, 12),
        (8192, 3, HintFaults { percent: 30 }, 10),
        (8192, 7, HintFaults { percent: 30 }, 10),
        (100_000, 4, HintFaults { percent: 2 }, 12),
        (100_000, 5, Hardware { samples: 3000 }, 12),
        (8192, 4, Windows { windows: 4 }, 16),
        (8192, 4, Windows { windows: 3 }, 16),
        (64, 4, HintFaults { percent: 80 }, 10),
        (16, 4, HintFaults { percent: 80 }, 10),
        (100, 3, Hardware { samples: 300 }, 10),
    ];
    for (pages, parts, sampling, rounds) in cases {
        for seed in 0..5 {
            let owner = move |page| part(page, pages, parts);
            let mut toy =
                Toy::new(8, pages, Box::new(move |page, _| Some((owner(page), Access::Write)))).seed(seed);
            toy.sampling = sampling;
            let mut engine = engine(&toy);
            run(&mut engine, &mut toy, rounds);
            let placed = toy.placed(owner);
            let case = format!("{pages} pages in {parts} parts, {sampling:?}, seed {seed}");
            assert!(placed >= 0.99, "{case}: {placed}");
            assert_eq!(moved(&run(&mut engine, &mut toy, 20)), 0, "{case}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: no page moved twice");
        }
    }
}

#[test]
fn shared_memory_is_spread_however_it_is_sampled() {
    use toy::Sampling::{Hardware, HintFaults, Windows};
    let cases = [
        (8192, HintFaults { percent: 5 }, 20),
        (100_000, HintFaults { percent: 2 }, 20),
        (1_000_000, Hardware { samples: 3000 }, 20),
        (8192, Windows { windows: 4 }, 24),
        (8192, Windows { windows: 3 }, 24),
        (600, HintFaults { percent: 80 }, 25),
    ];
    for (pages, sampling, rounds) in cases {
        for seed in 0..5 {
            let pattern = |_, random| Some((random_node(random, 4), Access::Write));
            let mut toy = Toy::new(4, pages, Box::new(pattern)).seed(seed);
            toy.sampling = sampling;
            let mut engine = engine(&toy);
            run(&mut engine, &mut toy, rounds);
            let shares = toy.shares();
            let case = format!("{pages} pages, {sampling:?}, seed {seed}");
            assert!(shares.iter().all(|share| (share - 0.25).abs() <= 0.05), "{case}: {shares:.3?}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: no page moved twice");
            assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0, "{case}");
        }
    }
}

#[test]
fn what_the_kernel_moves_meanwhile_is_put_right() {
    let owner = |page| part(page, PAGES, 4);
    let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write))));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 6);
    assert!(toy.placed(owner) >= 0.99);
    // Once in a while a quarter of the memory goes astray: enough for the rule to be in force again.
    for round in 0..5 {
        let from = BASE + 1000 * (round + 1);
        toy.homes.range_mut(from..from + 2200).for_each(|(_, home)| *home = (*home + 1) % 4);
        run(&mut engine, &mut toy, 12);
        assert!(toy.placed(owner) >= 0.99, "round {round}: {}", toy.placed(owner));
    }
}

/// Huge pages of which each quarter is used by another node are split, their base pages go where they are
/// used, and when one node uses all of them they are huge pages again, there.
#[test]
fn falsely_shared_huge_pages_are_split_placed_and_made_again() {
    for (seed, kernel) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let case = format!("seed {seed}, kernel {kernel}");
        let owner = |page: u64| (page % 512 / 128) as u8;
        let mut toy =
            Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write)))).seed(seed);
        toy = toy.huge();
        (toy.splits, toy.kernel, toy.accounts) = (true, kernel, kernel);
        let mut engine = engine(&toy);
        let rounds = run(&mut engine, &mut toy, 40);
        assert_eq!(toy.split.len() as u64, PAGES / 512, "{case}: all are split");
        assert!(toy.placed(owner) >= 0.99, "{case}: {:?}", toy.placed(owner));
        // Before it is split a page may move once, with its first samples; after that each base page goes
        // home.
        assert!(moved(&rounds) <= 2 * PAGES, "{case}: {} pages moved", moved(&rounds));
        toy.pattern = Box::new(|_, _| Some((2, Access::Write)));
        let rounds = run(&mut engine, &mut toy, 60);
        let again = rounds.iter().flat_map(|round| &round.decisions);
        let again = again.filter(|(decision, _)| matches!(decision.action, Action::Split { .. })).count();
        assert_eq!(again, 0, "{case}: what is made again stays so");
        assert!(toy.placed(|_| 2) >= 0.99, "{case}: {:?}", toy.shares());
        assert!(
            toy.split.is_empty(),
            "{case}: {} are huge pages again",
            PAGES / 512 - toy.split.len() as u64
        );
    }
}

/// A single thread that takes over has only memory sampled that is not on its node.
#[test]
fn what_was_split_is_made_again_for_a_single_thread_without_samples() {
    let owner = |page: u64| (page % 512 / 128) as u8;
    let made_again = |confined| {
        let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write)))).huge();
        toy.splits = true;
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 20);
        assert_eq!(toy.split.len() as u64, PAGES / 512);
        toy.confined = confined;
        toy.pattern = Box::new(|page, _| (page < BASE + 512).then_some((2, Access::Write)));
        run(&mut engine, &mut toy, 80);
        PAGES / 512 - toy.split.len() as u64
    };
    assert_eq!(made_again(Some(NodeIndex(2))), PAGES / 512);
    assert!(made_again(None) <= 1, "others may be back");
}

/// So much memory in huge pages that hardly any is sampled often enough to be judged is interleaved all the
/// same.
#[test]
fn huge_pages_that_all_nodes_use_are_spread_though_few_are_judged() {
    let pages = 512 * 512;
    let mut toy =
        Toy::new(4, pages, Box::new(|_, random| Some((random_node(random, 4), Access::Write)))).huge();
    toy.splits = true;
    toy.sampling = toy::Sampling::HintFaults { percent: 25 };
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 40);
    let shares = toy.shares();
    assert!(shares.iter().all(|share| (share - 0.25).abs() <= 0.05), "{shares:.3?}");
    assert!(toy.split.is_empty(), "{} split", toy.split.len());
}

#[test]
fn huge_pages_that_all_nodes_use_or_one_most_are_not_split() {
    let shared = |_, random: u64| Some((random_node(random, 4), Access::Write));
    let mostly_one = |page: u64, random: u64| {
        Some((if page % 512 < 32 { random_node(random, 4) } else { 1 }, Access::Write))
    };
    let private = |page, _| Some((part(page, PAGES, 4), Access::Write));
    let patterns: [toy::Pattern; 3] = [Box::new(shared), Box::new(mostly_one), Box::new(private)];
    for pattern in patterns {
        let mut toy = Toy::new(4, PAGES, pattern).huge();
        toy.splits = true;
        let mut engine = engine(&toy);
        run(&mut engine, &mut toy, 40);
        assert!(toy.split.len() as u64 <= PAGES / 512 / 16, "{} split", toy.split.len());
    }
}

#[test]
fn huge_pages_private_to_a_node_are_collocated_whole() {
    let pages = 32 * 512;
    let owner = move |page| part(page, pages, 4);
    let mut toy = Toy::new(4, pages, Box::new(move |page, _| Some((owner(page), Access::Write)))).huge();
    let mut engine = engine(&toy);
    for r in run(&mut engine, &mut toy, 12) {
        println!(
            "{:?} {:?} {:?} {}",
            r.metrics.access_rate,
            r.metrics.local_access_percent,
            r.rules.iter().map(|r| r.enabled).collect::<Vec<_>>(),
            r.decisions.len()
        );
    }
    assert!(toy.placed(owner) >= 0.99, "{}", toy.placed(owner));
    assert_eq!(decided(&run(&mut engine, &mut toy, 10)), 0);
}

#[test]
fn accessors_without_memory_are_served_by_their_nearest_node() {
    // All nodes are equally far; node 3 has no memory.
    let mut toy = Toy::new(4, PAGES, Box::new(|page, _| Some((2 + part(page, PAGES, 2), Access::Write))));
    toy.free[3] = 0;
    toy.homes.values_mut().for_each(|home| *home = 1);
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 10);
    assert!(toy.placed(|page| if part(page, PAGES, 2) == 0 { 2 } else { 0 }) >= 0.99, "{:?}", toy.shares());
    assert_eq!(decided(&run(&mut engine, &mut toy, 10)), 0);
}

#[test]
fn unknown_homes_cost_one_try() {
    let owner = |page| part(page, PAGES, 4);
    let mut toy =
        Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write)))).hardware(3000);
    toy.homes_known = false;
    let mut engine = engine(&toy);
    let rounds = run(&mut engine, &mut toy, 10);
    let rule = rounds[5].rules.iter().find(|rule| rule.name == "collocate").expect("a rule for collocation");
    assert!(!rule.enabled && matches!(rule.provenance, nodewise_engine::Provenance::Off(_)), "{rule:?}");
    assert_eq!(decided(&rounds), 0, "without homes nothing says that anything is wrong");
}

#[test]
fn what_was_put_off_is_dropped_when_loads_have_turned() {
    let pattern = |_, random| Some((random_node(random, 4), Access::Write));
    let mut toy = Toy::new(4, PAGES, Box::new(pattern));
    toy.budget = 10;
    let mut engine = engine(&toy);
    let begun = run(&mut engine, &mut toy, 6);
    assert!(
        moved(&begun) > 0 && begun.iter().flat_map(|round| &round.decisions).any(|(_, o)| o.deferred > 0)
    );
    // Others are quicker, and take more than a part: node 0 had more than the others, and has less now.
    for (page, home) in &mut toy.homes {
        *home = if page % 10 == 0 { 0 } else { 1 + (page % 3) as u8 };
    }
    for round in 0..60 {
        run(&mut engine, &mut toy, 1);
        // For some rounds it goes on: what was seen before fades slowly.
        assert!(toy.shares()[0] >= 0.08, "round {round}: {:.3?}", toy.shares());
    }
    toy.budget = u64::MAX;
    run(&mut engine, &mut toy, 20);
    assert!(toy.shares().iter().all(|share| (share - 0.25).abs() <= 0.05), "{:.3?}", toy.shares());
}

/// The kernel moves the pages that it samples, and leaves the others where they are.
#[test]
fn pages_that_are_never_sampled_are_spread_by_what_the_machine_knows_of_them() {
    let pattern = |page, random| (page % 4 == 0).then(|| (random_node(random, 4), Access::Write));
    let mut toy = Toy::new(4, PAGES, Box::new(pattern));
    toy.accounts = true;
    let mut engine = engine(&toy);
    while moved(&run(&mut engine, &mut toy, 1)) == 0 {}
    for (page, home) in toy.homes.iter_mut().filter(|(page, home)| *page % 4 == 0 && **home == 0) {
        *home = 1 + (page / 4 % 3) as u8;
    }
    assert!(toy.shares()[0] > 0.3, "{:.3?}", toy.shares());
    run(&mut engine, &mut toy, 30);
    assert!(toy.shares().iter().all(|share| (share - 0.25).abs() <= 0.005), "{:.3?}", toy.shares());
    assert!(toy.moves.values().all(|&moves| moves == 1));
}

/// Hint faults come in bursts: whoever runs when pages have been marked takes most of them.
#[test]
fn memory_found_to_be_shared_remains_so_while_one_node_has_its_turn() {
    let turn = Rc::new(Cell::new(None));
    let whose = Rc::clone(&turn);
    let pattern = move |_, random| Some((whose.get().unwrap_or(random_node(random, 4)), Access::Write));
    let mut toy = Toy::new(4, PAGES, Box::new(pattern));
    let mut engine = engine(&toy);
    while moved(&run(&mut engine, &mut toy, 1)) == 0 {}
    let begun = toy.shares()[0];
    assert!(begun > 0.4, "{:.3?}", toy.shares());
    for node in [3, 1, 2] {
        turn.set(Some(node));
        run(&mut engine, &mut toy, 3);
    }
    assert!(toy.shares().iter().all(|share| (share - 0.25).abs() <= 0.05), "{:.3?}", toy.shares());
}

#[test]
fn memory_that_others_pile_up_again_is_spread_again() {
    let pattern = |_, random| Some((random_node(random, 4), Access::Write));
    let mut toy = Toy::new(4, PAGES, Box::new(pattern));
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 20);
    for time in 0..4 {
        for (page, home) in &mut toy.homes {
            *home = if (page / 64) % 2 == 0 { time } else { *home };
        }
        run(&mut engine, &mut toy, 64);
        let shares = toy.shares();
        assert!(shares.iter().all(|share| (share - 0.25).abs() <= 0.05), "time {time}: {shares:.3?}");
        assert_eq!(moved(&run(&mut engine, &mut toy, 10)), 0, "time {time}: and then left alone");
    }
}

#[test]
fn beside_the_kernels_balancing_shared_memory_is_only_evened_out() {
    for scans in [1, 2, 3] {
        for seed in 0..10 {
            let pattern = move |_, random| Some((random_node(random, 4), Access::Write));
            let mut toy = Toy::new(4, PAGES, Box::new(pattern)).seed(seed);
            toy.sampling = toy::Sampling::Sweeps { scans };
            toy.kernel = true;
            let mut engine = engine(&toy);
            let rounds = run(&mut engine, &mut toy, 20);
            let case = format!("{scans} scans, seed {seed}: {:.3?}", toy.shares());
            let collocated = |(d, o): &&(nodewise_engine::Decision, nodewise_engine::Outcome)| {
                o.moved > 0 && !matches!(d.action, Action::Interleave(_))
            };
            let wrong = rounds.iter().flat_map(|round| &round.decisions).filter(collocated).count();
            assert_eq!(wrong, 0, "{case}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: a page moved twice");
            // With one scan an interval some runs look private for long, and are interleaved late.
            let limit = if scans == 1 { 0.1 } else { 0.05 };
            assert!(toy.shares().iter().all(|share| (share - 0.25).abs() <= limit), "{case}");
        }
    }
}

#[test]
fn beside_the_kernels_balancing_private_memory_is_not_misled() {
    let owner = |page| part(page, PAGES, 4);
    let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write))));
    toy.sampling = toy::Sampling::HintFaults { percent: 20 };
    toy.kernel = true;
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 40);
    // Asked after the fault every sampled page is at home, so it may be left to the kernel; but what we move,
    // we move right.
    assert!(toy.moves.iter().all(|(page, &moves)| moves == 1 && toy.homes[page] == owner(*page)));
    assert!(toy.placed(owner) >= 0.99, "{}", toy.placed(owner));
}

#[test]
fn falsely_shared_huge_pages_are_found_beside_the_kernels_balancing() {
    // A thread that comes to its part begins at its first page; one fault for each huge page a scan.
    let pages = 32 * 512;
    let mut toy =
        Toy::new(4, pages, Box::new(|page, _| Some(((page % 512 / 128) as u8, Access::Write)))).huge();
    toy.sampling = toy::Sampling::HintFaults { percent: 80 };
    toy.kernel = true;
    let mut engine = engine(&toy);
    let rounds = run(&mut engine, &mut toy, 26);
    let found = rounds.iter().map(|round| round.findings.len()).sum::<usize>();
    assert_eq!(found, 32);
    let ours: u64 = rounds
        .iter()
        .flat_map(|r| &r.decisions)
        .filter(|(d, _)| !matches!(d.action, Action::Interleave(_)))
        .map(|(_, o)| o.moved)
        .sum();
    assert_eq!(ours, 0, "no node is right for such a page");
}
