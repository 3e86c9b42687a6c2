use super::*;

const NODES: usize = 4;
const PAGES: u64 = 4096;

/// A program on four nodes, each at twice the time from every other.
fn program(objects: usize, uses: Vec<Use>) -> Findings {
    let ratios = (0..NODES).map(|a| (0..NODES).map(|b| if a == b { 1.0 } else { 2.0 }).collect());
    let object = |i: usize| Object { name: format!("memory {i}"), ..Object::default() };
    find(&Seen {
        nodes: vec![0, 1, 2, 3],
        balanced: vec![true; NODES],
        ratios: ratios.collect(),
        objects: (0..objects).map(object).collect(),
        uses,
        load: None,
    })
}

/// Samples in no order: page and user by what is given.
fn samples(
    count: u64,
    pages: u64,
    from: impl Fn(u64, u64) -> u64,
    home: impl Fn(u64) -> u64,
    write: Option<bool>,
) -> Vec<Use> {
    let mut random = 12_345_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let one = |_| {
        let page = next() % pages;
        Use {
            object: 0,
            page,
            from: from(page, next()) as u8,
            home: Some(home(page) as u8),
            is_far: false,
            write,
            weight: 1,
            huge: false,
            word: 0,
            is_taken: false,
            stored: 0,
        }
    };
    (0..count).map(one).collect()
}

fn only(findings: &Findings) -> (Option<Remedy>, f64) {
    assert_eq!(findings.rows.len(), 1);
    (findings.rows[0].remedy, findings.rows[0].gain_percent.unwrap_or(0.0))
}

/// Ten heaps with 40 samples each: none can be judged, and together they are most of the accesses.
#[test]
fn memory_with_too_few_samples_is_not_said_to_be_well() {
    let heaps = |home: fn(u64) -> u64| -> Vec<Use> {
        let mut uses = samples(400, PAGES, |page, _| page / (PAGES / 4), home, None);
        for (i, one) in uses.iter_mut().enumerate() {
            one.object = i as u32 % 10;
        }
        uses
    };
    let far = program(10, heaps(|_| 3));
    assert!(far.rows.iter().all(|row| row.samples == 40 && row.remedy.is_none()));
    assert_eq!(far.verdict(), Verdict::Unknown);
    // Three of four accesses take twice as long as they could, and all of them go to one memory.
    assert!((far.unjudged_gain_percent - 73.0).abs() < 3.0, "{}", far.unjudged_gain_percent);
    let near = program(10, heaps(|page| page / (PAGES / 4)));
    assert_eq!((near.verdict(), near.unjudged_gain_percent), (Verdict::Healthy, 0.0));
    // The same memory as one of which much was sampled.
    let one = heaps(|_| 3).into_iter().map(|one| Use { object: 0, ..one });
    let judged = program(1, one.collect());
    assert_eq!((judged.verdict(), judged.unjudged_gain_percent), (Verdict::Hurt, 0.0));
    assert_eq!(program(1, Vec::new()).verdict(), Verdict::Unknown);
}

