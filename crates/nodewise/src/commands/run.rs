//! `nodewise run`: start a program and manage it, or only place it.

use super::{Exit, exit};
use crate::manage::{self, Observer, Options, Reports, Watchdog};
use crate::numactl::{INSTEAD, NumactlArgs};
use crate::output::{note, print};
use crate::placement::PlacementArgs;
use crate::signals::heeded;
use anyhow::Context as _;
use nodewise_engine::Pid;
use nodewise_linux::process::Strangers;
use nodewise_topology::Topology;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{SignalsInfo, exfiltrator::WithOrigin};
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Start a program, watch where its memory is used, and place its pages well
///
/// Nodewise samples the program and everything that it starts. Once an interval it moves pages to the nodes
/// that use them, or interleaves them. It passes signals on, exits with the program's status, and prints a
/// summary on standard error. Management ends with the program. With --wait it ends when everything that the
/// program started has ended.
///
/// With placement options only, or with --policy none, nothing is managed: the program takes the place of
/// this command, as under numactl. Nodewise understands every option of numactl (alias numactl='nodewise
/// run'). Policies of shared memory and files stay numactl's own.
#[derive(clap::Args)]
#[command(
    override_usage = "nodewise run [OPTIONS] [--] CMD...",
    after_help = "\
Examples:
  nodewise run -- ./solver input.dat
  nodewise run --dry-run --log decisions.jsonl -- redis-server
  nodewise run --json summary.json -- java -jar server.jar
  nodewise run --wait -- sh -c './server & ./server &'
  nodewise run -N 0-1 --interleave 0-1 -- ./solver input.dat  place, as numactl
  nodewise run -N 0-1 --policy carrefour -- ./solver          place and manage

Local accesses, before -> after: the share of accesses to memory in use that
come from the page's own node, if each page lay where it was first seen, and as
it lies at the end. Samples tell who uses a page, the kernel where it lies.

Exit status:
  that of the program; 128 + N when signal N ended it
  1    it could not be started or managed, and the message says why
  2    the command line could not be understood
  77   a capability, sysctl or file permission is missing; the message names it
  126  the program cannot be executed
  127  the program was not found"
)]
pub struct Args {
    /// The program and its arguments
    #[arg(required_unless_present_any = INSTEAD, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
    #[command(flatten)]
    options: Options,
    /// Manage until everything that the program started has ended, or until Ctrl-C
    #[arg(long, help_heading = "Management", conflicts_with = "no_children")]
    wait: bool,
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    numactl: NumactlArgs,
}

