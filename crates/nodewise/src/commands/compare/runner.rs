//! Runs the program once, under a placement.

use super::events::Events;
use super::metric::{Metric, Output};
use crate::commands::Exit;
use crate::output::shown;
use crate::placement::{HugePages, MemoryPolicy, Placement as Placed};
use anyhow::Context as _;
use nodewise_linux::process::descendants;
use nodewise_linux::settings::{BALANCING, HUGE_PAGES, Place, Settings};
use nodewise_sys::{PolicyMode, Whose, usage};
use nodewise_topology::{CpuId, CpuSet, NodeId, NodeSet};
use nodewise_verdict::compare::{How, Measured, NEVER, Placement, Ran, Runner};
use signal_hook::consts::{SIGKILL, SIGTERM};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The exit code of a run that took too long, as timeout(1) has it.
pub const TIMED_OUT: u8 = 124;

/// Starts the program again and again.
pub struct Commands {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The figure to be found in its output.
    pub metric: Metric,
    /// The most that a run may take.
    pub timeout: Option<Duration>,
    /// The signal that came to end the comparison; 0 if none did.
    pub signal: Arc<AtomicI32>,
    /// Greatest resident memory of any of its processes so far.
    pub resident_bytes: u64,
}

/// How often it is looked whether a run is to be broken off.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often new threads are looked for that are to be pinned.
const PIN_EVERY: Duration = Duration::from_millis(2);
/// How long output is waited for after the program's end. Somebody else may hold the pipe.
const OUTPUT_WAIT: Duration = Duration::from_secs(2);
/// So long may Nodewise take to put the kernel's settings back, once its program has ended.
const RESTORE_WAIT: Duration = Duration::from_secs(10);

/// The first look at a new program's CPUs, after which looks come ever more seldom.
const FIRST_LOOK: Duration = Duration::from_millis(5);

/// The end of a program.
enum End {
    Exited { status: ExitStatus, at: Instant, own_cpus: bool },
    TimedOut,
}

impl Runner for Commands {
    type Error = anyhow::Error;

    /// A run that fails is the placement's fault, unless the placement is the default.
    fn run(&mut self, placement: &Placement) -> anyhow::Result<Ran> {
        match self.once(&placement.how) {
            Ok(measured) => Ok(Ran::Well(measured)),
            Err(error) if placement.how == How::Default || self.signal.load(Ordering::Relaxed) != 0 => {
                Err(error)
            }
            Err(error) => Ok(Ran::Impossible(format!("{error:#}"))),
        }
    }
}

