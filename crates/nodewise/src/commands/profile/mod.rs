//! `nodewise profile`: records who touches memory first, and who uses it.

pub mod file;

use super::compare::events::Events;
use super::costs::Costs;
use super::{attach, command_line, cpu_seconds, run};
use crate::manage::{self, Observer};
use crate::output::{OthersFile, note};
use anyhow::Context as _;
use file::{Head, Line, Name, Tail, VERSION};
use nodewise_engine::recording::Interval;
use nodewise_engine::{Observation, PAGE_BYTES, PageRange, Pid, Tid};
use nodewise_linux::allocations::{AllocationReport, Allocations};
use nodewise_linux::first_touch::FirstTouches;
use nodewise_linux::kernel_time::KernelTime;
use nodewise_linux::process::require_access;
use nodewise_linux::{ErrorKind, NamedMapping, UnseenFiles, kernel, static_memory};
use nodewise_topology::{Node, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Record which code touches memory first and which node uses it, for 'nodewise report'
///
/// Nothing is moved. The samples are those of 'nodewise run --dry-run': the CPU's own, or without a PMU those
/// of the kernel's NUMA balancing, which may move pages meanwhile. The first touch of a page is its page
/// fault, told with the functions that led there. A program that was built with frame pointers
/// (-fno-omit-frame-pointer) shows all of its callers, any other perhaps only the innermost function.
/// With --allocations, memory is also named by the code that asked for it.
///
/// The file holds addresses, paths and the command line, so that only its owner can read it.
#[derive(clap::Args)]
#[command(
    override_usage = "nodewise profile [OPTIONS] [--] CMD...\n       nodewise profile [OPTIONS] -p PID",
    after_help = "\
Examples:
  nodewise profile -- ./solver input.dat
  nodewise profile -o solver.profile -- ./solver input.dat
  nodewise profile --allocations -- ./solver      memory by the code that asked for it
  nodewise profile -p 4711 --seconds 30
  nodewise report nodewise.profile                what it says

Exit status:
  that of the program; with -p 0, and 1 if the process cannot be watched
  1    it could not be started or recorded, and the message says why
  2    the command line could not be understood
  77   a capability, sysctl or file permission is missing; the message names it
  126  the program cannot be executed
  127  the program was not found"
)]
pub struct Args {
    /// The program and its arguments
    #[arg(
        required_unless_present = "pid",
        conflicts_with = "pid",
        trailing_var_arg = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,

    /// Watch this process and its children, from now on
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// End after so many seconds, and not when the process ends or by Ctrl-C
    #[arg(long, value_name = "N", requires = "pid", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,

    /// Write to this file
    #[arg(short, long, value_name = "FILE", default_value = "nodewise.profile")]
    output: PathBuf,

    /// Leave samples out of the file once it has so many MiB
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    most_mebibytes: u64,

    /// Record blocks of 4096 bytes or more, or of BYTES, and name memory by the code that asked for it
    ///
    /// The program loads a library of Nodewise's (`LD_PRELOAD`), which tells of blocks by malloc, calloc,
    /// realloc, aligned requests, C++'s new, and mmap. It does not work for programs that are linked
    /// statically, nor for those that run already.
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "4096",
        conflicts_with = "pid",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    allocations: Option<u64>,

    /// Take the cost of far memory from a machine's preset, or from what 'nodewise measure --json' printed
    #[arg(long, value_name = "PRESET|FILE")]
    model: Option<String>,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let topology = Topology::live()?;
    if let Some(pid) = args.pid {
        require_access(Pid(pid)).map_err(manage::explain)?;
    }
    let costs = Costs::of(args.model.as_deref(), &topology)?;
    let head = head(args, &topology, &costs);
    let mut recorder = Recorder::create(&args.output, args.most_mebibytes << 20, head, topology.clone())?;
    // Before a program is started, whose first touches it is about.
    recorder.touches = match FirstTouches::open(&topology) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            note(format_args!("{error}; recording who uses memory only"));
            None
        }
        opened => Some(Watched::new(opened.map_err(manage::explain)?)),
    };
    if args.pid.is_none() {
        // So early, too: its children may begin at once.
        recorder.kernel = KernelTime::open(&topology, []).ok();
    }
    if let Some(least_bytes) = args.allocations {
        let mut allocations = Watched::new(Allocations::open(least_bytes).map_err(manage::explain)?);
        // Now: a machine with one node has no intervals, and a program no beginning that is told.
        allocations.begin(|allocations, _| allocations.drain());
        recorder.allocations = Some(allocations);
    }
    let status = match args.pid {
        Some(pid) => {
            attach::watched(Pid(pid), args.seconds, &mut recorder)?;
            ExitCode::SUCCESS
        }
        None => run::watched(args.command.clone(), &mut recorder)?,
    };
    recorder.finish()?;
    Ok(status)
}

