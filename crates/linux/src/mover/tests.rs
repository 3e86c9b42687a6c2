use super::*;
use nodewise_engine::Interleaving;
use nodewise_topology::NodeIndex;
use proptest::prelude::*;
use std::collections::BTreeSet;

const NODE_BYTES: u64 = 64 << 20;

/// A process whose pages are a map, with troubles on order.
#[derive(Debug, Default)]
struct Fake {
    homes: BTreeMap<u64, i32>,
    huge: BTreeSet<u64>,
    /// Pages that fail this often with this error number before they move.
    trouble: BTreeMap<u64, (u32, i32)>,
    free: BTreeMap<u32, u64>,
    dies_after_calls: Option<u32>,
    stops_short: bool,
    /// The target has room for so many pages more.
    out_of_memory_after: Option<u32>,
    calls: Vec<usize>,
    /// How often pages of a call went to another node than the page before.
    turns: usize,
    moves: BTreeMap<u64, u32>,
    clock_ns: u64,
    /// How much of it was no CPU time.
    waited_ns: u64,
    /// How long a call waits before it moves its pages, and what each page takes besides 10 us.
    more_ns: (u64, u64),
    /// Managing is to end after so many calls.
    ends_after: Option<usize>,
    /// Pages that a stranger has mapped, too.
    strangers: BTreeSet<u64>,
    /// Where pages were seen.
    seen: BTreeMap<u64, (u32, PageNumber)>,
    /// Pages of each folio that is no huge page; 0 if all are on their own.
    folio_pages: u64,
    /// Pages that were asked for with `MoveFlags::All`.
    from_under_all: BTreeSet<u64>,
    /// Pages whose node was asked for.
    queried: usize,
    /// How long that takes for each.
    look_ns: u64,
}

