//! The figures as tables, warm where memory is slow.

use anstyle::{AnsiColor, Style};
use nodewise_measure::{Bandwidth, Figure, Results, Traffic};
use std::fmt::Write as _;

/// A table's cell: the median, and its spread in percent.
const CELL_WIDTH: usize = 18;
const NAME_WIDTH: usize = 24;

/// Which figures of a table are good.
#[derive(Clone, Copy, PartialEq)]
enum Heat {
    /// Low ones.
    Latency,
    /// High ones.
    Bandwidth,
    /// Figures of a table whose rows differ by nature.
    None,
}

/// All that was measured, in lines of up to `width` characters.
pub fn text(results: &Results, width: usize) -> String {
    let mut out = head(results);
    let pairs = pairs(results);
    let pair_names: Vec<String> = pairs.iter().map(|(cpus, memory)| format!("{cpus} -> {memory}")).collect();
    let mut table = Tables { out: &mut out, width };
    latencies(&mut table, results);
    if !results.page_latency.is_empty() {
        let names: Vec<String> =
            results.page_latency.iter().map(|row| format!("{} KiB", row.page_bytes >> 10)).collect();
        let title = "Idle latency of the nearest memory in ns, by size of pages, misses of the TLB included";
        table.add(title, &names, &one(), Heat::Latency, |row, _| Some(results.page_latency[row].latency_ns));
    }
    if !results.peak.is_empty() {
        let names: Vec<String> =
            results.peak.iter().map(|row| traffic_name(row.traffic, row.non_temporal)).collect();
        table.add(
            "Bandwidth of all CPUs, each on the memory nearest to it, in MB/s",
            &names,
            &one(),
            Heat::None,
            |row, _| Some(results.peak[row].bandwidth_mb_per_s),
        );
    }
    bandwidths(&mut table, results, &pairs, &pair_names);
    if !results.all_cpus.is_empty() {
        let name = |node: Option<u32>| node.map_or("interleaved".to_owned(), |node| format!("node {node}"));
        let names: Vec<String> = results.all_cpus.iter().map(|row| name(row.memory_node)).collect();
        table.add(
            "Bandwidth of reads by all CPUs at once, by the memory's node, in MB/s",
            &names,
            &one(),
            Heat::Bandwidth,
            |row, _| Some(results.all_cpus[row].bandwidth_mb_per_s),
        );
    }
    if !results.loaded_latency.is_empty() {
        let names: Vec<String> =
            results.loaded_latency.iter().map(|row| format!("pause of {}", row.pause_cycles)).collect();
        let columns = ["latency, ns".to_owned(), "reads, MB/s".to_owned()];
        let title = "Latency while all other CPUs read, with a pause of so many cycles after each line";
        table.add(title, &names, &columns, Heat::None, |row, column| {
            let row = &results.loaded_latency[row];
            Some(if column == 0 { row.latency_ns } else { row.bandwidth_mb_per_s })
        });
    }
    transfers(&mut table, results);
    out
}

fn head(results: &Results) -> String {
    let mut out = String::new();
    for node in &results.nodes {
        let plural = if node.cpus == 1 { "" } else { "s" };
        let (id, cpus, mebibytes) = (node.id, node.cpus, node.memory_bytes >> 20);
        // Writing to a string does not fail.
        let _ = writeln!(out, "node {id}: {cpus} CPU{plural}, {mebibytes} MiB");
    }
    let (buffer, page) = (results.buffer_bytes >> 20, results.page_bytes >> 10);
    let governor = results.governor.as_deref().unwrap_or("unknown");
    let _ = writeln!(
        out,
        "measured with {buffer} MiB of each node, in pages of {page} KiB; frequency governor: {governor}"
    );
    for note in &results.notes {
        let _ = writeln!(out, "note: {note}");
    }
    let _ =
        writeln!(out, "Each figure is a median. Half the distance between the quartiles follows in percent.");
    out
}