fn head(args: &Args, topology: &Topology, costs: &Costs) -> Head {
    let nodes: Vec<u32> = topology.node_indices().map(|node| topology.id_of(node).0).collect();
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let command = args.pid.map_or_else(|| args.command.iter().map(text).collect(), command_line);
    Head {
        nodewise_profile: VERSION,
        command: Some(command).filter(|words| !words.is_empty()),
        pid: args.pid,
        began_unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        machine: costs.machine(topology),
        ratios_by: costs.source.clone(),
        balanced: topology.nodes().iter().map(Node::is_balanced).collect(),
        nodes,
    }
}

/// Time between two looks into the rings of page faults and of allocations.
const DRAIN_EVERY: Duration = Duration::from_millis(5);
/// Such looks between two for CPUs that come and go.
const CPUS_EVERY: u32 = 200;

/// Writes what it is told, and watches first touches beside it.
struct Recorder {
    file: OthersFile,
    out: BufWriter<File>,
    began: Instant,
    bytes: u64,
    most_bytes: u64,
    samples_left_out: u64,
    /// That a line could not be written.
    failed: Option<anyhow::Error>,
    /// Whether the program is started for this, and may end soon.
    starts: bool,
    names: BTreeMap<Pid, Vec<NamedMapping>>,
    unseen_files: Option<UnseenFiles>,
    touches: Option<Watched<FirstTouches>>,
    allocations: Option<Watched<Allocations>>,
    used: Used,
    topology: Topology,
    kernel: Option<KernelTime>,
    events: Option<Events>,
    threads: BTreeMap<Tid, String>,
    /// Processes that had samples.
    sampled: BTreeSet<Pid>,
}

/// Threads that get a name.
const MOST_THREADS: usize = 1 << 16;

/// CPU time of the watched processes.
#[derive(Default)]
struct Used {
    roots: Vec<Pid>,
    began: Option<Instant>,
    before_s: f64,
    /// How many CPUs they used on average, when they were last seen.
    cpus: f64,
}

impl Used {
    fn seconds(&self) -> f64 {
        self.roots.iter().map(|pid| cpu_seconds(pid.0)).sum()
    }

    fn begin(&mut self, roots: &[Pid]) {
        self.roots = roots.to_vec();
        (self.began, self.before_s) = (Some(Instant::now()), self.seconds());
    }

    fn look(&mut self) {
        // One that has ended has no time any more.
        let used = self.seconds() - self.before_s;
        if let Some(began) = self.began.filter(|_| used > 0.0) {
            self.cpus = used / began.elapsed().as_secs_f64();
        }
    }
}

impl Recorder {
    fn create(output: &Path, most_bytes: u64, head: Head, topology: Topology) -> anyhow::Result<Self> {
        let file = OthersFile::create(output)?;
        let out = File::options().write(true).open(file.pending());
        let out = out.with_context(|| format!("cannot write {}", output.display()))?;
        let mut recorder = Self {
            file,
            out: BufWriter::new(out),
            began: Instant::now(),
            bytes: 0,
            most_bytes,
            samples_left_out: 0,
            failed: None,
            starts: head.pid.is_none(),
            names: BTreeMap::new(),
            unseen_files: None,
            touches: None,
            allocations: None,
            used: Used::default(),
            topology,
            kernel: None,
            events: None,
            threads: BTreeMap::new(),
            sampled: BTreeSet::new(),
        };
        recorder.line(&Line::Head(Box::new(head)));
        Ok(recorder)
    }

