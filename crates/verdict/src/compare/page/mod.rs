//! The report as one page that loads nothing, for light and dark screens and for paper.

use super::remedy::{Remedy, quoted};
use super::{Kind, Report, Row};
use crate::html::{STYLE, escaped};
use std::fmt::Write as _;

/// Sizes of the picture.
const WIDTH: f64 = 960.0;
const NAMES: f64 = 140.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 24.0;

/// The page.
#[must_use]
pub fn html(report: &Report) -> String {
    let setting = &report.setting;
    let command = escaped(&quoted(&setting.command));
    let (kind, verdict) = match report.answer.verdict {
        Kind::Hurt => ("hurt", "NUMA hurts"),
        Kind::Healthy => ("healthy", "NUMA does not hurt"),
        Kind::Unknown => ("unknown", "Cannot tell"),
    };
    let direction = if setting.less_is_better { "less is better" } else { "more is better" };
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>nodewise compare: {command}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1><code>{command}</code></h1>\n<p class=\"faint\">{}<br>Metric: {}, {direction}. {} blocks of runs, each in \
         a random order (seed {}).</p>\n<p class=\"answer {kind}\"><strong>{verdict}.</strong> {}</p>\n",
        escaped(&setting.machine),
        escaped(&setting.metric),
        report.blocks,
        report.seed,
        escaped(&report.answer.text)
    );
    if !report.answer.as_good.is_empty() {
        let others = report.answer.as_good.join(", ");
        let _ = writeln!(out, "<p>As good, as far as can be told: {}.</p>", escaped(&others));
    }
    if let Some(how) = &report.answer.remedy {
        remedy(&mut out, how);
    }
    if !report.runs.is_empty() {
        picture(&mut out, report);
    }
    placements(&mut out, report);
    evidence(&mut out, report);
    out.push_str("</body>\n</html>\n");
    out
}

fn remedy(out: &mut String, how: &Remedy) {
    out.push_str("<h2>The change</h2>\n");
    let systemd = how.systemd.join("\n");
    let ways = [
        ("Command line", Some(&how.command)),
        ("systemd, section [Service]", Some(&systemd).filter(|lines| !lines.is_empty())),
        ("Container (OCI config.json)", how.oci.as_ref()),
        ("Slurm", how.srun.as_ref()),
    ];
    for (name, text) in ways {
        if let Some(text) = text {
            let _ = writeln!(out, "<p class=\"faint\">{name}</p>\n<pre>{}</pre>", escaped(text));
        }
    }
}

/// How a row is drawn.
fn class(row: &Row) -> &'static str {
    match row {
        row if row.is_better() => "good",
        row if row.differs() && row.speedup() < 1.0 => "bad",
        _ => "same",
    }
}

/// Every run, and the median with its interval, of each placement.
fn picture(out: &mut String, report: &Report) {
    let values = || report.runs.iter().map(|run| run.measured.value);
    let most = 1.05 * values().fold(0.0, f64::max);
    let x = |value: f64| NAMES + (WIDTH - NAMES - 20.0) * value / most;
    let height = HEAD + ROW * report.placements.len() as f64 + 8.0;
    let metric = escaped(&report.setting.metric);
    let _ = write!(
        out,
        "<h2>Runs</h2>\n<figure>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{metric} by placement\">\n"
    );
    let step = round_step(most / 6.0);
    for tick in (0..=6).map(|count| step * f64::from(count)).filter(|&tick| tick <= most) {
        let at = x(tick);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{HEAD}\" y2=\"{height}\"/>\
             <text class=\"axis\" x=\"{at:.1}\" y=\"14\" text-anchor=\"middle\">{}</text>",
            figure(tick)
        );
    }
    if let Some(default) = report.placements.first() {
        let at = x(default.value.median);
        let _ = writeln!(
            out,
            "<line class=\"default\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{HEAD}\" y2=\"{height}\"/>"
        );
    }
    for (at, row) in report.placements.iter().enumerate() {
        let (y, class, name) = (HEAD + ROW * (at as f64 + 0.5), class(row), &row.placement.name);
        let _ = writeln!(out, "<text x=\"0\" y=\"{:.1}\">{}</text>", y + 4.0, escaped(name));
        for run in report.runs.iter().filter(|run| run.placement == *name) {
            let value = run.measured.value;
            let _ = writeln!(
                out,
                "<circle class=\"run {class}\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{name}, block {}: {}</title></circle>",
                x(value),
                run.block + 1,
                figure(value)
            );
        }
        let (low, high, middle) = (x(row.value.low), x(row.value.high), x(row.value.median));
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke-width=\"2\"/>\
             <line class=\"{class}\" x1=\"{middle:.1}\" x2=\"{middle:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke-width=\"3\"/>",
            y - 8.0,
            y + 8.0
        );
    }
    let _ = writeln!(
        out,
        "</svg>\n<figcaption>{metric}: each run, and the median with its interval. Dashed: the default. Green is \
         better than it and red worse, by more than chance.</figcaption>\n</figure>"
    );
}

/// The nearest of 1, 2 and 5 times a power of ten that is no smaller.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

