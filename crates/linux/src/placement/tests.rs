//! Tests of the figures, with samples and homes made up.

use super::*;

const PID: Pid = Pid(1);
const PAGES: u64 = 16_384;
/// Nothing has shown for the first time for a while.
const LATER: u32 = 100;
const BALANCED: [bool; 4] = [true; 4];

fn watch(proportional: bool, passes: u64, user: impl Fn(u64, u64) -> u8) -> Placement {
    let mut placement = Placement::new(4, proportional);
    for pass in 0..passes {
        for page in 0..PAGES {
            placement.note(PID, PageNumber(page), 1, Some(1.0), NodeIndex(user(page, pass)), 0);
        }
    }
    placement
}

const fn at_once(huge: bool) -> u64 {
    if huge { HUGE_PAGE_PAGES } else { 1 }
}

fn small(located: Vec<Located>) -> Looked {
    Looked { located, passes: None }
}

fn local(placement: &mut Placement, first: impl Fn(u64) -> u8, now: impl Fn(u64) -> u8) -> [f64; 2] {
    let at = |node: u8| Some(NodeIndex(node));
    placement.look(LATER, |_, pages| {
        small(pages.iter().map(|page| (at(first(page.0)), at(now(page.0)))).collect())
    });
    let figures = placement.figures(&BALANCED);
    [figures.before, figures.after].map(|figures| figures.unwrap().local_access_percent)
}

#[track_caller]
fn are(percents: [f64; 2], expected: [f64; 2]) {
    let near = percents.iter().zip(expected).all(|(percent, expected)| (percent - expected).abs() <= 4.0);
    assert!(near, "{percents:?}, not {expected:?}");
}

fn slice(page: u64) -> u8 {
    (page / (PAGES / 4)) as u8
}

/// Any node, but always the same for the same page and pass.
fn any(page: u64, pass: u64) -> u8 {
    let mixed = (page ^ pass << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 62) as u8
}

#[test]
fn copies_make_local_whatever_is_read_by_several() {
    let half = PageNumber(PAGES / 2);
    let user = |page, pass| if page < half.0 { slice(page) } else { any(page, pass) };
    let mut placement = watch(false, 8, user);
    let place = |page: u64| if page < half.0 { slice(page) } else { 0 };
    are(local(&mut placement, |_| 0, place), [37.5, 62.5]);
    let figures = placement.figures(&BALANCED);
    assert_eq!(figures.after.as_ref().unwrap().local_with_copies_percent, None);
    // No other place is better for memory that all use.
    let adds = [figures.before, figures.after].map(|side| side.unwrap().collocation_adds_percent.unwrap());
    are(adds, [25.0, 0.0]);
    placement.note_replicable(PID, PageRange { start: half, end: PageNumber(PAGES) });
    are(local(&mut placement, |_| 0, place), [37.5, 62.5]);
    let with_copies = placement.figures(&BALANCED).after.unwrap().local_with_copies_percent.unwrap();
    assert!((with_copies - 100.0).abs() <= 1.0, "{with_copies}");
    (half.0..PAGES).for_each(|page| placement.note_written(PID, PageNumber(page), 1));
    are(local(&mut placement, |_| 0, place), [37.5, 62.5]);
    assert_eq!(placement.figures(&BALANCED).after.unwrap().local_with_copies_percent, None);
}

#[test]
fn private_slices_count_by_where_they_lie() {
    let mut placement = watch(false, 4, |page, _| slice(page));
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
    are(local(&mut placement, slice, |page| slice(page) / 2), [100.0, 25.0]);
    let figures = placement.figures(&BALANCED).after.unwrap();
    assert!(figures.pages.unwrap().abs_diff(PAGES) < PAGES / 10, "{figures:?}");
}

#[test]
fn shared_memory_is_local_to_one_of_its_users_wherever_it_lies() {
    let mut placement = watch(false, 8, any);
    are(local(&mut placement, |_| 0, slice), [25.0, 25.0]);
    // A node wins most of each pass, and one node most passes. The kernel moves each page to whoever came
    // last.
    let winner = |page: u64, pass: u64| {
        if any(page, pass + 100) == 0 { any(page, pass) } else { [0, 1, 0, 2, 0, 3, 0, 1][pass as usize] }
    };
    let mut placement = watch(false, 8, winner);
    are(local(&mut placement, |_| 0, |page| winner(page, 7)), [25.0, 25.0]);
}