/// The pairs of nodes whose bandwidth was measured.
fn pairs(results: &Results) -> Vec<(u32, u32)> {
    let mut pairs: Vec<_> = results.bandwidth.iter().map(|row| (row.cpu_node, row.memory_node)).collect();
    pairs.dedup();
    pairs
}

fn traffic_name(traffic: Traffic, non_temporal: bool) -> String {
    if non_temporal { format!("{traffic}, non-temporal") } else { traffic.to_string() }
}

fn one() -> [String; 1] {
    [String::new()]
}

fn latencies(table: &mut Tables<'_>, results: &Results) {
    if results.idle_latency.is_empty() {
        return;
    }
    let node = |node: &u32| format!("node {node}");
    let mut rows: Vec<u32> = results.idle_latency.iter().map(|row| row.cpu_node).collect();
    rows.dedup();
    let mut columns: Vec<u32> = results.idle_latency.iter().map(|row| row.memory_node).collect();
    columns.sort_unstable();
    columns.dedup();
    let names: Vec<String> = rows.iter().map(node).collect();
    let column_names: Vec<String> = columns.iter().map(node).collect();
    let title = "Idle latency in ns, from the CPUs of a node (rows) to the memory of a node (columns)";
    table.add(title, &names, &column_names, Heat::Latency, |row, column| {
        results.latency_ns(rows[row], columns[column])
    });
}

fn bandwidths(table: &mut Tables<'_>, results: &Results, pairs: &[(u32, u32)], names: &[String]) {
    if pairs.is_empty() {
        return;
    }
    let figure = |pair: (u32, u32), is_row: &dyn Fn(&Bandwidth) -> bool| {
        let here = |row: &&Bandwidth| (row.cpu_node, row.memory_node) == pair && is_row(row);
        results.bandwidth.iter().find(here).map(|row| row.bandwidth_mb_per_s)
    };
    let reads = |row: &&Bandwidth| row.traffic == Traffic::Reads;
    let mut threads: Vec<usize> = results.bandwidth.iter().filter(reads).map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let rows: Vec<String> = threads
        .iter()
        .map(|&count| if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") })
        .collect();
    let title = "Bandwidth of reads in MB/s, from the CPUs of a node -> to the memory of a node";
    table.add(title, &rows, names, Heat::Bandwidth, |row, column| {
        figure(pairs[column], &|of: &Bandwidth| of.traffic == Traffic::Reads && of.threads == threads[row])
    });
    let mut kinds: Vec<(Traffic, bool)> = Vec::new();
    for row in results.bandwidth.iter().filter(|row| row.traffic.writes()) {
        if !kinds.contains(&(row.traffic, row.non_temporal)) {
            kinds.push((row.traffic, row.non_temporal));
        }
    }
    let rows: Vec<String> = kinds.iter().map(|&(traffic, past)| traffic_name(traffic, past)).collect();
    let title = "Bandwidth of reads and writes in MB/s, by all CPUs of a node -> to the memory of a node";
    table.add(title, &rows, names, Heat::None, |row, column| {
        figure(pairs[column], &|of: &Bandwidth| (of.traffic, of.non_temporal) == kinds[row])
    });
}

fn transfers(table: &mut Tables<'_>, results: &Results) {
    if results.cache_to_cache.is_empty() {
        return;
    }
    let names: Vec<String> = results
        .cache_to_cache
        .iter()
        .map(|row| {
            let state = if row.modified { "modified" } else { "clean" };
            format!("CPU {} -> {}, {state}", row.owner_cpu, row.reader_cpu)
        })
        .collect();
    let mut homes: Vec<u32> = results.cache_to_cache.iter().map(|row| row.home_node).collect();
    homes.sort_unstable();
    homes.dedup();
    let columns: Vec<String> = homes.iter().map(|home| format!("home {home}")).collect();
    let mut rows = names.clone();
    rows.dedup();
    let title = "Latency in ns of lines from a CPU's caches to a reader, by the node of their memory";
    table.add(title, &rows, &columns, Heat::Latency, |row, column| {
        let here = names.iter().zip(&results.cache_to_cache);
        let mut here = here.filter(|(name, of)| **name == rows[row] && of.home_node == homes[column]);
        here.next().map(|(_, of)| of.latency_ns)
    });
}

struct Tables<'a> {
    out: &'a mut String,
    width: usize,
}

