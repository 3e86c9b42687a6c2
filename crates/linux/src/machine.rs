//! [`LinuxMachine`]: the engine's window on the running system.

use crate::bounds::{self, Bound};
use crate::hints::Sections;
use crate::huge::HugeCache;
use crate::kernel::{LiveKernel, now_ns};
use crate::known_homes::{KnownHomes, Placed};
use crate::mover::{Job, Kernel as _, Mover, MoverSettings};
use crate::placement::{BeforeAndAfter, Figures, Located, Placement, Unknown};
use crate::process::{Process, Processes, ReadCost};
use crate::resize::{Size, resize};
use crate::sampler::{Interval, Sampler};
use crate::settings::{KHUGEPAGED_PAGES, KHUGEPAGED_SLEEP, SharedSettings};
use crate::shared::SharedMemory;
use crate::{Error, ErrorKind};
use nodewise_engine::{
    Action, Counters, Decision, HUGE_PAGE_PAGES, Interleaving, Machine, Mapping, MappingKind, Measure,
    Observation, Outcome, PageNumber, PageRange, PageSize, Pid, ProcessState, RangeMap, Sample, SamplingRate,
    TrafficMatrix, Unmoved,
};
use nodewise_sys::CpuSet;
use nodewise_topology::{NodeId, NodeIndex, Topology};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the live machine works.
#[derive(Clone, Copy, Debug)]
pub struct MachineSettings {
    /// Bounds on moving.
    pub mover: MoverSettings,
    /// Most time that carrying out one round's decisions may take; the rest waits for the next.
    pub apply: Duration,
    /// Whether huge pages may be split and made again.
    pub split: bool,
}

impl Default for MachineSettings {
    fn default() -> Self {
        Self { mover: MoverSettings::default(), apply: Duration::from_millis(750), split: true }
    }
}

/// What the machine did since it was opened.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Samples of managed processes.
    pub samples: u64,
    /// Faults that allocated their page and so say nothing; not counted as samples.
    pub first_touches: u64,
    /// Samples lost in the kernel or in the rings.
    pub samples_lost: u64,
    /// Times that the kernel switched sampling off until its next tick, for taking too much time (`PERF_RECORD_THROTTLE`).
    pub throttled: u64,
    /// Stretches of AUX data (Arm SPE's) that came with gaps.
    pub aux_gaps: u64,
    /// What was read from `/proc` and `/sys`.
    pub read: ReadCost,
    /// Pages whose home was asked for.
    pub homes_queried: u64,
    /// Pages that the kernel's own balancing moved meanwhile, machine-wide.
    pub pages_moved_by_kernel: u64,
}

/// The running system: some of its processes, their samples, and the power to move their pages.
pub struct LinuxMachine {
    topology: Topology,
    processes: Processes,
    mappings: BTreeMap<Pid, Vec<Mapping>>,
    sampler: Box<dyn Sampler>,
    mover: Mover<LiveKernel>,
    settings: MachineSettings,
    kernel_settings: Option<SharedSettings>,
    samples: Vec<Sample>,
    /// Of the interval's samples, every which is kept, and how many were left out.
    thinning: usize,
    left_out: u64,
    met: BTreeSet<Bound>,
    known_homes: BTreeMap<Pid, KnownHomes>,
    placement: Placement,
    /// What was known of processes before the sampler was opened.
    survey: Survey,
    /// Ranges that were to be interleaved: where the last band ends, and the seed of the choice.
    spread: BTreeMap<Pid, RangeMap<(u64, u64)>>,
    /// The policies of confined processes.
    bound: BTreeMap<Pid, BoundMemory>,
    shared: SharedMemory,
    /// Whether pages were to be spread since the last observation.
    has_spread: bool,
    huge: HugeCache,
    hints: Sections,
    /// Intervals so far in which sampling went on.
    interval: u32,
    paused: bool,
    /// Whether it can be seen which pages are huge, so that splitting them can be checked.
    splits: bool,
    interval_began_ns: u64,
    losses_before: u64,
    migrated_before: u64,
    free_bytes: Vec<u64>,
    /// Of the last intervals, fading.
    traffic: TrafficMatrix,
    /// Of the last intervals, fading.
    samples_per_s: f64,
    totals: Totals,
}

impl LinuxMachine {
    /// A machine that manages `processes`.
    #[must_use]
    pub fn new(
        topology: Topology,
        processes: Processes,
        sampler: Box<dyn Sampler>,
        settings: MachineSettings,
    ) -> Self {
        let most = |node| Some((topology.id_of(node), topology.most_memory_bytes(node)?));
        let node_bytes = topology.node_indices().filter_map(most).collect();
        let traffic = TrafficMatrix::new(topology.node_count());
        let placement = Placement::new(topology.node_count(), sampler.is_proportional());
        let mut kernel = LiveKernel::new(topology.uncounted_memory_bytes().unwrap_or(0));
        let migrated_before = kernel.pages_migrated();
        let splits = settings.split && kernel.sees_huge_pages();
        let mut machine = Self {
            topology,
            processes,
            mappings: BTreeMap::new(),
            sampler,
            mover: Mover::new(kernel, settings.mover, node_bytes),
            settings,
            kernel_settings: None,
            samples: Vec::new(),
            thinning: 1,
            left_out: 0,
            met: BTreeSet::new(),
            known_homes: BTreeMap::new(),
            placement,
            survey: Survey::default(),
            spread: BTreeMap::new(),
            bound: BTreeMap::new(),
            shared: SharedMemory::default(),
            has_spread: false,
            huge: HugeCache::default(),
            hints: Sections::default(),
            interval: 0,
            paused: false,
            splits,
            interval_began_ns: now_ns(),
            losses_before: 0,
            migrated_before,
            free_bytes: Vec::new(),
            traffic,
            samples_per_s: 0.0,
            totals: Totals::default(),
        };
        machine.processes.update();
        machine
    }

