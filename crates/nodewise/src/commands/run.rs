//! `nodewise run`: start a program and manage it.

use crate::manage::{self, Options};
use crate::placement::PlacementArgs;
use anyhow::Context as _;
use nodewise_engine::Pid;
use nodewise_topology::Topology;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{SignalsInfo, exfiltrator::WithOrigin};
use signal_hook::low_level::siginfo::{Cause, Origin};
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// Start a program, watch where its memory is used, and place its pages well
///
/// Samples the program and everything it starts, and once an interval moves pages to where they are used, or spreads
/// them. Passes signals on, exits with the program's status, and prints a summary on standard error.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise run -- ./solver input.dat
  nodewise run --dry-run --log decisions.jsonl -- redis-server
  nodewise run --json summary.json -- java -jar server.jar
  nodewise run -N 0-1 --interleave 0-1 -- ./solver input.dat

Exit status: the program's own; 128 + N if signal N ended it; 126 or 127 if it could not be started; 77 if a capability or
sysctl is missing; 2 for a wrong command line; 1 otherwise.")]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    placement: PlacementArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

enum Event {
    Exited(std::io::Result<ExitStatus>),
    Signal(i32),
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let topology = Topology::live()?;
    let placement = args.placement.resolve(&topology)?;
    // Before the first kernel setting is changed: a signal must not keep it from being put back.
    let (events, received) = channel();
    watch_signals(events.clone())?;
    // Sampling may raise the limit on open files, for this process alone.
    let file_limit = nodewise_sys::file_limit().context("cannot learn the limit on open files")?;
    let prepared = match nodewise_linux::require_nodes(&topology) {
        Ok(()) => Some(manage::prepare(&args.options, topology)?),
        // Nothing can be gained, but nothing is lost either: the program runs as it would have.
        Err(note) => {
            anstream::eprintln!("nodewise: {note}");
            None
        }
    };
    let mut command = Command::new(&args.command[0]);
    nodewise_sys::start_with_file_limit(command.args(&args.command[1..]), file_limit);
    let child = placement.spawn(&mut command)?;
    let pid = child.id();
    let mut status = None;
    watch_child(child, events);
    if let Some(prepared) = prepared {
        match prepared.start(&[Pid(pid)], true) {
            Ok(mut session) => {
                let managed = session.manage(|time| {
                    status = next_event(&received, pid, Some(time));
                    if status.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                if let Err(error) = managed {
                    anstream::eprintln!("nodewise: {error:#}; the program goes on unmanaged");
                }
                while status.is_none() {
                    status = next_event(&received, pid, None);
                }
                if let Err(error) = session.finish() {
                    anstream::eprintln!("nodewise: {error:#}");
                }
            }
            // The program may already have ended; anything else leaves it unmanaged.
            Err(error) => {
                while status.is_none() {
                    status = next_event(&received, pid, None);
                }
                anstream::eprintln!("nodewise: {error:#}; the program was not managed");
            }
        }
    }
    loop {
        match status {
            Some(status) => return exit_code(status),
            None => status = next_event(&received, pid, None),
        }
    }
}

/// Signals that end or steer programs are the program's business. What the terminal sends, it sends to the whole foreground
/// group, the program included; what another process sends to us alone is passed on.
fn watch_signals(events: Sender<Event>) -> anyhow::Result<()> {
    let all = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];
    let mut signals = SignalsInfo::<WithOrigin>::new(all).context("cannot watch signals")?;
    std::thread::spawn(move || {
        for Origin { signal, cause, .. } in &mut signals {
            if !matches!(cause, Cause::Kernel) && events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn watch_child(mut child: Child, events: Sender<Event>) {
    std::thread::spawn(move || {
        // The receiver is gone only when main is about to return.
        let _ = events.send(Event::Exited(child.wait()));
    });
}

/// Handles one event, if one comes in time; gives the program's status when it has ended.
fn next_event(
    events: &Receiver<Event>,
    pid: u32,
    timeout: Option<std::time::Duration>,
) -> Option<std::io::Result<ExitStatus>> {
    let event = match timeout {
        Some(timeout) => events.recv_timeout(timeout),
        None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match event {
        Ok(Event::Exited(status)) => Some(status),
        Ok(Event::Signal(signal)) => {
            // It may have ended this very moment; then its status follows.
            let _ = nodewise_sys::kill(pid as i32, signal);
            None
        }
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err(std::io::Error::other("the waiting thread ended"))),
    }
}

fn exit_code(status: std::io::Result<ExitStatus>) -> anyhow::Result<ExitCode> {
    let status = status.context("cannot wait for the program")?;
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(code as u8))
}