impl Tables<'_> {
    /// Adds a table. Columns that the width has no room for follow below.
    fn add(
        &mut self,
        title: &str,
        rows: &[String],
        columns: &[String],
        heat: Heat,
        cell: impl Fn(usize, usize) -> Option<Figure>,
    ) {
        let bold = Style::new().bold();
        let _ = writeln!(self.out, "\n{bold}{title}{bold:#}");
        let cells = (0..rows.len()).flat_map(|row| (0..columns.len()).map(move |column| (row, column)));
        let medians = cells.filter_map(|(row, column)| cell(row, column)).map(|figure| figure.median);
        let best = match heat {
            Heat::Latency => medians.fold(f64::INFINITY, f64::min),
            _ => medians.fold(0.0, f64::max),
        };
        let room = (self.width.saturating_sub(NAME_WIDTH) / CELL_WIDTH).max(1);
        let all: Vec<usize> = (0..columns.len()).collect();
        for block in all.chunks(room) {
            if columns.iter().any(|name| !name.is_empty()) {
                let _ = write!(self.out, "{:NAME_WIDTH$}", "");
                for &column in block {
                    // Over the median, not over the percents.
                    let _ = write!(self.out, "{:>11}{:7}", columns[column], "");
                }
                trim(self.out);
            }
            for (row, name) in rows.iter().enumerate() {
                let _ = write!(self.out, "{name:NAME_WIDTH$}");
                for &column in block {
                    let Some(figure) = cell(row, column) else {
                        let _ = write!(self.out, "{:>11}{:7}", "-", "");
                        continue;
                    };
                    let style = style(heat, best, figure.median);
                    let (median, spread) = (figure.median, figure.spread_percent());
                    let _ = write!(self.out, "{style}{median:>11.1}{style:#} {spread:>4.0} %");
                }
                trim(self.out);
            }
        }
    }
}

/// Ends a line, less the spaces at its end.
fn trim(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// The farther from the best, the warmer.
fn style(heat: Heat, best: f64, median: f64) -> Style {
    let times = match heat {
        Heat::None => return Style::new(),
        Heat::Latency => median / best,
        Heat::Bandwidth => best / median,
    };
    match times {
        ..1.2 => Style::new(),
        1.2..1.6 => AnsiColor::Cyan.on_default(),
        1.6..2.5 => AnsiColor::Yellow.on_default(),
        _ => AnsiColor::Yellow.on_default().bold(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(median: f64) -> Figure {
        Figure::of(vec![0.96 * median, median, 1.04 * median])
    }

    #[test]
    fn columns_without_room_follow_below_and_far_memory_is_warm() {
        let mut out = String::new();
        let names = ["node 0".to_owned(), "node 1".to_owned()];
        let cell = |row: usize, column| (row == 0).then(|| figure([80.0, 144.0][column]));
        Tables { out: &mut out, width: 50 }.add("T", &names, &names, Heat::Latency, cell);
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let [head, near] =
            ["                             node 0", "node 0                         80.0    2 %"];
        let [head_2, far] =
            ["                             node 1", "node 0                        144.0    2 %"];
        let none = "node 1                            -";
        assert_eq!(plain(&out), format!("\nT\n{head}\n{near}\n{none}\n{head_2}\n{far}\n{none}\n"));
        assert!(
            out.contains("\x1b[33m      144.0\x1b[0m") && !out.contains("\x1b[33m       80.0"),
            "{out:?}"
        );
    }
}
