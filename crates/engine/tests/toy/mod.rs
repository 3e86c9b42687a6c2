//! A machine small enough to understand: pages with homes, threads that use pages, two ways of sampling.

#![allow(dead_code, reason = "each test file uses its part of the toy")]

use nodewise_engine::{
    Access, Action, Carrefour, CarrefourSettings, Counters, DataSource, Decision, Engine, EngineSettings,
    HUGE_PAGE_PAGES, Hinted, Interleaving, Machine, Mapping, MappingKind, Measure, Observation, Outcome,
    PAGE_BYTES, PageNumber, PageRange, PageSize, Pid, ProcessState, Round, Sample, SamplingRate, Tid,
    Unmoved, VirtAddr,
};
use nodewise_topology::{NodeIndex, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// The one process, unless a test adds more.
pub const PID: Pid = Pid(1000);
/// Where its first mapping begins.
pub const BASE: u64 = 0x7_f000_0000;

/// Pseudo-random numbers (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }
}

/// The users of pages: given the page and a random number, the accessor node and whether it writes; none if
/// nobody uses the page.
pub type Pattern = Box<dyn Fn(u64, u64) -> Option<(u8, Access)>>;

/// How accesses are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Like hint faults: this share of the pages, in percent, gives one sample each an interval; reads and
    /// writes look alike.
    HintFaults { percent: u64 },
    /// As hint faults, but a scan takes so many intervals: each covers the next window of the memory.
    Windows { windows: u64 },
    /// Hint faults while all nodes sweep over all pages, each beginning elsewhere: at each scan, whoever
    /// comes first faults on a long run of pages. The pattern only says whether a page is used and how.
    Sweeps { scans: u64 },
    /// Like a hardware sampler: so many samples an interval, at random pages; reads and writes are told
    /// apart.
    Hardware { samples: u64 },
}

#[expect(clippy::struct_excessive_bools, reason = "switches of a test")]
pub struct Toy {
    pub topology: Topology,
    pub mappings: Vec<Mapping>,
    /// Home of each page (of the huge page, if huge).
    pub homes: BTreeMap<u64, u8>,
    pub huge: bool,
    /// How many base pages move at once where they are not huge. Such a folio has one hint fault in a scan.
    pub folio_pages: u16,
    /// Whether huge pages can be split, and those that were.
    pub splits: bool,
    pub split: BTreeSet<u64>,
    pub pattern: Pattern,
    pub sampling: Sampling,
    /// Free pages by node.
    pub free: Vec<u64>,
    /// The one node on which the processes may run.
    pub confined: Option<NodeIndex>,
    /// Memory that the program has bound itself.
    pub bound: Vec<PageRange>,
    /// Ranges that the user wants interleaved.
    pub to_interleave: Vec<PageRange>,
    /// The first process's hints about its memory.
    pub hints: Vec<Hinted>,
    /// Pages that may move in an interval.
    pub budget: u64,
    pub dry_run: bool,
    /// Whether nothing is sampled while the engine asks for a pause.
    pub pauses: bool,
    /// Whether the kernel balances too: a page that faults goes to its accessor, in the first four intervals
    /// at once, later when the same node came twice in a row (`should_numa_migrate_memory`,
    /// kernel/sched/fair.c, Linux 6.12).
    pub kernel: bool,
    /// Whether the machine tells where pages are, sampled or not. It then tells loads by pages, and the pages
    /// of interleaved ranges that were not moved yet.
    pub accounts: bool,
    /// The ranges that were to be interleaved: where the last band ends, and the seed of the choice.
    interleaved: Vec<(PageRange, u64, u64)>,
    /// The accessor of each page's last fault.
    last: BTreeMap<u64, u8>,
    /// Whether hint faults tell reads from writes.
    pub tells_reads: bool,
    /// The server of all samples.
    pub source: DataSource,
    /// Whether each access has loaded its line, which is then stored to in the cache.
    pub stores: bool,
    /// Whether samples say where their page is.
    pub homes_known: bool,
    /// Whether threads go from node to node all the time.
    pub wander: bool,
    pub gone: bool,
    /// Processes beside [`PID`], each with its part of the address space: one page table does for all.
    pub others: BTreeMap<Pid, PageRange>,
    seen: BTreeSet<Pid>,
    /// How often each page was moved.
    pub moves: BTreeMap<u64, u32>,
    pub rates: Vec<SamplingRate>,
    random: Random,
    now_ns: u64,
}

