//! `nodewise run`: start a program and manage it.

use crate::manage::{self, Options, Reports};
use crate::output::note;
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

Exit status:
  that of the program; 128 + N when signal N ended it
  1    it could not be started or managed, and the message says why
  2    the command line could not be understood
  77   a capability, sysctl or file permission is missing; the message names it
  126  the program cannot be executed
  127  the program was not found")]
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
    let reports = Reports::open(&args.options)?;
    let prepared = match nodewise_linux::require_nodes(&topology) {
        Ok(()) => Ok(manage::prepare(&args.options, topology, reports)?),
        // Nothing can be gained, but nothing is lost either: the program runs as it would have.
        Err(why) => {
            note(&why);
            Err((reports, topology, why.to_string()))
        }
    };
    let mut command = Command::new(&args.command[0]);
    nodewise_sys::start_with_file_limit(command.args(&args.command[1..]), file_limit);
    let child = placement.spawn(&mut command)?;
    let pid = child.id();
    let mut status = None;
    watch_child(child, events);
    let reported = match prepared {
        Ok(prepared) => prepared.start(&[Pid(pid)], true).and_then(|mut session| {
            let managed = session.manage(|time| {
                status = next_event(&received, pid, Some(time));
                if status.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
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
