//! The report for a terminal.

use super::blocks::Site;
use super::read::Profile;
use super::work;
use crate::commands::top::bytes;
use crate::commands::wrap;
use crate::output::shown;
use anstyle::Style;
use comfy_table::{CellAlignment, Table, presets};
use nodewise_verdict::doctor::Verdict;
use nodewise_verdict::profile::{Findings, LEAST_PERCENT, Line, Remedy, Row};
use std::fmt::Write as _;

/// Rows of the table.
const ROWS: usize = 12;
/// Memory with a smaller share of the accesses is not shown.
const LEAST_SHOWN_PERCENT: f64 = 0.5;

pub fn text(profile: &Profile, findings: &Findings, width: usize) -> String {
    let bold = Style::new().bold();
    let what = shown(profile.title());
    let nodes = profile.seen.nodes.len();
    let plural = if nodes == 1 { "" } else { "s" };
    let mut out = format!(
        "{bold}{what}{bold:#}\n{:.1} s, {nodes} node{plural}, {} samples",
        profile.seconds,
        profile.seen.uses.len()
    );
    // Writing to a string does not fail.
    let _ = match findings.far_percent {
        Some(far) => writeln!(out, ", {far:.0} % of the accesses to another node's memory\n"),
        None => writeln!(out, "\n"),
    };
    let changes = findings.to_change();
    if findings.far_percent.is_none() {
        let _ = writeln!(out, "{}", no_change(profile, findings));
        out.push_str(&sites(profile));
        return out;
    }
    if changes.is_empty() {
        for line in wrap(&no_change(profile, findings), width.min(100)) {
            let _ = writeln!(out, "{line}");
        }
        out.push('\n');
    }
    for (i, row) in changes.iter().enumerate() {
        let (head, body) = words(row, profile);
        let _ = writeln!(out, "{bold}{}. {head}{bold:#}", i + 1);
        for line in wrap(&body, width.min(100).saturating_sub(3)) {
            let _ = writeln!(out, "   {line}");
        }
        out.push('\n');
    }
    out.push_str(&table(profile, findings));
    out.push_str(&lines(profile, findings));
    out.push_str(&work::text(profile));
    out.push_str(&sites(profile));
    out
}

/// The sites that had most memory at a time, the largest first.
pub fn largest(profile: &Profile) -> Vec<&Site> {
    let mut sites: Vec<&Site> = profile.sites.iter().collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.allocated.most_bytes));
    sites.truncate(ROWS);
    sites
}

/// The code that asked for memory, if that was recorded.
fn sites(profile: &Profile) -> String {
    if profile.sites.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["most at a time", "in all", "blocks", "asked for by"]);
    for Site { name, allocated } in largest(profile) {
        let size = |count: u64| bytes(count as f64);
        let name = name.trim_start_matches("site: ").to_owned();
        table.add_row([
            size(allocated.most_bytes),
            size(allocated.bytes),
            allocated.blocks.to_string(),
            name,
        ]);
    }
    for column in 0..3 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let more = match profile.sites.len().saturating_sub(ROWS) {
        0 => String::new(),
        hidden => format!("{hidden} more with less memory: --json\n"),
    };
    format!("\nThe code that asked for large blocks of memory:\n{table}\n{more}")
}

/// The lines that several nodes write, if there are any.
fn lines(profile: &Profile, findings: &Findings) -> String {
    if findings.lines.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["accesses", "used from", "line at", "memory, touched by", "its words"]);
    for line in findings.lines.iter().take(ROWS) {
        table.add_row([
            format!("{:.1} %", line.accesses_percent),
            shares(&line.used_from_percent, &profile.seen.nodes),
            format!("{:#x}", line.address),
            by(&line.memory, &line.touched_by),
            sharing(line).to_owned(),
        ]);
    }
    if let Some(column) = table.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "\nLines that several nodes write, so that they go from cache to cache wherever the page lies:\n{table}\n"
    )
}

