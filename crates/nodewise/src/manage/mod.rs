//! The part that `run` and `attach` share: options, the loop of rounds, the log and the summary.

mod log;
mod options;
mod priority;
mod summary;
mod watchdog;

pub use options::Options;
pub use summary::{LARGE_BYTES, Summary};
pub use watchdog::Watchdog;

use crate::commands::{Exit, exit};
use crate::output::{JsonLines, PRIVATE, WholeFile, note, report};
use log::{Line, Said};
use nodewise_engine::recording::{Interval, Recorder};
use nodewise_engine::{
    Carrefour, CarrefourSettings, DataSource, Engine, EngineSettings, Machine as _, Pid, Round, Sample,
    SamplingRate,
};
use nodewise_linux::mover::MoverSettings;
use nodewise_linux::placement::Unknown;
use nodewise_linux::process::{Processes, Strangers};
use nodewise_linux::sampler::{
    Sampler, hardware::HardwareSampler, hint_faults::HintFaults, model::ModelSampler,
};
use nodewise_linux::settings::{Place, Settings, SharedSettings};
use nodewise_linux::{Bound, ErrorKind, LinuxMachine, MachineSettings, Survey, UnseenFiles, kernel};
use nodewise_sys::{
    NodeMask, Policy as MemoryPolicy, PolicyMode, Whose, get_mempolicy, set_mempolicy, usage,
};
use nodewise_topology::Topology;
use options::SamplerName;
use priority::First;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use summary::{OwnCost, cpu_seconds};
use watchdog::Watched;

/// Where log and summary go.
pub struct Reports {
    log: Option<JsonLines>,
    json: Option<WholeFile>,
}

impl Reports {
    /// Checks that the files can be written.
    pub fn open(options: &Options) -> anyhow::Result<Self> {
        let log = options.log.as_deref().map(JsonLines::create).transpose()?;
        let json = options.json.as_deref().map(|path| WholeFile::create(path, PRIVATE)).transpose()?;
        Ok(Self { log, json })
    }

    /// Where nothing can be managed, whoever asked for files gets them all the same: nothing was sampled,
    /// nothing moved.
    pub fn of_nothing(mut self, options: &Options, topology: &Topology, why: &str) -> anyhow::Result<()> {
        let policy = engine(topology).policy();
        let summary = Summary::new(policy, "none", why.to_owned(), options.dry_run);
        self.write(&[Line::start(&summary, topology)]);
        self.finish(&summary)
    }

    /// A log that can no longer be written ends, and says so once; the management goes on.
    fn write(&mut self, lines: &[Line<'_>]) {
        let Some(file) = &mut self.log else { return };
        if let Err(error) = lines.iter().try_for_each(|line| file.line(line)) {
            note(format_args!("{error:#}; the decision log ends here"));
            self.log = None;
        }
    }

    fn finish(&mut self, summary: &Summary) -> anyhow::Result<()> {
        let Some(json) = self.json.take() else { return Ok(()) };
        json.finish(&(serde_json::to_string_pretty(summary)? + "\n"))
    }
}

/// Something that is told of all that a machine has seen, interval by interval.
pub trait Observer {
    /// These processes will be managed.
    fn begin(&mut self, pids: &[Pid]);

    /// An interval has ended. A hint fault may have moved its page. So the home of such a sample is where the
    /// page was first seen, as far as that is known.
    fn interval(&mut self, interval: Interval);

    /// The length of the first interval. Each is twice as long as the one before, up to the usual one.
    /// Samples of the interval in which a program ends are lost: its page tables are gone.
    fn first_interval(&self, usual: Duration) -> Duration {
        usual
    }

    /// Managing has ended, and these files gave no samples, as hint faults do not tell of them.
    fn end(&mut self, _: Option<&UnseenFiles>) {}

