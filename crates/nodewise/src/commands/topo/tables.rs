//! The numbers below the drawing: nodes, distances, access, devices, settings.

use super::block::{Block, Line, wrap};
use super::drawing::{BOLD, ranges};
use super::size;
use crate::output::shown;
use anstyle::{AnsiColor, Style};
use nodewise_topology::{Access, NodeId, NodeSet, Topology};

const WARNING: Style = AnsiColor::Yellow.on_default();

/// Everything below the drawing.
pub fn all(machine: &Topology, width: usize) -> Block {
    let mut block = nodes(machine, width);
    for table in
        [distances(machine, width), access(machine, width), devices(machine, width), settings(machine, width)]
    {
        if !table.lines.is_empty() {
            block.push(Line::default());
            block.below(table);
        }
    }
    for warning in machine.warnings() {
        block.push(Line::default());
        for line in wrap(words(&shown(format_args!("warning: {warning}"))), " ", width) {
            block.push(Line::new(WARNING, line));
        }
    }
    block
}

pub(super) fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// The table of each node that `numactl -H` has: CPUs, size and free in MiB.
fn nodes(machine: &Topology, width: usize) -> Block {
    let pages: Vec<u64> = {
        let all = machine.nodes().iter().flat_map(|node| &node.huge_pages);
        let mut sizes: Vec<u64> =
            all.filter(|pool| pool.total != Some(0)).map(|pool| pool.page_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let tier = |id: NodeId| machine.memory_tiers().iter().find(|tier| tier.nodes.contains(id));
    let tiers = machine.memory_tiers().len() > 1;
    let mut header = vec!["node".to_owned(), "size MiB".into(), "free MiB".into()];
    header.extend(pages.iter().map(|&bytes| format!("{} pages", size(bytes))));
    if tiers {
        header.push("tier".into());
    }
    header.push("CPUs".into());
    let rows = machine.nodes().iter().map(|node| {
        let mebibytes = |bytes: Option<u64>| or_unknown(bytes.map(|bytes| bytes >> 20));
        let mut row =
            vec![node.id.to_string(), mebibytes(node.memory_total_bytes), mebibytes(node.memory_free_bytes)];
        row.extend(pages.iter().map(|&bytes| {
            let pool = node.huge_pages.iter().find(|pool| pool.page_bytes == bytes);
            pool.map_or_else(
                || "-".into(),
                |pool| format!("{} of {} free", or_unknown(pool.free), or_unknown(pool.total)),
            )
        }));
        if tiers {
            row.push(tier(node.id).map_or_else(|| "-".into(), |tier| tier.id.to_string()));
        }
        row.push(if node.cpus.is_empty() { "none".into() } else { ranges(&node.cpus) });
        row
    });
    let mut block = table(&header, rows.collect(), width);
    if !machine.offline_cpus().is_empty() {
        block.push(Line::plain(format!("CPUs not online: {}", machine.offline_cpus())));
    }
    block
}

/// The matrix, or where it is wider than the terminal each node's others by distance.
fn distances(machine: &Topology, width: usize) -> Block {
    if machine.node_count() == 1 {
        return Block::default();
    }
    let mut header = vec!["distance".to_owned()];
    header.extend(machine.nodes().iter().map(|node| node.id.to_string()));
    let rows = machine.nodes().iter().map(|node| {
        let mut row = vec![node.id.to_string()];
        row.extend(node.distances.iter().map(u32::to_string));
        row
    });
    let matrix = table(&header, rows.collect(), usize::MAX);
    if matrix.width() <= width {
        return matrix;
    }
    let rows = machine.nodes().iter().map(|node| {
        let mut values = node.distances.clone();
        values.sort_unstable();
        values.dedup();
        let at = |distance: u32| {
            let pairs = machine.nodes().iter().zip(&node.distances);
            let nodes: NodeSet =
                pairs.filter(|(_, other)| **other == distance).map(|(other, _)| other.id).collect();
            format!("{distance}: {nodes}")
        };
        vec![node.id.to_string(), values.into_iter().map(at).collect::<Vec<_>>().join("  ")]
    });
    table(&["node".into(), "distance: nodes".into()], rows.collect(), width)
}

/// The figures of HMAT, where it has some.
fn access(machine: &Topology, width: usize) -> Block {
    let known =
        |access: &&Access| access.read_latency_ns.is_some() || access.read_bandwidth_bytes_per_s.is_some();
    let number = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let mebibytes = |value: Option<u64>| number(value.map(|value| value >> 20));
    let mut rows = Vec::new();
    for node in machine.nodes() {
        for access in node.access.iter().filter(known) {
            let row = vec![
                node.id.to_string(),
                number(access.read_latency_ns),
                number(access.write_latency_ns),
                mebibytes(access.read_bandwidth_bytes_per_s),
                mebibytes(access.write_bandwidth_bytes_per_s),
                access.initiators.to_string(),
            ];
            // Without devices that access memory the best initiators are the best ones with CPUs.
            if rows.last() != Some(&row) {
                rows.push(row);
            }
        }
    }
    if rows.is_empty() {
        return Block::default();
    }
    let header = ["memory of", "read ns", "write ns", "read MiB/s", "write MiB/s", "from nodes"];
    table(&header.map(str::to_owned), rows, width)
}

fn devices(machine: &Topology, width: usize) -> Block {
    if machine.devices().is_empty() {
        return Block::default();
    }
    let unknown = || "-".to_owned();
    let rows = machine.devices().iter().map(|device| {
        vec![
            shown(&device.name),
            device.node.map_or_else(unknown, |node| node.to_string()),
            format!("{:?}", device.kind).to_lowercase(),
            device.pci_address.as_ref().map_or_else(unknown, shown),
            device.pci_id.as_ref().map_or_else(unknown, shown),
        ]
    });
    table(&["device", "node", "kind", "PCI address", "PCI id"].map(str::to_owned), rows.collect(), width)
}

fn settings(machine: &Topology, width: usize) -> Block {
    let unknown = "not in this kernel or capture";
    let huge = machine.transparent_huge_pages().map(|huge| {
        let parts = [
            Some(huge.enabled.clone()),
            huge.defrag.as_ref().map(|value| format!("defrag {value}")),
            huge.shmem_enabled.as_ref().map(|value| format!("shared memory {value}")),
            huge.page_bytes.map(|bytes| format!("{} each", size(bytes))),
        ];
        shown(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    });
    let balancing = match machine.numa_balancing() {
        None => unknown,
        Some(balancing) => match (balancing.normal, balancing.memory_tiering) {
            (false, false) => "off",
            (true, false) => "on",
            (false, true) => "memory tiering only",
            (true, true) => "on, with memory tiering",
        },
    };
    let weights: Vec<String> = machine
        .nodes()
        .iter()
        .filter_map(|node| Some(format!("node {}: {}", node.id, node.interleave_weight?)))
        .collect();
    let mut rows = vec![
        vec!["transparent huge pages".to_owned(), huge.unwrap_or_else(|| unknown.to_owned())],
        vec!["NUMA balancing".to_owned(), balancing.to_owned()],
    ];
    if machine.node_count() > 1 && !weights.is_empty() {
        rows.push(vec!["interleave weights".to_owned(), weights.join(", ")]);
    }
    table(&["setting".into(), "value".into()], rows, width)
}

/// Columns two spaces apart: numbers to the right, words to the left. The last column wraps at the width.
fn table(header: &[String], rows: Vec<Vec<String>>, width: usize) -> Block {
    let last = header.len() - 1;
    let len = |text: &String| text.chars().count();
    let digits = |text: &String| text == "-" || text.bytes().all(|byte| byte.is_ascii_digit());
    let numeric = |column: usize| rows.iter().all(|row| digits(&row[column]));
    let columns: Vec<(usize, bool)> = (0..=last)
        .map(|column| {
            let widest = rows.iter().map(|row| len(&row[column])).max().unwrap_or(0);
            (widest.max(len(&header[column])), numeric(column))
        })
        .collect();
    let before: usize = columns[..last].iter().map(|(width, _)| width + 2).sum();
    let room = width.saturating_sub(before).max(20);
    let mut block = Block::default();
    for (style, row) in
        std::iter::once((BOLD, header.to_vec())).chain(rows.into_iter().map(|row| (Style::new(), row)))
    {
        let mut line = Line::default();
        for (text, &(width, numeric)) in row[..last].iter().zip(&columns) {
            let text = if numeric { format!("{text:>width$}  ") } else { format!("{text:<width$}  ") };
            line = line.then(style, text);
        }
        let (end_width, numeric) = columns[last];
        let end = if numeric { format!("{:>end_width$}", row[last]) } else { row[last].clone() };
        let mut pieces = pieces(&end, room).into_iter();
        block.push(line.then(style, pieces.next().unwrap_or_default()));
        for piece in pieces {
            block.push(Line::new(style, " ".repeat(before) + &piece));
        }
    }
    block
}

/// Breaks after commas and at double spaces.
fn pieces(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let words = text.split("  ").flat_map(|part| {
        let mut parts: Vec<String> = part.split_inclusive(',').map(str::to_owned).collect();
        if let Some(last) = parts.last_mut() {
            last.push_str("  ");
        }
        parts
    });
    wrap(words, "", width).into_iter().map(|line| line.trim_end().to_owned()).collect()
}
