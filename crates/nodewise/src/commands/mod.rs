//! One module for each command: its arguments and its `main`.

pub mod attach;
pub mod compare;
pub mod completions;
mod costs;
pub mod doctor;
mod latencies;
pub mod man;
mod manager;
pub mod measure;
pub mod profile;
pub mod record_raw;
pub mod report;
pub mod rig;
pub mod run;
pub mod sim;
pub mod top;
pub mod topo;

use crate::output::note;
use nodewise_linux::process::descendants;
use std::process::ExitCode;

/// Exit codes, as `nodewise --help` documents them.
///
/// `run` and `rig` exit with the status of the program they started; these are used when there is none.
pub mod exit {
    /// Something went wrong that is none of the below.
    pub const FAILURE: u8 = 1;
    /// The command line could not be understood.
    pub const USAGE: u8 = 2;
    /// A capability, sysctl or file permission is missing; the message names it.
    pub const NOT_PERMITTED: u8 = 77;
    /// The program could not be executed (as `env`, `timeout` and `numactl` do).
    pub const CANNOT_EXECUTE: u8 = 126;
    /// The program was not found.
    pub const NOT_FOUND: u8 = 127;
}

/// CPU time of a process and its children, in seconds (`proc_pid_stat(5)`).
pub fn cpu_seconds(pid: u32) -> f64 {
    // In user mode and in the kernel, its own and that of children that have ended.
    let ticks = |pid: u32| Some(stat_fields(pid, 14, 4)?.iter().sum::<u64>());
    let below = descendants(pid).into_iter().map(|pid| pid.0);
    let ticks: u64 = std::iter::once(pid).chain(below).filter_map(ticks).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// So many fields of `/proc/PID/stat` from one on, by its number in `proc_pid_stat(5)`.
fn stat_fields(pid: u32, first: usize, count: usize) -> Option<Vec<u64>> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The program's name, the second, may hold anything.
    let behind = stat.rsplit_once(')')?.1.split_whitespace().skip(first - 3).take(count);
    let fields: Vec<u64> = behind.map(|field| field.parse().ok()).collect::<Option<_>>()?;
    Some(fields).filter(|fields| fields.len() == count)
}

/// The program of a process and its arguments (`proc_pid_cmdline(5)`); none where nobody may know.
pub fn command_line(pid: u32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split_terminator('\0').map(str::to_owned).collect()
}

/// Page faults of a process that needed no disk.
pub fn minor_faults(pid: u32) -> Option<u64> {
    stat_fields(pid, 10, 1)?.first().copied()
}

/// Prints an error with its causes and gives the exit code it asks for.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    note(format_args!("{error:#}"));
    ExitCode::from(error.downcast_ref::<Exit>().map_or(exit::FAILURE, |e| e.code))
}

/// An error that carries the exit code the process should end with.
#[derive(Debug)]
pub struct Exit {
    /// One of [`exit`], or the status of a program that was run.
    pub code: u8,
    /// The text that is printed after `nodewise: `.
    pub message: String,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

/// Texts beside a head that takes so many columns, or below it where there is little room.
pub fn beside(head: &str, columns: usize, texts: &[&str], width: usize) -> String {
    const LEAST_ROOM: usize = 24;
    let has_room = columns + LEAST_ROOM <= width;
    let indent = if has_room { columns } else { 4 };
    let lines = texts.iter().flat_map(|text| wrap(text, width.saturating_sub(indent)));
    let text = lines.collect::<Vec<_>>().join(&format!("\n{:indent$}", ""));
    if has_room { format!("{head}{text}\n") } else { format!("{}\n{:indent$}{text}\n", head.trim_end(), "") }
}

/// Breaks text at spaces into lines of at most `room` characters; a longer word keeps a line of its own.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