impl Toy {
    /// `pages` base pages, all on node 0.
    pub fn new(nodes: usize, pages: u64, pattern: Pattern) -> Self {
        let range = PageRange::new(BASE, BASE + pages);
        let memory = 64 << 30;
        Self {
            topology: Topology::synthetic(nodes, 2, memory),
            mappings: vec![Mapping { range, writable: true, kind: MappingKind::Anonymous }],
            homes: (range.start.0..range.end.0).map(|page| (page, 0)).collect(),
            huge: false,
            folio_pages: 1,
            splits: false,
            split: BTreeSet::new(),
            pattern,
            sampling: Sampling::HintFaults { percent: 80 },
            free: vec![memory / PAGE_BYTES; nodes],
            confined: None,
            bound: Vec::new(),
            to_interleave: Vec::new(),
            hints: Vec::new(),
            budget: u64::MAX,
            dry_run: false,
            pauses: false,
            kernel: false,
            accounts: false,
            interleaved: Vec::new(),
            last: BTreeMap::new(),
            tells_reads: false,
            source: DataSource::Unknown,
            stores: false,
            homes_known: true,
            wander: false,
            gone: false,
            others: BTreeMap::new(),
            seen: BTreeSet::new(),
            moves: BTreeMap::new(),
            rates: Vec::new(),
            random: Random(42),
            now_ns: 0,
        }
    }

    pub fn seed(mut self, seed: u64) -> Self {
        self.random = Random(seed);
        self
    }

    pub fn hardware(mut self, samples: u64) -> Self {
        self.sampling = Sampling::Hardware { samples };
        self
    }

    /// All pages are huge.
    pub fn huge(mut self) -> Self {
        self.huge = true;
        self
    }

    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    pub fn pid_of(&self, page: PageNumber) -> Pid {
        let other = self.others.iter().find(|(_, range)| range.contains(page));
        other.map_or(PID, |(&pid, _)| pid)
    }

    /// The processes that live.
    fn pids(&self) -> Vec<Pid> {
        let first = Some(PID).filter(|_| !self.gone);
        first.into_iter().chain(self.others.keys().copied()).collect()
    }

    fn state(&mut self, pid: Pid) -> ProcessState {
        let mappings = self.mappings.iter().filter(|mapping| self.pid_of(mapping.range.start) == pid);
        let mappings: Vec<Mapping> = mappings.copied().collect();
        let pages = |mapping: &Mapping| self.homes.range(mapping.range.start.0..mapping.range.end.0).count();
        let resident_pages = mappings.iter().map(pages).sum::<usize>() as u64;
        let hints = (pid == PID).then(|| self.hints.clone());
        ProcessState {
            pid,
            fresh: self.seen.insert(pid),
            resident_pages,
            confined: self.confined,
            bound: self.bound.clone(),
            to_interleave: self.to_interleave.clone(),
            asked: true,
            mappings: Some(mappings),
            hints,
            unmoved: self.interleaved.iter().map(|range| self.unmoved(range)).collect(),
        }
    }