impl Args {
    /// Whether any page would move.
    pub const fn manages(&self) -> bool {
        !self.options.dry_run
    }
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    args.numactl.check()?;
    if args.numactl.is_given() {
        // A program would find the same policy as is shown.
        args.placement.resolve()?.apply()?;
        print(&args.numactl.text()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let only_placed = args.placement.is_given() && args.options.are_default() && !args.wait;
    let manages_nothing = args.options.manage_nothing()?;
    if manages_nothing && args.wait {
        let message =
            "--wait: with --policy none nothing is managed, and there is nothing to wait for".to_owned();
        return Err(Exit { code: exit::USAGE, message }.into());
    }
    if only_placed || manages_nothing {
        let placement = args.placement.resolve()?;
        return Err(placement.become_program(&mut program(args)));
    }
    managed(args, None)
}

/// Runs a program that is only watched, and tells an observer of it.
pub fn watched(command: Vec<OsString>, observer: &mut dyn Observer) -> anyhow::Result<ExitCode> {
    let (placement, numactl) = (PlacementArgs::default(), NumactlArgs::default());
    managed(
        &Args { command, options: Options::only_watching(), wait: false, placement, numactl },
        Some(observer),
    )
}

fn program(args: &Args) -> Command {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    command
}

fn managed<'a>(args: &'a Args, observer: Option<&'a mut dyn Observer>) -> anyhow::Result<ExitCode> {
    let topology = Topology::live()?;
    let placement = args.placement.resolve()?;
    // Before the first kernel setting is changed: a signal must not keep it from being put back.
    let (events, received) = channel();
    let pidfd = Arc::new(OnceLock::new());
    watch_signals(events.clone(), Arc::clone(&pidfd))?;
    // Sampling may raise the limit on open files, for this process alone.
    let file_limit = nodewise_sys::file_limit().context("cannot learn the limit on open files")?;
    let reports = Reports::open(&args.options)?;
    let environment = observer.as_ref().map(|observer| observer.environment()).unwrap_or_default();
    let watchdog = Watchdog::default();
    let at_end = (!args.wait).then(|| watchdog.clone());
    let prepared = match nodewise_linux::require_nodes(&topology) {
        Ok(()) => {
            Ok(manage::prepare(&args.options, topology, reports, None, &watchdog)?.observed_by(observer))
        }
        // Nothing can be gained, but nothing is lost either: the program runs as it would have.
        Err(why) => {
            note(&why);
            Err((reports, topology, why.to_string()))
        }
    };
    let mut command = program(args);
    command.envs(environment);
    nodewise_sys::start_with_file_limit(&mut command, file_limit);
    // Whatever loses its parent becomes our child, and is not lost from sight.
    nodewise_sys::set_child_subreaper(true).context("cannot follow the program's descendants")?;
    let strangers = Strangers::now();
    let child = Child::new(Pid(placement.spawn(&mut command)?.id()), pidfd);
    reap(child.pid, events, at_end, strangers.clone());
    let mut program = Program::new(child, received, strangers.clone());
    program.wait = args.wait;
    program.followed = prepared.is_ok() && !args.options.no_children;
    let reported = match prepared {
        Ok(prepared) => prepared.start(Some((program.child.pid, strangers))).and_then(|mut session| {
            let managed = session.manage(|time| program.attend(Some(time)));
            if let Err(error) = managed {
                note(format_args!("{error:#}; the program goes on unmanaged"));
            }
            // Now, and not when an unmanaged program has ended: the kernel's settings are put back here.
            session.finish()
        }),
        Err((reports, topology, why)) => reports.of_nothing(&args.options, &topology, &why),
    };
    if let Err(error) = reported {
        note(format_args!("{error:#}"));
    }
    program.followed = false;
    program.end()
}

/// An event while a program runs.
enum Event {
    /// It has ended.
    Ended(ExitStatus),
    /// So has everything that it started.
    AllEnded,
    /// A signal came, to us alone or from the terminal to the program as well.
    Signal { signal: i32, passed_on: bool },
}

/// The process that signals go to.
struct Child {
    pid: Pid,
    pidfd: Arc<Handle>,
}

/// Means the program's very process, also when its number has been given to another one. Empty until it runs;
/// none where a filter forbids it.
type Handle = OnceLock<Option<OwnedFd>>;

impl Child {
    /// One that runs, or has not been waited for.
    fn new(pid: Pid, pidfd: Arc<Handle>) -> Self {
        let _ = pidfd.set(nodewise_sys::pidfd_open(pid.0 as i32).ok());
        Self { pid, pidfd }
    }

    /// It may have ended this very moment; then its status follows.
    fn signal(&self, signal: i32) {
        let _ = match self.pidfd.get() {
            Some(Some(pidfd)) => nodewise_sys::pidfd_send_signal(pidfd, signal),
            _ => nodewise_sys::kill(self.pid.0 as i32, signal),
        };
    }
}

/// The program, and what becomes of it.
struct Program {
    child: Child,
    events: Receiver<Event>,
    strangers: Strangers,
    /// Whether to stay until all its descendants have ended.
    wait: bool,
    /// Whether its descendants are managed.
    followed: bool,
    status: Option<ExitStatus>,
    /// Whether nothing more is waited for.
    over: bool,
}

impl Program {
    const fn new(child: Child, events: Receiver<Event>, strangers: Strangers) -> Self {
        Self { child, events, strangers, wait: false, followed: false, status: None, over: false }
    }

