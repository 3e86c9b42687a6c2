//! The engine on huge pages: found, split, placed, made again, or left whole.

mod toy;

use nodewise_engine::{Access, Action, Finding, Mapping, PageRange, SamplingRate};
use nodewise_topology::NodeIndex;
use toy::{BASE, Toy, decided, engine, moved, part, run};

const PAGES: u64 = 8192;

fn random_node(random: u64, nodes: u64) -> u8 {
    (random >> 32) as u8 % nodes as u8
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

/// It has a sample in each pass, and would keep sampling eager for as many passes as judge it. A Go program
/// has a few such pages, and far more memory in base pages.
#[test]
fn a_huge_page_among_much_other_memory_does_not_keep_sampling_eager() {
    let mut toy =
        Toy::new(4, PAGES, Box::new(|_, random| Some((random_node(random, 4), Access::Write)))).huge();
    toy.split = (BASE + 512..BASE + PAGES).step_by(512).collect();
    let mut engine = engine(&toy);
    run(&mut engine, &mut toy, 17);
    assert!(toy.rates.iter().any(|&rate| rate != SamplingRate::Accurate), "{:?}", toy.rates);
}

/// As in a program whose threads are not bound, on a machine with more threads than CPUs.
#[test]
fn huge_pages_of_threads_that_wander_are_neither_split_nor_waited_for() {
    let split_and_rates = |wander| {
        let owner = |page: u64| (page % 512 / 128) as u8;
        let mut toy = Toy::new(4, PAGES, Box::new(move |page, _| Some((owner(page), Access::Write)))).huge();
        (toy.splits, toy.wander) = (true, wander);
        run(&mut engine(&toy), &mut toy, 20);
        (toy.split.len(), toy.rates)
    };
    let (split, rates) = split_and_rates(true);
    assert!(split == 0 && rates.iter().any(|&rate| rate != SamplingRate::Accurate), "{split} {rates:?}");
    assert_eq!(split_and_rates(false).0 as u64, PAGES / 512);
}

#[test]
fn huge_pages_that_all_nodes_use_or_one_most_are_not_split() {
    let shared = |_, random: u64| Some((random_node(random, 4), Access::Write));
    let mostly_one = |page: u64, random: u64| {
        Some((if page % 512 < 32 { random_node(random, 4) } else { 1 }, Access::Write))
    };
    let private = |page, _| Some((part(page, PAGES, 4), Access::Write));
    let most = |patterns: &dyn Fn() -> toy::Pattern| {
        let split = |seed| {
            let mut toy = Toy::new(4, PAGES, patterns()).huge().seed(seed);
            toy.splits = true;
            let mut engine = engine(&toy);
            run(&mut engine, &mut toy, 60);
            toy.split.len()
        };
        (0..10).map(split).max()
    };
    assert_eq!(most(&|| Box::new(shared)), Some(0));
    assert_eq!(most(&|| Box::new(private)), Some(0));
    assert!(most(&|| Box::new(mostly_one)) <= Some(1), "the little that all use is cut off seldom");
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

/// The samples of each page tell what the number of pages does not.
#[test]
fn few_huge_pages_of_two_nodes_are_placed() {
    for (count, seed) in [4, 5, 6].into_iter().flat_map(|count| (0..8).map(move |seed| (count, seed))) {
        let toy = |pattern: toy::Pattern| Toy::new(2, count * 512, pattern).huge().hardware(500).seed(seed);
        for owner in [|page: u64| (page / 512 % 2) as u8, |page: u64| u8::from(page / 512 >= 2)] {
            let mut toy = toy(Box::new(move |page, _| Some((owner(page), Access::Write))));
            run(&mut engine(&toy), &mut toy, 15);
            assert!(toy.placed(owner) >= 1.0, "{count} pages, seed {seed}: {}", toy.placed(owner));
            assert!(toy.moves.values().all(|&moves| moves == 1), "{count}, seed {seed}: {:?}", toy.moves);
        }
        let mut toy = toy(Box::new(|_, random| Some((random_node(random, 2), Access::Write))));
        run(&mut engine(&toy), &mut toy, 15);
        let shares = toy.shares();
        let most = count.div_ceil(2) as f64 / count as f64;
        assert!(shares.iter().all(|&share| share <= most), "{count} pages, seed {seed}: {shares:?}");
    }
}

/// As those of an allocator that maps more than is asked for. Pages that nobody uses have no samples.
#[test]
fn few_huge_pages_among_unused_ones_are_spread_evenly() {
    const USED: std::ops::Range<u64> = toy::BASE + 512..toy::BASE + 9 * 512;
    for seed in 0..16 {
        let pattern = |page, random| USED.contains(&page).then(|| (random_node(random, 4), Access::Write));
        let mut toy = Toy::new(4, 10 * 512, Box::new(pattern)).huge().hardware(500).seed(seed);
        run(&mut engine(&toy), &mut toy, 15);
        let mut pages = [0; 4];
        for (_, &home) in toy.homes.range(USED) {
            pages[usize::from(home)] += 1;
        }
        assert_eq!(pages, [2 * 512; 4], "seed {seed}");
    }
}

/// The node that comes first in a scan has the hint faults of all of them, so that scans agree by chance.
#[test]
fn few_huge_pages_that_two_nodes_sweep_over_stay() {
    for (count, seed) in [4, 5].into_iter().flat_map(|count| (0..40).map(move |seed| (count, seed))) {
        let pattern = |_, random| Some((random_node(random, 2), Access::Write));
        let mut toy = Toy::new(2, count * 512, Box::new(pattern)).huge().seed(seed);
        toy.sampling = toy::Sampling::Sweeps { scans: 1 };
        run(&mut engine(&toy), &mut toy, 40);
        assert!(toy.moves.is_empty(), "{count} pages, seed {seed}: {:?}", toy.moves);
    }
}

/// As evenly as so few can be, with no page that goes on to a third node or back.
#[test]
fn few_huge_pages_that_all_sweep_over_are_spread_once() {
    for (nodes, count, scans) in
        [(2, 6, 1), (2, 8, 1), (4, 6, 1), (4, 8, 1), (4, 8, 3), (4, 12, 2), (4, 16, 3)]
    {
        for (seed, accounts) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
            let pattern = move |_, random| Some((random_node(random, nodes), Access::Write));
            let mut toy = Toy::new(nodes as usize, count * 512, Box::new(pattern)).huge().seed(seed);
            toy.sampling = toy::Sampling::Sweeps { scans };
            toy.accounts = accounts;
            run(&mut engine(&toy), &mut toy, 80);
            let case = format!("{nodes} nodes, {count} pages, {scans} scans, seed {seed}, {accounts}");
            assert!(toy.moves.values().all(|&moves| moves == 1), "{case}: no page moved twice");
            let most = toy.shares().into_iter().fold(0.0, f64::max) * count as f64;
            assert!(most < count as f64 / nodes as f64 + 1.1, "{case}: {:?}", toy.shares());
        }
    }
}

/// No node is right for the huge page, which is two thirds of the traffic, and the others share the rest.
#[test]
fn base_pages_are_spread_beside_a_hot_huge_page() {
    let pattern = |page: u64, random| {
        let used = page < BASE + 512 || page % 16 == 0;
        used.then(|| (random_node(random, 4), Access::Write))
    };
    let mut toy = Toy::new(4, 9 * 512, Box::new(pattern)).huge().hardware(3000);
    toy.split = (1..9).map(|block| BASE + block * 512).collect();
    toy.homes.range_mut(..BASE + 512).for_each(|(_, home)| *home = 1);
    let mapping = |from, to| Mapping { range: PageRange::new(BASE + from, BASE + to), ..toy.mappings[0] };
    toy.homes.retain(|&page, _| !(BASE + 512..BASE + 1024).contains(&page));
    toy.mappings = vec![mapping(0, 512), mapping(1024, 9 * 512)];
    run(&mut engine(&toy), &mut toy, 40);
    let mut homes = [0; 4];
    toy.homes.range(BASE + 512..).for_each(|(_, &home)| homes[usize::from(home)] += 1);
    assert!(homes.iter().all(|&pages| pages < 7 * 512 / 2), "{homes:?}");
    assert!(toy.moves.range(..BASE + 512).all(|(_, &moves)| moves <= 1), "the hot page goes nowhere twice");
}
