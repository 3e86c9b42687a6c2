//! The figures as Intel's Memory Latency Checker prints them, for programs that read its text.

use crate::results::{Results, Transfer};
use crate::stream::Traffic;
use std::fmt::{Display, Write as _};

const MEGABYTES: &str = "Bandwidths are in MB/sec (1 MB/sec = 1,000,000 Bytes/sec)\n\
                         Using all the threads from each core if Hyper-threading is enabled\n";

/// All parts that MLC has too, each after its `Measuring` line. Beside a table's rows, no line begins with a
/// digit, except two of the peak bandwidths'. A line in front tells the page size and the governor.
#[must_use]
pub fn text(results: &Results) -> String {
    let mut out =
        format!("Nodewise measure - v{}, as Intel(R) Memory Latency Checker prints\n", results.version);
    let governor = results.governor.as_deref().unwrap_or("unknown");
    let (pages, buffer) = (results.page_bytes >> 10, results.buffer_bytes >> 20);
    line(
        &mut out,
        format_args!("Pages of {pages} KiB, buffers of {buffer} MiB, frequency governor {governor}"),
    );
    for note in &results.notes {
        line(&mut out, format_args!("Note: {note}"));
    }
    out.push('\n');
    latencies(&mut out, results);
    peaks(&mut out, results);
    bandwidths(&mut out, results);
    loaded(&mut out, results);
    cache(&mut out, results);
    out
}

fn line(out: &mut String, text: impl Display) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

/// Rows: nodes with CPUs. Columns: nodes with memory. A cell without a figure has a dash.
fn matrix(out: &mut String, results: &Results, cell: impl Fn(u32, u32) -> Option<f64>) {
    let columns: Vec<u32> =
        results.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect();
    out.push_str("                Numa node\nNuma node     ");
    for column in &columns {
        let _ = write!(out, "{column:>10}");
    }
    out.push('\n');
    for row in results.nodes.iter().filter(|node| node.cpus > 0) {
        let _ = write!(out, "{:>8}      ", row.id);
        for &column in &columns {
            let _ = match cell(row.id, column) {
                Some(figure) => write!(out, "{figure:>10.1}"),
                None => write!(out, "{:>10}", "-"),
            };
        }
        out.push('\n');
    }
    out.push('\n');
}

fn latencies(out: &mut String, results: &Results) {
    if !results.idle_latency.is_empty() {
        out.push_str("Measuring idle latencies (in ns)...\n");
        matrix(out, results, |row, column| results.latency_ns(row, column).map(|figure| figure.median));
    }
}

fn peaks(out: &mut String, results: &Results) {
    if results.peak.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "Measuring Peak Injection Memory Bandwidths for the system\n{MEGABYTES}\
         Using traffic with the following read-write ratios\n"
    );
    for (index, row) in results.peak.iter().enumerate() {
        let name = match row.traffic {
            // The last, whose stores are past the caches where there are such.
            _ if index == 4 => "Stream-triad like:".to_owned(),
            Traffic::Reads => format!("{:<17}:", "ALL Reads"),
            ratio => format!("{:<17}:", format!("{ratio} Reads-Writes")),
        };
        line(out, format_args!("{name:<18}{:>14.1}", row.bandwidth_mb_per_s.median));
    }
    out.push('\n');
}

fn bandwidths(out: &mut String, results: &Results) {
    if results.bandwidth.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "Measuring Memory Bandwidths between nodes within system\n{MEGABYTES}Using Read-only traffic type\n"
    );
    matrix(out, results, |row, column| {
        results.megabytes_per_s(row, column, Traffic::Reads, false).map(|figure| figure.median)
    });
}

fn loaded(out: &mut String, results: &Results) {
    if results.loaded_latency.is_empty() {
        return;
    }
    out.push_str(
        "Measuring Loaded Latencies for the system\n\
         Using all the threads from each core if Hyper-threading is enabled\n\
         Using Read-only traffic type\n\
         Inject  Latency Bandwidth\n\
         Delay   (ns)    MB/sec\n\
         ==========================\n",
    );
    for row in &results.loaded_latency {
        let (latency, bandwidth) = (row.latency_ns.median, row.bandwidth_mb_per_s.median);
        line(out, format_args!(" {:05} {latency:>7.2} {bandwidth:>10.1}", row.pause_cycles));
    }
    out.push('\n');
}