impl Commands {
    fn once(&mut self, how: &How) -> anyhow::Result<Measured> {
        // Dropped at the end of the run, which puts the setting back.
        let _settings = set(how)?;
        let mut command = self.command(how)?;
        let kept = matches!(self.metric, Metric::Command(_)).then(tempfile::tempfile).transpose();
        let kept = kept.context("cannot keep the program's output")?;
        let (used, events) = (usage(Whose::Children)?, Events::now());
        let began = Instant::now();
        let mut child = placed(how).spawn(&mut command)?;
        let group = child.id() as i32;
        // The kernel ends the program, and nobody else, when memory is short.
        let _ = std::fs::write(format!("/proc/{group}/oom_score_adj"), "1000");
        let (output, outputs) = self.read(&mut child, kept.as_ref());
        let end = self.wait(child, how, began);
        // Whatever it left behind would disturb the next run.
        let _ = nodewise_sys::kill(-group, SIGKILL);
        let end = end?;
        let waited = Instant::now();
        for _ in 0..2 {
            let _ = outputs.recv_timeout(OUTPUT_WAIT.saturating_sub(waited.elapsed()));
        }
        let (events, after) = (Events::now().since(&events), usage(Whose::Children)?);
        self.resident_bytes = after.resident_max_bytes;
        let output = output.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, ended, own_cpus) = match end {
            End::Exited { status, at, own_cpus } => (status, at, own_cpus),
            End::TimedOut => {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
                let message = format!("the program took longer than {seconds} s (--timeout), and was killed");
                return Err(Exit { code: TIMED_OUT, message }.into());
            }
        };
        if !status.success() {
            let said = shown(&output.last_line);
            let said = if said.is_empty() { String::new() } else { format!(", after it said: {said}") };
            let memory = if status.signal() == Some(SIGKILL) { ", perhaps for want of memory" } else { "" };
            anyhow::bail!("the program failed ({status}{memory}){said}");
        }
        let wall_seconds = (ended - began).as_secs_f64();
        let seconds = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e9;
        let switches = [
            ("context switches, voluntary", after.voluntary_switches - used.voluntary_switches),
            ("context switches, involuntary", after.involuntary_switches - used.involuntary_switches),
        ];
        let switches = switches.map(|(name, count)| (name.to_owned(), count as f64));
        Ok(Measured {
            value: self.metric.value(wall_seconds, &output, kept)?,
            wall_seconds,
            user_seconds: seconds(used.user_ns, after.user_ns),
            system_seconds: seconds(used.system_ns, after.system_ns),
            events: events.into_iter().chain(switches).collect(),
            own_cpus,
        })
    }

    /// The program in a process group of its own, which a signal from the terminal does not reach.
    fn command(&self, how: &How) -> anyhow::Result<Command> {
        let mut command = if *how == How::Nodewise {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["run", "--quiet", "--"]).args(&self.command);
            command
        } else {
            let mut command = Command::new(&self.command[0]);
            command.args(&self.command[1..]);
            command
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        Ok(command)
    }

    /// Reads what the program says, and tells of each of the two outputs when it ends.
    fn read(&self, child: &mut Child, kept: Option<&std::fs::File>) -> (Arc<Mutex<Output>>, Receiver<()>) {
        let output = Arc::<Mutex<Output>>::default();
        let (ended, outputs) = channel();
        let stdout = child.stdout.take().map(|out| Box::new(out) as Box<dyn Read + Send>);
        let stderr = child.stderr.take().map(|err| Box::new(err) as Box<dyn Read + Send>);
        for (from, is_out) in [(stdout, true), (stderr, false)] {
            let Some(from) = from else { continue };
            let (metric, output, ended) = (self.metric.clone(), Arc::clone(&output), ended.clone());
            let kept = kept.filter(|_| is_out).and_then(|kept| kept.try_clone().ok());
            std::thread::spawn(move || {
                metric.read(from, &output, kept.as_ref());
                // Nobody waits for it any more, perhaps.
                let _ = ended.send(());
            });
        }
        (output, outputs)
    }

    /// Waits for the end, and pins threads meanwhile.
    fn wait(&self, mut child: Child, how: &How, began: Instant) -> anyhow::Result<End> {
        let pid = child.id();
        let (ended, end) = channel();
        std::thread::spawn(move || {
            let status = child.wait();
            let _ = ended.send((status, Instant::now()));
        });
        let kill = |signal| nodewise_sys::kill(-(pid as i32), signal);
        let mut pins = if let How::Pinned { cpus } = how { Some(Pins::new(pid, cpus)) } else { None };
        let given = if let How::Node { cpus, .. } | How::Far { cpus, .. } = how { Some(cpus) } else { None };
        let (mut own_cpus, mut look_after) = (false, FIRST_LOOK);
        loop {
            pins.as_mut().into_iter().for_each(Pins::pin);
            if !own_cpus && given.is_some() && began.elapsed() >= look_after {
                own_cpus = given.is_some_and(|given| threads_below(pid).any(|thread| leaves(thread, given)));
                look_after *= 2;
            }
            let looks = if own_cpus || given.is_none() { LOOK_EVERY } else { LOOK_EVERY.min(look_after) };
            let every = if pins.is_some() { PIN_EVERY } else { looks };
            if let Ok((status, at)) = end.recv_timeout(every) {
                let status = status.context("cannot wait for the program")?;
                return Ok(End::Exited { status, at, own_cpus });
            }
            let signal = self.signal.load(Ordering::Relaxed);
            let late = self.timeout.is_some_and(|most| began.elapsed() >= most);
            if signal != 0 || late {
                // Nodewise puts the kernel's settings back before it ends, and it ends after its program.
                let _ = kill(SIGTERM);
                let mut ended = end.recv_timeout(OUTPUT_WAIT).is_ok();
                if !ended && matches!(how, How::Nodewise) {
                    for program in descendants(pid) {
                        let _ = nodewise_sys::kill(program.0 as i32, SIGKILL);
                    }
                    ended = end.recv_timeout(RESTORE_WAIT).is_ok();
                }
                if !ended {
                    let _ = kill(SIGKILL);
                    let _ = end.recv_timeout(OUTPUT_WAIT);
                }
                return if signal == 0 { Ok(End::TimedOut) } else { Err(broken_off(signal)) };
            }
        }
    }
}