    /// The same, that knows where pages were before the sampler was opened.
    #[must_use]
    pub fn knowing(self, survey: Survey) -> Self {
        Self { survey, ..self }
    }

    /// With the kernel's settings, which it changes where that keeps the kernel from undoing what it does.
    #[must_use]
    pub fn with_settings(self, kernel_settings: SharedSettings) -> Self {
        Self { kernel_settings: Some(kernel_settings), ..self }
    }

    /// Empties the samplers' rings; call it several times an interval, so that they do not overrun.
    pub fn drain(&mut self) {
        let Self { sampler, processes, samples, .. } = self;
        let before = samples.len();
        sampler.drain(&|pid| processes.contains(pid), samples);
        self.thin(before);
    }

    /// Leaves out samples where there are more than are kept, those of the interval's beginning and of its end alike.
    fn thin(&mut self, before: usize) {
        let every = |step: usize, from: usize, samples: &mut Vec<Sample>| {
            let mut at = 0;
            samples.retain(|_| {
                at += 1;
                at <= from || (at - from) % step == 0
            });
        };
        let all = self.samples.len();
        every(self.thinning, before, &mut self.samples);
        while self.samples.len() > bounds::SAMPLES {
            every(2, 0, &mut self.samples);
            self.thinning *= 2;
            self.met.insert(Bound::Samples);
        }
        self.left_out += (all - self.samples.len()) as u64;
        self.samples.shrink_to(bounds::SAMPLES);
    }

    /// The bounds that were met so far.
    #[must_use]
    pub fn bounds_met(&self) -> BTreeSet<Bound> {
        &self.met | self.processes.met()
    }

    /// Whether any managed process is alive.
    #[must_use]
    pub fn has_processes(&self) -> bool {
        self.processes.iter().next().is_some()
    }