impl Fake {
    fn alive(&mut self) -> Result<(), Error> {
        match &mut self.dies_after_calls {
            Some(0) => Err(Error::new("move_pages", 3)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Fake {
    fn node_of(&self, page: PageNumber) -> NodeId {
        NodeId(self.homes[&page.0] as u32)
    }
}

impl Kernel for Fake {
    fn query(&mut self, _pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), Error> {
        self.alive()?;
        self.queried += addresses.len();
        self.clock_ns += addresses.len() as u64 * self.look_ns;
        for (address, status) in addresses.iter().zip(status) {
            *status = self.homes.get(&(address / PAGE_BYTES)).copied().unwrap_or(-ENOENT);
        }
        Ok(())
    }

    fn move_pages(
        &mut self,
        _pid: u32,
        addresses: &[u64],
        nodes: &[i32],
        status: &mut [i32],
        flags: MoveFlags,
    ) -> Result<u64, Error> {
        self.alive()?;
        if flags == MoveFlags::All {
            self.from_under_all.extend(addresses.iter().map(|address| address / PAGE_BYTES));
        }
        self.calls.push(addresses.len());
        self.turns += nodes.windows(2).filter(|pair| pair[0] != pair[1]).count();
        self.clock_ns += self.more_ns.0;
        self.waited_ns += self.more_ns.0;
        for (i, address) in addresses.iter().enumerate() {
            let page = address / PAGE_BYTES;
            if let Some((times, errno)) = self.trouble.get_mut(&page) {
                if *times > 0 {
                    *times -= 1;
                    status[i] = -*errno;
                    if self.stops_short {
                        status[i] = UNSET;
                        return Ok((addresses.len() - i) as u64);
                    }
                    continue;
                }
            }
            if let Some(left) = &mut self.out_of_memory_after {
                if *left == 0 {
                    return Err(Error::new("move_pages", ENOMEM));
                }
                *left -= 1;
            }
            let head = PageNumber(page).huge().0;
            let first = page - page % self.folio_pages.max(1);
            let moved = if self.huge.contains(&head) {
                head..head + HUGE_PAGE_PAGES
            } else {
                first..first + self.folio_pages.max(1)
            };
            for page in moved {
                self.clock_ns += 10_000 + self.more_ns.1;
                *self.moves.entry(page).or_default() += 1;
                if let Some(home) = self.homes.get_mut(&page) {
                    *home = nodes[i];
                }
            }
            status[i] = self.homes.get(&page).copied().unwrap_or(-ENOENT);
        }
        Ok(0)
    }

    fn seen_at(&self, _pid: u32, page: PageNumber) -> Option<(u32, PageNumber)> {
        self.seen.get(&page.0).copied()
    }

    fn is_ending(&self) -> bool {
        self.ends_after.is_some_and(|calls| self.calls.len() >= calls)
    }

    fn is_huge(&mut self, _pid: u32, page: PageNumber) -> Option<bool> {
        Some(self.huge.contains(&page.huge().0))
    }

    fn folios(&mut self, _pid: u32, window: PageRange, _pages: &[PageNumber]) -> Option<Vec<u16>> {
        let folio = |page: u64| match self.folio_pages {
            0 => 1,
            pages if page % pages > 0 => 0,
            pages => pages as u16,
        };
        (self.folio_pages > 0).then(|| (window.start.0..window.end.0).map(folio).collect())
    }

    fn are_theirs_alone(&mut self, mappers: &[Mapper], window: PageRange) -> Vec<bool> {
        let has = |page| mappers.iter().any(|mapper| mapper.range.contains(PageNumber(page)));
        let is_alone = |page| has(page) && !self.strangers.contains(&page);
        (window.start.0..window.end.0).map(is_alone).collect()
    }

    fn free_bytes(&mut self, node: NodeId) -> u64 {
        self.free.get(&node.0).copied().unwrap_or(NODE_BYTES)
    }

    fn cpu_ns(&mut self) -> u64 {
        self.clock_ns - self.waited_ns
    }

    fn now_ns(&mut self) -> u64 {
        self.clock_ns += 100;
        self.clock_ns
    }
}

fn mover(fake: Fake, settings: MoverSettings) -> Mover<Fake> {
    Mover::new(fake, settings, (0..4).map(|n| (NodeId(n), NODE_BYTES)).collect())
}

fn small_pages(count: u64) -> Fake {
    Fake { homes: (0..count).map(|page| (page, 0)).collect(), ..Fake::default() }
}

fn all_to_2(mover: &mut Mover<Fake>, pages: u64) -> Outcome {
    let target = |_, _, _| Some(NodeId(2));
    let job =
        Job { range: PageRange::new(0, pages), mappers: &Vec::new, target: &target, whole_folios: true };
    let outcome = mover.carry_out(1, &[job], u64::MAX)[0];
    assert_adds_up(&outcome);
    outcome
}

fn assert_adds_up(o: &Outcome) {
    let parts = [o.moved, o.deferred, o.busy, o.node_full, o.vanished, o.not_permitted];
    let sum: u64 = parts.iter().sum();
    assert!(o.only_reported || sum == o.planned, "{sum} accounted for in {o:?}");
}

fn mapper(pid: u32, range: PageRange, at: u64) -> Mapper {
    Mapper { pid, range, at: PageNumber(at) }
}

#[test]
fn pages_that_a_stranger_has_mapped_are_not_moved_from_under_him() {
    let mut fake = small_pages(4 * HUGE_PAGE_PAGES);
    // A stranger has mapped one page of the second huge page, and none of the others.
    fake.huge = [HUGE_PAGE_PAGES, 2 * HUGE_PAGE_PAGES].into();
    fake.strangers = [7, 8, HUGE_PAGE_PAGES + 3].into();
    let mut mover = mover(fake, MoverSettings::default());
    let target = |_, _, _| Some(NodeId(2));
    let range = PageRange::new(5, 4 * HUGE_PAGE_PAGES);
    let whole = PageRange::new(0, 4 * HUGE_PAGE_PAGES);
    let both = || vec![mapper(1, whole, 0), mapper(9, whole, 10_000)];
    mover.carry_out(1, &[Job { range, mappers: &both, target: &target, whole_folios: true }], u64::MAX);
    let from_under_all = std::mem::take(&mut mover.kernel().from_under_all);
    let small = (5..HUGE_PAGE_PAGES).chain(3 * HUGE_PAGE_PAGES..4 * HUGE_PAGE_PAGES);
    let expected = small.filter(|page| ![7, 8].contains(page)).chain([2 * HUGE_PAGE_PAGES]);
    assert_eq!(from_under_all, expected.collect());
    mover.kernel().homes.values_mut().for_each(|home| *home = 1);
    mover.carry_out(1, &[Job { range, mappers: &Vec::new, target: &target, whole_folios: true }], u64::MAX);
    assert!(mover.kernel().from_under_all.is_empty());
}

#[test]
fn shared_pages_that_the_first_process_never_touched_are_moved_by_those_who_have_them() {
    // The first has mapped 100 pages and touched ten; others have the rest, each at addresses of its own.
    let homes = (0..10).chain(1010..1060).chain(2060..2100);
    // Beside what they have mapped of it lies other memory of theirs.
    let others = (1000..1010).chain(1060..1100).chain(2000..2060);
    let present = homes.clone().chain(others.clone());
    let fake = Fake { homes: present.map(|page| (page, 0)).collect(), ..Fake::default() };
    let mut mover = mover(fake, MoverSettings::default());
    let part = PageRange::new;
    let mappers =
        || vec![mapper(1, part(0, 100), 0), mapper(8, part(10, 60), 1010), mapper(9, part(60, 100), 2060)];
    let target = |page: PageNumber, _, _| Some(NodeId(1 + (page.0 % 2) as u32));
    let job = Job { range: PageRange::new(0, 100), mappers: &mappers, target: &target, whole_folios: true };
    let outcome = mover.carry_out(1, &[job], u64::MAX)[0];
    assert_adds_up(&outcome);
    assert_eq!((outcome.planned, outcome.moved), (100, 100));
    assert!(homes.clone().all(|page| mover.kernel().homes[&page] == 1 + (page % 2) as i32));
    assert!(others.clone().all(|page| mover.kernel().homes[&page] == 0));
    let arrived: BTreeSet<u64> = mover.take_moved().iter().map(|moved| moved.page.0).collect();
    assert_eq!(arrived, (0..100).collect());
    // They are where they should be.
    assert_eq!(
        mover.carry_out(
            1,
            &[Job { range: PageRange::new(0, 100), mappers: &mappers, target: &target, whole_folios: true }],
            u64::MAX
        )[0]
        .planned,
        0
    );
}

/// A database may have a thousand processes. Only the last one has the pages, and of some it was seen.
#[test]
fn shared_pages_are_found_where_they_were_seen() {
    let homes = (90_000..90_100).map(|page| (page, 0)).collect();
    let all = PageRange::new(1000, 1100);
    let mappers = || (1..=90).map(|other| mapper(other, all, 1000 * u64::from(other))).collect();
    let seen = (0..50).map(|page| (1000 + page, (90, PageNumber(90_000 + page)))).collect();
    let mut mover = mover(Fake { homes, seen, ..Fake::default() }, MoverSettings::default());
    let target = |_, _, _| Some(NodeId(2));
    let job =
        Job { range: PageRange::new(1000, 1100), mappers: &mappers, target: &target, whole_folios: true };
    let outcome = mover.carry_out(1, &[job], u64::MAX)[0];
    assert_eq!((outcome.planned, outcome.moved), (50, 50));
    // A process that has not mapped it, or no longer, is not asked.
    mover.kernel().seen.values_mut().for_each(|(other, _)| *other = 91);
    mover.kernel().homes.values_mut().for_each(|home| *home = 0);
    let job =
        Job { range: PageRange::new(1000, 1100), mappers: &mappers, target: &target, whole_folios: true };
    assert_eq!(mover.carry_out(1, &[job], u64::MAX)[0].planned, 0);
}

#[test]
fn moves_all_in_calls_of_bounded_time() {
    let mut mover = mover(small_pages(15_000), MoverSettings::default());
    let outcome = all_to_2(&mut mover, 20_000);
    assert_eq!((outcome.planned, outcome.moved), (15_000, 15_000));
    // A page takes the fake 10 us: 20 ms are 2000 pages; the first calls feel their way.
    assert!(outcome.longest_call_ns <= 20_500_000, "{outcome:?}");
    assert!(mover.kernel().calls.len() < 20, "{:?}", mover.kernel().calls);
    assert_eq!(outcome.calls, mover.kernel().calls.len() as u64);
}

#[test]
fn calls_have_one_target_but_for_what_is_left_at_the_end() {
    let mut mover = mover(small_pages(4000), MoverSettings::default());
    let target = |page: PageNumber, _, _| Some(NodeId(1 + (page.0 % 3) as u32));
    let job = Job { range: PageRange::new(0, 4000), mappers: &Vec::new, target: &target, whole_folios: true };
    assert_eq!(mover.carry_out(1, &[job], u64::MAX)[0].moved, 4000);
    let fake = mover.kernel();
    assert!(fake.calls.len() > 4 && fake.turns <= 2, "{} turns in {:?}", fake.turns, fake.calls);
    assert!((0..4000).all(|page| fake.homes[&page] == 1 + (page % 3) as i32));
}

#[test]
fn calls_come_to_take_the_time_allowed_whatever_a_page_takes() {
    for (more_ns, works_ns) in [
        ((0, 0), 20_000_000_u64),
        ((5_000_000, 0), 20_000_000),
        ((0, 200_000), 20_000_000),
        ((150_000_000, 490_000), 50_000_000),
    ] {
        let fake = Fake { more_ns, ..small_pages(15_000) };
        let mut mover = mover(fake, MoverSettings::default());
        all_to_2(&mut mover, 15_000);
        let calls = &mover.kernel().calls;
        let typical = calls[calls.len() * 3 / 4] as u64;
        let pages_ns = typical * (10_000 + more_ns.1);
        assert!(pages_ns.abs_diff(works_ns) <= works_ns / 10, "{more_ns:?}: {calls:?}");
    }
}

#[test]
fn a_huge_page_is_one_entry_and_never_moved_twice() {
    let mut fake = small_pages(4 * HUGE_PAGE_PAGES);
    fake.huge = [0, 2 * HUGE_PAGE_PAGES].into();
    let mut mover = mover(fake, MoverSettings::default());
    let outcome = all_to_2(&mut mover, 4 * HUGE_PAGE_PAGES);
    assert_eq!(outcome.moved, 4 * HUGE_PAGE_PAGES);
    assert!(mover.kernel().moves.values().all(|&times| times == 1));
    assert_eq!(mover.kernel().calls.iter().sum::<usize>() as u64, 2 + 2 * HUGE_PAGE_PAGES);
}

#[test]
fn small_jobs_share_calls() {
    let mut mover = mover(small_pages(6400), MoverSettings::default());
    let target = |_, _, _| Some(NodeId(1));
    let job = |n: u64| Job {
        range: PageRange::new(n * 10, n * 10 + 10),
        mappers: &Vec::new,
        target: &target,
        whole_folios: true,
    };
    let jobs: Vec<Job<'_>> = (0..640).map(job).collect();
    let outcomes = mover.carry_out(1, &jobs, u64::MAX);
    assert!(outcomes.iter().all(|outcome| outcome.moved == 10));
    assert!(mover.kernel().calls.len() < 30, "{:?}", mover.kernel().calls);
}

/// Looking takes longer than moving the few pages that such a job often has.
#[test]
fn memory_that_two_nodes_give_pages_of_is_looked_at_once() {
    const PAGES: u64 = 3 * QUERY_PAGES;
    let fake = Fake { homes: (0..PAGES).map(|page| (page, (page % 4) as i32)).collect(), ..Fake::default() };
    let mut mover = mover(fake, MoverSettings::default());
    let leaving = |from| move |_: PageNumber, _, home: NodeId| (home.0 == from).then_some(NodeId(2));
    let (from_0, from_3) = (leaving(0), leaving(3));
    let range = PageRange::new(0, PAGES);
    let jobs = [&from_0 as &dyn Fn(PageNumber, u64, NodeId) -> Option<NodeId>, &from_3].map(|target| Job {
        range,
        mappers: &Vec::new,
        target,
        whole_folios: true,
    });
    let outcomes = mover.carry_out(1, &jobs, u64::MAX);
    outcomes.iter().for_each(assert_adds_up);
    assert_eq!([outcomes[0].moved, outcomes[1].moved], [PAGES / 4; 2]);
    assert_eq!(mover.kernel().queried as u64, PAGES);
    let homes = &mover.kernel().homes;
    assert!(homes.iter().all(|(page, &home)| home == if page % 4 == 1 { 1 } else { 2 }));
}

/// Only the last of many pages is to move.
#[test]
fn looking_goes_on_where_it_broke_off() {
    const PAGES: u64 = 10 * QUERY_PAGES;
    let homes = (0..PAGES).map(|page| (page, if page + 1 < PAGES { 2 } else { 0 })).collect();
    let mut mover = mover(Fake { homes, look_ns: 10_000, ..Fake::default() }, MoverSettings::default());
    let target = |_, _, _| Some(NodeId(2));
    let (mut next, mut turns) = (Some(PageNumber(0)), 0);
    while let Some(start) = next {
        let range = PageRange { start, end: PageNumber(PAGES) };
        let job = Job { range, mappers: &Vec::new, target: &target, whole_folios: true };
        let deadline_ns = mover.kernel.clock_ns + 100_000_000;
        assert_adds_up(&mover.carry_out(1, &[job], deadline_ns)[0]);
        next = mover.take_put_off().get(&0).copied();
        assert!(next.is_none_or(|next| next > start));
        turns += 1;
    }
    let fake = mover.kernel();
    assert_eq!((fake.homes[&(PAGES - 1)], fake.queried as u64), (2, PAGES));
    assert!((2..10).contains(&turns), "{turns}");
}

#[test]
fn nothing_is_looked_at_that_the_budget_has_no_room_for() {
    let settings =
        MoverSettings { budget_bytes_per_s: 1_000.0 * PAGE_BYTES as f64, ..MoverSettings::default() };
    let mut mover = mover(small_pages(10 * QUERY_PAGES), settings);
    let outcome = all_to_2(&mut mover, 10 * QUERY_PAGES);
    assert_eq!((outcome.planned, outcome.moved), (10 * QUERY_PAGES, 1_000));
    assert_eq!(mover.take_put_off(), BTreeMap::from([(0, PageNumber(1_000))]));
    assert_eq!(mover.kernel().queried as u64, QUERY_PAGES);
    // A huge page needs more than what is left.
    let mut fake = small_pages(10 * QUERY_PAGES);
    fake.huge = (0..10 * QUERY_PAGES).step_by(HUGE_PAGE_PAGES as usize).collect();
    let mut mover = self::mover(fake, settings);
    assert_eq!(all_to_2(&mut mover, 10 * QUERY_PAGES).moved, HUGE_PAGE_PAGES);
    assert_eq!(mover.take_put_off(), BTreeMap::from([(0, PageNumber(HUGE_PAGE_PAGES))]));
    assert_eq!(mover.kernel().queried as u64, QUERY_PAGES);
}

#[test]
fn a_corner_of_a_huge_page_does_not_pull_the_rest() {
    let mut fake = small_pages(HUGE_PAGE_PAGES);
    fake.huge = [0].into();
    let mut mover = mover(fake, MoverSettings::default());
    assert_eq!(all_to_2(&mut mover, 128).planned, 0);
}

#[test]
fn busy_pages_are_tried_again_then_reported() {
    let mut fake = small_pages(100);
    fake.trouble = [(7, (2, 16)), (8, (100, 16))].into();
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 100);
    assert_eq!((outcome.moved, outcome.busy), (99, 1));
}

#[test]
fn busy_pages_go_with_later_calls() {
    let mut fake = small_pages(4000);
    fake.trouble = (0..4000).step_by(100).map(|page| (page, (1, 16))).collect();
    let calls = |fake| {
        let mut mover = mover(fake, MoverSettings::default());
        assert_eq!(all_to_2(&mut mover, 4000).moved, 4000);
        mover.kernel().calls.len()
    };
    assert!(calls(fake) <= calls(small_pages(4000)) + 1);
}

#[test]
fn statuses_left_unset_are_asked_for() {
    let mut fake = small_pages(100);
    fake.trouble = [(7, (1, 12))].into();
    fake.stops_short = true;
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 100);
    assert_eq!(outcome.moved, 100);
}

#[test]
fn pages_that_are_elsewhere_for_a_moment_have_not_vanished() {
    let mut fake = small_pages(100);
    fake.trouble = [(7, (1, ENOENT)), (8, (100, ENOENT))].into();
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 100);
    assert_eq!((outcome.moved, outcome.busy, outcome.vanished), (99, 1, 0));
}

#[test]
fn a_full_node_and_a_spent_budget_are_told_apart() {
    let mut fake = small_pages(100);
    fake.free = [(2, (NODE_BYTES as f64 * 0.02) as u64 + 10 * PAGE_BYTES)].into();
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 100);
    assert_eq!((outcome.moved, outcome.node_full, outcome.deferred), (10, 90, 0));