#[test]
fn a_node_with_more_cpu_time_has_more_of_the_accesses_to_shared_memory() {
    let mut placement = watch(false, 8, any);
    placement.note_cpu_time(PID, vec![0.7, 0.1, 0.1, 0.1]);
    are(local(&mut placement, |_| 0, |_| 1), [70.0, 10.0]);
    // Threads wait on a CPU, too, and lose some of it to others.
    placement.note_cpu_time(PID, vec![0.28, 0.25, 0.27, 0.2]);
    are(local(&mut placement, |_| 0, |_| 3), [25.0, 25.0]);
    // A node that was not seen there is no user, whatever else it does.
    let mut placement = watch(false, 8, |page, pass| any(page, pass) % 2);
    placement.note_cpu_time(PID, vec![0.3, 0.1, 0.6, 0.0]);
    are(local(&mut placement, |_| 0, |_| 1), [75.0, 25.0]);
    placement.note_cpu_time(PID, vec![0.0, 0.0, 1.0, 0.0]);
    are(local(&mut placement, |_| 0, |_| 1), [50.0, 50.0]);
    // It says nothing of memory that one node uses.
    let mut placement = watch(false, 4, |page, _| slice(page));
    placement.note_cpu_time(PID, vec![0.7, 0.1, 0.1, 0.1]);
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
}

/// One thread is ahead of three that do as much, and takes nearly all faults.
#[test]
fn threads_that_work_and_are_seen_everywhere_use_what_another_has_the_faults_of() {
    let ahead = |page: u64, pass: u64| {
        if any(page, pass + 7) + any(page, pass + 9) == 0 { any(page / 3, pass + 5) } else { 0 }
    };
    let rarely = |page: u64, pass: u64| if page % 16 == 0 { ahead(page, pass) } else { 0 };
    let mut placement = watch(false, 8, rarely);
    placement.note_cpu_time(PID, vec![0.25; 4]);
    are(local(&mut placement, |_| 0, |_| 1), [25.0, 25.0]);
    // Pages that are two nodes' alone, in turn, are private whoever follows elsewhere.
    let in_turn = |page: u64, pass| if page % 16 == 0 { ahead(page, pass) } else { (page / 16 % 2) as u8 };
    let mut placement = watch(false, 8, in_turn);
    placement.note_cpu_time(PID, vec![0.25; 4]);
    let private = local(&mut placement, |_| 0, |page| (page / 16 % 2) as u8);
    assert!((private[0] - 50.0).abs() < 5.0 && private[1] > 90.0, "{private:?}");
    // They do hardly anything.
    let mut placement = watch(false, 8, rarely);
    placement.note_cpu_time(PID, vec![0.94, 0.02, 0.02, 0.02]);
    assert!(local(&mut placement, |_| 0, |_| 1)[0] > 95.0);
    // They spin on a few pages.
    let mut placement = watch(false, 8, |page, pass| if page < 64 { any(page, pass) } else { 0 });
    placement.note_cpu_time(PID, vec![0.25; 4]);
    assert!(local(&mut placement, |_| 0, |_| 1)[0] > 95.0);
}

/// On a busy host one thread runs at a time, and has all faults of two passes.
#[test]
fn memory_found_to_be_shared_is_so_though_few_samples_say_otherwise() {
    let user = |page: u64, _| any(page / 200, 0);
    let all = PageRange::new(0, PAGES);
    let mut placement = watch(false, 2, user);
    let private = local(&mut placement, |_| 0, |page| user(page, 0));
    assert!(private[1] > 90.0, "{private:?}: these samples alone say so");
    placement.note_shared(PID, all, true);
    are(local(&mut placement, |_| 0, |page| user(page, 0)), [25.0, 25.0]);
    // Many samples say it.
    let mut placement = watch(false, 8, user);
    placement.note_shared(PID, all, true);
    let private = local(&mut placement, |_| 0, |page| user(page, 0));
    assert!(private[1] > 90.0, "{private:?}");
    let mut placement = watch(false, 2, user);
    placement.note_shared(PID, all, true);
    placement.note_shared(PID, all, false);
    let private = local(&mut placement, |_| 0, |page| user(page, 0));
    assert!(private[1] > 90.0, "{private:?}: it is collocated since");
    placement.note_shared(PID, all, true);
    let elsewhere = PageRange::new(PAGES, 2 * PAGES);
    let kind = nodewise_engine::MappingKind::Anonymous;
    placement.keep_mapped(PID, &[Mapping { range: elsewhere, writable: true, kind }]);
    let private = local(&mut placement, |_| 0, |page| user(page, 0));
    assert!(private[1] > 90.0, "{private:?}: this is other memory");
}

