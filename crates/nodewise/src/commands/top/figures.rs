//! The tables as rows of cells, for a screen and for plain text.

use super::state::State;
use crate::output::shown;
use nodewise_linux::census::{BalancingUse, NodeUse, Overview, ProcessUse, RegionUse, ThreadUse};
use std::fmt::Write as _;

/// A table: its head, and rows of as many cells. A cell that does not fit ends in two dots.
pub struct Table<const N: usize> {
    pub head: [&'static str; N],
    /// The least width of each column; below 0 it is aligned to the left.
    pub widths: [i16; N],
    pub rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// The width of each column in so much room, with a blank between two. All that is left goes to the last,
    /// if it is aligned to the left.
    pub fn fit(&self, room: usize) -> [usize; N] {
        let mut widths = self.widths.map(|width| usize::from(width.unsigned_abs()));
        for row in &self.rows {
            for (at, cell) in row.iter().enumerate().filter(|(at, _)| *at + 1 < N && self.widths[*at] > 0) {
                widths[at] = widths[at].max(cell.chars().count());
            }
        }
        let before: usize = widths[..N - 1].iter().map(|width| width + 1).sum();
        if self.widths[N - 1] < 0 {
            widths[N - 1] = widths[N - 1].max(room.saturating_sub(before));
        }
        widths
    }

    /// The head and the rows as lines.
    pub fn lines(&self, room: usize) -> impl Iterator<Item = String> {
        let widths = self.fit(room);
        let head = std::iter::once(self.line(self.head, &widths));
        head.chain(self.rows.iter().map(move |row| self.line(row.each_ref().map(String::as_str), &widths)))
    }

    fn line(&self, cells: [&str; N], widths: &[usize; N]) -> String {
        let mut line = String::new();
        for (at, (cell, &width)) in cells.iter().zip(widths).enumerate() {
            let cell = cut(cell, width);
            // Writing to a string does not fail.
            let _ = match (at + 1 == N, self.widths[at] < 0) {
                (true, true) => write!(line, "{cell}"),
                (true, false) => write!(line, "{cell:>width$}"),
                (false, true) => write!(line, "{cell:width$} "),
                (false, false) => write!(line, "{cell:>width$} "),
            };
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// The text, or as much of it as fits, and dots.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(2)).chain("..".chars().take(width)).collect()
}

/// In three digits and a unit.
pub fn bytes(bytes: f64) -> String {
    let mut value = bytes / 1024.0;
    for unit in ["KiB", "MiB", "GiB"] {
        if value < 1000.0 {
            return if value < 9.95 && unit != "KiB" {
                format!("{value:.1} {unit}")
            } else {
                format!("{value:.0} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

fn or_unknown<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), text)
}

/// Nodes with a share, the largest first, as node:percent.
pub fn shares(shares: Option<&[f64]>, nodes: &[NodeUse]) -> String {
    or_unknown(shares, |shares| {
        let mut parts: Vec<(f64, u32)> =
            shares.iter().copied().zip(nodes.iter().map(|node| node.node.0)).collect();
        parts.retain(|(share, _)| *share >= 0.005);
        parts.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        parts.iter().map(|(share, node)| format!("{node}:{:.0}", 100.0 * share)).collect::<Vec<_>>().join(" ")
    })
}

pub fn nodes(overview: &Overview) -> Table<6> {
    let row = |node: &NodeUse| {
        [
            node.node.to_string(),
            node.cpus.to_string(),
            or_unknown(node.busy_percent, |percent| format!("{percent:.0} %")),
            or_unknown(node.total_bytes, |total| bytes(total as f64)),
            or_unknown(node.free_bytes, |free| bytes(free as f64)),
            or_unknown(node.allocated_from_afar_bytes_per_s, |rate| bytes(rate) + "/s"),
        ]
    };
    Table {
        head: ["node", "CPUs", "busy", "memory", "free", "allocated from afar"],
        widths: [4, 4, 5, 8, 8, 19],
        rows: overview.nodes.iter().map(row).collect(),
    }
}

pub fn processes(overview: &Overview, processes: &[ProcessUse]) -> Table<7> {
    let row = |process: &ProcessUse| {
        [
            process.pid.to_string(),
            shown(&process.program),
            format!("{:.1}", process.cpu_percent),
            bytes(process.resident_bytes as f64),
            or_unknown(process.far_at_least_percent, |percent| format!("{percent:.0} %")),
            shares(process.lies_on.as_deref(), &overview.nodes),
            shares(process.runs_on.as_deref(), &overview.nodes),
        ]
    };
    Table {
        head: ["pid", "program", "CPU %", "memory", "far", "lies on", "runs on"],
        widths: [7, -12, 6, 8, 5, -19, -7],
        rows: processes.iter().map(row).collect(),
    }
}

pub fn threads(threads: &[ThreadUse]) -> Table<4> {
    let row = |thread: &ThreadUse| {
        [
            thread.tid.to_string(),
            format!("{:.1}", thread.cpu_percent),
            or_unknown(thread.node, |node| node.to_string()),
            shown(&thread.name),
        ]
    };
    Table {
        head: ["thread", "CPU %", "node", "name"],
        widths: [7, 6, 4, -15],
        rows: threads.iter().map(row).collect(),
    }
}

pub fn regions(overview: &Overview, regions: &[RegionUse]) -> Table<4> {
    let row = |region: &RegionUse| {
        [
            format!("{:#x}", region.address),
            bytes(region.resident_bytes as f64),
            shares(Some(&region.lies_on), &overview.nodes),
            if region.name.is_empty() { "(anonymous)".to_owned() } else { shown(&region.name) },
        ]
    };
    Table {
        head: ["mapping", "memory", "lies on", "name"],
        widths: [-14, 8, -19, -10],
        rows: regions.iter().map(row).collect(),
    }
}

/// The kernel's balancing in a line.
pub fn balancing(used: &BalancingUse) -> String {
    let near = used.near_percent.map(|percent| format!(", {percent:.0} % near")).unwrap_or_default();
    match used.is_on {
        None => "the kernel has no NUMA balancing".to_owned(),
        Some(is_on) => format!(
            "balancing {}: {:.0} hint faults/s{near}, {}/s moved",
            if is_on { "on" } else { "off" },
            used.hint_faults_per_s,
            bytes(used.moved_bytes_per_s),
        ),
    }
}

/// A process in a line, with what is to be said of the process that is shown alone.
pub fn process(state: &State) -> String {
    let pid = state.process.map(|pid| pid.to_string()).unwrap_or_default();
    let Some(process) = state.shown_process() else { return format!("process {pid} has ended") };
    let far = or_unknown(process.far_at_least_percent, |percent| format!("{percent:.0} %"));
    format!(
        "process {pid}, {}: {:.1} % CPU, {}, far at least {far}",
        shown(&process.program),
        process.cpu_percent,
        bytes(process.resident_bytes as f64),
    )
}

/// All tables as text.
pub fn text(state: &State, width: usize) -> String {
    let Some(overview) = &state.overview else { return String::new() };
    let mut lines = vec![balancing(&overview.balancing), String::new()];
    lines.extend(nodes(overview).lines(0));
    lines.push(String::new());
    if state.process.is_some() {
        let seen = state.shown_process().map_or(&[][..], |process| &process.threads);
        lines.push(process(state));
        lines.extend(threads(seen).lines(width));
        lines.push(String::new());
        lines.extend(regions(overview, &state.regions).lines(width));
    } else {
        lines.extend(processes(overview, state.processes()).lines(width));
    }
    lines.join("\n") + "\n"
}
