//! `nodewise doctor`: what works on this machine, and what to do where it does not; and whether NUMA hurts a
//! program that runs.

mod process;

use super::{beside, wrap};
use crate::output::{print, shown};
use crate::terminal;
use anstyle::{AnsiColor, Style};
use nodewise_linux::probe::{Area, Check, Facts, Report, Status, target};
use std::fmt::Write as _;
use std::process::{Command, ExitCode};

/// Show what of Nodewise works on this machine, or with -p whether NUMA hurts a program
///
/// Without -p, doctor tries everything, and guesses nothing from version numbers. It uses memory of its own,
/// and of a process that it starts for this. It changes no setting. It takes up to six seconds if it has to
/// wait for the kernel's NUMA balancing.
///
/// With -p, doctor watches a process and its children as 'nodewise attach --dry-run' does, and moves nothing
/// itself. Without a PMU it samples by the kernel's NUMA balancing, which may move pages meanwhile. It puts
/// settings back. Before that it looks at the time that the kernel takes for the process, and at its disks.
/// docs/doctor.md explains the answer.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise doctor
  sudo nodewise doctor                       what root could do
  nodewise doctor --json | jq '.checks[] | select(.status != \"works\")'
  nodewise doctor -p $(pidof redis-server)   does NUMA hurt it, and what to do
  nodewise doctor -p 4711 --seconds 60 --json
  nodewise rig --nodes 4 -- nodewise doctor  the same in a guest

Exit status:
  0   programs can be managed here, perhaps with limits; with -p, there is an answer
  1   they cannot: fewer than two nodes, nothing to sample with, or pages cannot be moved;
      with -p, the process cannot be watched
  2   the command line could not be understood
  77  with -p: a capability, sysctl or file permission is missing; the message names it")]
pub struct Args {
    /// Print JSON: kernel, architecture, nodes, sampler, manageable, and a list of checks
    ///
    /// Each check has area, name, status (works, limited or missing), found and advice. With -p, it has
    /// verdict (hurt, healthy or unknown), text, `far_access_percent`, `cost_percent`, `cost_is_bound`,
    /// remedy, command, evidence.
    #[arg(long)]
    json: bool,

    /// Watch this process and its children
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Watch for so many seconds
    ///
    /// Doctor watches for up to four times as long while more of the memory that is used shows for the first
    /// time. Without a PMU, that of large programs shows late. So does all where the kernel's balancing was
    /// on before.
    #[arg(long, value_name = "N", default_value_t = 30, requires = "pid",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,

    /// Take the cost of far memory from a machine's preset, or from what 'nodewise measure --json' printed
    #[arg(long, value_name = "PRESET|FILE", requires = "pid")]
    model: Option<String>,

    /// Be the process on which doctor tries things
    #[arg(long, hide = true, conflicts_with_all = ["json", "pid"])]
    patient: bool,
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.patient {
        target::run_probe_target()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(pid) = args.pid {
        return process::main(args, pid);
    }
    let program = std::env::current_exe()?;
    let report = Report::new(&Facts::gather(Command::new(program).args(["doctor", "--patient"]))?);
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        text(&report, terminal::width())
    };
    print(&text)?;
    Ok(if report.manageable { ExitCode::SUCCESS } else { ExitCode::from(super::exit::FAILURE) })
}

fn text(report: &Report, width: usize) -> String {
    let Report { kernel, architecture, nodes, .. } = report;
    let plural = if *nodes == 1 { "" } else { "s" };
    let machine = format!("Linux {kernel} on {architecture}, {nodes} node{plural} with memory");
    let mut out = wrap(&machine, width).join("\n") + "\n";
    let name_width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut area = None;
    for check in &report.checks {
        if area != Some(check.area) {
            area = Some(check.area);
            let bold = Style::new().bold();
            // Writing to a string does not fail.
            let _ = writeln!(out, "\n{bold}{}{bold:#}", heading(check.area));
        }
        out += &line(check, name_width, width);
    }
    let _ = writeln!(out, "\n{}", wrap(&verdict(report), width).join("\n"));
    out
}

const fn heading(area: Area) -> &'static str {
    match area {
        Area::Machine => "Machine",
        Area::Sampling => "Sampling",
        Area::Moving => "Moving",
        Area::Policies => "Policies",
        Area::Rights => "Rights and limits",
    }
}

fn line(check: &Check, name_width: usize, width: usize) -> String {
    let (word, color) = match check.status {
        Status::Works => ("works  ", AnsiColor::Green),
        Status::Limited => ("limited", AnsiColor::Yellow),
        Status::Missing => ("missing", AnsiColor::Red),
    };
    let style = color.on_default();
    let head = format!("  {style}{word}{style:#}  {:name_width$}  ", check.name);
    let found = shown(&check.found);
    let advice = check.advice.as_ref().map(|advice| format!("-> {}", shown(advice)));
    let texts: Vec<&str> = [Some(found.as_str()), advice.as_deref()].into_iter().flatten().collect();
    beside(&head, 2 + 7 + 2 + name_width + 2, &texts, width)
}

fn verdict(report: &Report) -> String {
    match (report.manageable, report.sampler) {
        (true, Some(sampler)) => format!("Programs can be managed here; the sampler would be: {sampler}."),
        _ => "Programs cannot be managed here: see what is missing above.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_wrapped_under_what_was_found() {
        let check = Check {
            area: Area::Sampling,
            name: "hint faults",
            status: Status::Missing,
            found: "none".to_owned(),
            advice: Some("do this and that and then something else".to_owned()),
        };
        let plain = |width| anstream::adapter::strip_str(&line(&check, 12, width)).to_string();
        assert_eq!(
            plain(52),
            "  missing  hint faults   none\n                         -> do this and that and\n                         then something else\n"
        );
        assert_eq!(
            plain(40),
            "  missing  hint faults\n    none\n    -> do this and that and then\n    something else\n"
        );
    }
}