    let settings = MoverSettings { budget_bytes_per_s: 30.0 * 4096.0, ..MoverSettings::default() };
    let mut mover = mover(small_pages(100), settings);
    let outcome = all_to_2(&mut mover, 100);
    assert_eq!((outcome.moved, outcome.deferred), (30, 70));
    mover.kernel().clock_ns += 1_000_000_000;
    let outcome = all_to_2(&mut mover, 100);
    assert_eq!((outcome.moved, outcome.deferred), (30, 40), "a second later there is a second's budget");
}

#[test]
fn a_node_that_the_kernel_calls_full_is_full() {
    let mut fake = small_pages(100);
    fake.out_of_memory_after = Some(30);
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 100);
    assert_eq!((outcome.moved, outcome.node_full, outcome.busy), (30, 70, 0));
}

#[test]
fn a_process_that_exits_in_the_middle_is_an_outcome() {
    let mut fake = small_pages(5000);
    fake.dies_after_calls = Some(5);
    let outcome = all_to_2(&mut mover(fake, MoverSettings::default()), 5000);
    assert!(outcome.process_gone && outcome.moved > 0 && outcome.vanished > 0, "{outcome:?}");
}

#[test]
fn a_dry_run_counts_and_moves_nothing() {
    let settings = MoverSettings { dry_run: true, ..MoverSettings::default() };
    let mut mover = mover(small_pages(100), settings);
    let outcome = all_to_2(&mut mover, 100);
    assert_eq!((outcome.planned, outcome.moved, outcome.only_reported), (100, 0, true));
    assert!(mover.kernel().calls.is_empty());
}