#[test]
fn each_sickness_has_its_remedy() {
    let quarter = |page, _| page / (PAGES / 4);
    let strided = |page, _| page % 4;
    let anybody = |_, random| random % 4;
    for count in [400, 20_000] {
        // All on node 0: the queue there takes three quarters.
        for (name, from, expected) in [
            ("slices", &quarter as &dyn Fn(u64, u64) -> u64, Remedy::TouchInParallel),
            ("shared", &anybody, Remedy::Interleave),
            ("one thread", &|_, _| 2, Remedy::BindThreads),
        ] {
            let (remedy, gain) = only(&program(1, samples(count, PAGES, from, |_| 0, None)));
            assert_eq!(remedy, Some(expected), "{name}, {count} samples");
            let expected = if remedy == Some(Remedy::BindThreads) { 50.0 } else { 75.0 };
            assert!((gain - expected).abs() < 5.0, "{name}, {count} samples: {gain}");
        }
        let read = program(1, samples(count, PAGES, anybody, |_| 0, Some(false)));
        assert_eq!(only(&read).0, Some(Remedy::Replicate));
    }
    // Neighbouring pages have different users: only pairs on one page tell.
    let strided = only(&program(1, samples(20_000, PAGES, strided, |_| 0, Some(true))));
    assert_eq!(strided.0, Some(Remedy::TouchInParallel));
    // Filled by one, and then read by all.
    let mut filled = samples(300, PAGES, |_, _| 0, |_| 0, Some(true));
    filled.extend(samples(2000, PAGES, anybody, |_| 0, Some(false)));
    assert_eq!(only(&program(1, filled)).0, Some(Remedy::Replicate));
    // And by one other node, which is its only user.
    let mut filled = samples(300, PAGES, |_, _| 0, |_| 0, Some(true));
    filled.extend(samples(1000, PAGES, |_, _| 3, |_| 0, Some(false)));
    assert_eq!(only(&program(1, filled)).0, Some(Remedy::BindThreads));
    let counters = only(&program(1, samples(1000, 2, anybody, |_| 0, Some(true))));
    assert_eq!(counters.0, Some(Remedy::Privatise));
    // Two huge pages are much memory.
    let mut huge = samples(1000, 2, anybody, |_| 0, Some(true));
    for one in &mut huge {
        one.huge = true;
    }
    assert_eq!(only(&program(1, huge)).0, Some(Remedy::Interleave));
}

/// Four nodes use a quarter of each huge page, or all of it.
#[test]
fn huge_pages_with_a_user_for_each_part_are_to_be_split() {
    const WORDS: u32 = 1 << 18;
    let huge = |word: &dyn Fn(u64, u32) -> u32| {
        let mut uses = samples(2000, 8, |_, random| random % 4, |_| 0, Some(false));
        for (i, one) in uses.iter_mut().enumerate() {
            let any = (i as u32).wrapping_mul(2_654_435_761) >> 14;
            (one.huge, one.word) = (true, word(one.from.into(), any));
        }
        uses
    };
    let quarters = huge(&|from, any| from as u32 * (WORDS / 4) + any % (WORDS / 4));
    let row = &program(1, quarters.clone()).rows[0];
    assert_eq!(row.remedy, Some(Remedy::Split), "{row:?}");
    assert!(row.main_user_percent < Some(60.0) && row.part_user_percent > Some(99.0), "{row:?}");
    let shared = &program(1, huge(&|_, any| any % WORDS)).rows[0];
    assert_eq!(shared.remedy, Some(Remedy::Replicate), "{shared:?}");
    assert!(shared.part_user_percent < Some(60.0), "{shared:?}");
    // Small pages have no parts.
    let small = quarters.into_iter().map(|one| Use { huge: false, word: one.word % 512, ..one });
    let small = &program(1, small.collect()).rows[0];
    assert_eq!((small.remedy, small.part_user_percent), (Some(Remedy::Replicate), None));
}

#[test]
fn healthy_memory_has_none() {
    let quarter = |page, _| page / (PAGES / 4);
    let anybody = |_, random| random % 4;
    for count in [400, 20_000] {
        let near = program(1, samples(count, PAGES, quarter, |page| page / (PAGES / 4), Some(true)));
        let sum: f64 = near.traffic_percent.iter().flatten().sum();
        assert!((sum - 100.0).abs() < 1e-6 && near.traffic_percent[0][1] == 0.0, "{near:?}");
        assert_eq!((only(&near).0, near.far_percent), (None, Some(0.0)));
        let even = program(1, samples(count, PAGES, anybody, |page| page % 4, Some(true)));
        assert_eq!(only(&even), (None, 0.0), "{count} samples");
    }
    // Too few to tell anything.
    let few = program(1, samples(40, PAGES, quarter, |_| 0, None));
    assert_eq!((only(&few).0, few.rows[0].main_user_percent), (None, None));
    // Sick, but a thousandth of all accesses.
    let mut uses = samples(100_000, PAGES, quarter, |page| page / (PAGES / 4), None);
    let sick = samples(100, PAGES, quarter, |_| 0, None);
    uses.extend(sick.into_iter().map(|one| Use { object: 1, page: one.page + (1 << 30), ..one }));
    let both = program(2, uses);
    assert!(both.to_change().is_empty(), "{both:?}");
    let nothing = program(0, Vec::new());
    assert_eq!((nothing.far_percent, nothing.rows.len()), (None, 0));
}