/// As shells have it.
pub fn broken_off(signal: i32) -> anyhow::Error {
    Exit { code: 128 + signal as u8, message: "broken off".to_owned() }.into()
}

/// Changes the kernel's setting that a placement is about, until it is dropped.
pub fn set(how: &How) -> anyhow::Result<Option<Settings>> {
    let (path, value) = match how {
        How::Balancing { on } => (BALANCING, if *on { "1" } else { "0" }),
        How::HugePages { enabled } if enabled != NEVER => (HUGE_PAGES, enabled.as_str()),
        _ => return Ok(None),
    };
    let mut settings = Settings::open(Place::live());
    settings.set(Path::new(path), value).map_err(crate::manage::explain)?;
    if let Some(why) = settings.barred() {
        anyhow::bail!("{path} stays as it is: {why}");
    }
    anyhow::ensure!(settings.is_owner(), "{path} stays as it is: another Nodewise owns the settings");
    Ok(Some(settings))
}

/// CPUs, memory policy and huge pages of a placement.
fn placed(how: &How) -> Placed {
    let policy = |mode, nodes| Some(MemoryPolicy { mode, nodes, balancing: false });
    let one = |node: NodeId| NodeSet::from_iter([node]);
    let (cpus, policy): (Option<CpuSet>, _) = match how {
        How::Node { node, cpus } => (Some(cpus.clone()), policy(PolicyMode::Bind, one(*node))),
        How::Far { cpus, memory, .. } => (Some(cpus.clone()), policy(PolicyMode::Bind, one(*memory))),
        How::Interleave { nodes } => (None, policy(PolicyMode::Interleave, nodes.clone())),
        How::WeightedInterleave { nodes } => (None, policy(PolicyMode::WeightedInterleave, nodes.clone())),
        // The first thread is on its CPU before it touches memory.
        How::Pinned { cpus } => (cpus.first().map(|&cpu| CpuSet::from_iter([cpu])), None),
        How::Default | How::Balancing { .. } | How::HugePages { .. } | How::Nodewise => (None, None),
    };
    // For this program alone: others keep their huge pages.
    let never = matches!(how, How::HugePages { enabled } if enabled == NEVER);
    Placed { cpus, policy, huge_pages: never.then_some(HugePages::Never) }
}

/// Keeps each thread of a program on a CPU, in the order in which threads are made.
struct Pins<'a> {
    pid: u32,
    cpus: &'a [CpuId],
    pinned: BTreeSet<u32>,
}

impl<'a> Pins<'a> {
    fn new(pid: u32, cpus: &'a [CpuId]) -> Self {
        Self { pid, cpus, pinned: BTreeSet::new() }
    }

    /// Pins the threads that are new.
    fn pin(&mut self) {
        let mut threads: Vec<u32> = threads_below(self.pid).collect();
        // Numbers grow, but for the wrap of all numbers.
        threads.sort_unstable();
        for thread in threads {
            if self.pinned.contains(&thread) {
                continue;
            }
            let cpu = self.cpus[self.pinned.len() % self.cpus.len()];
            let set = std::iter::once(cpu.0).collect();
            // It may have ended this very moment.
            let _ = nodewise_sys::sched_setaffinity(thread as i32, &set);
            self.pinned.insert(thread);
        }
    }
}

/// The threads of a process and of all that it started.
fn threads_below(pid: u32) -> impl Iterator<Item = u32> {
    let below = nodewise_linux::process::descendants(pid).into_iter().map(|pid| pid.0);
    std::iter::once(pid).chain(below).flat_map(threads)
}

/// Whether a thread may run on other CPUs than it was given.
fn leaves(thread: u32, given: &CpuSet) -> bool {
    let allowed = nodewise_sys::sched_getaffinity(thread as i32);
    allowed.is_ok_and(|allowed| allowed.iter().any(|cpu| !given.contains(CpuId(cpu))))
}

fn threads(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names = tasks.into_iter().flatten().filter_map(|task| task.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_leave_their_cpus_only_if_they_may_run_on_others() {
        let thread = nodewise_sys::gettid() as u32;
        let allowed = nodewise_sys::sched_getaffinity(0).unwrap();
        let mine: CpuSet = allowed.iter().map(CpuId).collect();
        assert!(!leaves(thread, &mine));
        assert!(leaves(thread, &CpuSet::from_iter([CpuId(u32::from(u16::MAX))])));
        assert!(!leaves(u32::MAX >> 2, &mine), "one that is gone");
        assert!(threads_below(std::process::id()).any(|other| other == thread));
    }
}