    /// Nothing that only records may stop a program: an error waits for the end.
    fn line(&mut self, line: &Line) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_string(line).map_err(anyhow::Error::from).and_then(|text| {
            self.bytes += text.len() as u64 + 1;
            writeln!(self.out, "{text}")
                .with_context(|| format!("cannot write {}", self.file.path().display()))
        });
        self.failed = written.err();
    }

    fn finish(mut self) -> anyhow::Result<()> {
        let touches = self.touches.take().and_then(Watched::finish);
        let first_touch = touches.map(FirstTouches::finish).unwrap_or_default();
        let allocations = self.allocations.take().and_then(Watched::finish).map(Allocations::finish);
        let (allocations_lost, blocks_left_out) =
            allocations.as_ref().map_or((0, 0), |found| (found.lost, found.left_out));
        for (lost, why) in [
            (first_touch.lost, "first touches came too fast and are missing"),
            (first_touch.left_out, "first touches are left out, as there are too many ranges"),
            (allocations_lost, "allocations came too fast and are missing"),
            (blocks_left_out, "blocks are left out, as there are too many"),
            (
                self.samples_left_out,
                "samples are left out, as the file would be too large (--most-mebibytes)",
            ),
        ] {
            if lost > 0 {
                note(format_args!("{lost} {why}"));
            }
        }
        if let Some(why) = allocations.as_ref().and_then(none_seen) {
            note(why);
        }
        let names = self.names.iter().flat_map(|(&pid, names)| {
            names.iter().filter(|mapping| !mapping.name.is_empty()).map(move |mapping| Name {
                pid,
                range: PageRange::new(mapping.range.start / PAGE_BYTES, mapping.range.end / PAGE_BYTES),
                text: mapping.name.to_string_lossy().into_owned(),
            })
        });
        let sampled = self.names.iter().filter(|(pid, _)| self.sampled.contains(pid));
        let sampled = sampled.map(|(&pid, mappings)| (pid, mappings));
        let tail = Tail {
            seconds: self.began.elapsed().as_secs_f64(),
            names: names.collect(),
            variables: static_memory(sampled),
            first_touch,
            samples_left_out: self.samples_left_out,
            cpus: self.used.cpus,
            kernel: self.kernel.take().and_then(KernelTime::finish),
            events: self.events.as_ref().map_or_else(BTreeMap::new, |before| Events::now().since(before)),
            threads: std::mem::take(&mut self.threads),
            allocations,
            unseen_files: self.unseen_files.take(),
        };
        self.line(&Line::Tail(Box::new(tail)));
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.out.flush().with_context(|| format!("cannot write {}", self.file.path().display()))?;
        let path = self.file.path().to_owned();
        self.file.finish()?;
        note(format_args!("nodewise report {} shows what was recorded", path.display()));
        Ok(())
    }
}

impl Observer for Recorder {
    fn begin(&mut self, pids: &[Pid]) {
        self.used.begin(pids);
        // A user who may not watch the kernel does without.
        self.kernel = self.kernel.take().or_else(|| KernelTime::open(&self.topology, []).ok());
        if let Some(kernel) = &mut self.kernel {
            kernel.follow(pids.iter().copied());
            kernel.drain();
        }
        self.events = Some(Events::now());
        if let Some(touches) = &mut self.touches {
            touches.with(|watched| pids.iter().for_each(|&pid| watched.follow(pid)));
            touches.begin(look_for_touches);
        }
    }

    fn first_interval(&self, usual: Duration) -> Duration {
        if self.starts { usual / 16 } else { usual }
    }

    fn end(&mut self, unseen: Option<&UnseenFiles>) {
        self.unseen_files = unseen.cloned();
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = Vec::new();
        if let Some(allocations) = &self.allocations {
            allocations.with(|watched| environment = watched.environment());
        }
        environment
    }