fn cache(out: &mut String, results: &Results) {
    if results.cache_to_cache.is_empty() {
        return;
    }
    out.push_str("Measuring cache-to-cache transfer latency (in ns)...\n");
    let local = |modified: bool| {
        let near = |row: &&Transfer| row.owner_node == row.reader_node && row.modified == modified;
        results.cache_to_cache.iter().find(near)
    };
    for (name, row) in [("HIT ", local(false)), ("HITM", local(true))] {
        if let Some(row) = row {
            line(out, format_args!("Local Socket L2->L2 {name} latency {:>11.1}", row.latency_ns.median));
        }
    }
    let nodes: Vec<u32> = results.nodes.iter().filter(|node| node.cpus > 0).map(|node| node.id).collect();
    if nodes.len() < 2 {
        out.push('\n');
        return;
    }
    for (at, at_writer) in [("writer", true), ("reader", false)] {
        line(out, format_args!("Remote Socket L2->L2 HITM latency (data address homed in {at} socket)"));
        out.push_str("                        Reader Numa Node\nWriter Numa Node");
        for node in &nodes {
            let _ = write!(out, "{node:>9}");
        }
        out.push('\n');
        for &writer in &nodes {
            let _ = write!(out, "{writer:>13}   ");
            for &reader in &nodes {
                let home = if at_writer { writer } else { reader };
                let here = |row: &&Transfer| {
                    writer != reader
                        && (row.owner_node, row.reader_node, row.home_node) == (writer, reader, home)
                };
                let _ = match results.cache_to_cache.iter().find(here) {
                    Some(row) => write!(out, "{:>9.1}", row.latency_ns.median),
                    None => write!(out, "{:>9}", "-"),
                };
            }
            out.push('\n');
        }
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use crate::results::tests::two_nodes;
    use std::collections::BTreeMap;

    type Metrics = BTreeMap<String, f64>;

    /// As `DCPerf`'s benchpress reads it: sections open with `Measuring`, and each has its own lines.
    fn dcperf(text: &str) -> Metrics {
        fn rows<'t>(lines: &[&'t str], opens: &str) -> Vec<Vec<&'t str>> {
            let after = lines.iter().skip_while(|line| !line.contains(opens));
            let rows =
                after.filter(|line| !line.contains(opens)).map(|line| line.split_whitespace().collect());
            rows.collect()
        }
        fn number(text: &str) -> f64 {
            text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
        }
        fn cells(metrics: &mut Metrics, name: &str, rows: &[Vec<&str>]) {
            for (row, cells) in rows.iter().enumerate() {
                for (column, cell) in cells.iter().skip(1).enumerate().filter(|(_, cell)| **cell != "-") {
                    metrics.insert(format!("{name} {row} to {column}"), number(cell));
                }
            }
        }
        let mut metrics = Metrics::new();
        let lines: Vec<&str> = text.lines().collect();
        let opens: Vec<usize> =
            (0..lines.len()).filter(|&index| lines[index].starts_with("Measuring")).collect();
        for (index, &open) in opens.iter().enumerate() {
            let body = &lines[open + 1..*opens.get(index + 1).unwrap_or(&lines.len())];
            let head = lines[open];
            if head.starts_with("Measuring idle latencies") {
                cells(&mut metrics, "latency", &rows(body, "Numa node"));
            } else if head.starts_with("Measuring Memory Bandwidths between nodes") {
                cells(&mut metrics, "bandwidth", &rows(body, "Numa node"));
            } else if head.starts_with("Measuring Peak Injection Memory Bandwidths") {
                for line in body {
                    // A colon in the ratio does not count.
                    if let Some((name, figure)) = line.get(4..).and_then(|rest| rest.split_once(':')) {
                        let name = format!("{}{name}", &line[..4]);
                        metrics.insert(format!("peak {}", name.trim_end()), number(figure));
                    }
                }
            } else if head.starts_with("Measuring Loaded Latencies") {
                for row in rows(body, "====").iter().filter(|row| row.len() > 1) {
                    metrics.insert(format!("loaded latency {}", row[0]), number(row[1]));
                    metrics.insert(format!("loaded bandwidth {}", row[0]), number(row[2]));
                }
            } else if head.starts_with("Measuring cache-to-cache transfer latency") {
                let mut pattern = String::new();
                let mut row = 0;
                for line in body {
                    if line.contains("Local Socket L2->L2") {
                        let (name, figure) = line.split_once("latency").unwrap();
                        metrics.insert(name.trim().to_owned(), number(figure));
                    } else if line.contains("Remote Socket L2->L2") {
                        (pattern, row) = ((*line).to_owned(), 0);
                    } else if !pattern.is_empty() && !line.contains("Numa Node") {
                        let cells = line.split_whitespace().skip(1).enumerate();
                        for (column, cell) in cells.filter(|(_, cell)| *cell != "-") {
                            metrics.insert(format!("{pattern} {row} to {column}"), number(cell));
                        }
                        row += 1;
                    }
                }
            } else {
                panic!("{head} opens no section");
            }
        }
        metrics
    }

    /// As superbenchmark reads a matrix: every line that begins with a digit is a row.
    fn superbench_matrix(text: &str) -> BTreeMap<String, Vec<f64>> {
        let rows =
            text.lines().map(str::trim_start).filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        rows.map(|row| {
            let mut words = row.split_whitespace();
            let name = words.next().unwrap().to_owned();
            (name, words.map(|word| word.parse().unwrap()).collect())
        })
        .collect()
    }

    /// As superbenchmark reads the peaks: the last five lines before an empty one.
    fn superbench_peaks(text: &str) -> Metrics {
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len() - 6..].iter().filter(|line| !line.trim().is_empty());
        last.map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let name = words[..2].join("_");
            (name.trim_end_matches(':').to_owned(), words[words.len() - 1].parse().unwrap())
        })
        .collect()
    }

    #[test]
    fn dcperf_finds_every_figure() {
        let metrics = dcperf(&text(&two_nodes()));
        let figure = |name: &str| metrics.get(name).copied();
        assert_eq!(figure("latency 0 to 1"), Some(144.1));
        assert_eq!(figure("latency 1 to 1"), Some(78.5));
        assert_eq!(figure("bandwidth 1 to 0"), Some(34_385.7));
        assert_eq!(figure("peak ALL Reads"), Some(225_318.5));
        assert_eq!(figure("peak 3:1 Reads-Writes"), Some(212_855.2));
        assert_eq!(figure("peak 1:1 Reads-Writes"), Some(200_000.0));
        assert_eq!(figure("peak Stream-triad like"), Some(190_000.0));
        assert_eq!(figure("loaded latency 00000"), Some(329.3));
        assert_eq!(figure("loaded bandwidth 20000"), Some(900.0));
        assert_eq!(figure("Local Socket L2->L2 HIT"), Some(49.5));
        assert_eq!(figure("Local Socket L2->L2 HITM"), Some(50.5));
        let remote = "Remote Socket L2->L2 HITM latency (data address homed in";
        assert_eq!(figure(&format!("{remote} writer socket) 0 to 1")), Some(115.2));
        assert_eq!(figure(&format!("{remote} reader socket) 1 to 0")), Some(185.9));
        assert_eq!(metrics.len(), 4 + 4 + 5 + 4 + 2 + 4);
    }

    #[test]
    fn superbench_finds_matrices_and_peaks() {
        let part = |part: Part| {
            let mut results = two_nodes();
            results.notes.push("8 CPUs were left out".to_owned());
            if part != Part::Latency {
                results.idle_latency.clear();
            }
            if part != Part::Bandwidth {
                results.bandwidth.clear();
            }
            if part != Part::Peak {
                results.peak.clear();
            }
            results.loaded_latency.clear();
            results.cache_to_cache.clear();
            text(&results)
        };
        let latency = superbench_matrix(&part(Part::Latency));
        assert_eq!(
            latency,
            [("0".to_owned(), vec![78.6, 144.1]), ("1".to_owned(), vec![144.7, 78.5])].into()
        );
        let bandwidth = superbench_matrix(&part(Part::Bandwidth));
        assert_eq!((bandwidth.len(), bandwidth["0"][0]), (2, 79_670.3));
        let peaks = superbench_peaks(&part(Part::Peak));
        let names: Vec<&str> = peaks.keys().map(String::as_str).collect();
        let ratios = ["1:1_Reads-Writes", "2:1_Reads-Writes", "3:1_Reads-Writes"];
        assert_eq!(names, [&ratios[..], &["ALL_Reads", "Stream-triad_like"]].concat());
        assert_eq!(peaks.get("2:1_Reads-Writes"), Some(&211_005.5));
    }

    #[test]
    fn rows_need_cpus_and_columns_memory() {
        let mut results = two_nodes();
        results.nodes[1].cpus = 0;
        results.idle_latency.retain(|row| row.cpu_node == 0);
        assert!(text(&results).contains("\n       0            78.6     144.1\n\n"), "{}", text(&results));
        results.nodes[1].memory_bytes = 0;
        let latency =
            Results { nodes: results.nodes, idle_latency: results.idle_latency, ..Results::default() };
        assert_eq!(superbench_matrix(&text(&latency))["0"], [78.6]);
    }
}