#[test]
fn the_main_users_share_does_not_depend_on_how_often_a_page_was_sampled() {
    // One node has 70 % of every page, and the others have 10 % each.
    let mostly =
        |page, random: u64| if random % 10 < 7 { page % 4 } else { (page + 1 + random / 10 % 3) % 4 };
    for count in [3000, 10_000, 100_000] {
        let findings = program(1, samples(count, PAGES, mostly, |_| 0, None));
        let share = findings.rows[0].main_user_percent.unwrap();
        assert!((share - 70.0).abs() < 4.0, "{count}: {share}");
    }
}

#[test]
fn what_collocation_adds_is_the_private_part_of_a_mixture() {
    let strided = |page, _| page % 4;
    let anybody = |_, random| random % 4;
    for (private, shared, expected) in [(8000, 0, 75.0), (0, 8000, 0.0), (4000, 4000, 37.5), (400, 400, 37.5)]
    {
        // Few samples of many pages tell only if neighbours are alike.
        let pages = if private == 400 { 64 } else { PAGES };
        let mut uses = samples(private, pages, strided, |_| 0, None);
        let shared = samples(shared, pages, anybody, |_| 0, None);
        uses.extend(shared.into_iter().map(|one| Use { page: one.page + (1 << 30), ..one }));
        let adds = collocation_adds_percent(uses, NODES).unwrap();
        assert!((adds - expected).abs() < 4.0, "{private} {adds}");
    }
    let quarter = |page, _| page / (PAGES / 4);
    let adds = collocation_adds_percent(samples(400, PAGES, quarter, |_| 0, None), NODES).unwrap();
    assert!((adds - 75.0).abs() < 8.0, "{adds}");
    let near = samples(4000, PAGES, quarter, |page| page / (PAGES / 4), None);
    assert!(collocation_adds_percent(near, NODES).unwrap() < 1e-9);
    assert_eq!(collocation_adds_percent(samples(10, PAGES, quarter, |_| 0, None), NODES), None);
}

#[test]
fn memory_that_is_stored_to_in_caches_is_not_to_be_replicated() {
    // A histogram: loads come from memory, and the stores after them find their lines in the cache.
    let read = samples(2000, PAGES, |_, random| random % 4, |_| 0, Some(false));
    let some = read.iter().enumerate().map(|(at, one)| Use { stored: u64::from(at % 10 == 0), ..*one });
    for (uses, expected, percent) in
        [(read.clone(), Remedy::Replicate, 0.0), (some.collect(), Remedy::Interleave, 100.0 / 11.0)]
    {
        let findings = program(1, uses);
        let row = &findings.rows[0];
        assert_eq!(row.remedy, Some(expected), "{row:?}");
        assert!((row.write_percent.unwrap() - percent).abs() < 0.1, "{row:?}");
        assert_eq!(row.samples, 2000);
    }
}