    /// Variables that a program needs in its environment for this.
    fn environment(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Everything that can be refused is refused before there is one of these, and so before a program is started
/// or touched.
pub struct Prepared<'a> {
    options: &'a Options,
    topology: Topology,
    settings: SharedSettings,
    sampler: Box<dyn Sampler>,
    reports: Reports,
    /// Processes that run already, and where their pages were before the sampler was opened.
    found: Option<(Processes, Survey)>,
    max_rate: Option<u64>,
    watched: Watched,
    observer: Option<&'a mut dyn Observer>,
}

/// Samples in a second that the kernel allows on a CPU. It lowers that for good when it finds them to take
/// too long (`perf_sample_event_took`, `kernel/events/core.c`), for all that sample after us.
fn max_sample_rate() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?.trim().parse().ok()
}

/// The note for a kernel that has lowered this rate from `before` to `now`.
fn rate_lowered(before: Option<u64>, now: Option<u64>) -> Option<String> {
    let (before, now) = (before?, now?);
    (now < before).then(|| {
        format!(
            "sampling took so long that the kernel lowered kernel.perf_event_max_sample_rate from {before} to \
             {now}, for all programs; to put it back: sysctl kernel.perf_event_max_sample_rate={before}"
        )
    })
}

/// Opens the sampler. `running`: the processes to be managed, if they run already. The watchdog watches from
/// here on: looking at them may hang, too.
pub fn prepare<'a>(
    options: &'a Options,
    topology: Topology,
    reports: Reports,
    running: Option<&[Pid]>,
    watchdog: &Watchdog,
) -> anyhow::Result<Prepared<'a>> {
    // Opened first: what a killed predecessor left changed is put back.
    let settings = SharedSettings::from(Settings::open(Place::live()));
    let watched = watchdog.watch(settings.clone());
    let find = |pids| -> Result<_, nodewise_linux::Error> {
        let mut processes = Processes::new(pids, !options.no_children, false)?.hearing(&watched.ending());
        let survey = Survey::of(&topology, &mut processes);
        Ok((processes, survey))
    };
    let found = running.map(find).transpose().map_err(explain)?;
    let max_rate = max_sample_rate();
    let sampler = open_sampler(options.sampler(), &topology, settings.clone())?;
    if let Some(why) = settings.barred() {
        note(format_args!("{why}; kernel settings stay as they are"));
    }
    Ok(Prepared { options, topology, settings, sampler, reports, found, max_rate, watched, observer: None })
}

/// The sampler asked for; on `auto` a modelled machine's or the hardware's where there is one, and one clear
/// line where there is not.
fn open_sampler(
    name: SamplerName,
    topology: &Topology,
    settings: SharedSettings,
) -> anyhow::Result<Box<dyn Sampler>> {
    if matches!(name, SamplerName::Auto | SamplerName::Model) {
        match ModelSampler::open(topology) {
            Ok(sampler) => return Ok(Box::new(sampler)),
            Err(error) if name == SamplerName::Model => return Err(explain(error)),
            Err(error) if error.kind() != ErrorKind::Unsupported => note(&error),
            Err(_) => {}
        }
    }
    if matches!(name, SamplerName::Auto | SamplerName::Hardware) {
        match HardwareSampler::open(topology) {
            Ok(sampler) => return Ok(Box::new(sampler)),
            Err(error) if name == SamplerName::Hardware => return Err(explain(error)),
            Err(error) => note(format_args!("{error}; using hint faults")),
        }
    }
    Ok(Box::new(HintFaults::open(topology, settings).map_err(explain)?))
}

/// The engine that `run` and `attach` step.
fn engine(topology: &Topology) -> Engine {
    let policy = Box::new(Carrefour::new(CarrefourSettings::default()));
    Engine::new(topology, policy, EngineSettings::default())
}

/// Gives an error of the live machine the exit code that fits.
pub fn explain(error: nodewise_linux::Error) -> anyhow::Error {
    let code = match error.kind() {
        ErrorKind::NotPermitted => exit::NOT_PERMITTED,
        _ => exit::FAILURE,
    };
    Exit { code, message: format!("{:#}", anyhow::Error::from(error)) }.into()
}