/// Whose words are on a line.
pub const fn sharing(line: &Line) -> &'static str {
    if line.is_falsely_shared { "of one node each: pad them" } else { "of several nodes" }
}

fn by(memory: &str, touched_by: &[String]) -> String {
    shown(touched_by.first().map_or_else(|| memory.to_owned(), |site| format!("{memory}, {site}")))
}

/// A share by node, as `node:percent`, without those that have next to nothing.
pub fn shares(percents: &[f64], nodes: &[u32]) -> String {
    let shown = percents.iter().zip(nodes).filter(|(percent, _)| **percent >= 0.5);
    shown.map(|(percent, node)| format!("{node}:{percent:.0}")).collect::<Vec<_>>().join(" ")
}

pub fn percents(counts: &[u64]) -> Vec<f64> {
    let all: f64 = counts.iter().map(|&count| count as f64).sum();
    counts.iter().map(|&count| 100.0 * count as f64 / all.max(1.0)).collect()
}

/// The change to make, and the reason.
pub fn words(row: &Row, profile: &Profile) -> (String, String) {
    let memory = match row.touched_by.first() {
        Some(site) => format!("{}, first touched in {}", shown(&row.memory), shown(site)),
        None => shown(&row.memory),
    };
    let nodes = &profile.seen.nodes;
    let touched = match (row.touching_threads, row.touched_pages.iter().max().copied().unwrap_or(0)) {
        (_, 0) => "Who touched it first was not seen".to_owned(),
        (1, _) => format!(
            "One thread touched it first (node:percent {})",
            shares(&percents(&row.touched_pages), nodes)
        ),
        (threads, _) => {
            format!(
                "{threads} threads touched it first (node:percent {})",
                shares(&percents(&row.touched_pages), nodes)
            )
        }
    };
    let used = shares(&row.used_from_percent, nodes);
    let main_user = row.main_user_percent.unwrap_or(0.0);
    let (head, why, change) = match row.remedy {
        Some(Remedy::TouchInParallel) => (
            "Touch in parallel",
            format!(
                "several nodes use it ({used}), but each part of it has one user, with {main_user:.0} % of the \
                 accesses there"
            ),
            "Have each thread touch first what it will use; or start the program by 'nodewise run', which moves \
             the pages",
        ),
        Some(Remedy::BindThreads) => (
            "Bring thread and memory together",
            format!("one node uses it ({used})"),
            "Have the thread that uses it touch it first, and bind the thread to its node",
        ),
        Some(Remedy::Split) => (
            "Use small pages",
            format!(
                "several nodes use each of its huge pages ({used}), but each part of a page has one user, with \
                 {:.0} % of the accesses there",
                row.part_user_percent.unwrap_or(0.0)
            ),
            "Have it in small pages (madvise with MADV_NOHUGEPAGE), and have each thread touch first what it will \
             use; or start the program by 'nodewise run', which splits huge pages",
        ),
        Some(Remedy::Replicate) => (
            "Give each node a copy",
            format!("all nodes read it ({used}), and hardly anybody writes it"),
            "Copy it to each node, as a nodewise::replicated does; or interleave it",
        ),
        Some(Remedy::Privatise) => (
            "Give each thread its own",
            if row.is_contended() {
                format!(
                    "several nodes write the same lines of it ({used}), and {:.0} % of its accesses take a line \
                     from the node that has just written it",
                    row.taken_percent
                )
            } else {
                format!("it is small, and several nodes write it ({used})")
            },
            "Give each thread a part of its own on lines of its own, as a nodewise::per_worker does",
        ),
        Some(Remedy::Interleave) | None => (
            "Interleave",
            format!("all nodes use all of it ({used}), and few nodes' memory serves it"),
            "Interleave it over the nodes (mbind, or 'nodewise run --interleave all')",
        ),
    };
    (
        format!("{head}: {memory}"),
        format!(
            "{touched}; {why}. {:.0} % of its accesses are far. {change}. That saves {}.",
            row.far_percent,
            gain(row)
        ),
    )
}

