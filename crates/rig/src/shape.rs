//! The shape of a guest: nodes, their CPUs and memory, and the distances between them.

use crate::{Error, ErrorKind};

/// One NUMA node of a guest. Without CPUs it is a memory-only node, without memory a node of CPUs only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of CPUs, 0 for a memory-only node.
    pub cpus: u32,
    /// Memory in bytes, a whole number of MiB.
    pub memory_bytes: u64,
}

/// A device that can be attached to a node, by a host bridge of its own. The guests' kernels have its driver,
/// if any, built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// An `NVMe` disk of 64 MiB, all zeros, that keeps nothing: `nvme0n1`.
    Nvme,
    /// A network adapter without a cable. Debian's cloud kernels have its driver as a module, so that the
    /// guest sees a PCI function.
    Network,
}

/// Distances between the nodes as ACPI's SLIT has them: 10 from a node to itself, 11 to 254 to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distances {
    rows: Vec<Vec<u8>>,
}

/// ACPI's distance of a node to itself.
const LOCAL: u8 = 10;
/// The greatest distance; 255 means "unreachable" in ACPI.
const FARTHEST: u8 = 254;

impl Distances {
    /// Reads a table for `nodes` nodes: rows as in `10,20;20,10`, or one number, the distance of every
    /// node to every other, or `ring` or `square`: the nodes in a circle, 10 more for each step.
    ///
    /// The kernel ignores a table that is not sensible and then all nodes are 20 apart (Linux 6.12,
    /// `drivers/acpi/numa/srat.c`, `slit_valid`), so such a table is an error here, and the message
    /// names row and entry, counted from 1.
    pub fn parse(text: &str, nodes: usize) -> Result<Self, Error> {
        let text = text.trim();
        match text {
            "ring" => return Self::from_fn(nodes, |a, b| ring_steps(a, b, nodes).map(|s| 10 + 10 * s)),
            "square" if nodes == 4 => return Self::parse("ring", 4),
            "square" => return Err(malformed(format!("a square has 4 nodes, and this guest has {nodes}"))),
            _ => {}
        }
        if !text.contains([',', ';']) {
            let remote = entry(text).map_err(malformed)?;
            return Self::from_fn(nodes, |a, b| Some(if a == b { LOCAL.into() } else { remote.into() }));
        }
        let rows: Vec<&str> = text.trim_end_matches(';').split(';').collect();
        if rows.len() != nodes {
            return Err(malformed(format!("{} rows for {nodes} nodes", rows.len())));
        }
        let mut table = Vec::with_capacity(nodes);
        for (r, row) in rows.iter().enumerate() {
            let entries: Vec<&str> = row.split(',').collect();
            if entries.len() != nodes {
                return Err(malformed(format!(
                    "row {} has {} entries for {nodes} nodes",
                    r + 1,
                    entries.len()
                )));
            }
            let mut values = Vec::with_capacity(nodes);
            for (e, text) in entries.iter().enumerate() {
                let value =
                    entry(text).map_err(|why| malformed(format!("row {}, entry {}: {why}", r + 1, e + 1)))?;
                values.push(value);
            }
            table.push(values);
        }
        Self::new(table)
    }

    /// A table from its rows, checked as [`parse`](Self::parse) does.
    pub fn new(rows: Vec<Vec<u8>>) -> Result<Self, Error> {
        for (r, row) in rows.iter().enumerate() {
            if row.len() != rows.len() {
                let (entries, nodes) = (row.len(), rows.len());
                return Err(malformed(format!("row {} has {entries} entries for {nodes} nodes", r + 1)));
            }
            for (e, &value) in row.iter().enumerate() {
                let wrong = match value {
                    LOCAL => (r != e).then_some("is the distance of a node to itself"),
                    _ if r == e => Some("must be 10, the distance of a node to itself"),
                    11..=FARTHEST => None,
                    _ => Some("is not between 11 and 254"),
                };
                if let Some(wrong) = wrong {
                    return Err(malformed(format!("row {}, entry {}: {value} {wrong}", r + 1, e + 1)));
                }
            }
        }
        Ok(Self { rows })
    }

