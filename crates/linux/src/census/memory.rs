//! The places of a process's memory, by pages that are evenly spread over it.

use super::shares_of;
use crate::bounds::{MAPS_BYTES, MAPS_TIME};
use crate::ending::{Ending, Until};
use crate::kernel::LiveKernel;
use crate::maps::Maps;
use crate::survey::query;
use nodewise_engine::{Mapping, PAGE_BYTES, PageNumber, Pid};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::time::Instant;

/// The share of memory on each node.
pub(super) type Shares = Vec<f64>;

/// Pages that are asked for of a process in an overview: about 0.1 ms.
const FEW: u64 = 1 << 10;
/// If no more than this were present, as in a large reserve, many are asked for.
const ENOUGH: usize = 64;
/// Pages that are asked for of a process that is looked at closely: about 5 ms.
const MANY: u64 = 1 << 16;
/// Mappings that are read of a process.
const MAPPINGS: usize = 1 << 16;

/// A mapping with memory in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegionUse {
    /// The first address.
    pub address: u64,
    /// Its whole length.
    pub bytes: u64,
    /// As much of it is present, by the pages that were asked for.
    pub resident_bytes: u64,
    /// Share of that on each node.
    pub lies_on: Vec<f64>,
    /// The file, `[heap]` or the like; empty for other anonymous memory.
    pub name: String,
}

/// The share of a process's memory on each node; none where that may not be asked, or hardly any was found.
pub(super) fn shares(kernel: &mut LiveKernel, topology: &Topology, pid: Pid) -> Option<Shares> {
    let mappings = mappings(pid)?;
    let all: u64 = mappings.iter().map(|mapping| mapping.range.pages()).sum();
    let mut asked = FEW;
    loop {
        let homes = query(kernel, topology, pid, &spread(&mappings, asked));
        let found = homes.iter().flatten().count();
        if found > ENOUGH || (asked >= all && found > 0) {
            return shares_of(&by_node(&homes, topology.node_count()));
        }
        if asked >= all.min(MANY) {
            return None;
        }
        asked = MANY;
    }
}

pub(super) fn regions(kernel: &mut LiveKernel, topology: &Topology, pid: Pid) -> Vec<RegionUse> {
    let Some(mappings) = mappings(pid) else { return Vec::new() };
    let all: u64 = mappings.iter().map(|mapping| mapping.range.pages()).sum();
    let pages = spread(&mappings, MANY);
    let homes = query(kernel, topology, pid, &pages);
    let bytes_each = all as f64 / pages.len().max(1) as f64 * PAGE_BYTES as f64;
    let names = names(pid);
    let mut regions: Vec<RegionUse> = Vec::new();
    for mapping in &mappings {
        let [from, to] =
            [mapping.range.start, mapping.range.end].map(|end| pages.partition_point(|&page| page < end));
        let counts = by_node(&homes[from..to], topology.node_count());
        if let Some(lies_on) = shares_of(&counts) {
            let address = mapping.range.start.address().0;
            regions.push(RegionUse {
                address,
                bytes: mapping.range.pages() * PAGE_BYTES,
                resident_bytes: (counts.iter().sum::<f64>() * bytes_each) as u64,
                lies_on,
                name: names.get(&address).cloned().unwrap_or_default(),
            });
        }
    }
    regions.sort_by_key(|region| (std::cmp::Reverse(region.resident_bytes), region.address));
    regions
}

fn mappings(pid: Pid) -> Option<Vec<Mapping>> {
    let until = Until { at: Instant::now() + MAPS_TIME, ending: Ending::default() };
    let maps = Maps::read(File::open(format!("/proc/{pid}/maps")).ok()?, MAPPINGS, until).ok()?;
    Some(maps.mappings)
}

/// So many pages of the mappings, or all of them: one of each of so many equal parts, at random. Pages at
/// even distances could all be on one node of memory that is interleaved.
fn spread(mappings: &[Mapping], most: u64) -> Vec<PageNumber> {
    let all: u64 = mappings.iter().map(|mapping| mapping.range.pages()).sum();
    let count = all.min(most);
    let (mut pages, mut before, mut mappings) = (Vec::with_capacity(count as usize), 0, mappings.iter());
    let mut mapping = mappings.next();
    for i in 0..count {
        let [from, to] = [i, i + 1].map(|i| (u128::from(all) * u128::from(i) / u128::from(count)) as u64);
        let at = from + scattered(i) % (to - from);
        while let Some(passed) = mapping.filter(|mapping| at - before >= mapping.range.pages()) {
            before += passed.range.pages();
            mapping = mappings.next();
        }
        let Some(mapping) = mapping else { break };
        pages.push(PageNumber(mapping.range.start.0 + at - before));
    }
    pages
}

/// A number that hangs on `i` in no simple way (the mixer of `SplitMix64`; Steele et al. 2014).
fn scattered(i: u64) -> u64 {
    let x = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn by_node(homes: &[Option<NodeIndex>], nodes: usize) -> Vec<f64> {
    let mut counts = vec![0.0; nodes];
    homes.iter().flatten().for_each(|home| counts[home.get()] += 1.0);
    counts
}

/// The names of a process's mappings, by their first address.
fn names(pid: Pid) -> BTreeMap<u64, String> {
    let mut text = Vec::new();
    // Names make lines long.
    let _ =
        File::open(format!("/proc/{pid}/maps")).and_then(|maps| maps.take(MAPS_BYTES).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let named = |line: &str| {
        let address = u64::from_str_radix(line.split('-').next()?, 16).ok()?;
        // Blanks stand before the name, and in it.
        let name = line.splitn(6, ' ').nth(5)?.trim_start();
        (!name.is_empty()).then(|| (address, name.to_owned()))
    };
    text.lines().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{MappingKind, PageRange};

    #[test]
    fn pages_are_spread_evenly() {
        let mapping = |start, end| Mapping {
            range: PageRange::new(start, end),
            writable: true,
            kind: MappingKind::Anonymous,
        };
        let mappings = [mapping(3, 5), mapping(100, 101), mapping(1 << 30, (1 << 30) + 997)];
        let numbers = |most| spread(&mappings, most).iter().map(|page| page.0).collect::<Vec<_>>();
        assert_eq!(numbers(u64::MAX).len(), 1000);
        assert_eq!(numbers(u64::MAX)[..4], [3, 4, 100, 1 << 30]);
        let some = numbers(100);
        assert!(some.len() == 100 && some.is_sorted(), "{some:?}");
        for (i, &page) in (1..).zip(&some[1..]) {
            let range = (1 << 30) + 10 * i - 3..(1 << 30) + 10 * i + 7;
            assert!(range.contains(&page), "{page} is not in {range:?}");
        }
        // Each node has its share of memory that is interleaved.
        let interleaved = spread(&[mapping(0, 1 << 16)], 1 << 10);
        for node in 0..4 {
            let pages = interleaved.iter().filter(|page| page.0 % 4 == node).count();
            assert!((200..312).contains(&pages), "{pages} of node {node}");
        }
        assert_eq!(spread(&[], 100), []);
    }
}