/// Where threads share a CPU, one has all faults in a part of the memory, and often those of the next pass.
#[test]
fn shared_memory_is_not_private_where_one_thread_has_many_faults_in_a_row() {
    fn user(page: u64, pass: u64) -> u8 {
        let part = page / 1000;
        let stays = pass > 0 && any(part, 100 + pass) < 2 && any(part, 200 + pass) < 3;
        if stays { user(page, pass - 1) } else { any(part, pass) }
    }
    let mut seen = Vec::new();
    for passes in 2..=5 {
        for seed in 0..8 {
            let user = |page, pass| user(page + seed * 1_000_000, pass);
            let mut placement = watch(false, passes, user);
            // The kernel moves each page to whoever came last.
            seen.push(local(&mut placement, |_| 0, |page| user(page, passes - 1))[1]);
        }
    }
    let far = seen.iter().filter(|percent| (**percent - 25.0).abs() > 5.0).count();
    assert!(far <= 1, "{far} of {}: {seen:.1?}", seen.len());
    // A half that is private stays so.
    let half = |page: u64, pass: u64| if page < PAGES / 2 { slice(2 * page) } else { user(page, pass) };
    are(local(&mut watch(false, 3, half), |_| 0, |page| half(page, 2)), [25.0, 62.5]);
}

/// In each third of the memory one of the threads far from it follows the rest, and leads at a page in 32.
#[test]
fn a_thread_that_follows_others_over_shared_memory_is_one_of_its_users() {
    let user = |page: u64, pass| {
        let behind = 1 + (3 * page / PAGES) as u8;
        if any(page, 50) == 0 && pass == 3 { behind } else { (behind + 1 + any(page, pass) % 3) % 4 }
    };
    are(local(&mut watch(false, 8, user), |_| 0, |_| 0), [25.0, 25.0]);
    // Halves with users of their own have these alone.
    let user = |page: u64, pass| any(page, pass) % 2 + if page < PAGES / 2 { 0 } else { 2 };
    are(local(&mut watch(false, 8, user), |_| 0, |page| if page < PAGES / 2 { 1 } else { 2 }), [25.0, 50.0]);
}

/// Whether a node is behind the others or has little to do there, its few samples do not tell.
#[test]
fn a_node_that_was_seldom_seen_at_shared_memory_is_a_user_in_part() {
    let user = |seldom: u64| {
        move |page: u64, pass: u64| {
            if page * 8 % seldom + pass % 8 == 0 { 3 } else { any(page, pass) % 3 }
        }
    };
    are(local(&mut watch(false, 8, user(16)), |_| 0, slice), [25.0, 25.0]);
    let part = local(&mut watch(false, 8, user(100)), |_| 0, |_| 0)[0];
    assert!((27.0..32.0).contains(&part), "{part}");
    are(local(&mut watch(false, 8, user(1 << 40)), |_| 0, |_| 0), [33.3, 33.3]);
}

#[test]
fn pages_private_one_by_one_count_one_by_one() {
    let mut placement = watch(false, 4, |page, _| any(page, 7));
    are(local(&mut placement, |_| 0, |page| any(page, 7)), [25.0, 100.0]);
}