    /// The rows: `rows()[a][b]` is the distance from node `a` to node `b`.
    #[must_use]
    pub fn rows(&self) -> &[Vec<u8>] {
        &self.rows
    }

    fn from_fn(nodes: usize, distance: impl Fn(usize, usize) -> Option<usize>) -> Result<Self, Error> {
        let entry = |a, b| distance(a, b).and_then(|d| u8::try_from(d).ok()).unwrap_or(u8::MAX);
        Self::new((0..nodes).map(|a| (0..nodes).map(|b| entry(a, b)).collect()).collect())
    }
}

fn ring_steps(a: usize, b: usize, nodes: usize) -> Option<usize> {
    let apart = a.abs_diff(b);
    Some(apart.min(nodes.checked_sub(apart)?))
}

fn entry(text: &str) -> Result<u8, String> {
    text.trim().parse().map_err(|_| format!("'{}' is not a distance (10 to 254)", text.trim()))
}

fn malformed(why: impl AsRef<str>) -> Error {
    Error::new(ErrorKind::Shape, format!("malformed distances: {}", why.as_ref()))
}

/// Reads a memory size such as `512M` or `2G` (KiB, MiB, GiB, TiB), in bytes.
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let wrong = || Error::new(ErrorKind::Shape, format!("'{text}' is not a size such as 512M or 2G"));
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// QEMU's pc machine has at most 255 CPUs, the kernel's SRAT handling at most 64 nodes on Debian's
/// cloud kernels (`CONFIG_NODES_SHIFT=6`); QEMU itself at most 128.
const CPUS_MAX: u32 = 255;
const NODES_MAX: usize = 64;
/// Less, and Debian's cloud kernels do not reach user space.
const MEMORY_MIN: u64 = 128 << 20;

/// Buses of host bridges begin so far apart, and there are 256: the first is the machine's own.
pub(crate) const BUSES_APART: usize = 16;
const DEVICES_MAX: usize = 256 / BUSES_APART - 1;

