//! The report as one page that loads nothing.

use super::read::Profile;
use super::text::{
    largest, lies_on, name, no_change, percents, samples_are, shares, sharing, unknown, words,
};
use super::{machine, over_time, threads, work};
use nodewise_verdict::doctor::Verdict;
use nodewise_verdict::html::{STYLE, escaped};
use nodewise_verdict::profile::{Findings, Row};
use std::fmt::Write as _;

/// More style, beside the common one.
const OWN_STYLE: &str = include_str!("page.css");
/// Sorts and filters the table. All of the page can be read without.
const SCRIPT: &str = include_str!("page.js");

/// Memory with a smaller share of the accesses is not shown.
const LEAST_SHOWN_PERCENT: f64 = 0.05;
/// Memory that has a map, the most used first.
const MAPS: usize = 4;
/// Parts of the time in a map.
const COLUMNS: usize = 60;
/// Parts of the memory in a map.
const LINES: usize = 32;
/// Sizes of a map.
const CELL: f64 = 12.0;
const STRIP: f64 = 30.0;

pub fn html(profile: &Profile, findings: &Findings) -> String {
    let what = escaped(&profile.title());
    let changes = findings.to_change();
    let (kind, verdict) = match (findings.verdict(), changes.len()) {
        (Verdict::Unknown, _) => ("unknown", no_change(profile, findings)),
        (Verdict::Healthy, _) => ("healthy", no_change(profile, findings)),
        (Verdict::Hurt, 1) => ("hurt", "One change would help.".to_owned()),
        (Verdict::Hurt, count) => ("hurt", format!("{count} changes would help.")),
    };
    let far = findings.far_percent.map_or(String::new(), |far| format!(", {far:.0} % of the accesses far"));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>nodewise report: {what}</title>\n<style>\n{STYLE}{OWN_STYLE}</style>\n</head>\n<body>\n\
         <h1><code>{what}</code></h1>\n<p class=\"faint\">{:.1} s, {} nodes, {} samples{far}</p>\n\
         <p class=\"answer {kind}\"><strong>{verdict}</strong></p>\n",
        profile.seconds,
        profile.seen.nodes.len(),
        profile.seen.uses.len()
    );
    if !changes.is_empty() {
        out.push_str("<ol>\n");
    }
    for row in &changes {
        let (head, body) = words(row, profile);
        let _ = writeln!(out, "<li><strong>{}</strong><br>{}</li>", escaped(&head), escaped(&body));
    }
    if !changes.is_empty() {
        out.push_str("</ol>\n");
    }
    table(&mut out, profile, findings);
    lines(&mut out, profile, findings);
    sites(&mut out, profile);
    traffic(&mut out, profile, findings);
    threads::html(&mut out, &profile.threads, &profile.seen.nodes);
    work::html(&mut out, profile);
    over_time::html(&mut out, &profile.moments, samples_are(profile));
    maps(&mut out, profile, findings);
    let _ = write!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

fn table(out: &mut String, profile: &Profile, findings: &Findings) {
    let nodes = &profile.seen.nodes;
    out.push_str(
        "<h2>Memory</h2>\n<p><label>Filter <input id=\"filter\" type=\"search\" \
         placeholder=\"function, file, change\"></label></p>\n\
         <div class=\"scroll\"><table id=\"memory\">\n<thead><tr>",
    );
    for (head, title) in [
        ("memory, touched by", "its mapping, and the code that touched it first"),
        ("change", "the change to make"),
        ("saves %", "of the time, at most"),
        ("accesses %", "its share of all sampled accesses"),
        ("far %", "its accesses to another node's memory"),
        ("used from", "node:percent of its accesses that come from there"),
        ("lies on", "node:percent of its accesses that are served there"),
        ("touched from", "node:percent of its pages that were touched first from there"),
    ] {
        let _ = write!(out, "<th><button title=\"{}\">{head}</button></th>", escaped(title));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let shown = findings.rows.iter().filter(|row| row.accesses_percent >= LEAST_SHOWN_PERCENT);
    for row in shown.clone() {
        let by = touched_by(&row.touched_by);
        let gain = row.gain_percent.map_or(String::new(), |_| format!("{:.0}", row.best_gain_percent()));
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}{by}</td><td>{}</td><td>{gain}</td><td>{:.1}</td><td>{:.0}</td>\
             <td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&row.memory),
            name(row.remedy),
            row.accesses_percent,
            row.far_percent,
            shares(&row.used_from_percent, nodes),
            lies_on(row, nodes),
            shares(&percents(&row.touched_pages), nodes)
        );
    }
    let hidden = findings.rows.len() - shown.count();
    let more = if hidden == 0 { String::new() } else { format!(" {hidden} more have hardly any accesses.") };
    let _ = writeln!(
        out,
        "</tbody>\n</table></div>\n<p class=\"faint\">{} Costs are by {}.{more} {}</p>",
        samples_are(profile),
        escaped(&profile.ratios_by),
        escaped(unknown(profile, findings).trim_end())
    );
}