/// The gain, for the end of a sentence.
fn gain(row: &Row) -> String {
    /// Points between two figures that count as one.
    const ALIKE: f64 = 5.0;
    let gain = row.gain_percent.unwrap_or(0.0);
    match row.slowest_gain_percent {
        None => format!("up to {gain:.0} % of the time"),
        Some(slowest) if slowest < gain + ALIKE => format!("about {gain:.0} % of the time"),
        Some(slowest) => format!(
            "about {:.0} % of the CPUs' time, and {slowest:.0} % where all wait for the slowest node",
            gain.max(0.0)
        ),
    }
}

pub const fn name(remedy: Option<Remedy>) -> &'static str {
    match remedy {
        Some(Remedy::TouchInParallel) => "touch in parallel",
        Some(Remedy::BindThreads) => "bind threads",
        Some(Remedy::Split) => "use small pages",
        Some(Remedy::Replicate) => "replicate",
        Some(Remedy::Privatise) => "privatise",
        Some(Remedy::Interleave) => "interleave",
        None => "",
    }
}

/// Why there is no change to make.
pub fn no_change(profile: &Profile, findings: &Findings) -> String {
    if profile.seen.uses.is_empty() {
        "No access to memory was sampled, so that nothing can be told.".to_owned()
    } else if findings.far_percent.is_none() {
        "No sample tells where its memory is, so that nothing can be told.".to_owned()
    } else if findings.verdict() == Verdict::Unknown {
        format!(
            "Cannot tell: what was sampled too seldom to say who uses it may cost up to {:.0} % of the time. \
             Record for longer.",
            findings.unjudged_gain_percent
        )
    } else {
        let part = if profile.unseen_files.is_some() { ", of the memory that was seen" } else { "" };
        format!("Nothing to do here{part}: no change would save {LEAST_PERCENT:.0} % of the time.")
    }
}

/// Whatever is not known of where memory is, in sentences.
pub fn unknown(profile: &Profile, findings: &Findings) -> String {
    const LEAST_PERCENT: f64 = 0.5;
    let mut out = String::new();
    for (percent, what) in [
        (
            findings.unknown_far_percent,
            if profile.is_perfs {
                "of the accesses go to another node's memory, and nothing tells which (\"?\"). Physical addresses \
                 would: record with --phys-data."
            } else {
                "of the accesses go to another node's memory, and nothing tells which (\"?\"): it was gone when it \
                 was asked for."
            },
        ),
        (
            findings.unknown_home_percent,
            "of the samples do not tell where the memory is, and are not counted.",
        ),
    ] {
        if percent >= LEAST_PERCENT {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{percent:.0} % {what}");
        }
    }
    if let Some((files, most)) = profile.unseen_files.as_ref().and_then(|files| Some((files, files.most()?)))
    {
        let _ = writeln!(
            out,
            "{} MiB of files that are only read gave no samples: hint faults do not tell who uses them. {:.0} % of \
             them lie on node {}.",
            files.bytes >> 20,
            most.percent,
            most.node
        );
    }
    out
}

/// The nodes that have some memory, as [`shares`]; `?` for the rest that is on unknown ones.
pub fn lies_on(row: &Row, nodes: &[u32]) -> String {
    let known: f64 = row.lies_on_percent.iter().sum();
    let shares = shares(&row.lies_on_percent, nodes);
    let rest = 100.0 - known;
    // Caches alone may have served it.
    let is_served = row.accesses_percent > 0.0 && row.taken_percent < 100.0;
    if !is_served || rest < 0.5 { shares } else { format!("{shares} ?:{rest:.0}").trim().to_owned() }
}

/// The meaning of a sample.
pub const fn samples_are(profile: &Profile) -> &'static str {
    if profile.counts_accesses {
        "Samples are accesses that the node's own caches did not serve."
    } else {
        "Samples are hint faults: of each page in use, whoever came first after the kernel had marked it."
    }
}