    fn unmoved(&self, &(range, end, seed): &(PageRange, u64, u64)) -> Unmoved {
        let nodes = self.free.len();
        let (mut all, mut waiting) = (vec![0.0; nodes], vec![0.0; nodes]);
        let pages: Vec<_> = self.homes.range(range.start.0..range.end.0).collect();
        for &(&page, &home) in pages.iter().filter(|(page, _)| !self.moves.contains_key(page)) {
            let share = 1.0 / pages.len() as f32;
            all[usize::from(home)] += share;
            if u64::from(Interleaving::order(PageNumber(page), self.unit_pages(page), seed)) >= end {
                waiting[usize::from(home)] += share;
            }
        }
        Unmoved { range, all, waiting }
    }

    fn is_huge(&self, page: u64) -> bool {
        self.huge && !self.split.contains(&(page / HUGE_PAGE_PAGES * HUGE_PAGE_PAGES))
    }

    fn unit(&self, page: u64) -> u64 {
        page / self.unit_pages(page) * self.unit_pages(page)
    }

    /// How many pages move at once with this one.
    fn unit_pages(&self, page: u64) -> u64 {
        if self.is_huge(page) { HUGE_PAGE_PAGES } else { self.folio_pages.into() }
    }

    /// The pages that a scan's hint faults meet.
    fn one_of_each_folio(&mut self, pages: &[u64]) -> Vec<u64> {
        let folios = pages.chunks(self.folio_pages.into());
        let any = |folio: &[u64]| match folio.len() {
            1 => folio[0],
            pages => folio[self.random.below(pages as u64) as usize],
        };
        folios.map(any).collect()
    }

    /// Share of each node as home.
    pub fn shares(&self) -> Vec<f64> {
        let mut shares = vec![0.0; self.free.len()];
        for &home in self.homes.values() {
            shares[usize::from(home)] += 1.0 / self.homes.len() as f64;
        }
        shares
    }

    /// Share of pages whose home is what `right` says.
    pub fn placed(&self, right: impl Fn(u64) -> u8) -> f64 {
        let right = self.homes.iter().filter(|&(&page, &home)| right(page) == home).count();
        right as f64 / self.homes.len() as f64
    }

    pub fn unmap(&mut self, range: PageRange) {
        let old = std::mem::take(&mut self.mappings);
        for mapping in old {
            let left = PageRange { end: mapping.range.end.min(range.start), ..mapping.range };
            let right = PageRange { start: mapping.range.start.max(range.end), ..mapping.range };
            let parts = [left, right].into_iter().filter(|part| !part.is_empty());
            self.mappings.extend(parts.map(|range| Mapping { range, ..mapping }));
        }
        self.homes.retain(|&page, _| !range.contains(PageNumber(page)));
    }

    fn sample(&mut self, page: u64, by: Option<u8>, samples: &mut Vec<Sample>) {
        let random = self.random.next();
        let Some((node, access)) = (self.pattern)(page, random) else { return };
        let node = by.unwrap_or(node);
        if self.kernel {
            let unit = self.unit(page);
            if self.last.insert(unit, node) == Some(node) || self.now_ns <= 4_000_000_000 {
                let size = self.unit_pages(page);
                self.homes.range_mut(unit..unit + size).for_each(|(_, home)| *home = node);
            }
        }
        let hint = !matches!(self.sampling, Sampling::Hardware { .. });
        samples.push(Sample {
            time_ns: self.now_ns,
            address: VirtAddr(page * PAGE_BYTES + random % PAGE_BYTES),
            pid: self.pid_of(PageNumber(page)),
            tid: Tid(2000 + if self.wander { (random >> 16) as u32 % 4 } else { u32::from(node) }),
            accessor: NodeIndex(node),
            home: self.homes.get(&page).filter(|_| self.homes_known).map(|&home| NodeIndex(home)),
            access: if hint && !self.tells_reads { Access::Unknown } else { access },
            source: self.source,
            page_size: match self.folio_pages {
                _ if self.is_huge(page) => PageSize::Huge,
                1 => PageSize::Base,
                pages => PageSize::Folio(pages),
            },
            latency_cycles: 0,
            weight: if hint { 1 } else { 1000 },
        });
        if self.stores {
            let loaded = samples[samples.len() - 1];
            samples.push(Sample { access: Access::Write, source: DataSource::LocalCache, ..loaded });
        }
    }

