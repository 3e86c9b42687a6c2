//! [`LinuxMachine`]: the engine's window on the running system.

#[cfg(test)]
mod tests;

use crate::bound_memory::{BoundMemory, confined};
use crate::bounds::{self, Bound};
use crate::ending::Ending;
use crate::hints::Sections;
use crate::homes::Homes;
use crate::intake::Intake;
use crate::interleaved::InterleavedRanges;
use crate::kernel::{LiveKernel, now_ns};
use crate::known_homes::{KnownHomes, Placed};
use crate::maps::{has_hint_faults, mapping_of};
use crate::mover::{Job, Mover, MoverSettings};
use crate::placement::{BeforeAndAfter, Figures, MIN_TURNS, Unknown};
use crate::process::{Processes, ReadCost};
use crate::put_off::PutOff;
use crate::resize::{Size, pause_khugepaged, resize};
use crate::sampler::{Interval, Sampler};
use crate::settings::SharedSettings;
use crate::shared::SharedMemory;
use crate::survey::{Survey, scan_sequence};
use crate::threads::Threads;
use crate::traffic::{self, Traffic};
use crate::unseen::{Unseen, UnseenFiles};
use crate::{Error, ErrorKind};
use nodewise_engine::{
    Action, Decision, HUGE_PAGE_PAGES, Machine, Mapping, Observation, Outcome, PageNumber, PageRange, Pid,
    ProcessState, Sample, SamplingRate, TrafficMatrix,
};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the live machine works.
#[derive(Clone, Copy, Debug)]
pub struct MachineSettings {
    /// Bounds on moving.
    pub mover: MoverSettings,
    /// Most time that carrying out one round's decisions may take; the rest waits for the next. It
    /// is more where looking at the interval took longer, for want of CPUs: that long, up to four times this.
    pub apply: Duration,
    /// Whether huge pages may be split and made again.
    pub split: bool,
    /// Whether files that hint faults do not tell of are interleaved, if they lie unevenly over the nodes.
    pub interleave_files: bool,
}

impl Default for MachineSettings {
    fn default() -> Self {
        Self {
            mover: MoverSettings::default(),
            apply: Duration::from_millis(750),
            split: true,
            interleave_files: false,
        }
    }
}

/// The machine's work since it was opened.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    /// Samples of managed processes.
    pub samples: u64,
    /// Faults that allocated their page and so say nothing; not counted as samples.
    pub first_touches: u64,
    /// Samples lost in the kernel or in the rings.
    pub samples_lost: u64,
    /// Times that the kernel switched sampling off until its next tick, for taking too much time
    /// (`PERF_RECORD_THROTTLE`).
    pub throttled: u64,
    /// Stretches of AUX data (Arm SPE's) that came with gaps.
    pub aux_gaps: u64,
    /// The cost of reading `/proc` and `/sys`.
    pub read: ReadCost,
    /// Pages whose home was asked for.
    pub homes_queried: u64,
    /// Pages that the kernel's own balancing moved meanwhile, machine-wide.
    pub pages_moved_by_kernel: u64,
    /// Times that a thread ran on another node at the end of a round than at the end of the one before.
    pub thread_moves: u64,
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
    intake: Intake,
    threads: Threads,
    unseen: Unseen,
    homes: Homes,
    traffic: Traffic,
    interleaved: InterleavedRanges,
    put_off: PutOff,
    bound: BoundMemory,
    shared: SharedMemory,
    hints: Sections,
    ending: Ending,
    /// Whether it can be seen which pages are huge, so that splitting them can be checked.
    splits: bool,
    /// The process by whose passes sampling goes.
    followed: Option<Pid>,
    interval_began_ns: u64,
    /// When the last look at an interval began.
    looking_since_ns: u64,
    losses_before: u64,
    /// Pages that the kernel had moved when a living process was looked at last, and since, at the last look.
    migrated_when_seen: u64,
    migrated_since_seen: u64,
    totals: Totals,
}

