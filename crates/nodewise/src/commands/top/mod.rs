//! `nodewise top`: nodes and processes, again and again.

mod figures;
mod guard;
mod screen;
mod state;
#[cfg(test)]
mod tests;
mod watch;

pub use figures::bytes;

use crate::output::print_more;
use crate::signals;
use crate::terminal;
use nodewise_engine::Pid;
use nodewise_linux::census::Census;
use nodewise_linux::process::require_access;
use nodewise_topology::Topology;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Show what the nodes and processes of this machine do, again and again
///
/// The upper table has the nodes: how busy their CPUs are, and what is free of their memory. 'Allocated from
/// afar' is what CPUs of other nodes allocate there. The lower table has the processes. 'Lies on' tells
/// where a process's memory is, and 'runs on' where it spent its CPU time, as node:percent.
///
/// 'Far' is the least share of accesses that are far, if a process uses all of its memory alike. A program
/// whose threads lie on each other's nodes has more of them, and one that leaves some of its memory alone may
/// have fewer. 'nodewise doctor -p PID' takes samples and knows.
///
/// Top takes no samples and changes nothing. It asks the kernel where some pages of each process that is
/// shown lie, every five seconds or less often. Root sees that of all processes, others of their own.
///
/// The key w watches a process as 'nodewise doctor -p' does: with samples, by the kernel's NUMA balancing
/// where there is no PMU. It shows how many accesses are near and what 'nodewise attach' would do. Settings
/// are put back.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise top
  sudo nodewise top -p 4711            the threads and mappings of one process
  nodewise top --interval 10 --sort memory
  nodewise top | cat                   once, as text
  nodewise top --json -n 60 > minute   a line of JSON each second or so

Keys:
  up, down, enter   choose a process and look at its threads and mappings; esc goes back
  f, c, m           sort by CPU time spent far, by CPU time, by memory
  w                 watch that process with samples, or stop
  space             look now
  q                 quit; ctrl-z suspends

Exit status:
  0   done
  1   it failed, for example because there is no such process
  2   the command line could not be understood
  77  a capability, sysctl or file permission is missing; the message names it")]
pub struct Args {
    /// Show the threads and mappings of this process
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Look every so many seconds
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    interval: f64,

    /// End after so many looks, which is one where standard output is no terminal
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    looks: Option<u32>,

    /// Sort the processes by this
    #[arg(short, long, value_enum, default_value_t)]
    sort: state::Sort,

    /// Print a line of JSON for each look: seconds, nodes, balancing, processes, `process_count`
    ///
    /// Figures without a unit in their names are shares of one, in the order of the nodes. Null stands for
    /// what is not known. With -p there is regions, too.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("0.1 to 3600 seconds".to_owned()) }
}

/// Processes that are looked at closely.
const MOST: usize = 64;

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(pid) = args.pid {
        require_access(Pid(pid)).map_err(crate::manage::explain)?;
    }
    let end = Arc::new(AtomicBool::new(false));
    for signal in signals::ending() {
        signal_hook::flag::register(signal, Arc::clone(&end))?;
    }
    let mut census = Census::new(Topology::live()?, MOST);
    let mut state = state::State::new(args.sort, args.pid.map(Pid));
    // Rates are between two looks.
    census.look();
    if !args.json && terminal::is_terminal() {
        screen::run(&mut census, &mut state, Duration::from_secs_f64(args.interval), args.looks, &end)?;
        return Ok(ExitCode::SUCCESS);
    }
    let looks = args.looks.unwrap_or(if terminal::is_terminal() { u32::MAX } else { 1 });
    for _ in 0..looks {
        if !rest(Duration::from_secs_f64(args.interval), &end) {
            break;
        }
        state.look(&mut census);
        let text = if args.json { state.json()? + "\n" } else { figures::text(&state, terminal::width()) };
        if !print_more(&text)? {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the time passed before a signal came.
fn rest(time: Duration, end: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while !end.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
    false
}
