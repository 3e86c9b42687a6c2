//! The answer as text.

use crate::commands::wrap;
use anstyle::{AnsiColor, Style};
use nodewise_verdict::compare::ace::Ace;
use nodewise_verdict::compare::remedy::{Remedy, quoted};
use nodewise_verdict::compare::{Kind, Report, Row};
use std::fmt::Write as _;

/// The report in lines of up to `width` characters, as far as words allow.
pub fn text(report: &Report, width: usize) -> String {
    let mut out = String::new();
    let setting = &report.setting;
    let direction = if setting.less_is_better { "less is better" } else { "more is better" };
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}", quoted(&setting.command));
    let _ = writeln!(out, "{}", setting.machine);
    let _ = writeln!(out, "metric: {}, {direction}; {} blocks of runs", setting.metric, report.blocks);
    placements(&mut out, report);
    details(&mut out, report, width);
    let style = match report.answer.verdict {
        Kind::Hurt => AnsiColor::Yellow.on_default().bold(),
        Kind::Healthy => AnsiColor::Green.on_default(),
        Kind::Unknown => Style::new().bold(),
    };
    let _ = writeln!(out);
    for line in wrap(&report.answer.text, width) {
        let _ = writeln!(out, "{style}{line}{style:#}");
    }
    if !report.answer.as_good.is_empty() {
        let _ = writeln!(out, "As good, as far as can be told: {}.", report.answer.as_good.join(", "));
    }
    report.answer.remedy.iter().for_each(|remedy| how(&mut out, remedy));
    out
}

fn placements(out: &mut String, report: &Report) {
    let names = report.placements.iter().map(|row| row.placement.name.len()).max().unwrap_or(0).max(9);
    let bold = Style::new().bold();
    let word = if report.setting.metric == "seconds" { "faster" } else { "better" };
    let sure = report.placements.iter().map(|row| row.value.confidence_percent).fold(95.0, f64::min);
    // One run has none.
    let interval = if sure > 0.0 { format!("{sure:.0} % interval") } else { "range of runs".to_owned() };
    let _ = writeln!(
        out,
        "\n{bold}{:names$} {:>4} {:>10}  {interval:>21} {word:>7}  {interval:>13} {:>7} {:>8} {:>8}{bold:#}",
        "placement", "runs", "median", "p", "user s", "kernel s"
    );
    for row in &report.placements {
        let style = match row {
            row if row.is_better() => AnsiColor::Green.on_default(),
            row if row.differs() && row.speedup() < 1.0 => AnsiColor::Red.on_default(),
            _ => Style::new(),
        };
        let value = &row.value;
        let interval = format!("{} .. {}", figure(value.low), figure(value.high));
        let _ = write!(
            out,
            "{:names$} {:>4} {:>10}  {interval:>21} ",
            row.placement.name,
            row.runs,
            figure(value.median)
        );
        let _ = write!(out, "{style}{}{style:#}", against(row));
        let _ = writeln!(out, " {:>8.2} {:>8.2}", row.user_seconds, row.system_seconds);
    }
    for skipped in &report.skipped {
        let _ = writeln!(out, "{:names$} skipped: {}", skipped.name, skipped.why);
    }
    let _ = writeln!(out, "p is corrected for all placements together; up to 0.025 is no chance.");
}

fn against(row: &Row) -> String {
    let Some(against) = &row.against else { return format!("{:>7}  {:>13} {:>7}", "", "", "") };
    let speedup = &against.speedup;
    let interval = format!("{:.2} .. {:.2}", speedup.low, speedup.high);
    let times = format!("{:.2}x", speedup.median);
    format!("{times:>7}  {interval:>13} {:>7.4}", against.p_corrected)
}

/// Four digits that count.
fn figure(value: f64) -> String {
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 6.0);
    format!("{value:.*}", digits as usize)
}

fn details(out: &mut String, report: &Report, width: usize) {
    let mut line = |text: String| {
        for line in wrap(&text, width) {
            let _ = writeln!(out, "{line}");
        }
    };
    let note = report.note_on_cpus();
    if note.is_some()
        || report.far.is_some()
        || report.migrations.is_some()
        || !report.correlations.is_empty()
    {
        line(String::new());
    }
    note.map(str::to_owned).into_iter().for_each(&mut line);
    if let Some(far) = &report.far {
        let slowdown = &far.slowdown;
        line(format!(
            "Far memory alone: {:.2}x slower ({:.2} .. {:.2}, p {:.4}).",
            slowdown.median, slowdown.low, slowdown.high, far.p
        ));
    }
    if let Some(ace) = &report.ace {
        line(sensitivity(ace));
    }
    if let Some(cost) = &report.migrations {
        line(format!(
            "The kernel's balancing moves {:.0} pages a run, adds {:.2} s in the kernel, and changes user time by \
             {:+.2} s.",
            cost.pages, cost.system_seconds, cost.user_seconds
        ));
    }
    if !report.correlations.is_empty() {
        line(format!("Events that come with more of '{}' (1) or with less (-1):", report.setting.metric));
        for found in &report.correlations {
            line(format!("  {:+.2}  {}", found.correlation, found.event));
        }
    }
}

fn sensitivity(ace: &Ace) -> String {
    let alpha = ace.alpha.map_or("unknown".to_owned(), |alpha| format!("{alpha:.2}"));
    format!(
        "Near accesses (alpha) {alpha}, share of time on memory (beta) {:.2}, user time over that of one node \
         (gamma) {:.2}; far memory costs {:.2}x by {}.",
        ace.beta, ace.gamma, ace.far.ratio, ace.far.source
    )
}

fn how(out: &mut String, remedy: &Remedy) {
    let mut row = |name: &str, text: &str| {
        let _ = writeln!(out, "  {name:8} {text}");
    };
    row("command", &remedy.command);
    for (at, line) in remedy.systemd.iter().enumerate() {
        row(if at == 0 { "systemd" } else { "" }, line);
    }
    remedy.oci.iter().for_each(|text| row("OCI", text));
    remedy.srun.iter().for_each(|text| row("Slurm", text));
}