#[test]
fn lines_that_go_from_cache_to_cache_are_named() {
    let anybody = |_, random| random % 4;
    let private = samples(1000, PAGES, |page, _| page % 4, |page| page % 4, Some(true));
    // On page 5 each node has its own word of one line, and on page 7 all have the same.
    let contended = |page: u64, word: fn(u8) -> u32| {
        let uses = samples(500, 1, anybody, |_| 0, Some(false));
        uses.into_iter().map(move |one| Use {
            object: 1,
            page: page + (1 << 30),
            word: 16 + word(one.from),
            is_taken: true,
            ..one
        })
    };
    let mut uses = private;
    uses.extend(contended(5, u32::from));
    uses.extend(contended(7, |_| 3));
    let findings = program(2, uses);
    let of = |page: u64| findings.lines.iter().find(|line| line.address == ((1 << 30) + page) * 4096 + 128);
    assert_eq!(findings.lines.len(), 2, "{:?}", findings.lines);
    let (padded, shared) = (of(5).unwrap(), of(7).unwrap());
    assert!(padded.is_falsely_shared && !shared.is_falsely_shared);
    assert_eq!((padded.samples, padded.memory.as_str()), (500, "memory 1"));
    assert!(padded.used_from_percent.iter().all(|percent| (15.0..35.0).contains(percent)), "{padded:?}");
    assert!((padded.accesses_percent - 25.0).abs() < 0.1, "{padded:?}");
    let row = findings.rows.iter().find(|row| row.memory == "memory 1").unwrap();
    assert_eq!((row.remedy, row.is_contended()), (Some(Remedy::Privatise), true), "{row:?}");
}

#[test]
fn lines_that_caches_take_from_each_other_are_no_traffic_of_memory() {
    let quarter = |page, _| page / (PAGES / 4);
    let near = samples(1000, PAGES, quarter, |page| page / (PAGES / 4), Some(true));
    // A queue on node 0 through which all nodes go.
    let queue = samples(250, 64, |_, random| random % 4, |_| 0, Some(false));
    let queue: Vec<Use> = queue
        .into_iter()
        .map(|one| Use { object: 1, page: one.page + (1 << 30), is_taken: true, ..one })
        .collect();
    let findings = program(2, near.iter().chain(&queue).copied().collect());
    assert_eq!(findings.far_percent, Some(0.0), "{findings:?}");
    assert!(findings.traffic_percent[1][0] == 0.0 && findings.unknown_home_percent == 0.0, "{findings:?}");
    let row = findings.rows.iter().find(|row| row.memory == "memory 1").unwrap();
    assert!((row.accesses_percent - 20.0).abs() < 1e-9 && row.far_percent == 0.0, "{row:?}");
    assert_eq!((row.remedy, row.write_percent), (Some(Remedy::Privatise), Some(100.0)), "{row:?}");
    // A node that is none has no place, as in a damaged recording.
    let stray = program(2, queue.iter().map(|one| Use { from: 200, ..*one }).collect());
    assert_eq!(stray.far_percent, None, "{stray:?}");
    // Alone, too.
    let findings = program(2, queue);
    assert_eq!((findings.far_percent, findings.to_change().len()), (Some(0.0), 1), "{findings:?}");
}

#[test]
fn a_gain_that_was_measured_is_no_bound() {
    let quarter = |page, _| page / (PAGES / 4);
    let uses = samples(4000, PAGES, quarter, |_| 0, Some(true));
    let ratios: Vec<Vec<f64>> =
        (0..NODES).map(|a| (0..NODES).map(|b| if a == b { 1.0 } else { 2.0 }).collect()).collect();
    // Three wait for 600 cycles, and one for 300. All work as long as that.
    let load = measured(&ratios, 1050.0);
    let object = Object { name: "memory".to_owned(), ..Object::default() };
    let (nodes, balanced, objects) = (vec![0, 1, 2, 3], vec![true; NODES], vec![object]);
    let mut seen = Seen { nodes, balanced, ratios, objects, uses, load: Some(load) };
    let row = |seen: &Seen| find(seen).rows.remove(0);
    let told = row(&seen);
    assert_eq!((told.remedy, told.gain_is_bound), (Some(Remedy::TouchInParallel), false));
    let near = |percent: Option<f64>, expected: f64| (percent.unwrap() - expected).abs() < 0.7;
    assert!(near(told.gain_percent, 100.0 * 225.0 / 1050.0), "{told:?}");
    assert!(near(told.slowest_gain_percent, 100.0 * 300.0 / 1125.0), "{told:?}");
    seen.load = None;
    let bound = row(&seen);
    assert_eq!((bound.gain_is_bound, bound.slowest_gain_percent), (true, None));
    assert!(bound.gain_percent > told.slowest_gain_percent, "{bound:?}");
    // A program that hardly accesses memory gains hardly anything.
    seen.load = Some(measured(&seen.ratios, 1e6));
    assert_eq!((row(&seen).remedy, row(&seen).gain_is_bound), (None, false));
}