    /// Handles one event, if one comes in time; breaks when there is nothing more to wait for.
    fn attend(&mut self, time: Option<Duration>) -> ControlFlow<()> {
        let event = match time {
            Some(time) => self.events.recv_timeout(time),
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Ended(status)) => {
                self.status = Some(status);
                self.say_who_lives_on(status);
                self.over = !self.wait;
            }
            Ok(Event::AllEnded) | Err(RecvTimeoutError::Disconnected) => self.over = true,
            Ok(Event::Signal { signal, passed_on }) if self.status.is_none() => {
                if !passed_on {
                    self.child.signal(signal);
                }
            }
            // The program has ended and cannot be told.
            Ok(Event::Signal { signal, .. }) => self.over = ![SIGUSR1, SIGUSR2].contains(&signal),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if self.over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Waits for the end, and gives the exit code.
    fn end(mut self) -> anyhow::Result<ExitCode> {
        while !self.over {
            let _ = self.attend(None);
        }
        let status = self.status.context("cannot wait for the program")?;
        Ok(ExitCode::from(exit_code(status)))
    }

    fn say_who_lives_on(&mut self, status: ExitStatus) {
        let left = if self.followed { self.strangers.others_below() } else { Vec::new() };
        let (processes, they) = match left.len() {
            0 => return,
            1 => ("a process".to_owned(), "it ends"),
            count => (format!("{count} processes"), "they end"),
        };
        let pids = left.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let what_happens = if self.wait {
            format!("managed until {they}, or until Ctrl-C")
        } else {
            format!("no longer managed; --wait manages until {they}")
        };
        note(format_args!(
            "the program has ended ({status}), and {processes} that it started, {pids}, live on: {what_happens}"
        ));
    }
}

/// As shells have it.
fn exit_code(status: ExitStatus) -> u8 {
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1) as u8
}

/// Signals that end or steer programs are the program's business. A terminal sends its own to the whole
/// foreground group, the program included. Others come to us alone: those of another process, and the hangup
/// that the leader of a session is told. They are passed on, at once where the program runs already.
fn watch_signals(events: Sender<Event>, program: Arc<Handle>) -> anyhow::Result<()> {
    let all = heeded([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]);
    let mut signals = SignalsInfo::<WithOrigin>::new(all).context("cannot watch signals")?;
    let leads_session = nodewise_sys::leads_session();
    std::thread::spawn(move || {
        for Origin { signal, cause, .. } in &mut signals {
            let to_group = matches!(cause, Cause::Kernel) && !(signal == SIGHUP && leads_session);
            let passed_on = match program.get() {
                Some(_) if to_group => true,
                // It may have ended this very moment; then its status follows.
                Some(Some(program)) => {
                    let _ = nodewise_sys::pidfd_send_signal(program, signal);
                    true
                }
                // Nor was there a program yet that the terminal could have told.
                None | Some(None) => false,
            };
            if events.send(Event::Signal { signal, passed_on }).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Reaps the program and every orphan among its descendants, as they end.
fn reap(program: Pid, events: Sender<Event>, at_end: Option<Watchdog>, mut strangers: Strangers) {
    std::thread::spawn(move || {
        let mut has_ended = false;
        loop {
            let status = match nodewise_sys::wait(-1, true) {
                Ok(Some(child)) if child.pid == program.0 as i32 => Some(ExitStatus::from_raw(child.status)),
                Ok(_) => None,
                Err(error) if error.kind() == nodewise_sys::ErrorKind::Interrupted => continue,
                // No child is left.
                Err(_) => break,
            };
            if let Some(status) = status {
                if let Some(watchdog) = &at_end {
                    watchdog.end_wanted(exit_code(status));
                }
                // The receiver is gone only when main is about to return.
                if events.send(Event::Ended(status)).is_err() {
                    return;
                }
                has_ended = true;
            }
            if has_ended && strangers.are_some() && strangers.others_below().is_empty() {
                break;
            }
        }
        let _ = events.send(Event::AllEnded);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_does_not_reach_who_got_the_programs_number() {
        let sleep = || Command::new("sleep").arg("100").spawn().unwrap();
        let (mut program, mut stranger) = (sleep(), sleep());
        let mut child = Child::new(Pid(program.id()), Arc::default());
        child.signal(SIGTERM);
        assert_eq!(program.wait().unwrap().signal(), Some(SIGTERM));
        // As if the number had been given away.
        child.pid = Pid(stranger.id());
        child.signal(SIGTERM);
        std::thread::sleep(Duration::from_millis(50));
        assert!(stranger.try_wait().unwrap().is_none(), "it lives");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