#[test]
fn huge_pages_count_with_all_their_parts_until_they_are_split() {
    let mut placement = Placement::new(4, false);
    let all = |placement: &mut Placement, huge| {
        for pass in 0..8 {
            for part in (0..PAGES).step_by(if huge { 128 } else { 1 }) {
                let page = PageNumber(if huge { (part + 128 * pass) % PAGES } else { part });
                placement.note(PID, page, at_once(huge), Some(1.0), NodeIndex((page.0 % 512 / 128) as u8), 0);
            }
        }
    };
    all(&mut placement, true);
    are(local(&mut placement, |_| 0, slice), [25.0, 25.0]);
    assert_eq!(placement.figures(&BALANCED).after.unwrap().pages, Some(PAGES));
    all(&mut placement, false);
    are(local(&mut placement, |_| 0, |page| (page % 512 / 128) as u8), [25.0, 100.0]);
    all(&mut placement, true);
    assert_eq!(placement.processes[&PID].watched.len() as u64, PAGES / 512);
}

/// Threads in step come to the pages in the same order in each pass. So one of them has all the faults of a
/// page, and the first node's is next to always behind.
#[test]
fn falsely_shared_huge_pages_are_not_private_though_one_thread_has_all_faults_of_each() {
    let mut placement = Placement::new(4, false);
    let mut pages = Vec::new();
    for pass in 0..30 {
        for page in 0..PAGES / 512 {
            let node = if pass == 7 && page % 4 == 0 { 0 } else { 1 + (page % 3) as u8 };
            let number = PageNumber(page * 512);
            placement.note(PID, number, HUGE_PAGE_PAGES, Some(1.0), NodeIndex(node), pass / 2);
            pages.push(number);
        }
    }
    let now = |page: u64| 1 + (page / 512 % 3) as u8;
    are(local(&mut placement, |_| 0, now), [1.0, 99.0]);
    placement.note_falsely_shared(PID, &pages, true);
    are(local(&mut placement, |_| 0, now), [25.0, 25.0]);
    let figures = placement.figures(&BALANCED).before.unwrap();
    assert_eq!((figures.pages, figures.collocation_adds_percent), (Some(PAGES), Some(0.0)));
    // They were split, and made again on one node.
    placement.note_falsely_shared(PID, &pages, false);
    are(local(&mut placement, |_| 0, now), [1.0, 99.0]);
    // The same by somebody else: they were seen in base pages meanwhile.
    placement.note_falsely_shared(PID, &pages, true);
    for (pass, huge) in [(40, false), (41, true), (42, true), (43, true), (44, true)] {
        for page in (0..PAGES).step_by(512) {
            placement.note(PID, PageNumber(page), at_once(huge), Some(1.0), NodeIndex(now(page)), pass);
        }
    }
    are(local(&mut placement, |_| 0, now), [0.0, 100.0]);
}

/// A sixteenth of the memory is in base pages, and there are more huge pages than are watched.
#[test]
fn much_memory_in_huge_pages_counts_though_few_of_them_are_watched() {
    let mut placement = Placement::new(4, false);
    for pass in 0..4 {
        for page in 0..PAGES {
            let huge = PageNumber(page * HUGE_PAGE_PAGES);
            placement.note(PID, huge, HUGE_PAGE_PAGES, Some(1.0), NodeIndex(slice(page)), pass);
        }
        let first = PAGES * HUGE_PAGE_PAGES;
        for page in first..first + first / 16 {
            placement.note(PID, PageNumber(page), 1, Some(1.0), NodeIndex(0), pass);
        }
    }
    assert!(placement.processes[&PID].watched.len() <= WATCHED);
    // Three quarters of the huge pages are far from their users, and none of the base pages.
    are(local(&mut placement, |_| 0, |_| 0), [100.0 * (0.25 + 1.0 / 16.0) / (1.0 + 1.0 / 16.0); 2]);
    let pages = placement.figures(&BALANCED).after.unwrap().pages.unwrap() as f64;
    let there_are = (PAGES * HUGE_PAGE_PAGES) as f64 * (1.0 + 1.0 / 16.0);
    assert!((pages / there_are - 1.0).abs() < 0.1, "{pages} of {there_are}");
}

#[test]
fn huge_pages_of_all_count_so_though_one_thread_has_all_faults_for_many_passes() {
    let mut placement = Placement::new(4, false);
    for pass in 0..40 {
        for page in (0..PAGES).step_by(512) {
            placement.note(
                PID,
                PageNumber(page),
                HUGE_PAGE_PAGES,
                Some(1.0),
                NodeIndex([3, 1, 0, 2][pass / 10]),
                pass as u32 / 4,
            );
        }
    }
    are(local(&mut placement, |_| 0, |page| (page / 512 % 4) as u8), [25.0, 25.0]);
}

