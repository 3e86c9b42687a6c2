//! `nodewise report`: what a profile says, and what to change in the program.

mod blocks;
mod counted;
mod machine;
mod over_time;
mod page;
mod perf_data;
mod read;
mod text;
mod threads;
mod work;

use crate::output::{PRIVATE, WholeFile, print};
use crate::terminal;
use nodewise_verdict::profile::{Findings, find};
use read::Profile;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what a recording of 'nodewise profile' or perf says, and what to change
///
/// It tells which memory is used from where, and who touched it first. Memory is told apart by the code that
/// touched it first, or else by its mapping. 'nodewise profile --allocations' also records the code that
/// asked for it. A change is named only where it may save 5 % of the program's time. docs/profile.md explains
/// each column, and how a change is found.
///
/// A perf.data has to tell the CPU of each sample (--sample-cpu). With --phys-data it tells the node of all
/// memory, else whether that is near or far. With samples of page-faults it tells who touched memory first.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise report nodewise.profile
  nodewise report solver.profile -o solver.html     a page for a browser
  nodewise report before.profile after.profile      has the change helped?
  nodewise report solver.profile --json | jq '.rows[] | select(.remedy)'
  perf mem record --phys-data --data-page-size --sample-cpu -- ./solver
  nodewise report perf.data                         what perf has sampled

Exit status:
  0  it was shown
  1  the file cannot be read, is no whole recording, or is one of another architecture; the
     message says which, and names the line of a profile
  2  the command line could not be understood")]
pub struct Args {
    /// The file that 'nodewise profile' or 'perf mem record' has written
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Another one, to be shown beside it: of the same program after a change
    #[arg(value_name = "LATER")]
    later: Option<PathBuf>,

    /// Write a page for a browser to this file, beside what is printed
    #[arg(short, long, value_name = "FILE.html", conflicts_with = "later")]
    output: Option<PathBuf>,

    /// Print JSON: verdict, command, seconds, nodes, samples, `samples_are`, `ratios_by`, `far_percent`,
    /// `traffic_percent`, counted, `unknown_far_percent`, `unknown_home_percent`, `unjudged_gain_percent`,
    /// rows, lines, sites, `over_time`, threads, kernel, events, `unseen_files`
    ///
    /// The verdict is hurt if a row has a remedy, else healthy or unknown.
    ///
    /// Each row has memory, allocated, `touched_by`, `touched_pages`, `touching_threads`, samples,
    /// `accesses_percent`, `used_from_percent`, `lies_on_percent`, `far_percent`, `write_percent`,
    /// `main_user_percent`, `part_user_percent`, `taken_percent`, remedy, `gain_percent`,
    /// `slowest_gain_percent` and `gain_is_bound`. Lists by node are in the order of nodes. A line has
    /// memory, `touched_by`, address, samples, `accesses_percent`, `used_from_percent` and
    /// `is_falsely_shared`. A site has by, blocks, bytes and `most_bytes`, and so has allocated of a row,
    /// or it is null. `over_time` has the metrics of each interval, and null where that was not measured. A
    /// thread has pid, tid, name, samples, `accesses_percent`, `runs_on_percent`, `uses_percent` and
    /// `far_percent`. `kernel` has its shares of the CPU time, and `events` counts of the kernel's.
    /// `unknown_far_percent` is the share of accesses to another node's memory, nobody knows which.
    /// `unknown_home_percent` is that of samples that do not even tell this. `unjudged_gain_percent` is the
    /// most that memory with too few samples might save. `counted` has the whole machine's accesses,
    /// `traffic_percent`, `sampled_percent`, `user_percent` and `user_traffic_percent`, or null where the
    /// machine does not count them. `unseen_files` has bytes, shares and `are_uneven` of files that gave no
    /// samples, or is null.
    ///
    /// For two recordings there are before and after, each with all of that.
    #[arg(long)]
    json: bool,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let output = args.output.as_deref().map(|path| WholeFile::create(path, PRIVATE)).transpose()?;
    let profile = read::read(&args.file)?;
    let later = args.later.as_deref().map(read::read).transpose()?;
    let findings = find(&profile.seen);
    let later = later.map(|later| {
        let findings = find(&later.seen);
        (later, findings)
    });
    if let Some(output) = output {
        output.finish(&page::html(&profile, &findings))?;
    }
    let text = match (&later, args.json) {
        (None, false) => text::text(&profile, &findings, terminal::width()),
        (None, true) => serde_json::to_string_pretty(&json(&profile, &findings))? + "\n",
        (Some((later, now)), false) => text::beside((&profile, &findings), (later, now)),
        (Some((later, now)), true) => {
            let both = json!({"before": json(&profile, &findings), "after": json(later, now)});
            serde_json::to_string_pretty(&both)? + "\n"
        }
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn json(profile: &Profile, findings: &Findings) -> Value {
    json!({
        "verdict": findings.verdict(),
        "command": profile.command,
        "pid": profile.pid,
        "seconds": profile.seconds,
        "nodes": profile.seen.nodes,
        "samples": profile.seen.uses.len(),
        "samples_are": if profile.counts_accesses { "accesses" } else { "pages_in_use" },
        "ratios_by": profile.ratios_by,
        "far_percent": findings.far_percent,
        "traffic_percent": findings.traffic_percent,
        "counted": profile.counted,
        "unknown_far_percent": findings.unknown_far_percent,
        "unknown_home_percent": findings.unknown_home_percent,
        "unjudged_gain_percent": findings.unjudged_gain_percent,
        "rows": findings.rows,
        "lines": findings.lines,
        "sites": profile.sites.iter().map(|site| &site.allocated).collect::<Vec<_>>(),
        "over_time": profile.moments,
        "threads": profile.threads,
        "kernel": profile.kernel,
        "events": profile.events,
        "unseen_files": profile.unseen_files,
    })
}