impl LinuxMachine {
    /// The home at which a page was first seen; none where that is not known.
    #[must_use]
    pub fn first_home(&self, pid: Pid, page: PageNumber) -> Option<NodeIndex> {
        self.homes.get(pid)?.first(page)
    }

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
        let nodes = topology.node_count();
        let homes = Homes::new(nodes, sampler.is_proportional());
        let mut kernel = LiveKernel::new(topology.uncounted_memory_bytes().unwrap_or(0));
        let traffic = Traffic::new(&mut kernel, nodes);
        let splits = settings.split && kernel.sees_huge_pages();
        let mut machine = Self {
            topology,
            processes,
            mappings: BTreeMap::new(),
            sampler,
            mover: Mover::new(kernel, settings.mover, node_bytes),
            settings,
            kernel_settings: None,
            intake: Intake::new(),
            threads: Threads::default(),
            unseen: Unseen::default(),
            homes,
            traffic,
            interleaved: InterleavedRanges::default(),
            put_off: PutOff::default(),
            bound: BoundMemory::default(),
            shared: SharedMemory::default(),
            hints: Sections::default(),
            followed: None,
            ending: Ending::default(),
            splits,
            interval_began_ns: now_ns(),
            looking_since_ns: now_ns(),
            losses_before: 0,
            migrated_when_seen: 0,
            migrated_since_seen: 0,
            totals: Totals::default(),
        };
        machine.processes.update();
        machine.migrated_when_seen = machine.mover.kernel().pages_migrated();
        machine.sampler.follow(&mut machine.processes.iter().map(|process| process.pid));
        machine
    }

    /// The same, that knows where pages were before the sampler was opened.
    #[must_use]
    pub fn knowing(mut self, survey: Survey) -> Self {
        self.homes.learn(survey);
        self
    }

    /// With the kernel's settings, which it changes where that keeps the kernel from undoing what it does.
    #[must_use]
    pub fn with_settings(self, kernel_settings: SharedSettings) -> Self {
        Self { kernel_settings: Some(kernel_settings), ..self }
    }

    /// One that ends whatever takes long when it hears that managing is to end.
    #[must_use]
    pub fn hearing(mut self, ending: Ending) -> Self {
        self.processes.hear(&ending);
        self.mover.kernel().hear(&ending);
        Self { ending, ..self }
    }

    /// Empties the samplers' rings; call it several times an interval, so that they do not overrun.
    pub fn drain(&mut self) {
        let Self { sampler, processes, intake, ending, .. } = self;
        let keep = |pid| !ending.is_set() && processes.contains(pid);
        intake.take_in(|samples| sampler.drain(&keep, samples));
    }

    /// The bounds that were met so far.
    #[must_use]
    pub fn bounds_met(&self) -> BTreeSet<Bound> {
        let mut met = self.processes.met().clone();
        let here = [
            (Bound::Samples, self.intake.is_full()),
            (Bound::Pages, self.homes.is_full()),
            (Bound::Hints, self.hints.is_full()),
            (Bound::Ranges, self.interleaved.is_full()),
            (Bound::Streams, self.sampler.is_full()),
        ];
        met.extend(here.into_iter().filter(|&(_, is_met)| is_met).map(|(bound, _)| bound));
        met
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

    /// The work so far.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Files of which the sampler does not tell, as they were looked at last.
    #[must_use]
    pub fn unseen_files(&self) -> Option<&UnseenFiles> {
        self.unseen.files()
    }

    /// Huge pages by reservation of which the sampler does not tell, in bytes: of the process with most, as
    /// several may share them.
    #[must_use]
    pub const fn unseen_huge_bytes(&self) -> u64 {
        self.unseen.huge_bytes()
    }

    /// Looks where memory in use lies, for [`LinuxMachine::placement`].
    pub fn look(&mut self) {
        let kernel = self.mover.kernel();
        // Before the look: a page may move while others are looked at.
        let migrated = kernel.pages_migrated();
        let seen = self.homes.look(kernel, &self.topology);
        self.totals.homes_queried = self.homes.asked();
        // One that is ending is alive and has no memory.
        if seen {
            self.migrated_when_seen = migrated;
        }
        self.migrated_since_seen = migrated.saturating_sub(self.migrated_when_seen);
    }

    /// How memory in use lay at first, and how it lay when it was looked at last. That is not known of a
    /// program that has ended if the kernel moved much of it meanwhile.
    #[must_use]
    pub fn placement(&self) -> BeforeAndAfter<Result<Figures, Unknown>> {
        /// So much of the memory may have moved since it was seen.
        const MAX_MOVED: f64 = 0.05;
        let mut placement = self.homes.placement(&self.topology);
        let pages = placement.after.as_ref().ok().and_then(|figures| figures.pages);
        if pages.is_some_and(|pages| self.migrated_since_seen as f64 > MAX_MOVED * pages as f64) {
            placement.after = Err(Unknown::Moved);
        }
        if self.sampler.lags() {
            for figures in [&mut placement.before, &mut placement.after] {
                // With few turns, memory that nodes share looks private to them, part by part.
                let few = match figures {
                    Ok(figures) if figures.samples as f64 >= MIN_TURNS * figures.sampled as f64 => continue,
                    Ok(figures) => figures.samples,
                    Err(Unknown::Samples(samples)) => *samples,
                    Err(_) => continue,
                };
                *figures = Err(Unknown::Pace(few));
            }
        }
        placement
    }

    /// Stops sampling and puts every kernel setting back.
    pub fn close(&mut self) -> Result<(), Error> {
        self.traffic.note_kernel_moves(self.mover.kernel());
        self.totals.pages_moved_by_kernel = self.traffic.moved_by_kernel();
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
        self.totals.samples_lost += since + self.intake.left_out();
        (self.totals.throttled, self.totals.aux_gaps) = (losses.throttled, losses.aux_gaps);
        since
    }

    fn note_reading(&mut self) {
        self.totals.read = self.processes.cost() + self.mover.kernel().cost() + self.threads.cost;
    }

    /// Looks at memory of which the sampler does not tell, and says which of it is to be interleaved.
    fn look_at_unseen(&mut self, states: &mut [ProcessState]) {
        if self.sampler.is_proportional() {
            return;
        }
        self.unseen.look(self.mover.kernel(), &self.topology, &self.processes);
        for state in states.iter_mut().filter(|_| self.settings.interleave_files) {
            let process = self.processes.get(state.pid);
            let cpus = process.and_then(|process| process.details.cpus.as_ref());
            // One that runs on one node only has its files there at best.
            if cpus.and_then(|cpus| confined(&self.topology, cpus)).is_none() {
                state.to_interleave = self.unseen.uneven(&self.processes, state.pid);
            }
        }
    }

    /// Takes the interval's samples, and finds out where their pages are. Returns also the traffic that they
    /// met.
    fn locate(&mut self) -> (Vec<Sample>, TrafficMatrix) {
        let Self { intake, homes, shared, processes, mover, topology, mappings, .. } = self;
        let mut samples = intake.end_interval();
        let by_faults = !self.sampler.is_proportional();
        samples.retain(|sample| {
            let mappings = mappings.get(&sample.pid).map_or(&[][..], Vec::as_slice);
            let mapping = || mapping_of(mappings, sample.address.page());
            // Faults elsewhere are of files' first accesses, and of pages that are just moved: they come by
            // what we do, and not by use.
            let tells = !by_faults || mapping().is_none_or(has_hint_faults);
            tells && processes.contains(sample.pid)
        });
        self.totals.thread_moves += self.threads.look(processes, topology);
        *shared = SharedMemory::of(processes);
        let kernel = mover.kernel();
        kernel.learn_places(shared.unite(processes, &mut samples).into_iter());
        let handles = processes
            .iter()
            .filter_map(|process| Some((process.pid.0, Arc::clone(process.handle.as_ref()?))));
        kernel.mean(handles);
        kernel
            .keep(&processes.iter().filter(|process| !process.fresh).map(|process| process.pid.0).collect());
        homes.update(kernel, topology, processes, self.sampler.is_paused());
        homes.note_kernels_moves(self.totals.pages_moved_by_kernel, processes);
        self.threads.cpu_time().for_each(|(pid, by_node)| homes.note_cpu_time(pid, by_node));
        let (begin, count) = (Instant::now(), samples.len());
        let (samples, met, left) = homes.locate(kernel, topology, processes, mappings, samples);
        intake.learn(count, left, begin.elapsed());
        (samples, met)
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
        if let Some(settings) = self.kernel_settings.as_ref().filter(|_| size == Size::Base) {
            pause_khugepaged(settings);
        }
        let (pid, processes) = (decision.pid, &mut self.processes);
        let outcome = resize(self.mover.kernel(), pid.0, pages, size, deadline_ns, || processes.is_same(pid));
        self.homes.resized(pid, pages);
        outcome
    }

    /// Carries out decisions about one process.
    fn carry_out(&mut self, decisions: &[Decision], deadline_ns: u64) -> Vec<Outcome> {
        let pid = decisions[0].pid;
        if !self.processes.is_same(pid) {
            return vec![Outcome { process_gone: true, ..Outcome::default() }; decisions.len()];
        }
        let topology = &self.topology;
        let known = self.homes.entry(pid);
        let before: &KnownHomes = known;
        let targets: Vec<_> = decisions
            .iter()
            .map(|decision| {
                move |page: PageNumber, pages: u64, home: NodeId| {
                    let at = topology.index_of(home)?;
                    let to = target(&decision.action, page, pages, at)?;
                    // The kernel may have taken a page away from where we put it; chasing it would be
                    // bouncing. And what several nodes were seen to use is not collocated
                    // for looking private in a few scans.
                    let done = match (&decision.action, before.placed(page)) {
                        (_, None) => false,
                        (Action::Interleave(_), Some(_)) => !before.may_be_interleaved(page),
                        (_, Some(Placed::Interleaved)) => true,
                        (_, Some(Placed::At(node))) => node == to,
                    };
                    Some(topology.id_of(to)).filter(|_| !done)
                }
            })
            .collect();
        let (process, shared) = (self.processes.get(pid), &self.shared);
        let mappers: Vec<_> = decisions
            .iter()
            .map(|decision| move || process.map_or_else(Vec::new, |p| shared.mappers(p, decision.range)))
            .collect();
        let jobs: Vec<Job<'_>> = decisions
            .iter()
            .zip(self.put_off.left(decisions))
            .zip(mappers.iter().zip(&targets))
            .map(|((decision, left), (mappers, target))| {
                // Nothing of it is moved.
                let only_reported = decision.action == Action::Replicate;
                let end = if only_reported { left.start } else { left.end };
                let whole_folios = matches!(decision.action, Action::Interleave(_));
                Job { range: PageRange { end, ..left }, mappers, target, whole_folios }
            })
            .collect();
        let mut outcomes = self.mover.carry_out(pid.0, &jobs, deadline_ns);
        let put_off = self.mover.take_put_off();
        for (job, decision) in decisions.iter().enumerate() {
            self.put_off.note(decision, put_off.get(&job).copied());
        }
        drop(jobs);
        drop(targets);
        for changed in self.shared.take_changed() {
            self.processes.distrust_mappings(changed);
        }
        self.interleaved.note(pid, decisions);
        let mut moved = self.mover.take_moved();
        moved.sort_unstable_by_key(|moved| moved.page);
        let small = || moved.iter().filter(|moved| moved.pages == 1);
        // Pages that no sample hit are moved, too: where they were is known from the move.
        known.note(small().map(|moved| (moved.page, self.topology.index_of(moved.from))));
        for moved in &moved {
            let Some(home) = self.topology.index_of(moved.to) else { continue };
            let interleaved = matches!(decisions[moved.job].action, Action::Interleave(_));
            let page = if moved.pages > 1 { moved.page.huge() } else { moved.page };
            let again =
                known.note_moved(page, if interleaved { Placed::Interleaved } else { Placed::At(home) });
            known.note_folio(page, moved.folio_pages as u16);
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

/// How long moving may take where so much is allowed, and looking at the interval took so long. Work that
/// is slow for want of CPUs is slow in both, and pages would hardly move while most of the time goes to
/// looking.
fn time_to_move(allowed: Duration, looked: Duration) -> Duration {
    const MOST: u32 = 4;
    looked.clamp(allowed, MOST * allowed)
}

/// The node where the decision wants a page that is at `home`, and `pages` base pages with it.
fn target(action: &Action, page: PageNumber, pages: u64, home: NodeIndex) -> Option<NodeIndex> {
    match action {
        Action::Collocate { to } => Some(*to),
        Action::CollocateEach { pages } => {
            let at = pages.binary_search_by_key(&page, |target| target.page).ok()?;
            Some(pages[at].to)
        }
        Action::Interleave(interleaving) => {
            interleaving.target(page, pages).filter(|_| home == interleaving.from)
        }
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
        self.looking_since_ns = now_ns();
        self.drain();
        self.processes.update();
        self.mappings.retain(|&pid, _| self.processes.contains(pid));
        self.interleaved.retain(|pid| self.processes.contains(pid));
        self.bound.retain(|pid| self.processes.contains(pid));
        self.sampler.follow(&mut self.processes.iter().map(|process| process.pid));
        self.hints.retain(|pid| self.processes.contains(pid));
        let mut states = Vec::new();
        let count = self.processes.iter().count();
        let most_hints = bounds::HINTS / count.max(1);
        for process in self.processes.iter() {
            if process.fresh {
                self.hints.forget(process.pid);
                self.interleaved.retain(|pid| pid != process.pid);
            }
            if let (Some(at), Some(_)) = (process.details.hints_at, &process.details.mappings) {
                self.hints.find(process.pid, at);
            }
            if let Some(mappings) = &process.details.mappings {
                let mapped: Vec<_> = mappings.iter().map(|mapping| mapping.range).collect();
                self.interleaved.clip(process.pid, &mapped);
                self.mappings.insert(process.pid, mappings.clone());
                self.bound.mapped_anew(process.pid);
            }
            let mut confined = process.details.cpus.as_ref().and_then(|cpus| confined(&self.topology, cpus));
            let mut bound = Vec::new();
            // The kernel gives no hint faults in such memory; a PMU samples it all the same.
            if confined.is_some() || self.sampler.is_proportional() {
                let mappings = self.mappings.get(&process.pid).map_or(&[][..], Vec::as_slice);
                let known =
                    self.bound.of(process.pid, count, || self.mover.kernel().bound(process.pid, mappings));
                bound = known.known().to_vec();
                if !known.is_certain() {
                    confined = None;
                }
            }
            let hints = self.hints.read(process.pid, most_hints, !self.settings.mover.dry_run, now_ns());
            states.push(ProcessState {
                pid: process.pid,
                fresh: process.fresh,
                resident_pages: process.resident_pages,
                mappings: process.details.mappings.clone(),
                hints,
                asked: process.details.asked,
                confined,
                bound,
                to_interleave: Vec::new(),
                unmoved: Vec::new(),
            });
        }
        self.look_at_unseen(&mut states);
        let samples_left_out = self.intake.left_out();
        let samples_lost = self.note_losses() + samples_left_out;
        let (samples, met) = self.locate();
        let nodes = self.topology.node_count();
        for state in &mut states {
            let (pid, known) = (state.pid, self.homes.get(state.pid));
            let is_huge = |page| self.homes.was_huge(pid, page);
            state.unmoved = self.interleaved.unmoved(pid, known, nodes, is_huge, !samples.is_empty());
        }
        self.interleaved.observed();
        let end_ns = now_ns();
        let duration_ns = end_ns.saturating_sub(self.interval_began_ns);
        self.interval_began_ns = end_ns;
        let pass = self.sampler.pass().as_nanos() / u128::from(duration_ns.max(1));
        let by_faults = !self.sampler.is_proportional();
        let interval = traffic::Interval {
            duration_ns,
            samples: samples.len(),
            met,
            pages_in_use: by_faults.then(|| self.homes.in_use(nodes, pass as u32, &self.mappings)),
        };
        let mut counters = self.traffic.counters(self.mover.kernel(), &self.topology, interval);
        self.sampler.count(duration_ns, &mut counters);
        self.totals.samples += samples.len() as u64;
        self.totals.first_touches = self.homes.first_touches();
        self.totals.homes_queried = self.homes.asked();
        self.totals.pages_moved_by_kernel = self.traffic.moved_by_kernel();
        self.note_reading();
        let largest = large(self.followed, &states);
        self.followed = largest.map(|state| state.pid);
        // Mappings that cannot be written are a file's, or nobody's at all, and give no samples.
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
        let now_ns = now_ns();
        let looked = Duration::from_nanos(now_ns.saturating_sub(self.looking_since_ns));
        let deadline_ns = now_ns + time_to_move(self.settings.apply, looked).as_nanos() as u64;
        self.put_off.next_interval();
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
            match &decision.action {
                Action::Replicate => {
                    outcome.only_reported = true;
                    self.homes.note_replicable(decision.pid, decision.range);
                }
                Action::Split { pages } => self.homes.note_falsely_shared(decision.pid, pages, true),
                Action::Collapse { pages } => self.homes.note_falsely_shared(decision.pid, pages, false),
                // A program that asks for it does not say who uses it.
                Action::Interleave(interleaving) if interleaving.is_asked_for() => {}
                Action::Interleave(_) => self.homes.note_shared(decision.pid, decision.range, true),
                Action::Collocate { .. } | Action::CollocateEach { .. } => {
                    self.homes.note_shared(decision.pid, decision.range, false);
                }
            }
        }
        Ok(outcomes)
    }

    fn splits(&self) -> bool {
        self.splits
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Error> {
        self.sampler.set_rate(rate)
    }
}

/// The largest process, or the one before if it is nearly as large. Passes are counted of one process at a
/// time, and would begin anew each time that two of a size change places.
fn large(before: Option<Pid>, states: &[ProcessState]) -> Option<&ProcessState> {
    let largest = states.iter().max_by_key(|state| state.resident_pages)?;
    let nearly = |state: &&ProcessState| 4 * state.resident_pages >= 3 * largest.resident_pages;
    Some(states.iter().find(|state| Some(state.pid) == before).filter(nearly).unwrap_or(largest))
}

/// A machine with one node is told so before anything is touched.
pub fn require_nodes(topology: &Topology) -> Result<(), Error> {
    if topology.node_count() > 1 {
        return Ok(());
    }
    let message = "this machine has one NUMA node: every access is local and there is nothing to place; \
                   to try it in a guest with several, put this in front: nodewise rig --nodes 4 --copy PROGRAM --";
    Err(Error::new(ErrorKind::Unsupported, message))
}