/// Folios that the kernel has moved have a fault for each page that is written then, and others have one.
#[test]
fn a_folio_counts_with_all_its_pages_however_many_of_them_were_sampled() {
    const FOLIO: u64 = 256;
    let home = |page: u64| (page / FOLIO % 4) as u8;
    let mut placement = Placement::new(4, false);
    for pass in 0..12 {
        for folio in 0..PAGES / FOLIO {
            let faults = if folio % 4 == 0 { FOLIO } else { 1 };
            for page in (0..faults).map(|fault| folio * FOLIO + (folio + pass + fault) % FOLIO) {
                // Before the size was known, a page was one of its own.
                let at_once = if pass == 0 { 1 } else { FOLIO };
                let user = NodeIndex(((page + pass) % 4) as u8);
                placement.note(PID, PageNumber(page), at_once, Some(1.0), user, pass as u32);
            }
        }
    }
    are(local(&mut placement, |_| 0, home), [25.0, 25.0]);
    let after = placement.figures(&BALANCED).after.unwrap();
    assert_eq!(after.pages, Some(PAGES));
    assert!(after.controller_imbalance_percent.unwrap() < 1.0, "{after:?}");
}

/// After a time of quick passes another thread takes the memory over, and passes are slow.
#[test]
fn users_of_huge_pages_are_those_of_the_last_intervals() {
    let mut placement = Placement::new(4, false);
    for pass in 0..80 {
        for page in (0..PAGES).step_by(512) {
            let (node, interval) = if pass < 60 { (0, pass / 6) } else { (slice(page), pass - 50) };
            placement.note(PID, PageNumber(page), HUGE_PAGE_PAGES, Some(1.0), NodeIndex(node), interval);
        }
    }
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
}

#[test]
fn users_are_those_of_the_last_passes() {
    let mut placement = watch(false, 20, |page, pass| if pass < 10 { 0 } else { slice(page) });
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
}

#[test]
fn what_samples_do_not_show_is_unknown() {
    let mut placement = watch(false, 1, |_, _| 0);
    placement.look(LATER, |_, pages| small(vec![(Some(NodeIndex(0)), Some(NodeIndex(0))); pages.len()]));
    let unknown = Err(Unknown::Samples(0));
    assert_eq!(placement.figures(&BALANCED), BeforeAndAfter { before: unknown.clone(), after: unknown });
    let mut placement = watch(false, 4, |page, _| slice(page));
    placement.look(LATER, |_, pages| small(vec![(None, Some(NodeIndex(0))); pages.len()]));
    assert_eq!(placement.figures(&BALANCED).before, Err(Unknown::FirstHomes));
    assert!(placement.figures(&BALANCED).after.is_ok());
}

/// No page gives a second sample for long.
#[test]
fn much_memory_tells_where_it_lay_at_once_and_where_it_lies_when_all_of_it_was_marked() {
    let look_at = |interval, samples, passes| {
        let mut placement = watch(false, samples, |page, _| slice(page));
        placement.look(interval, |_, pages| {
            let now = |page: &PageNumber| Some(NodeIndex(slice(page.0) / 2));
            Looked { located: pages.iter().map(|page| (Some(NodeIndex(0)), now(page))).collect(), passes }
        });
        let BeforeAndAfter { before, after } = placement.figures(&BALANCED);
        let local = |figures: Figures| figures.local_access_percent.round();
        (before.map(local), after.map(local))
    };
    let look = |samples, passes| look_at(LATER, samples, passes);
    assert_eq!(look(4, Some(0)), (Err(Unknown::Scan), Err(Unknown::Scan)));
    assert_eq!(look(1, Some(1)), (Ok(25.0), Err(Unknown::Scan)));
    assert_eq!(look(4, Some(1)), (Ok(25.0), Err(Unknown::Scan)));
    assert_eq!(look_at(5, 4, Some(2)), (Err(Unknown::Scan), Err(Unknown::Scan)), "more may come");
    assert_eq!(look(1, Some(2)), (Ok(25.0), Err(Unknown::Samples(0))));
    assert_eq!(look(4, Some(2)), (Ok(25.0), Ok(25.0)));
    assert_eq!(look(1, None), (Err(Unknown::Samples(0)), Err(Unknown::Samples(0))));
}

