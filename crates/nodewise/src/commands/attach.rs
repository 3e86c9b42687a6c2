//! `nodewise attach`: manage processes that run already.

use super::manager::manager;
use super::{Exit, exit};
use crate::manage::{self, Observer, Options, Reports, Session, Watchdog};
use crate::output::note;
use anyhow::Context as _;
use nodewise_engine::Pid;
use nodewise_linux::ErrorKind;
use nodewise_topology::Topology;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Manage processes that are running already, and their children
///
/// Management goes on until they have ended, until Ctrl-C, or for --duration. Nodewise then puts every kernel
/// setting back and prints a summary on standard error.
#[derive(clap::Args)]
#[command(
    override_usage = "nodewise attach [OPTIONS] PID...",
    after_help = "\
Examples:
  nodewise attach 4711
  nodewise attach --interleave-files $(pidof llama-server)
  nodewise attach $(pidof postgres) \\
      --duration 60 --dry-run --log decisions.jsonl

Local accesses, before -> after: the share of accesses to memory in use that
come from the page's own node, if each page lay where it was first seen, and as
it lies at the end. Samples tell who uses a page, the kernel where it lies.

Exit status:
  0   the processes have ended, or managing ended as asked
  1   it failed, for example because there are no such processes
  2   the command line could not be understood
  77  a capability, sysctl or file permission is missing; the message names it"
)]
pub struct Args {
    /// The processes
    #[arg(value_name = "PID", required_unless_present_any = ["pid", "p"], value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
    /// The same
    #[arg(long, value_name = "PID", num_args = 1.., value_delimiter = ',', hide = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// The same as it was written once
    #[arg(short, value_name = "PID", num_args = 1.., value_delimiter = ',', hide = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    p: Vec<u32>,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    duration: Option<u64>,
    /// End as by Ctrl-C when the process that started this one ends
    #[arg(long, hide = true)]
    end_with_parent: bool,
    #[command(flatten)]
    options: Options,
}

impl Args {
    /// Whether any page would move.
    pub const fn manages(&self) -> bool {
        !self.options.dry_run
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.pids.iter().chain(&self.pid).chain(&self.p).copied().collect()
    }
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.options.manage_nothing()? {
        let message = "--policy none: there would be nothing to attach for".to_owned();
        return Err(Exit { code: exit::USAGE, message }.into());
    }
    if let Some(pid) = args.p.first() {
        note(format_args!(
            "-p: a node in 'nodewise run'; processes stand by themselves: nodewise attach {pid}"
        ));
    }
    let topology = Topology::live()?;
    let mut pids: Vec<Pid> = args.pids().into_iter().map(Pid).collect();
    leave_out_ended(&mut pids).map_err(manage::explain)?;
    let managed = pids.iter().filter_map(|&pid| Some((pid, manager(pid.0)?)));
    for (pid, manager) in managed.filter(|_| args.manages()) {
        note(format_args!("{pid} is managed already, by process {manager}: both will move its pages"));
    }
    let reports = Reports::open(&args.options)?;
    if let Err(why) = nodewise_linux::require_nodes(&topology) {
        note(&why);
        reports.of_nothing(&args.options, &topology, &why.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before the first kernel setting is changed: a signal must not keep it from being put back.
    let watchdog = Watchdog::default();
    let end = watchdog.end_on_signals()?;
    if args.end_with_parent {
        set_parent_process_death_signal(Some(Signal::INT)).context("cannot follow the parent's end")?;
    }
    let session = manage::prepare(&args.options, topology, reports, Some(&pids), &watchdog)?.start(None)?;
    until(session, args.duration, &end)?;
    Ok(ExitCode::SUCCESS)
}

/// Manages for so many seconds, or until the end is wanted.
fn until(mut session: Session<'_>, seconds: Option<u64>, end: &Receiver<()>) -> anyhow::Result<()> {
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let managed = session.manage(|time| {
        let due = until.is_some_and(|until| until <= Instant::now());
        if due || end.recv_timeout(time).is_ok() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    session.finish()?;
    managed
}

/// Watches a process that runs, and tells an observer of it.
pub fn watched(pid: Pid, seconds: Option<u64>, observer: &mut dyn Observer) -> anyhow::Result<()> {
    let topology = Topology::live()?;
    nodewise_linux::require_nodes(&topology)?;
    let options = Options::only_watching();
    let watchdog = Watchdog::default();
    let end = watchdog.end_on_signals()?;
    let reports = Reports::open(&options)?;
    let prepared = manage::prepare(&options, topology, reports, Some(&[pid]), &watchdog)?;
    until(prepared.observed_by(Some(observer)).start(None)?, seconds, &end)
}

/// Some of several processes, as `$(pidof postgres)` gives, may have ended meanwhile: the others are managed
/// all the same.
fn leave_out_ended(pids: &mut Vec<Pid>) -> Result<(), nodewise_linux::Error> {
    let mut ended = Vec::new();
    for &pid in &*pids {
        match nodewise_linux::process::require_access(pid) {
            Err(error) if error.kind() == ErrorKind::NoSuchProcess => ended.push((pid, error)),
            checked => checked?,
        }
    }
    if ended.len() == pids.len() {
        return ended.pop().map_or(Ok(()), |(_, error)| Err(error));
    }
    for (pid, error) in ended {
        note(error);
        pids.retain(|&other| other != pid);
    }
    Ok(())
}