    fn interval(&mut self, mut interval: Interval) {
        self.used.look();
        if let Some(kernel) = &mut self.kernel {
            kernel.drain();
        }
        for sample in &interval.seen.samples {
            self.sampled.insert(sample.pid);
            if self.threads.len() < MOST_THREADS && !self.threads.contains_key(&sample.tid) {
                let name = fs::read(format!("/proc/{}/task/{}/comm", sample.pid, sample.tid.0));
                let name = String::from_utf8_lossy(&name.unwrap_or_default()).trim_end().to_owned();
                self.threads.insert(sample.tid, name);
            }
        }
        for process in interval.seen.processes.iter().filter(|process| process.mappings.is_some()) {
            let before_ns = kernel::now_ns();
            let Some(mappings) = NamedMapping::all_of(process.pid) else { continue };
            if let Some(touches) = &self.touches {
                touches.with(|watched| watched.retain(process.pid, &mappings, before_ns));
            }
            if let Some(allocations) = &self.allocations {
                allocations.with(|watched| watched.retain(process.pid, &mappings, before_ns));
            }
            self.names.insert(process.pid, mappings);
        }
        if let Some(allocations) = &self.allocations {
            let Observation { samples, processes, end_ns, duration_ns, .. } = &interval.seen;
            allocations.with(|watched| {
                watched.hit(samples, end_ns.saturating_sub(*duration_ns));
                // One that is not seen may just have begun.
                let is_alive = |pid: Pid| {
                    processes.iter().any(|one| one.pid == pid) || Path::new(&format!("/proc/{pid}")).exists()
                };
                watched.retain_processes(is_alive, *end_ns);
            });
        }
        if self.bytes > self.most_bytes {
            self.samples_left_out += interval.seen.samples.len() as u64;
            interval.seen.samples.clear();
        }
        self.line(&Line::Interval(Box::new(interval)));
    }
}

/// Something that a thread of its own looks at again and again: its events come by the ten thousand.
struct Watched<T> {
    /// None once it has ended.
    what: Arc<Mutex<Option<T>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Watched<T> {
    fn new(what: T) -> Self {
        Self { what: Arc::new(Mutex::new(Some(what))), ends: Arc::default(), thread: None }
    }

    fn with(&self, mut act: impl FnMut(&mut T)) {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(&mut act);
    }

    /// Looks at it from now on; `look` is told how often it has looked.
    fn begin(&mut self, look: impl Fn(&mut T, u32) + Send + 'static) {
        let (what, ends) = (Arc::clone(&self.what), Arc::clone(&self.ends));
        self.thread = Some(std::thread::spawn(move || {
            for round in 1_u32.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(what) = &mut *what.lock().unwrap_or_else(PoisonError::into_inner) {
                    look(what, round);
                }
                std::thread::sleep(DRAIN_EVERY);
            }
        }));
    }

    fn finish(self) -> Option<T> {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
        self.what.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn look_for_touches(touches: &mut FirstTouches, round: u32) {
    touches.drain();
    if round % CPUS_EVERY == 0 {
        touches.follow_cpus();
    }
}

/// The reason why no block was seen.
fn none_seen(found: &AllocationReport) -> Option<&'static str> {
    if found.processes == 0 {
        return Some(
            "--allocations: the program has not loaded Nodewise's library, and its blocks have no names: it is \
             linked statically, has changed its user, or begins without its environment",
        );
    }
    found
        .sites
        .is_empty()
        .then_some("--allocations: no function of the C library was asked for a large block")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::costs::Machine;

    #[test]
    fn a_file_that_is_full_takes_no_more_samples_and_says_how_many() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a.profile");
        let head = Head {
            nodewise_profile: VERSION,
            command: None,
            pid: Some(1),
            began_unix_s: 0,
            nodes: vec![0],
            balanced: Vec::new(),
            machine: Machine { ratios: vec![vec![1.0]], cycles_per_instruction: 1.0, times: None },
            ratios_by: String::new(),
        };
        let file = format!("{}/../engine/tests/recordings/hint-faults.jsonl", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).unwrap();
        let intervals: Vec<Interval> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut recorder = Recorder::create(&path, 1 << 20, head, Topology::live().unwrap()).unwrap();
        let mut seen = 0;
        for interval in intervals.iter().cycle().take(100 * intervals.len()) {
            seen += interval.seen.samples.len() as u64;
            recorder.interval(interval.clone());
        }
        assert!(!path.exists(), "it appears when it is whole");
        recorder.finish().unwrap();
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Line> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let samples = lines.iter().map(|line| match line {
            Line::Interval(interval) => interval.seen.samples.len() as u64,
            _ => 0,
        });
        let Some(Line::Tail(tail)) = lines.last() else { panic!("no tail") };
        assert!(tail.samples_left_out > 0);
        assert_eq!(samples.sum::<u64>() + tail.samples_left_out, seen);
    }
}