proptest! {
    #[test]
    fn planned_is_the_sum_of_its_parts(
        present in prop::collection::btree_map(0u64..3000, 0i32..4, 0..600),
        huge in prop::collection::btree_set(0u64..5, 0..3),
        trouble in prop::collection::btree_map(0u64..3000, (1u32..6, prop::sample::select(vec![1, 2, 11, 12, 13, 14, 16])), 0..50),
        stops_short: bool,
        dies_after_calls in prop::option::of(0u32..20),
        budget_pages in 1u64..4000,
        deadline_ns in prop::option::of(0u64..20_000_000),
    ) {
        let mut fake = Fake { homes: present, trouble, stops_short, dies_after_calls, ..Fake::default() };
        for block in huge {
            let head = block * HUGE_PAGE_PAGES;
            fake.huge.insert(head);
            for page in head..head + HUGE_PAGE_PAGES {
                fake.homes.insert(page, 0);
            }
        }
        let settings = MoverSettings { budget_bytes_per_s: (budget_pages * PAGE_BYTES) as f64, ..MoverSettings::default() };
        let mut mover = mover(fake, settings);
        let target = |page: PageNumber, _, _| Some(NodeId(page.huge().0 as u32 / 512 % 4));
        let all = |start| move || vec![mapper(1, PageRange::new(start, 4000), start)];
        let [a, b, c] = [all(100), all(900), all(50)];
        let job = |start, end, mappers| {
            let range = PageRange::new(start, end);
            Job { range, mappers, target: &target, whole_folios: true }
        };
        let jobs: [Job<'_>; 4] = [job(100, 900, &a), job(900, 950, &b), job(700, 2900, &Vec::new), job(50, 40, &c)];
        let outcomes = mover.carry_out(1, &jobs, deadline_ns.unwrap_or(u64::MAX));
        outcomes.iter().for_each(assert_adds_up);
    }
}

#[test]
fn a_page_that_an_earlier_job_moves_is_no_later_ones() {
    let fake = Fake { homes: (0..4000).map(|page| (page, 3)).collect(), ..Fake::default() };
    let mut mover = mover(fake, MoverSettings::default());
    let from = |home: u32, to: u32| move |_, _, at: NodeId| (at == NodeId(home)).then_some(NodeId(to));
    let (first, second) = (from(3, 0), from(0, 1));
    let range = PageRange::new(0, 4000);
    let jobs = [
        Job { range, mappers: &Vec::new, target: &first, whole_folios: true },
        Job { range, mappers: &Vec::new, target: &second, whole_folios: true },
    ];
    let outcomes = mover.carry_out(1, &jobs, u64::MAX);
    assert_eq!((outcomes[0].moved, outcomes[1].planned), (4000, 0));
    assert!(mover.kernel().moves.values().all(|&moves| moves == 1));
    assert!(mover.kernel().homes.values().all(|&home| home == 0));
}

/// Pages for three nodes, of which the fake moves one in 10 us.
fn carried_out(fake: Fake, deadline_ns: u64) -> (Outcome, u64) {
    let mut mover = mover(fake, MoverSettings::default());
    let target = |page: PageNumber, _, _| Some(NodeId(1 + (page.0 % 3) as u32));
    let mappers = || panic!("nobody asks who has mapped it where nothing is moved");
    let job =
        Job { range: PageRange::new(0, 15_000), mappers: &Vec::new, target: &target, whole_folios: true };
    let nothing =
        Job { range: PageRange::new(15_000, 20_000), mappers: &mappers, target: &target, whole_folios: true };
    let outcome = mover.carry_out(1, &[job, nothing], deadline_ns)[0];
    assert_adds_up(&outcome);
    (outcome, mover.kernel().clock_ns)
}

#[test]
fn moving_ends_at_the_deadline_but_for_one_call() {
    const DEADLINE_NS: u64 = 60_000_000;
    let (outcome, end_ns) = carried_out(small_pages(15_000), DEADLINE_NS);
    assert!(outcome.moved > 4000 && outcome.deferred > 5000, "{outcome:?}");
    assert!(end_ns <= DEADLINE_NS + outcome.longest_call_ns, "{end_ns}: {outcome:?}");
    // Though the time is over, a little is moved each time.
    let busy = (0..15_000).map(|page| (page, (9, 16))).collect();
    let (outcome, _) = carried_out(Fake { trouble: busy, ..small_pages(15_000) }, 5000);
    assert!(outcome.calls == 1 && outcome.deferred > 14_000, "{outcome:?}");
}

#[test]
fn nothing_is_moved_once_managing_is_to_end() {
    let (outcome, _) = carried_out(Fake { ends_after: Some(2), ..small_pages(15_000) }, u64::MAX);
    assert!(outcome.calls == 2 && outcome.deferred > 10_000, "{outcome:?}");
}

/// Sixteen pages that the kernel moves together go where the first of them goes, once, in the share that was
/// asked for. A page of a list takes them all along.
#[test]
fn pages_of_a_folio_move_together_and_once() {
    const PAGES: u64 = 4096;
    let fake =
        || Fake { homes: (0..PAGES).map(|page| (page, 0)).collect(), folio_pages: 16, ..Fake::default() };
    let new = || mover(fake(), MoverSettings::default());
    let third = |page: PageNumber, pages: u64, home: NodeId| {
        let order = (page.0 / pages).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (home.0 == 0 && order % 3 == 0).then(|| NodeId(1 + (order / 3 % 3) as u32))
    };
    let range = PageRange::new(0, PAGES);
    let mut spread = new();
    let job = Job { range, mappers: &Vec::new, target: &third, whole_folios: true };
    let outcome = spread.carry_out(1, &[job], u64::MAX)[0];
    let moved = spread.take_moved();
    assert!(moved.len().abs_diff(PAGES as usize / 3) < PAGES as usize / 20, "{}", moved.len());
    assert_eq!((outcome.planned, outcome.moved), (moved.len() as u64, moved.len() as u64));
    assert!(spread.kernel().moves.values().all(|&moves| moves == 1));
    assert!(moved.iter().all(|one| one.pages == 1 && one.to == spread.kernel().node_of(one.page)));
    let mut listed = new();
    let target = |page: PageNumber, _, _| (page.0 % 160 == 5).then_some(NodeId(2));
    let job = Job { range, mappers: &Vec::new, target: &target, whole_folios: false };
    assert_eq!(listed.carry_out(1, &[job], u64::MAX)[0].moved, PAGES.div_ceil(160) * 16);
}

#[test]
fn folios_are_spread_as_evenly_as_pages() {
    const PAGES: u64 = 16_384;
    for folio_pages in [1, 4, 64, 256] {
        let homes = (0..PAGES).map(|page| (page, 0)).collect();
        let mut mover = mover(Fake { homes, folio_pages, ..Fake::default() }, MoverSettings::default());
        let spread = Interleaving { from: NodeIndex(0), band: (0, 1 << 32), weights: vec![1; 4], seed: 1 };
        let target = |page: PageNumber, pages: u64, home: NodeId| {
            let to = spread.target(page, pages).filter(|_| home == NodeId(0))?;
            Some(NodeId(u32::from(to.0)))
        };
        let range = PageRange::new(0, PAGES);
        mover.carry_out(
            1,
            &[Job { range, mappers: &Vec::new, target: &target, whole_folios: true }],
            u64::MAX,
        );
        let mut pages = [0; 4];
        mover.kernel().homes.values().for_each(|&home| pages[home as usize] += 1);
        assert_eq!(pages, [PAGES / 4; 4], "folios of {folio_pages}");
    }
}