pub(crate) fn check(
    nodes: &[Node],
    distances: Option<&Distances>,
    devices: &[(usize, Device)],
) -> Result<(), Error> {
    let shape = |message: String| Err(Error::new(ErrorKind::Shape, message));
    if nodes.is_empty() || nodes.len() > NODES_MAX {
        return shape(format!("a guest has 1 to {NODES_MAX} nodes, not {}", nodes.len()));
    }
    for (id, node) in nodes.iter().enumerate() {
        if node.cpus == 0 && node.memory_bytes == 0 {
            return shape(format!("node {id} has neither CPUs nor memory"));
        }
        if node.memory_bytes % (1 << 20) != 0 {
            return shape(format!("node {id}: its memory must be a whole number of MiB"));
        }
    }
    let cpus: u64 = nodes.iter().map(|node| u64::from(node.cpus)).sum();
    if cpus == 0 || cpus > CPUS_MAX.into() {
        return shape(format!("a guest has 1 to {CPUS_MAX} CPUs, not {cpus}"));
    }
    match nodes.iter().try_fold(0u64, |sum, node| sum.checked_add(node.memory_bytes)) {
        None => return shape("more memory than addresses".into()),
        Some(sum) if sum < MEMORY_MIN => {
            return shape(format!("a guest needs at least {} MiB of memory in all", MEMORY_MIN >> 20));
        }
        Some(_) => {}
    }
    if devices.len() > DEVICES_MAX {
        return shape(format!("a guest has at most {DEVICES_MAX} devices, not {}", devices.len()));
    }
    if let Some((node, _)) = devices.iter().find(|(node, _)| *node >= nodes.len()) {
        return shape(format!("a device on node {node}, and this guest has {} nodes", nodes.len()));
    }
    match distances {
        Some(table) if table.rows.len() != nodes.len() => {
            shape(format!("distances for {} nodes, and this guest has {}", table.rows.len(), nodes.len()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(text: &str, nodes: usize) -> String {
        let error = Distances::parse(text, nodes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        error.to_string()
    }

    #[test]
    fn tables_presets_and_one_value() {
        let table = Distances::parse("10,21;31,10", 2).unwrap();
        assert_eq!(table.rows(), [[10, 21], [31, 10]]);
        assert_eq!(Distances::parse("17", 2).unwrap().rows(), [[10, 17], [17, 10]]);
        let square = Distances::parse("square", 4).unwrap();
        assert_eq!(square.rows()[0], [10, 20, 30, 20]);
        assert_eq!(Distances::parse("ring", 6).unwrap().rows()[1], [20, 10, 20, 30, 40, 30]);
        assert_eq!(Distances::parse("10", 1).unwrap().rows(), [[10]]);
    }

    #[test]
    fn errors_name_row_and_entry() {
        assert_eq!(message("10,20;20", 2), "malformed distances: row 2 has 1 entries for 2 nodes");
        assert_eq!(
            message("10,x;20,10", 2),
            "malformed distances: row 1, entry 2: 'x' is not a distance (10 to 254)"
        );
        assert_eq!(
            message("10,20;20,11", 2),
            "malformed distances: row 2, entry 2: 11 must be 10, the distance of a node to itself"
        );
        assert_eq!(
            message("10,10;20,10", 2),
            "malformed distances: row 1, entry 2: 10 is the distance of a node to itself"
        );
        assert_eq!(
            message("10,9;20,10", 2),
            "malformed distances: row 1, entry 2: 9 is not between 11 and 254"
        );
        assert_eq!(message("10,20;20,10", 3), "malformed distances: 2 rows for 3 nodes");
        assert_eq!(message("square", 3), "malformed distances: a square has 4 nodes, and this guest has 3");
        assert_eq!(message("", 2), "malformed distances: '' is not a distance (10 to 254)");
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("1G").unwrap(), 1 << 30);
        assert_eq!(parse_size("256m").unwrap(), 256 << 20);
        assert_eq!(parse_size("64KiB").unwrap(), 64 << 10);
        for wrong in ["", "G", "1.5G", "-1", "1X", "99999999999999999999", "99999999T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_guests() {
        let gib = 1 << 30;
        let node = |cpus, memory_bytes| Node { cpus, memory_bytes };
        assert!(check(&[node(1, gib), node(0, gib)], None, &[(1, Device::Nvme)]).is_ok());
        assert!(check(&[node(1, gib), node(1, 0)], None, &[]).is_ok());
        for wrong in [
            vec![],
            vec![node(0, gib)],
            vec![node(1, gib), node(0, 0)],
            vec![node(1, gib + 4096)],
            vec![node(1, 64 << 20)],
            vec![node(200, gib), node(200, gib)],
            vec![node(1, gib); 65],
            vec![node(1, u64::MAX << 20), node(1, u64::MAX << 20)],
        ] {
            assert_eq!(check(&wrong, None, &[]).unwrap_err().kind(), ErrorKind::Shape, "{wrong:?}");
        }
        let two = Distances::parse("20", 2).unwrap();
        assert!(check(&[node(1, gib)], Some(&two), &[]).is_err());
        assert!(check(&[node(1, gib)], None, &[(1, Device::Nvme)]).is_err());
        assert!(check(&[node(1, gib)], None, &[(0, Device::Network); 16]).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9,;a-z ]{0,40}", nodes in 0usize..6) {
            let _ = Distances::parse(&text, nodes);
            let _ = parse_size(&text);
        }

        #[test]
        fn what_is_written_is_read(remote in proptest::collection::vec(11u8..=254, 16)) {
            let mut rows: Vec<Vec<u8>> = remote.chunks(4).map(<[u8]>::to_vec).collect();
            for (r, row) in rows.iter_mut().enumerate() {
                row[r] = LOCAL;
            }
            let text: Vec<String> =
                rows.iter().map(|row| row.iter().map(u8::to_string).collect::<Vec<_>>().join(",")).collect();
            let table = Distances::parse(&text.join(";"), 4).unwrap();
            prop_assert_eq!(table.rows(), rows);
        }
    }
}