fn table(profile: &Profile, findings: &Findings) -> String {
    let nodes = &profile.seen.nodes;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "accesses",
        "far",
        "lies on",
        "used from",
        "touched from",
        "memory, touched by",
        "change",
    ]);
    let shown = findings.rows.iter().filter(|row| row.accesses_percent >= LEAST_SHOWN_PERCENT).take(ROWS);
    for row in shown.clone() {
        table.add_row([
            format!("{:.1} %", row.accesses_percent),
            format!("{:.0} %", row.far_percent),
            lies_on(row, nodes),
            shares(&row.used_from_percent, nodes),
            shares(&percents(&row.touched_pages), nodes),
            by(&row.memory, &row.touched_by),
            name(row.remedy).to_owned(),
        ]);
    }
    for column in [0, 1] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let hidden = findings.rows.len() - shown.count();
    let more =
        if hidden == 0 { String::new() } else { format!("{hidden} more with fewer accesses: --json\n") };
    let what = samples_are(profile);
    let unknown = unknown(profile, findings);
    let counted = profile.counted.as_ref().map_or_else(String::new, |counted| counted.words() + "\n");
    format!(
        "{table}\n{more}Shares by node are node:percent. Costs are by {}.\n{what}\n{unknown}{counted}",
        crate::output::shown(&profile.ratios_by)
    )
}

/// Two recordings: what each memory was, and has become.
pub fn beside(before: (&Profile, &Findings), after: (&Profile, &Findings)) -> String {
    let mut out = String::new();
    for (word, (profile, findings)) in [("before", before), ("after", after)] {
        let what = shown(profile.title());
        let far = findings.far_percent.map_or("none".to_owned(), |far| format!("{far:.0} % far"));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{word:7}{what}: {:.1} s, {} samples, {far}",
            profile.seconds,
            profile.seen.uses.len()
        );
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["accesses", "after", "far", "after", "memory, touched by", "change", "after"]);
    let mut left: Vec<&Row> = after.1.rows.iter().collect();
    let is_shown = |row: &Row| row.accesses_percent >= LEAST_SHOWN_PERCENT;
    let mut rows: Vec<(Option<&Row>, Option<&Row>)> = Vec::new();
    for row in &before.1.rows {
        let now = left.iter().position(|now| is_same(row, now)).map(|at| left.remove(at));
        rows.push((Some(row), now));
    }
    rows.extend(left.into_iter().map(|now| (None, Some(now))));
    rows.retain(|(was, now)| was.is_some_and(is_shown) || now.is_some_and(is_shown));
    for (was, now) in rows.into_iter().take(ROWS) {
        let Some(row) = now.or(was) else { continue };
        let percent = |row: Option<&Row>, of: fn(&Row) -> f64, digits: usize| {
            row.map_or_else(|| "-".to_owned(), |row| format!("{:.digits$} %", of(row)))
        };
        let by = by(&row.memory, &row.touched_by);
        let change = |row: Option<&Row>| row.map_or("-", |row| name(row.remedy)).to_owned();
        table.add_row([
            percent(was, |row| row.accesses_percent, 1),
            percent(now, |row| row.accesses_percent, 1),
            percent(was, |row| row.far_percent, 0),
            percent(now, |row| row.far_percent, 0),
            by,
            change(was),
            change(now),
        ]);
    }
    for column in 0..4 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{out}\n{table}\n")
}

/// Whether it is the same memory in two recordings. Lines of code move when a program is changed, and so do
/// addresses: the function's name has to do.
fn is_same(one: &Row, other: &Row) -> bool {
    let function = |row: &Row| Some(without_line(row.touched_by.first()?).to_owned());
    let memory = |row: &Row| -> Vec<String> {
        let by = row.allocated.iter().flat_map(|allocated| &allocated.by);
        let by = by.map(|by| without_line(by).to_owned()).collect();
        if row.allocated.is_some() { by } else { vec![row.memory.clone()] }
    };
    memory(one) == memory(other) && function(one) == function(other)
}

fn without_line(place: &str) -> &str {
    place.split_once(" (").map_or(place, |(function, _)| function)
}
