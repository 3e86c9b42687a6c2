//! The engine on programs whose threads go elsewhere, come and go, or bind their memory.

mod toy;

use nodewise_engine::{Access, Mapping, PageRange};
use nodewise_topology::{NodeIndex, Topology};
use std::cell::Cell;
use std::rc::Rc;
use toy::{BASE, Toy, decided, engine, moved, part, run};

const PAGES: u64 = 8192;

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