    /// The managed processes that are alive.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.processes.iter().map(|process| process.pid)
    }

    /// The sampler in use.
    #[must_use]
    pub fn sampler(&self) -> &dyn Sampler {
        &*self.sampler
    }

    /// What was done so far.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Looks where memory in use lies, for [`LinuxMachine::placement`].
    pub fn look(&mut self) {
        let Self { placement, mover, topology, known_homes, totals, sampler, .. } = self;
        let proportional = sampler.is_proportional();
        placement.look(|pid, pages| {
            totals.homes_queried += pages.len() as u64;
            let homes = query(mover.kernel(), topology, pid, pages);
            let known = known_homes.entry(pid).or_default();
            locate_pages(known, pages, homes, proportional)
        });
    }

    /// How memory in use lay at first, and how it lay when it was looked at last.
    #[must_use]
    pub fn placement(&self) -> BeforeAndAfter<Result<Figures, Unknown>> {
        let nodes = self.topology.nodes().iter();
        let balanced: Vec<bool> = nodes.map(|node| !node.cpus.is_empty() && node.may_have_memory()).collect();
        self.placement.figures(&balanced)
    }

    /// Stops sampling and puts every kernel setting back.
    pub fn close(&mut self) -> Result<(), Error> {
        self.note_kernel_moves();
        self.hints.close();
        let closed = self.sampler.close();
        let restored = self.kernel_settings.as_ref().map_or(Ok(()), SharedSettings::restore);
        self.note_losses();
        self.note_reading();
        closed.and(restored)
    }

    /// Counts what was lost since the last call, and returns how many samples.
    fn note_losses(&mut self) -> u64 {
        let losses = self.sampler.losses();
        let lost = losses.lost + losses.malformed;
        let since = lost.saturating_sub(self.losses_before);
        self.losses_before = lost;
        self.totals.samples_lost += since + self.left_out;
        (self.totals.throttled, self.totals.aux_gaps) = (losses.throttled, losses.aux_gaps);
        since
    }

    fn note_reading(&mut self) {
        self.totals.read = self.processes.cost() + self.mover.kernel().cost();
    }

    /// Keeps what is known of pages in step with the processes: nothing of one that executed another program, nothing of
    /// what was unmapped, and all there is (within bounds) of one that ran before we came.
    fn update_known_homes(&mut self) {
        let Self { known_homes, processes, mover, topology, totals, survey, .. } = self;
        known_homes.retain(|&pid, _| processes.contains(pid));
        let handles = processes
            .iter()
            .filter_map(|process| Some((process.pid.0, Arc::clone(process.handle.as_ref()?))));
        mover.kernel().mean(handles);
        mover
            .kernel()
            .keep(&processes.iter().filter(|process| !process.fresh).map(|process| process.pid.0).collect());
        let mut left = room(known_homes);
        let is_new = |process: &&Process| !process.from_the_start && !known_homes.contains_key(&process.pid);
        let new = processes.iter().filter(is_new).count();
        for process in processes.iter() {
            if process.fresh {
                known_homes.remove(&process.pid);
            }
            let Some(mappings) = &process.mappings else { continue };
            let known = known_homes.entry(process.pid).or_insert_with(|| {
                let before = survey.0.remove(&process.pid);
                match before {
                    _ if process.from_the_start => KnownHomes::default(),
                    Some(before) => before,
                    None => {
                        let known = ask(mover.kernel(), topology, totals, process.pid, mappings, new, left);
                        left = left.saturating_sub(known.bytes());
                        known
                    }
                }
            });
            known.keep_mapped(mappings);
        }
        survey.0.clear();
    }

    /// Leaves out faults that allocated their page, asks the kernel where the sampled pages are now, and how large they
    /// are. Returns the traffic that the samples met: accesses by accessor and by the home before the fault.
    fn locate(&mut self) -> TrafficMatrix {
        let mut traffic = TrafficMatrix::new(self.topology.node_count());
        self.samples.sort_unstable_by_key(|s| (s.pid, s.address.page(), s.time_ns));
        let samples = std::mem::take(&mut self.samples);
        let mut left = room(&self.known_homes);
        for of_process in samples.chunk_by(|a, b| a.pid == b.pid) {
            let pid = of_process[0].pid;
            let from_the_start =
                self.processes.iter().any(|process| process.pid == pid && process.from_the_start);
            let mut pages: Vec<PageNumber> = of_process.iter().map(|s| s.address.page()).collect();
            pages.dedup();
            self.totals.homes_queried += pages.len() as u64;
            let homes = query(self.mover.kernel(), &self.topology, pid, &pages);
            let known = self.known_homes.entry(pid).or_default();
            let bytes = known.bytes();
            known.limit(bytes + left);
            let mappings = self.mappings.get(&pid).map_or(&[][..], Vec::as_slice);
            for (of_page, &home) in
                of_process.chunk_by(|a, b| a.address.page() == b.address.page()).zip(&homes)
            {
                let page = of_page[0].address.page();
                let before = known.get(page);
                let mapping = mapping_of(mappings, page);
                if mapping.is_none() {
                    self.processes.distrust_mappings(pid);
                }
                let may_be_huge = mapping.is_none_or(|m| m.kind != MappingKind::File);
                let huge = may_be_huge && self.huge.look(self.mover.kernel(), pid, page);
                if let Some(home) = home.filter(|_| huge) {
                    known.note_huge(page, home);
                }
                let allocates = before.is_none() && from_the_start;
                self.totals.first_touches += u64::from(allocates);
                // The first fault may have moved the page, so only it met the home before; memory is allocated where it is first
                // touched, unless a policy says otherwise.
                let mut met = if allocates { Some(of_page[0].accessor) } else { before.or(home) };
                if of_page.len() > usize::from(allocates) {
                    known.note_used(page, self.interval);
                }
                let of_page = &of_page[usize::from(allocates)..];
                for sample in of_page {
                    self.placement.note(pid, page, huge, sample.accessor);
                }
                for sample in of_page {
                    if let Some(met) = std::mem::replace(&mut met, home) {
                        traffic.add(sample.accessor, met, f64::from(sample.weight));
                    }
                    let page_size = if huge { PageSize::Huge } else { PageSize::Base };
                    self.samples.push(Sample { home, page_size, ..*sample });
                }
            }
            known.note(pages.into_iter().zip(homes));
            left = (left + bytes).saturating_sub(known.bytes());
            if known.is_full() {
                self.met.insert(Bound::Pages);
            }
        }
        traffic
    }

    fn counters(&mut self, duration_ns: u64, traffic: &TrafficMatrix) -> Counters {
        let mut moved_by_kernel = 0;
        // Without samples nothing is decided, and an idle program must cost next to nothing.
        if !self.samples.is_empty() || self.free_bytes.is_empty() {
            moved_by_kernel = self.note_kernel_moves();
            let Self { topology, mover, .. } = self;
            let kernel = mover.kernel();
            self.free_bytes = topology.nodes().iter().map(|node| kernel.free_bytes(node.id)).collect();
        }
        // Samples come in bursts, once a pass over the memory.
        self.traffic.fade(FADED_SHARE);
        self.traffic.merge(traffic);
        let traffic = self.traffic.clone();
        let rate = self.samples.len() as f64 / (duration_ns.max(1) as f64 / 1e9);
        self.samples_per_s = FADED_SHARE * self.samples_per_s + (1.0 - FADED_SHARE) * rate;
        let rate = self.samples_per_s;
        // A page gives one sample a scan, and a scan takes several intervals: who was sampled in this one says little about where the
        // load is, but which memory is in use, and where its pages are, is known.
        let mut pages_in_use = vec![0.0; self.topology.node_count()];
        let pass = self.sampler.pass().as_nanos() / u128::from(duration_ns.max(1));
        let since = self.interval.saturating_sub(IN_USE_INTERVALS + pass as u32);
        self.known_homes.values().for_each(|known| known.add_used(since, &mut pages_in_use));
        let by_pages = !self.sampler.is_proportional() && pages_in_use.iter().sum::<f64>() >= TRAFFIC_SAMPLES;
        let enough = traffic.total() >= TRAFFIC_SAMPLES;
        let nodes = self.topology.node_indices().zip(&self.free_bytes);
        let most = |(node, &free)| self.topology.most_memory_bytes(node).unwrap_or(free);
        let total_bytes = nodes.map(most).collect();
        Counters {
            controller_loads: if by_pages { Measure::Estimated(pages_in_use) } else { Measure::Unknown },
            traffic: if enough { Measure::Estimated(traffic) } else { Measure::Unknown },
            access_rate: if self.sampler.is_proportional() { Measure::Unknown } else { Measure::Proxy(rate) },
            pages_moved_by_kernel: Measure::Measured(moved_by_kernel),
            ..Counters::unknown(self.free_bytes.clone(), total_bytes)
        }
    }

    /// Where pages are of ranges that are being spread, if any of them may be elsewhere than they were.
    fn unmoved(&self, pid: Pid) -> Vec<Unmoved> {
        /// Of 2 MiB, in all ranges together (2 GiB take some ms), and in each at least.
        const LOOKED_AT: (u64, u64) = (1024, 8);
        let (Some(spread), Some(known)) = (self.spread.get(&pid), self.known_homes.get(&pid)) else {
            return Vec::new();
        };
        if self.samples.is_empty() && !self.has_spread {
            return Vec::new();
        }
        let most = (LOOKED_AT.0 / spread.iter().count().max(1) as u64).max(LOOKED_AT.1);
        let seen = spread.iter().map(|(range, &(end, seed))| {
            let waits = |page| u64::from(Interleaving::hash(page, seed)) >= end;
            let (pages, mut all, mut waiting) = known.unmoved(range, most, self.topology.node_count(), waits);
            all.iter_mut().chain(&mut waiting).for_each(|share| *share /= pages.max(1) as f32);
            Unmoved { range, all, waiting }
        });
        seen.collect()
    }

    /// Pages that the kernel's balancing moved since the last call.
    fn note_kernel_moves(&mut self) -> u64 {
        let migrated = self.mover.kernel().pages_migrated();
        let since = migrated.saturating_sub(self.migrated_before);
        self.migrated_before = migrated;
        self.totals.pages_moved_by_kernel += since;
        since
    }

    /// khugepaged makes huge pages of what was just split within seconds, and puts each on one node; nobody else can keep it from that
    /// (`Documentation/admin-guide/mm/transhuge.rst`). It sleeps for an hour between two scans until Nodewise ends. Whoever sets how long it
    /// sleeps wakes it, and it scans once more (`scan_sleep_millisecs_store`, `mm/khugepaged.c`, Linux 6.12): little, that is.
    fn pause_khugepaged(&self) {
        if let Some(settings) = &self.kernel_settings {
            // Where it may not be changed, pages that were made again are split again, ever more rarely.
            for (setting, value) in [(KHUGEPAGED_PAGES, "1"), (KHUGEPAGED_SLEEP, "3600000")] {
                let _ = settings.set(Path::new(setting), value);
            }
        }
    }

    /// Splits huge pages or makes them again.
    fn resize(&mut self, decision: &Decision, deadline_ns: u64) -> Outcome {
        let (pages, size) = match &decision.action {
            Action::Split { pages } => (pages, Size::Base),
            Action::Collapse { pages } => (pages, Size::Huge),
            _ => return Outcome::default(),
        };
        if self.settings.mover.dry_run {
            let planned = pages.len() as u64 * HUGE_PAGE_PAGES;
            return Outcome { planned, only_reported: true, ..Outcome::default() };
        }
        if size == Size::Base {
            self.pause_khugepaged();
        }
        let (pid, processes) = (decision.pid, &mut self.processes);
        let outcome = resize(self.mover.kernel(), pid.0, pages, size, deadline_ns, || processes.is_same(pid));
        for &page in pages {
            self.huge.forget(pid, page);
        }
        if let Some(known) = self.known_homes.get_mut(&pid) {
            for &page in pages {
                known.forget_moved(page);
            }
        }
        outcome
    }

    /// Carries out decisions about one process.
    fn carry_out(&mut self, decisions: &[Decision], deadline_ns: u64) -> Vec<Outcome> {
        let pid = decisions[0].pid;
        if !self.processes.is_same(pid) {
            return vec![Outcome { process_gone: true, ..Outcome::default() }; decisions.len()];
        }
        let topology = &self.topology;
        let left = room(&self.known_homes);
        let known = self.known_homes.entry(pid).or_default();
        known.limit(known.bytes() + left);
        let before: &KnownHomes = known;
        let targets: Vec<_> = decisions
            .iter()
            .map(|decision| {
                move |page: PageNumber, home: NodeId| {
                    let to = target(&decision.action, page, topology.index_of(home)?)?;
                    // The kernel may have taken a page away from where we put it; chasing it would be bouncing. And what several
                    // nodes were seen to use is not collocated for looking private in a few scans.
                    let done = match (&decision.action, before.placed(page)) {
                        (_, None) => false,
                        (Action::Interleave(_), Some(_)) | (_, Some(Placed::Spread)) => true,
                        (_, Some(Placed::At(node))) => node == to,
                    };
                    Some(topology.id_of(to)).filter(|_| !done)
                }
            })
            .collect();
        let jobs: Vec<Job<'_>> = decisions
            .iter()
            .zip(&targets)
            .map(|(decision, target)| {
                let process = self.processes.get(pid);
                let mappers = process.map_or_else(Vec::new, |p| self.shared.mappers(p, decision.range));
                Job { range: decision.range, mappers, target }
            })
            .collect();
        let mut outcomes = self.mover.carry_out(pid.0, &jobs, deadline_ns);
        drop(jobs);
        drop(targets);
        let mut bands: BTreeMap<(PageNumber, PageNumber), (u64, u64)> = BTreeMap::new();
        for decision in decisions {
            if let Action::Interleave(Interleaving { band, seed, .. }) = decision.action {
                let last = bands.entry((decision.range.start, decision.range.end)).or_insert((0, seed));
                last.0 = last.0.max(band.1);
            }
        }
        self.has_spread |= !bands.is_empty();
        for ((start, end), band) in bands {
            self.spread.entry(pid).or_default().insert(PageRange { start, end }, band);
        }
        let mut moved = self.mover.take_moved();
        moved.sort_unstable_by_key(|moved| moved.page);
        let small = || moved.iter().filter(|moved| moved.pages == 1);
        // Pages that no sample hit are moved, too: where they were is known from the move.
        known.note(small().map(|moved| (moved.page, self.topology.index_of(moved.from))));
        for moved in &moved {
            let Some(home) = self.topology.index_of(moved.to) else { continue };
            let spread = matches!(decisions[moved.job].action, Action::Interleave(_));
            let page = if moved.pages > 1 { moved.page.huge() } else { moved.page };
            let again = known.note_moved(page, if spread { Placed::Spread } else { Placed::At(home) });
            outcomes[moved.job].moved_again += if again { moved.pages } else { 0 };
            if moved.pages > 1 {
                self.topology.index_of(moved.from).into_iter().for_each(|from| known.note_huge(page, from));
                known.note_huge(page, home);
            }
        }
        known.note(small().map(|moved| (moved.page, self.topology.index_of(moved.to))));
        outcomes
    }
}