impl<'a> Prepared<'a> {
    /// Tells somebody of everything that is seen.
    pub fn observed_by(self, observer: Option<&'a mut dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// Begins to manage the processes that were found running, or one that was `started` just now and whose
    /// subreaper this process is, but for the strangers below it.
    pub fn start(mut self, started: Option<(Pid, Strangers)>) -> anyhow::Result<Session<'a>> {
        let (options, watched) = (self.options, self.watched);
        watched.beat();
        let (started, strangers): (Vec<Pid>, Vec<Strangers>) = started.into_iter().unzip();
        if let Some(observer) = &mut self.observer {
            let found = self.found.iter().flat_map(|(processes, _)| processes.iter());
            let pids: Vec<Pid> = started.iter().copied().chain(found.map(|process| process.pid)).collect();
            observer.begin(&pids);
        }
        let (processes, survey) = if let Some(found) = self.found.take() {
            found
        } else {
            let processes = Processes::new(&started, !options.no_children, true).map_err(explain)?;
            (processes.adopting_orphans(strangers.into_iter().next().unwrap_or_default()), Survey::default())
        };
        let mover = MoverSettings {
            budget_bytes_per_s: options.move_budget() as f64,
            dry_run: options.dry_run,
            ..MoverSettings::default()
        };
        let engine = engine(&self.topology);
        let summary =
            Summary::new(engine.policy(), self.sampler.name(), self.sampler.description(), options.dry_run);
        let settings = MachineSettings {
            mover,
            apply: apply_limit(options.interval()),
            split: !options.no_split,
            interleave_files: options.interleave_files,
        };
        let mut reports = self.reports;
        reports.write(&[Line::start(&summary, &self.topology)]);
        let machine = LinuxMachine::new(self.topology, processes, self.sampler, settings)
            .knowing(survey)
            .with_settings(self.settings)
            .hearing(watched.ending());
        let (began, began_ns) = (Instant::now(), kernel::now_ns());
        let startup_cpu_seconds = usage(Whose::Process).map_or(0.0, |used| cpu_seconds(&used));
        let met = BTreeSet::new();
        Ok(Session {
            options,
            machine,
            engine,
            reports,
            summary,
            watched,
            met,
            has_noted_pace: false,
            began,
            began_ns,
            startup_cpu_seconds,
            max_rate: self.max_rate,
            observer: self.observer,
        })
    }
}

/// Processes being managed.
pub struct Session<'a> {
    options: &'a Options,
    machine: LinuxMachine,
    engine: Engine,
    reports: Reports,
    summary: Summary,
    watched: Watched,
    /// Bounds of which has been told that they were met.
    met: BTreeSet<Bound>,
    /// Whether it has told why nothing happens.
    has_noted_pace: bool,
    began: Instant,
    began_ns: u64,
    /// CPU time used until then.
    startup_cpu_seconds: f64,
    /// Samples in a second that the kernel allows on a CPU, before the first was taken.
    max_rate: Option<u64>,
    observer: Option<&'a mut dyn Observer>,
}

/// How long moving pages may hold up everything else, however long an interval is.
const APPLY_MOST: Duration = Duration::from_secs(1);

/// How long moving pages may take in an interval: most of it, as some of each is to pass undisturbed.
fn apply_limit(interval: Duration) -> Duration {
    (interval * 3 / 4).min(APPLY_MOST)
}

/// Other programs give samples before.
const PACE_NOTED: Duration = Duration::from_secs(20);

/// How often the rings are emptied between rounds while there are many samples.
const DRAIN_EVERY: Duration = Duration::from_millis(100);
/// How often when there are few: waking up costs, too.
const DRAIN_EVERY_QUIET: Duration = Duration::from_secs(2);
/// Intervals in a round while sampling rests and nothing is to be done. Half of what watching a well-placed
/// program costs goes with the rounds.
const INTERVALS_QUIET: u32 = 2;
/// Rounds between looks where memory in use lies, while sampling rests and nothing is to be done.
const LOOK_EVERY_RESTING: u32 = 4;
/// More samples than this in a round are many.
const MANY_SAMPLES: u64 = 1000;

/// Has the kernel's balancing leave this thread's memory alone, whose hint faults would only cost. A policy
/// that somebody else has set stays, and so does balancing where a filter keeps policies from being set.
fn spare_own_memory() {
    if get_mempolicy().is_ok_and(|policy| policy.mode == PolicyMode::Default) {
        let _ = set_mempolicy(&MemoryPolicy::new(PolicyMode::Local, NodeMask::EMPTY));
    }
}

/// How often the rings are emptied after a round with so many samples, whose sampler needs it that often.
fn drain_every_for(samples: u64, at_least: Duration) -> Duration {
    let enough = if samples > MANY_SAMPLES { DRAIN_EVERY } else { DRAIN_EVERY_QUIET };
    enough.min(at_least)
}