    fn carry_out(&mut self, decision: &Decision, budget: &mut u64) -> Outcome {
        if let (Action::Interleave(i), true) = (&decision.action, self.accounts) {
            self.interleaved.retain(|(range, ..)| range.intersect(decision.range).is_empty());
            self.interleaved.push((decision.range, i.band.1, i.seed));
        }
        let gone = !self.pids().contains(&decision.pid);
        let mut outcome = Outcome { process_gone: gone, ..Outcome::default() };
        if gone || matches!(decision.action, Action::Replicate) {
            outcome.only_reported = !gone;
            return outcome;
        }
        if let Action::Split { pages } | Action::Collapse { pages } = &decision.action {
            outcome.planned = pages.len() as u64 * HUGE_PAGE_PAGES;
            outcome.moved = outcome.planned;
            for page in pages {
                if matches!(decision.action, Action::Split { .. }) {
                    assert!(self.split.insert(page.0), "split twice");
                } else {
                    assert!(self.split.remove(&page.0), "made huge twice");
                }
            }
            return outcome;
        }
        let pages: Vec<(u64, u8)> = match &decision.action {
            Action::CollocateEach { pages } => pages.iter().map(|t| (t.page.0, t.to.0)).collect(),
            action => {
                let inside = self.homes.range(decision.range.start.0..decision.range.end.0);
                inside
                    .filter_map(|(&page, &home)| match action {
                        Action::Collocate { to } => Some((page, to.0)),
                        Action::Interleave(i) if i.from.0 == home => {
                            Some((page, i.target(PageNumber(page), self.unit_pages(page))?.0))
                        }
                        _ => None,
                    })
                    .collect()
            }
        };
        for (page, to) in pages {
            let unit = self.unit(page);
            let size = self.unit_pages(page);
            let Some(&home) = self.homes.get(&unit) else { continue };
            if home == to {
                continue;
            }
            outcome.planned += size;
            if self.dry_run {
                outcome.only_reported = true;
            } else if *budget < size {
                outcome.deferred += size;
            } else if self.free[usize::from(to)] < size {
                outcome.node_full += size;
            } else {
                *budget -= size;
                self.free[usize::from(to)] -= size;
                self.free[usize::from(home)] += size;
                for base in unit..unit + size {
                    self.homes.insert(base, to);
                }
                *self.moves.entry(unit).or_default() += 1;
                outcome.moved += size;
            }
        }
        outcome
    }
}