/// Where the decision wants a page that is at `home`.
fn target(action: &Action, page: PageNumber, home: NodeIndex) -> Option<NodeIndex> {
    match action {
        Action::Collocate { to } => Some(*to),
        Action::CollocateEach { pages } => {
            let at = pages.binary_search_by_key(&page, |target| target.page).ok()?;
            Some(pages[at].to)
        }
        Action::Interleave(interleaving) => interleaving.target(page).filter(|_| home == interleaving.from),
        // A stock kernel has one page table a process: this can only be reported.
        Action::Replicate | Action::Split { .. } | Action::Collapse { .. } => None,
    }
}

impl Machine for LinuxMachine {
    type Error = Error;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Observation, Error> {
        self.drain();
        self.processes.update();
        self.mappings.retain(|&pid, _| self.processes.contains(pid));
        self.spread.retain(|&pid, _| self.processes.contains(pid));
        self.bound.retain(|&pid, _| self.processes.contains(pid));
        self.sampler.follow(&mut self.processes.iter().map(|process| process.pid));
        self.hints.retain(|pid| self.processes.contains(pid));
        self.placement.keep(|pid| self.processes.contains(pid));
        let mut states = Vec::new();
        let most_hints = bounds::HINTS / self.processes.iter().count().max(1);
        for process in self.processes.iter() {
            if process.fresh {
                self.hints.forget(process.pid);
                self.placement.forget(process.pid);
                self.spread.remove(&process.pid);
            }
            if let (Some(at), Some(_)) = (process.hints_at, &process.mappings) {
                self.hints.find(process.pid, at);
            }
            if let Some(mappings) = &process.mappings {
                self.mappings.insert(process.pid, mappings.clone());
                self.bound.entry(process.pid).or_default().is_old = true;
            }
            let mut confined = process.cpus.as_ref().and_then(|cpus| confined(&self.topology, cpus));
            let mut bound = Vec::new();
            if confined.is_some() {
                let mappings = self.mappings.get(&process.pid).map_or(&[][..], Vec::as_slice);
                let known = self.bound.entry(process.pid).or_default();
                known.update(|| self.mover.kernel().bound(process.pid, mappings));
                match &known.ranges {
                    Some(ranges) if !known.is_old => bound.clone_from(ranges),
                    _ => confined = None,
                }
            }
            let mut hints = self.hints.read(process.pid, !self.settings.mover.dry_run, now_ns());
            if let Some(hints) = hints.as_mut().filter(|hints| hints.len() > most_hints) {
                hints.truncate(most_hints);
                self.met.insert(Bound::Hints);
            }
            states.push(ProcessState {
                pid: process.pid,
                fresh: process.fresh,
                resident_pages: process.resident_pages,
                mappings: process.mappings.clone(),
                hints,
                asked: process.asked,
                confined,
                bound,
                unmoved: Vec::new(),
            });
        }
        self.huge.next_interval(&self.processes);
        let processes = &self.processes;
        self.samples.retain(|sample| processes.contains(sample.pid));
        self.shared = SharedMemory::of(processes);
        self.shared.unite(processes, &mut self.samples);
        self.update_known_homes();
        self.interval += u32::from(!self.paused);
        let traffic = self.locate();
        for state in &mut states {
            state.unmoved = self.unmoved(state.pid);
        }
        self.has_spread = false;
        let end_ns = now_ns();
        let duration_ns = end_ns.saturating_sub(self.interval_began_ns);
        self.interval_began_ns = end_ns;
        let counters = self.counters(duration_ns, &traffic);
        let samples_lost = self.note_losses() + std::mem::take(&mut self.left_out);
        self.thinning = 1;
        self.totals.samples += self.samples.len() as u64;
        self.note_reading();
        let samples = std::mem::take(&mut self.samples);
        let largest = states.iter().max_by_key(|state| state.resident_pages);
        // What cannot be written is a file's, or nobody's at all, and gives no samples.
        let writable = |mappings: &Vec<Mapping>| mappings.iter().filter(|mapping| mapping.writable).count();
        let mappings = largest.and_then(|state| self.mappings.get(&state.pid));
        self.sampler.adapt(&Interval {
            duration: Duration::from_nanos(duration_ns),
            samples: samples.len() as u64,
            largest_pages: largest.map_or(0, |state| state.resident_pages),
            writable_mappings: mappings.map(|mappings| writable(mappings) as u64),
            scan_sequence: largest.and_then(|state| Some((state.pid, scan_sequence(state.pid)?))),
            moved_by_kernel: counters.pages_moved_by_kernel.get().copied().unwrap_or(0),
        })?;
        self.processes.begin_interval();
        Ok(Observation { end_ns, duration_ns, counters, samples, samples_lost, processes: states })
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Error> {
        let deadline_ns = now_ns() + self.settings.apply.as_nanos() as u64;
        let mut outcomes = Vec::with_capacity(decisions.len());
        let alike = |a: &Decision, b: &Decision| a.pid == b.pid && a.action.resizes() == b.action.resizes();
        for of_process in decisions.chunk_by(alike) {
            if of_process[0].action.resizes() {
                outcomes.extend(of_process.iter().map(|decision| self.resize(decision, deadline_ns)));
            } else {
                outcomes.extend(self.carry_out(of_process, deadline_ns));
            }
        }
        for (decision, outcome) in decisions.iter().zip(&mut outcomes) {
            outcome.only_reported |= decision.action == Action::Replicate;
        }
        Ok(outcomes)
    }

    fn splits(&self) -> bool {
        self.splits
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Error> {
        self.paused = rate == SamplingRate::Paused;
        self.sampler.set_rate(rate)
    }
}

/// The ranges of its memory that a process has bound itself.
#[derive(Debug)]
struct BoundMemory {
    /// None where they cannot be learnt.
    ranges: Option<Vec<PageRange>>,
    /// The mappings have been read again since.
    is_old: bool,
    /// The time before which they are not read again: reading takes 1 % of the time at most.
    due: Instant,
}

impl Default for BoundMemory {
    fn default() -> Self {
        Self { ranges: None, is_old: true, due: Instant::now() }
    }
}

impl BoundMemory {
    fn update(&mut self, read: impl FnOnce() -> Option<Vec<PageRange>>) {
        let begin = Instant::now();
        if self.is_old && self.due <= begin {
            (self.ranges, self.is_old) = (read(), false);
            self.due = Instant::now() + begin.elapsed() * 100;
        }
    }
}

/// Pages in one query: about 0.3 ms.
const QUERY_PAGES: usize = 4096;
/// Pages of processes that ran before we came whose homes are asked for at once, of all such processes together: 1 GiB, about 20 ms.
const SURVEY_PAGES: usize = 1 << 18;
/// Fewer samples in an interval say too little about its traffic; the engine then goes by what it remembers.
const TRAFFIC_SAMPLES: f64 = 100.0;

/// What an interval's figures still count for one interval later.
const FADED_SHARE: f64 = 0.5;

/// How many times the kernel's balancing has gone through a process's memory, where it says so (`proc_sched_show_task`, `kernel/sched/debug.c`).
fn scan_sequence(pid: Pid) -> Option<u64> {
    let text = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/sched")).ok()?).into_owned();
    let line = text.lines().find(|line| line.starts_with("mm->numa_scan_seq"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Memory that was accessed so many intervals ago, and those of a pass, still counts as in use. Those in which sampling pauses do not count.
const IN_USE_INTERVALS: u32 = 10;

/// Where the pages of processes are before anything is done about them. Opening a sampler may switch the kernel's balancing on, which
/// moves pages at once.
#[derive(Debug, Default)]
pub struct Survey(BTreeMap<Pid, KnownHomes>);

impl Survey {
    /// Looks at the processes that are there.
    #[must_use]
    pub fn of(topology: &Topology, processes: &mut Processes) -> Self {
        processes.update();
        let (mut kernel, mut totals) = (LiveKernel::default(), Totals::default());
        let count = processes.iter().count();
        let with_mappings =
            processes.iter().filter_map(|process| Some((process.pid, process.mappings.as_ref()?)));
        let mut known = |pid, mappings: &[Mapping]| {
            ask(&mut kernel, topology, &mut totals, pid, mappings, count, bounds::KNOWN_BYTES / count.max(1))
        };
        Self(with_mappings.map(|(pid, mappings)| (pid, known(pid, mappings))).collect())
    }
}

/// What more may be known of pages, in bytes.
fn room(known_homes: &BTreeMap<Pid, KnownHomes>) -> usize {
    bounds::KNOWN_BYTES.saturating_sub(known_homes.values().map(KnownHomes::bytes).sum())
}

/// Asks where the pages of one of `processes` are that were there before we came. A database may have a thousand of them, each with all
/// of its shared memory mapped.
fn ask(
    kernel: &mut LiveKernel,
    topology: &Topology,
    totals: &mut Totals,
    pid: Pid,
    mappings: &[Mapping],
    processes: usize,
    bytes: usize,
) -> KnownHomes {
    let mut known = KnownHomes::default();
    known.limit(bytes);
    let (pages, all) = surveyed(mappings, (SURVEY_PAGES / processes.max(1)) as u64);
    totals.homes_queried += pages.len() as u64;
    let homes = query(kernel, topology, pid, &pages);
    known.survey(pages.into_iter().zip(homes), all);
    known
}

/// The pages of a process whose homes are asked for when we come, `most` of them, and whether that is all. Mappings share evenly what
/// there is for them, and of a mapping with more pages than its share whole blocks of 2 MiB are picked, evenly spread.
fn surveyed(mappings: &[Mapping], most: u64) -> (Vec<PageNumber>, bool) {
    let mut sizes: Vec<u64> = mappings.iter().map(|mapping| mapping.range.pages()).collect();
    sizes.sort_unstable();
    let (mut left, mut share) = (most, u64::MAX);
    for (at, &size) in sizes.iter().enumerate() {
        share = left / (sizes.len() - at) as u64;
        if size > share {
            break;
        }
        (left, share) = (left - size, u64::MAX);
    }
    let mut pages = Vec::new();
    for PageRange { start, end } in mappings.iter().map(|mapping| mapping.range) {
        if end.0 - start.0 <= share {
            pages.extend((start.0..end.0).map(PageNumber));
            continue;
        }
        let (first, blocks) = (start.huge().0, (end.0 - start.huge().0).div_ceil(HUGE_PAGE_PAGES));
        let picked = share / HUGE_PAGE_PAGES;
        for i in 0..picked {
            let block =
                first + (u128::from(blocks) * u128::from(i) / u128::from(picked)) as u64 * HUGE_PAGE_PAGES;
            pages.extend((block.max(start.0)..(block + HUGE_PAGE_PAGES).min(end.0)).map(PageNumber));
        }
    }
    (pages, share == u64::MAX)
}

/// Where pages were first seen, of those that now are at `homes`.
fn locate_pages(
    known: &mut KnownHomes,
    pages: &[PageNumber],
    homes: Vec<Option<NodeIndex>>,
    proportional: bool,
) -> Vec<Located> {
    // A page that is new may have its first fault on record, which tells that it is: that is noted when the fault is looked at.
    let seen = pages.iter().zip(&homes).filter(|&(&page, _)| proportional || known.get(page).is_some());
    let seen: Vec<_> = seen.map(|(&page, &home)| (page, home)).collect();
    known.note(seen.into_iter());
    let first = |page, home| known.first(page).or(known.first_of_new(home));
    pages.iter().zip(homes).map(|(&page, home)| (first(page, home), home)).collect()
}

/// Where pages are. None: not present, or the process is gone, which the next update will notice.
fn query(
    kernel: &mut LiveKernel,
    topology: &Topology,
    pid: Pid,
    pages: &[PageNumber],
) -> Vec<Option<NodeIndex>> {
    let addresses: Vec<u64> = pages.iter().map(|page| page.address().0).collect();
    let mut homes = vec![-1; addresses.len()];
    for (addresses, homes) in addresses.chunks(QUERY_PAGES).zip(homes.chunks_mut(QUERY_PAGES)) {
        if kernel.query(pid.0, addresses, homes).is_err() {
            homes.fill(-1);
        }
    }
    homes.iter().map(|&home| topology.index_of(NodeId(u32::try_from(home).ok()?))).collect()
}

/// The one node that has all of these CPUs, as far as they are online.
fn confined(topology: &Topology, cpus: &CpuSet) -> Option<NodeIndex> {
    let mut nodes = topology.node_indices().filter(|&node| {
        let online = &topology.nodes()[node.get()].cpus;
        online.iter().any(|cpu| cpus.contains(cpu.0))
    });
    let first = nodes.next()?;
    nodes.next().is_none().then_some(first)
}

fn mapping_of(mappings: &[Mapping], page: PageNumber) -> Option<&Mapping> {
    let after = mappings.partition_point(|mapping| mapping.range.start <= page);
    mappings[..after].last().filter(|mapping| mapping.range.contains(page))
}

/// A machine with one node is told so before anything is touched.
pub fn require_nodes(topology: &Topology) -> Result<(), Error> {
    if topology.node_count() > 1 {
        return Ok(());
    }
    let message = "this machine has one NUMA node: every access is local and there is nothing to place; try it in a guest \
                   with several: nodewise rig --nodes 4 --copy PROGRAM -- nodewise run -- PROGRAM";
    Err(Error::new(ErrorKind::Unsupported, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Access, DataSource, VirtAddr};
    use nodewise_sys::perf::Losses;
    use std::process::{Child, Command, Stdio};

    /// So many samples of a process each time, in order, and losses of each kind.
    #[derive(Default)]
    struct Lossy {
        losses: Losses,
        samples: u64,
        sampled: u64,
    }

    impl Sampler for Lossy {
        fn name(&self) -> &'static str {
            "lossy"
        }

        fn description(&self) -> String {
            String::new()
        }

        fn is_proportional(&self) -> bool {
            true
        }

        fn drain(&mut self, _keep: &dyn Fn(Pid) -> bool, into: &mut Vec<Sample>) {
            self.losses += Losses { lost: 2, throttled: 1, malformed: 1, aux_gaps: 1 };
            let sample = |time_ns| Sample {
                time_ns,
                address: VirtAddr(0x1000),
                pid: Pid(std::process::id()),
                tid: nodewise_engine::Tid(1),
                accessor: NodeIndex(0),
                home: None,
                access: Access::Read,
                source: DataSource::Unknown,
                page_size: PageSize::Base,
                latency_cycles: 0,
                weight: 1,
            };
            into.extend((self.sampled..self.sampled + self.samples).map(sample));
            self.sampled += self.samples;
        }

        fn losses(&self) -> Losses {
            self.losses
        }

        fn set_rate(&mut self, _rate: SamplingRate) -> Result<(), Error> {
            Ok(())
        }

        fn close(&mut self) -> Result<(), Error> {
            self.losses.lost += 10;
            Ok(())
        }
    }

    fn machine(pids: &[Pid]) -> LinuxMachine {
        sampled(pids, Lossy::default())
    }

    fn sampled(pids: &[Pid], sampler: Lossy) -> LinuxMachine {
        let processes = Processes::new(pids, false, false).unwrap();
        let topology = Topology::live().unwrap();
        LinuxMachine::new(topology, processes, Box::new(sampler), MachineSettings::default())
    }

    #[test]
    fn of_too_many_samples_some_are_looked_at_from_all_of_the_interval() {
        const EACH: u64 = 200_000;
        let mut machine = sampled(&[Pid(std::process::id())], Lossy { samples: EACH, ..Lossy::default() });
        machine.drain();
        assert_eq!(machine.bounds_met(), BTreeSet::new());
        machine.drain();
        let seen = machine.observe().unwrap();
        assert_eq!(machine.bounds_met(), BTreeSet::from([Bound::Samples]));
        let count = seen.samples.len();
        assert!((bounds::SAMPLES / 2..=bounds::SAMPLES).contains(&count), "{count}");
        for drain in 0..3 {
            let times = drain * EACH..(drain + 1) * EACH;
            let of_drain = seen.samples.iter().filter(|sample| times.contains(&sample.time_ns)).count();
            assert!(of_drain.abs_diff(count / 3) < 10, "{of_drain} of {count}");
        }
        assert_eq!(seen.samples_lost, 3 * EACH - count as u64 + 9);
        assert!(machine.observe().unwrap().samples.len() > 190_000, "the next interval begins anew");
    }

    #[test]
    fn losses_are_counted_by_kind_to_the_end() {
        let mut machine = machine(&[Pid(std::process::id())]);
        assert_eq!(machine.observe().unwrap().samples_lost, 3);
        machine.drain();
        assert_eq!(machine.observe().unwrap().samples_lost, 6);
        machine.close().unwrap();
        let totals = machine.totals();
        assert_eq!((totals.samples_lost, totals.throttled, totals.aux_gaps), (19, 3, 3));
        assert!(totals.read.files > 0 && totals.read.bytes > 0 && totals.read.time_ns > 0);
    }

    #[test]
    fn cpus_of_one_node_confine_to_it() {
        let topology = Topology::synthetic(3, 2, 1 << 30);
        let cpus = |cpus: &[u32]| confined(&topology, &cpus.iter().copied().collect());
        assert_eq!(cpus(&[2]), Some(NodeIndex(1)));
        assert_eq!(cpus(&[4, 5]), Some(NodeIndex(2)));
        assert_eq!((cpus(&[3, 4]), cpus(&[])), (None, None));
        // Those that are not there, as in a mask of a machine that could have more.
        assert_eq!(cpus(&[0, 1, 6, 7]), Some(NodeIndex(0)));
    }

    #[test]
    fn policies_are_read_again_no_sooner_than_costs_little() {
        let mut bound = BoundMemory::default();
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Some(Vec::new())
        };
        bound.update(slow);
        assert!(!bound.is_old && bound.ranges == Some(Vec::new()));
        bound.update(|| panic!("nothing has changed"));
        bound.is_old = true;
        bound.update(|| panic!("too soon"));
        bound.due = Instant::now();
        bound.update(|| None);
        assert!(!bound.is_old && bound.ranges.is_none());
    }

    #[test]
    fn a_survey_is_even() {
        let mapping = |start, end| Mapping {
            range: PageRange::new(start, end),
            writable: true,
            kind: MappingKind::Anonymous,
        };
        let small = [mapping(3, 10), mapping(100, 1000)];
        assert!(surveyed(&small, 907).1);
        assert_eq!(surveyed(&small, 907).0.len(), 907);
        // A reserve of terabytes takes no more than its share.
        let huge = [mapping(3, 10), mapping(1 << 20, 1 << 32), mapping(1 << 33, (1 << 33) + 20_000)];
        let (pages, all) = surveyed(&huge, 16_384);
        assert!(!all && (16_384 * 9 / 10..=16_384).contains(&pages.len()), "{}", pages.len());
        assert!(pages.is_sorted());
        let within = |range: PageRange| pages.iter().filter(|&&page| range.contains(page)).count();
        let halves = (within(PageRange::new(1 << 20, 1 << 31)), within(PageRange::new(1 << 31, 1 << 32)));
        assert!(halves.0.abs_diff(halves.1) <= 512, "{halves:?}");
        assert_eq!(within(huge[0].range), 7);
    }

    #[test]
    fn many_processes_are_surveyed_no_longer_than_one() {
        // Each waits for input, with a buffer of half of what is asked about.
        let mut dd = Command::new("dd");
        dd.arg("bs=512M").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut children: Vec<Child> = (0..4).map(|_| dd.spawn().unwrap()).collect();
        for child in &children {
            let size = || std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
            while size().split(' ').next().unwrap().parse::<usize>().unwrap() < SURVEY_PAGES / 2 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let pids: Vec<Pid> = children.iter().map(|child| Pid(child.id())).collect();
        let mut machine = machine(&pids);
        machine.observe().unwrap();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Small mappings are asked about whole, large ones in blocks.
        let asked = machine.totals.homes_queried;
        assert!((SURVEY_PAGES as u64 * 9 / 10..=SURVEY_PAGES as u64).contains(&asked), "{asked}");
    }
}