/// Lines that go from cache to cache.
fn lines(out: &mut String, profile: &Profile, findings: &Findings) {
    if findings.lines.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Lines that several nodes write</h2>\n<p>They go from cache to cache, wherever the page lies.</p>\n\
         <div class=\"scroll\"><table>\n<thead><tr><th>memory, touched by</th><th>line at</th>\
         <th>its words</th><th>accesses %</th><th>used from</th></tr></thead>\n<tbody>\n",
    );
    for line in &findings.lines {
        let _ = writeln!(
            out,
            "<tr><td class=\"text\">{}{}</td><td><code>{:#x}</code></td><td>{}</td><td>{:.1}</td><td>{}</td></tr>",
            escaped(&line.memory),
            touched_by(&line.touched_by),
            line.address,
            sharing(line),
            line.accesses_percent,
            shares(&line.used_from_percent, &profile.seen.nodes)
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

/// The code that asked for memory.
fn sites(out: &mut String, profile: &Profile) {
    if profile.sites.is_empty() {
        return;
    }
    out.push_str(
        "<h2>The code that asked for large blocks</h2>\n<div class=\"scroll\"><table>\n<thead><tr>\
         <th>asked for by</th><th>most KiB at a time</th><th>KiB in all</th><th>blocks</th></tr></thead>\n<tbody>\n",
    );
    for site in largest(profile) {
        let allocated = &site.allocated;
        let _ = writeln!(
            out,
            "<tr><td class=\"text\"><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&allocated.by.join(", called by ")),
            allocated.most_bytes / 1024,
            allocated.bytes / 1024,
            allocated.blocks
        );
    }
    out.push_str("</tbody>\n</table></div>\n");
}

fn touched_by(chain: &[String]) -> String {
    if chain.is_empty() {
        return String::new();
    }
    format!("<br><code>{}</code>", escaped(&chain.join(", called by ")))
}

/// Accesses from each node to each node's memory.
fn traffic(out: &mut String, profile: &Profile, findings: &Findings) {
    if findings.far_percent.is_none() {
        return;
    }
    let nodes = &profile.seen.nodes;
    out.push_str("<h2>Traffic</h2>\n");
    heat(out, nodes, &findings.traffic_percent, "percent of all accesses");
    machine::html(out, nodes, &findings.traffic_percent);
    if let Some(counted) = &profile.counted {
        let _ = writeln!(out, "<p>{}</p>", escaped(&counted.words()));
        let (traffic, whose) = match &counted.user_traffic_percent {
            Some(traffic) => (traffic, "percent, all programs, counted"),
            None => (&counted.traffic_percent, "percent, whole machine, counted"),
        };
        heat(out, nodes, traffic, whose);
    }
}

/// A table of shares of traffic from each node to each node's memory.
fn heat(out: &mut String, nodes: &[u32], traffic_percent: &[Vec<f64>], head: &str) {
    let _ = write!(out, "<div class=\"scroll\"><table class=\"heat\">\n<thead><tr><th>{head}</th>");
    for node in nodes {
        let _ = write!(out, "<th>to node {node}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let most = traffic_percent.iter().flatten().copied().fold(0.0, f64::max);
    for (node, row) in nodes.iter().zip(traffic_percent) {
        let _ = write!(out, "<tr><td>from node {node}</td>");
        for percent in row {
            let shade = 60.0 * percent / most.max(1e-9);
            let _ = write!(
                out,
                "<td style=\"background: color-mix(in srgb, var(--bad) {shade:.0}%, var(--paper))\">{percent:.1}</td>"
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
}

/// Some memory over time: which node uses each part of it, and where that lies.
fn maps(out: &mut String, profile: &Profile, findings: &Findings) {
    let seen = &profile.seen;
    let (Some(&first), Some(&last)) = (profile.times_ns.iter().min(), profile.times_ns.iter().max()) else {
        return;
    };
    let length = (last - first).max(1) as f64;
    out.push_str("<h2>Who uses which part, when</h2>\n<p class=\"legend\">");
    for (index, node) in seen.nodes.iter().enumerate() {
        let color = color(index, seen.nodes.len());
        let _ = write!(out, "<span><i style=\"background: {color}\"></i>node {node}</span> ");
    }
    out.push_str("</p>\n");
    let is_row = |row: &Row, object: usize| {
        let object = &seen.objects[object];
        (&object.name, &object.touched_by) == (&row.memory, &row.touched_by)
    };
    for row in findings.rows.iter().take(MAPS) {
        let Some(number) = (0..seen.objects.len()).find(|&object| is_row(row, object)) else { continue };
        let of_it =
            || seen.uses.iter().zip(&profile.times_ns).filter(|(one, _)| one.object as usize == number);
        let mut pages: Vec<u64> = of_it().map(|(one, _)| one.page).collect();
        pages.sort_unstable();
        pages.dedup();
        let nodes = seen.nodes.len();
        let mut users = vec![vec![0_u32; nodes]; LINES * COLUMNS];
        let mut homes = vec![vec![0_u32; nodes]; LINES];
        for (one, &time) in of_it() {
            let line = pages.partition_point(|&page| page < one.page) * LINES / pages.len();
            let column = ((time - first) as f64 / length * COLUMNS as f64) as usize;
            if let Some(count) =
                users[line * COLUMNS + column.min(COLUMNS - 1)].get_mut(usize::from(one.from))
            {
                *count += 1;
            }
            if let Some(count) = one.home.and_then(|home| homes[line].get_mut(usize::from(home))) {
                *count += 1;
            }
        }
        let by = row.touched_by.first().map_or(String::new(), |by| format!(", first touched in {by}"));
        let title = escaped(&format!("{}{by}", row.memory));
        let (width, height) = (STRIP + COLUMNS as f64 * CELL, LINES as f64 * CELL / 2.0);
        let _ = writeln!(
            out,
            "<figure>\n<figcaption>{title}: {} pages that were seen in use, from low to high addresses. \
             The strip at the left \
             is where they lie, the rest is who used them, from 0 to {:.1} s.</figcaption>\n\
             <svg class=\"map\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">",
            pages.len(),
            length / 1e9
        );
        for (line, homes) in homes.iter().enumerate() {
            cell(out, homes, 0.0, line, STRIP - 6.0);
        }
        for (at, users) in users.iter().enumerate() {
            cell(out, users, STRIP + (at % COLUMNS) as f64 * CELL, at / COLUMNS, CELL);
        }
        out.push_str("</svg>\n</figure>\n");
    }
}

/// The node with the largest part, the fainter the smaller that is.
fn cell(out: &mut String, counts: &[u32], x: f64, line: usize, width: f64) {
    let all: u32 = counts.iter().sum();
    let Some((most, &count)) = counts.iter().enumerate().max_by_key(|(_, count)| **count) else { return };
    if count > 0 {
        let (color, opacity) = (color(most, counts.len()), f64::from(count) / f64::from(all));
        let (y, height) = (line as f64 * CELL / 2.0, CELL / 2.0);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             style=\"fill: {color}; opacity: {opacity:.2}\"/>"
        );
    }
}

fn color(node: usize, nodes: usize) -> String {
    format!("hsl({:.0} 65% 50%)", 210.0 + 360.0 * node as f64 / nodes as f64)
}