impl Machine for Toy {
    type Error = Infallible;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Observation, Infallible> {
        self.now_ns += 1_000_000_000;
        let mut samples = Vec::new();
        let pages: Vec<u64> = self.homes.keys().copied().collect();
        let is_paused = self.pauses && self.rates.last() == Some(&SamplingRate::Paused);
        match self.sampling {
            _ if is_paused => {}
            Sampling::HintFaults { percent } if self.huge => {
                for chunk in pages.chunks(HUGE_PAGE_PAGES as usize) {
                    if !self.is_huge(chunk[0]) {
                        for &page in chunk {
                            if self.random.below(100) < percent {
                                self.sample(page, None, &mut samples);
                            }
                        }
                        continue;
                    }
                    let page = chunk[self.random.below(chunk.len() as u64) as usize];
                    if self.random.below(100) < percent {
                        self.sample(page, None, &mut samples);
                    }
                }
            }
            Sampling::HintFaults { percent } => {
                for page in self.one_of_each_folio(&pages) {
                    if self.random.below(100) < percent {
                        self.sample(page, None, &mut samples);
                    }
                }
            }
            Sampling::Windows { windows } => {
                let window = self.now_ns / 1_000_000_000 % windows;
                let bound = |window: u64| pages.len() as u64 * window / windows;
                let window = &pages[bound(window) as usize..bound(window + 1) as usize];
                for page in self.one_of_each_folio(window) {
                    self.sample(page, None, &mut samples);
                }
            }
            Sampling::Sweeps { scans } => {
                let nodes = self.free.len();
                for _ in 0..scans {
                    let begin = self.random.below(pages.len() as u64) as usize;
                    for (at, &page) in pages.iter().enumerate() {
                        // A huge page has one fault, of the last node to begin before its end.
                        if self.is_huge(page) && page % HUGE_PAGE_PAGES != HUGE_PAGE_PAGES - 1 {
                            continue;
                        }
                        let first = (at + begin) % pages.len() * nodes / pages.len();
                        self.sample(page, Some(first as u8), &mut samples);
                    }
                }
            }
            Sampling::Hardware { samples: count } => {
                for _ in 0..count.min(count * pages.len() as u64) {
                    let page = pages[self.random.below(pages.len() as u64) as usize];
                    self.sample(page, None, &mut samples);
                }
            }
        }
        // The order in which threads come must not matter.
        for i in (1..samples.len()).rev() {
            samples.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        let rate = match self.sampling {
            Sampling::HintFaults { .. } | Sampling::Sweeps { .. } | Sampling::Windows { .. } => {
                Measure::Proxy(samples.len() as f64)
            }
            Sampling::Hardware { .. } => Measure::Measured(if samples.is_empty() { 0.0 } else { 500.0 }),
        };
        let nodes = self.topology.node_indices().zip(&self.free);
        // A node that never had a free page is one without memory.
        let most =
            |node| self.topology.most_memory_bytes(node).expect("a synthetic machine's memory is known");
        let total = nodes.map(|(node, &free)| if free == 0 { 0 } else { most(node) }).collect();
        Ok(Observation {
            end_ns: self.now_ns,
            duration_ns: 1_000_000_000,
            counters: Counters {
                access_rate: rate,
                controller_loads: if self.accounts {
                    let pages = self.homes.len() as f64;
                    Measure::Estimated(self.shares().into_iter().map(|share| share * pages).collect())
                } else {
                    Measure::Unknown
                },
                ..Counters::unknown(self.free.iter().map(|pages| pages * PAGE_BYTES).collect(), total)
            },
            samples,
            samples_lost: 0,
            processes: self.pids().into_iter().map(|pid| self.state(pid)).collect(),
        })
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
        let mut budget = self.budget;
        Ok(decisions.iter().map(|decision| self.carry_out(decision, &mut budget)).collect())
    }

    fn splits(&self) -> bool {
        self.splits
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Infallible> {
        self.rates.push(rate);
        Ok(())
    }
}

/// An engine with the article's policy.
pub fn engine(toy: &Toy) -> Engine {
    Engine::new(
        &toy.topology,
        Box::new(Carrefour::new(CarrefourSettings::default())),
        EngineSettings::default(),
    )
}

/// Lets the engine work for some intervals.
pub fn run(engine: &mut Engine, toy: &mut Toy, rounds: usize) -> Vec<Round> {
    let step = |_| match engine.step(toy) {
        Ok(round) => round,
        Err(never) => match never {},
    };
    (0..rounds).map(step).collect()
}

/// Pages moved in these rounds.
pub fn moved(rounds: &[Round]) -> u64 {
    rounds.iter().flat_map(|round| &round.decisions).map(|(_, outcome)| outcome.moved).sum()
}

/// Decisions in these rounds.
pub fn decided(rounds: &[Round]) -> usize {
    rounds.iter().map(|round| round.decisions.len()).sum()
}

/// One part of `count` equal parts of `pages` pages from [`BASE`].
pub fn part(page: u64, pages: u64, count: u64) -> u8 {
    ((page - BASE) * count / pages) as u8
}