#[test]
fn pages_count_for_those_that_they_stand_for() {
    let mut placement = Placement::new(4, false);
    for page in 0..2000 {
        let (pages, node) = if page % 2 == 0 { (1.0, 0) } else { (9.0, 1) };
        placement.note(PID, PageNumber(page), 1, Some(pages), NodeIndex(node), 0);
    }
    placement.look(LATER, |_, pages| Looked {
        located: vec![(Some(NodeIndex(0)), Some(NodeIndex(0))); pages.len()],
        passes: Some(1),
    });
    let before = placement.figures(&BALANCED).before.unwrap();
    assert!((before.local_access_percent - 10.0).abs() < 0.5);
}

/// Memory was asked for in part, and samples say how often it is accessed.
#[test]
fn accesses_to_pages_that_were_not_asked_for_tell_where_memory_lies_and_not_where_it_lay() {
    let with = |asked_in: u64| {
        let mut placement = Placement::new(4, true);
        for access in 0..2000 {
            let asked = access % asked_in == 0;
            let stands_for = asked.then_some(10.0);
            placement.note(PID, PageNumber(access), 1, stands_for, NodeIndex((access % 4) as u8), 0);
        }
        placement.look(LATER, |_, pages| {
            let first = |page: &PageNumber| (page.0 % asked_in == 0).then_some(NodeIndex(0));
            small(pages.iter().map(|page| (first(page), Some(NodeIndex((page.0 % 4) as u8)))).collect())
        });
        placement.figures(&BALANCED)
    };
    let figures = with(5);
    assert!((figures.before.unwrap().local_access_percent - 25.0).abs() < 0.5);
    assert!((figures.after.unwrap().local_access_percent - 100.0).abs() < 0.5);
    // Only the end is known if the hot memory was not asked for.
    let figures = with(100);
    assert_eq!(figures.before, Err(Unknown::FirstHomes));
    assert!((figures.after.unwrap().local_access_percent - 100.0).abs() < 0.5);
}

#[test]
fn a_process_that_is_ending_counts_as_it_was() {
    let mut placement = watch(false, 4, |page, _| slice(page));
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
    let mut half_gone = |gone: u64| {
        let seen = placement.look(LATER, |_, pages| {
            let left = pages.iter().map(|page| (page.0 >= gone).then_some(NodeIndex(3)));
            small(left.map(|home| (home, home)).collect())
        });
        (seen, placement.figures(&BALANCED).after.unwrap().local_access_percent > 99.0)
    };
    assert_eq!(half_gone(PAGES * 15 / 16), (false, true));
    assert_eq!(half_gone(PAGES), (false, true));
    // It goes on without.
    assert_eq!(half_gone(PAGES * 15 / 16), (true, true));
    assert!(half_gone(PAGES * 15 / 16).0);
}

#[test]
fn a_process_that_has_ended_counts_as_it_was() {
    let mut placement = watch(false, 4, |page, _| slice(page));
    are(local(&mut placement, |_| 0, slice), [25.0, 100.0]);
    assert!(!placement.look(LATER, |_, pages| small(vec![(None, None); pages.len()])));
    placement.keep(|_| false);
    let figures = placement.figures(&BALANCED);
    assert!(figures.after.is_ok_and(|figures| figures.local_access_percent > 99.0));
    let before = figures.before.unwrap();
    assert_eq!(
        (before.controller_imbalance_percent, before.served_by),
        (Some(200.0), vec![1.0, 0.0, 0.0, 0.0])
    );
}

/// A sixteenth of the memory has most of the accesses.
#[test]
fn accesses_count_where_samples_are_accesses() {
    let mut placement = Placement::new(4, true);
    for access in 0..20_000 {
        let hot = any(access, 3) != 0;
        let page = PageNumber(access * 7919 % if hot { PAGES / 16 } else { PAGES });
        placement.note(PID, page, 1, Some(1.0), NodeIndex(u8::from(!hot)), 0);
    }
    are(local(&mut placement, |_| 0, |_| 1), [75.0, 25.0]);
}