fn placements(out: &mut String, report: &Report) {
    let sure = report.placements.iter().map(|row| row.value.confidence_percent).fold(95.0, f64::min);
    let _ = write!(
        out,
        "<h2>Placements</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>placement</th><th>runs</th><th>median</th>\
         <th>{sure:.0} % interval</th><th>times better</th><th>{sure:.0} % interval</th><th>p</th><th>user s</th>\
         <th>kernel s</th></tr></thead>\n<tbody>\n"
    );
    for row in &report.placements {
        let (value, class) = (&row.value, class(row));
        let against = row.against.map_or("<td></td><td></td><td></td>".to_owned(), |against| {
            let speedup = against.speedup;
            format!(
                "<td class=\"{class}\">{:.2}</td><td>{:.2} .. {:.2}</td><td>{:.4}</td>",
                speedup.median, speedup.low, speedup.high, against.p_corrected
            )
        });
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{} .. {}</td>{against}<td>{:.2}</td><td>{:.2}</td></tr>",
            escaped(&row.placement.name),
            row.runs,
            figure(value.median),
            figure(value.low),
            figure(value.high),
            row.user_seconds,
            row.system_seconds
        );
    }
    for skipped in &report.skipped {
        let (name, why) = (escaped(&skipped.name), escaped(&skipped.why));
        let _ = writeln!(out, "<tr><td>{name}</td><td class=\"text\" colspan=\"8\">skipped: {why}</td></tr>");
    }
    out.push_str(
        "</tbody>\n</table></div>\n<p class=\"faint\">p is corrected for all placements together.</p>\n",
    );
}

fn evidence(out: &mut String, report: &Report) {
    let mut lines: Vec<String> = report.note_on_cpus().map(str::to_owned).into_iter().collect();
    if let Some(far) = &report.far {
        let slowdown = far.slowdown;
        lines.push(format!(
            "Far memory alone makes it {:.2}x slower ({:.2} .. {:.2}, p {:.4}).",
            slowdown.median, slowdown.low, slowdown.high, far.p
        ));
    }
    if let Some(ace) = &report.ace {
        let alpha = ace.alpha.map_or("unknown".to_owned(), |alpha| format!("{alpha:.2}"));
        lines.push(format!(
            "By the ACE paper's model: share of near accesses (alpha) {alpha}, share of time on memory (beta) {:.2}, \
             user time over that of one node (gamma) {:.2}. Far memory costs {:.2}x by {}.",
            ace.beta, ace.gamma, ace.far.ratio, ace.far.source
        ));
    }
    if let Some(cost) = &report.migrations {
        lines.push(format!(
            "The kernel's balancing moves {:.0} pages a run, adds {:.2} s in the kernel, and changes user time by \
             {:+.2} s.",
            cost.pages, cost.system_seconds, cost.user_seconds
        ));
    }
    if !lines.is_empty() || !report.correlations.is_empty() {
        out.push_str("<h2>Evidence</h2>\n");
    }
    for line in lines {
        let _ = writeln!(out, "<p>{}</p>", escaped(&line));
    }
    if report.correlations.is_empty() {
        return;
    }
    let metric = escaped(&report.setting.metric);
    let _ = writeln!(
        out,
        "<div class=\"scroll\"><table>\n<thead><tr><th>event</th><th>rank correlation with {metric}</th></tr></thead>\n<tbody>"
    );
    for found in &report.correlations {
        let _ =
            writeln!(out, "<tr><td>{}</td><td>{:+.2}</td></tr>", escaped(&found.event), found.correlation);
    }
    out.push_str("</tbody>\n</table></div>\n");
}

/// Four digits that count.
fn figure(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 6.0);
    let text = format!("{value:.*}", digits as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Setting};
    use super::*;

    #[test]
    fn what_a_command_holds_is_text_and_nothing_is_loaded() {
        let report = Report {
            setting: Setting {
                command: vec!["./x".to_owned(), "<script>alert(1)</script>".to_owned()],
                metric: "a&b".to_owned(),
                less_is_better: true,
                machine: String::new(),
                nodes: 2,
            },
            answer: Answer {
                verdict: Kind::Unknown,
                text: "\"quoted\"".to_owned(),
                winner: None,
                speedup: None,
                as_good: Vec::new(),
                remedy: None,
            },
            blocks: 0,
            seed: 1,
            placements: Vec::new(),
            skipped: Vec::new(),
            own_cpus: false,
            far: None,
            ace: None,
            migrations: None,
            correlations: Vec::new(),
            runs: Vec::new(),
        };
        let page = html(&report);
        assert!(
            !page.contains("<script") && page.contains("&lt;script&gt;") && page.contains("a&amp;b"),
            "{page}"
        );
        for loading in ["http:", "https:", "src=", "url(", "@import"] {
            assert!(!page.contains(loading), "{loading}");
        }
    }

    #[test]
    fn ticks_are_round() {
        let steps = [0.9, 1.0, 1.1, 3.0, 7.0, 42.0].map(round_step).map(figure);
        assert_eq!(steps, ["1", "1", "2", "5", "10", "50"]);
        assert_eq!([0.0, 0.012_345, 1.5, 1234.5].map(figure), ["0", "0.01235", "1.5", "1234"]);
    }
}