impl Session<'_> {
    /// Manages until `wait` breaks or no managed process is left. `wait` is called again and again to sleep
    /// for at most the time it is given.
    ///
    /// # Errors
    /// When the machine can no longer be managed; the processes themselves are none the worse.
    pub fn manage(&mut self, mut wait: impl FnMut(Duration) -> ControlFlow<()>) -> anyhow::Result<()> {
        let interval = self.options.interval();
        let mut drain_every = DRAIN_EVERY;
        let mut said = Said { sampling: SamplingRate::Accurate, idle: BTreeMap::new() };
        // Whether there is anything new since it was last looked where memory lies.
        let mut changed = false;
        spare_own_memory();
        let _first = First::go();
        let mut length = self.observer.as_ref().map_or(interval, |by| by.first_interval(interval));
        let mut round_ends = Instant::now() + length;
        loop {
            while let Some(left) = round_ends.checked_duration_since(Instant::now()) {
                if wait(left.min(drain_every)).is_break() {
                    return Ok(());
                }
                self.machine.drain();
                self.watched.beat();
            }
            let round = self.step()?;
            anyhow::ensure!(self.watched.beat(), "managing hung, and kernel settings were put back");
            self.note_bounds(Some(&round));
            self.note_pace();
            // Rings that overflowed were emptied too seldom, however few samples are left of them.
            let samples = round.samples + round.samples_lost;
            drain_every = drain_every_for(samples, self.machine.sampler().drain_at_least_every());
            let lines = log::lines(&round, &said, self.machine.topology(), self.began_ns);
            self.reports.write(&lines);
            let rests = round.sampling != SamplingRate::Accurate && round.decisions.is_empty();
            let begins_to_rest = rests && said.sampling != round.sampling;
            // While sampling pauses, pages are moved all the same.
            changed |= round.samples > 0 || !round.decisions.is_empty();
            if begins_to_rest || (changed && (!rests || round.number % LOOK_EVERY_RESTING == 0)) {
                self.machine.look();
                changed = false;
                if self.reports.log.is_some() {
                    self.summary.set_placement(&self.machine.placement());
                    let seconds = self.began.elapsed().as_secs_f64();
                    let samples = self.machine.totals().samples;
                    self.reports.write(&[Line::placement(&self.summary, samples, seconds)]);
                }
            }
            self.summary.add(&round);
            said.update(&round);
            if !self.machine.has_processes() {
                return Ok(());
            }
            let quiet = round.sampling == SamplingRate::Cheap && round.decisions.is_empty();
            let intervals = if quiet { INTERVALS_QUIET } else { 1 };
            // Moving is part of its interval, but some of each passes undisturbed.
            length = (2 * length).min(interval);
            round_ends = (round_ends + length * intervals).max(Instant::now() + length / 4);
        }
    }

    fn step(&mut self) -> anyhow::Result<Round> {
        let Some(observer) = &mut self.observer else {
            return self.engine.step(&mut self.machine).map_err(explain);
        };
        let mut recorder = Recorder::new(&mut self.machine);
        let round = self.engine.step(&mut recorder).map_err(explain)?;
        for mut interval in recorder.intervals().to_vec() {
            let hint_faults = |sample: &&mut Sample| sample.source == DataSource::Unknown;
            for sample in interval.seen.samples.iter_mut().filter(hint_faults) {
                sample.home = self.machine.first_home(sample.pid, sample.address.page());
            }
            observer.interval(interval);
        }
        Ok(round)
    }

    /// Why there are no figures of the memory so far.
    #[must_use]
    pub fn unknown(&self) -> Option<Unknown> {
        self.machine.placement().before.err()
    }

    /// Says once of each bound that it was met.
    fn note_bounds(&mut self, round: Option<&Round>) {
        let footprint = round.map(|round| round.footprint).unwrap_or_default();
        let of_engine =
            [(Bound::Records, footprint.pages_dropped), (Bound::Ranges, footprint.ranges_dropped)];
        let of_engine = of_engine.into_iter().filter(|&(_, dropped)| dropped > 0).map(|(bound, _)| bound);
        for bound in self.machine.bounds_met().into_iter().chain(of_engine) {
            if self.met.insert(bound) {
                note(bound);
            }
        }
    }

    /// Says once why nothing happens, where the kernel keeps a pace of its own.
    fn note_pace(&mut self) {
        if !self.options.quiet
            && !self.has_noted_pace
            && self.began.elapsed() > PACE_NOTED
            && self.machine.sampler().lags()
            && matches!(self.unknown(), Some(Unknown::Pace(_)))
        {
            self.has_noted_pace = true;
            note(
                "the kernel's NUMA balancing was on before and still goes through this memory at its old pace: \
                 it may take minutes until samples come",
            );
        }
    }

    /// Puts the kernel's settings back and reports.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let closed = self.close();
        if !self.options.quiet {
            report(&format!("\n{}\n", self.summary.text()));
        }
        let written = self.reports.finish(&self.summary);
        closed.and(written)
    }

    /// Puts the kernel's settings back, and leaves the report to the caller.
    pub fn conclude(mut self) -> anyhow::Result<Summary> {
        self.close()?;
        Ok(self.summary)
    }

    fn close(&mut self) -> anyhow::Result<()> {
        self.watched.beat();
        self.machine.look();
        let closed = self.machine.close().map_err(explain);
        self.watched.done();
        self.note_bounds(None);
        rate_lowered(self.max_rate, max_sample_rate()).into_iter().for_each(note);
        self.summary.bounds_met.clone_from(&self.met);
        let summary = &mut self.summary;
        // It may have more to say at the end.
        summary.sampler_description = self.machine.sampler().description();
        summary.elapsed_seconds = self.began.elapsed().as_secs_f64();
        summary.totals = *self.machine.totals();
        summary.counted = self.machine.sampler().counted();
        summary.unseen_files = self.machine.unseen_files().cloned();
        summary.unseen_huge_bytes = self.machine.unseen_huge_bytes();
        summary.samples = summary.totals.samples;
        summary.samples_lost = summary.totals.samples_lost;
        summary.pages_moved_by_kernel = summary.totals.pages_moved_by_kernel;
        summary.set_placement(&self.machine.placement());
        if let Ok(used) = usage(Whose::Process) {
            summary.own_cost = OwnCost::of(self.startup_cpu_seconds, &used, summary.elapsed_seconds);
        }
        let unseen = summary.unseen_files.as_ref();
        self.observer.iter_mut().for_each(|observer| observer.end(unseen));
        closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::recording::{Replay, play};

    #[test]
    fn moving_pages_holds_up_nothing_for_longer_than_a_second() {
        assert_eq!(apply_limit(Duration::from_millis(400)), Duration::from_millis(300));
        assert_eq!(apply_limit(Duration::from_secs(3600)), Duration::from_secs(1));
    }

    #[test]
    fn a_sample_rate_that_was_lowered_is_said() {
        assert_eq!(rate_lowered(Some(100_000), Some(100_000)), None);
        assert_eq!((rate_lowered(Some(100_000), None), rate_lowered(None, Some(1))), (None, None));
        let said = rate_lowered(Some(100_000), Some(50_000)).unwrap();
        assert!(said.contains("from 100000 to 50000") && said.ends_with("max_sample_rate=100000"), "{said}");
    }

    #[test]
    fn rings_that_last_for_less_are_drained_sooner() {
        let often = Duration::from_millis(100);
        assert_eq!(drain_every_for(10, Duration::MAX), DRAIN_EVERY_QUIET);
        assert_eq!(drain_every_for(10, often), often);
        assert_eq!(drain_every_for(10_000, Duration::MAX), DRAIN_EVERY);
    }

    fn recording(name: &str) -> (String, Vec<Interval>, Topology) {
        let path = format!("{}/../engine/tests/recordings/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let intervals: Vec<Interval> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let nodes = intervals[0].seen.counters.total_bytes.len();
        let topology = Topology::synthetic(nodes, 12, intervals[0].seen.counters.total_bytes[0]);
        (text, intervals, topology)
    }

    /// The rounds of a recording, for what is made of rounds.
    pub fn recorded_rounds(name: &str) -> (Vec<Round>, Topology) {
        let (_, intervals, topology) = recording(name);
        let mut engine = engine(&topology);
        let count = intervals.len();
        let mut replay = Replay::new(topology.clone(), intervals);
        ((0..count).map(|_| engine.step(&mut replay).unwrap()).collect(), topology)
    }

    /// The decisions of `run` and `attach` are those of the simulator, given the same input
    /// (`crates/sim/tests/recordings.rs`).
    #[test]
    fn recorded_input_gives_recorded_decisions() {
        let recordings = ["hint-faults", "hardware-samples"];
        for name in recordings {
            let (text, intervals, topology) = recording(name);
            let mut engine = engine(&topology);
            let again = play(&mut engine, topology, intervals).unwrap();
            for (again, recorded) in again.iter().zip(text.lines()) {
                assert_eq!(serde_json::to_string(again).unwrap(), recorded, "{name}");
            }
        }
    }
}