/// All accesses go to node 0, take 525 cycles in the mean, and so many with the work.
fn measured(ratios: &[Vec<f64>], cycles_each: f64) -> Load {
    let ways: Vec<Vec<f64>> =
        ratios.iter().map(|row| row.iter().map(|ratio| 300.0 * ratio).collect()).collect();
    let accesses = (0..NODES).map(|_| vec![1e6, 0.0, 0.0, 0.0]).collect();
    let (cycles, work_cycles) = (4e6 * cycles_each, 4e6 * (cycles_each - 525.0));
    Load { accesses, latencies: ways.clone(), ways, cycles, work_cycles, cpus: 4.0, ..Load::default() }
}

#[test]
fn far_memory_that_is_nobody_knows_where_is_far_and_of_no_node() {
    let quarter = |page, _| page / (PAGES / 4);
    // All of it is on node 0. Three of four nodes know no more than that it is not theirs.
    let forget = |one: Use| match one.home {
        Some(home) if home != one.from => Use { home: None, is_far: true, ..one },
        _ => one,
    };
    let known = samples(4000, PAGES, quarter, |_| 0, None);
    let told = program(1, known.iter().copied().map(forget).collect());
    let [known, row] = [&program(1, known).rows[0], &told.rows[0]];
    assert!((row.far_percent - known.far_percent).abs() < 1e-9 && row.far_percent > 70.0, "{row:?}");
    assert_eq!(told.far_percent, Some(row.far_percent));
    assert!((told.unknown_far_percent - row.far_percent).abs() < 1e-9, "{told:?}");
    assert_eq!((&row.used_from_percent, row.remedy), (&known.used_from_percent, known.remedy));
    let sum: f64 = row.lies_on_percent.iter().sum();
    assert!((sum + row.far_percent - 100.0).abs() < 1e-9, "{row:?}");
    // No queue is known, but the way is.
    assert!(row.gain_percent <= known.gain_percent && row.gain_percent > Some(30.0), "{row:?}");
    // Memory of which nothing at all is known is no far memory.
    let lost = samples(100, PAGES, quarter, |_| 0, None).into_iter().map(|one| Use { home: None, ..one });
    let lost = program(1, lost.collect());
    assert_eq!((lost.far_percent, lost.rows[0].far_percent), (None, 0.0));
    assert!((lost.unknown_home_percent - 100.0).abs() < 1e-9, "{lost:?}");
}

/// As with a node of CXL memory, and one whose memory failed.
#[test]
fn memory_is_spread_over_nodes_with_cpus_and_memory() {
    let of_all = Traffic { matrix: vec![vec![100.0, 0.0, 0.0, 0.0]; 4], ..Traffic::none(NODES) };
    let near = |a: usize, b: usize| if a == b { 1.0 } else { 2.0 + a.abs_diff(b) as f64 };
    let ratios = (0..NODES).map(|a| (0..NODES).map(|b| near(a, b)).collect()).collect();
    let balanced = vec![true, true, false, true];
    let (nodes, objects, uses) = (vec![0, 1, 2, 3], Vec::new(), Vec::new());
    let mut seen = Seen { nodes, balanced, ratios, objects, uses, load: None };
    let third = 100.0 / 3.0;
    let spread = of_all.with_near(1.0 / 3.0, &seen).matrix;
    for row in &spread {
        let expected = [third, third, 0.0, third];
        assert!(row.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9), "{row:?}");
    }
    let collocated = of_all.with_near(1.0, &seen).matrix;
    assert_eq!(collocated[2], [0.0, 100.0, 0.0, 0.0], "the first of the nearest");
    assert_eq!(collocated[3], [0.0, 0.0, 0.0, 100.0]);
    seen.balanced = vec![true, false, false, false];
    assert_eq!(of_all.with_near(0.25, &seen).matrix, of_all.matrix, "there is nowhere else");
}
