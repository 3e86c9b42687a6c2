//! Huge pages whose parts are used by different nodes: no home is right for such a page.
//!
//! Of each sampled huge page the last [`RECENT`] samples are kept, two bytes each: 9 bits base page, 6 bits
//! node, 1 bit write. Sorted by address, samples of a truly shared page come from the nodes in random order; those of a
//! falsely shared one in runs. The number of neighbours that agree is compared with its mean and variance over all orders of the
//! same samples (the join-count form of the runs test: Wald and Wolfowitz 1940, Mood 1940).

use super::key::Key;
use super::table::Table;
use crate::PageRange;
use serde::{Deserialize, Serialize};

const RECENT: usize = 24;
const NEXT: usize = 2 * RECENT;
const COUNT: usize = NEXT + 1;
const STRIDE: usize = COUNT + 1;
const NODES: usize = 64;

/// Samples needed before a page is judged.
const MIN_SAMPLES: usize = 12;
/// How many standard deviations more neighbours than by chance must agree.
const MIN_DEVIATIONS: f64 = 3.5;
/// A page of which one node has more of the samples is that node's, strays apart.
const DOMINANT_SHARE: f64 = 0.8;

/// One sample within a huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Base page within the huge page, 0 to 511.
    pub base_page: u16,
    /// Accessor node, as an index.
    pub accessor: u8,
    /// Whether it was surely a write.
    pub write: bool,
}

/// Recent samples of huge pages.
#[derive(Clone, Debug)]
pub struct HugePages {
    table: Table,
}

impl HugePages {
    pub fn new() -> Self {
        Self { table: Table::new(STRIDE) }
    }

    /// Adds samples (ascending); gives the huge pages that got some.
    pub fn add(&mut self, keys: &[Key]) -> Vec<u64> {
        let mut touched = Vec::new();
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        for group in keys.chunk_by(|a, b| a.unit() == b.unit()).filter(|group| group[0].is_huge()) {
            let first = group[0];
            touched.push(first.unit());
            let record = if let Some(at) = self.table.position(first.unit()) {
                self.table.record_mut(at)
            } else {
                pages.push(first.unit());
                bytes.resize(bytes.len() + STRIDE, 0);
                let start = bytes.len() - STRIDE;
                &mut bytes[start..]
            };
            // Of more samples than there is room for, evenly spread ones: a group is in address order.
            let step = group.len().div_ceil(RECENT);
            for key in group.iter().step_by(step).filter(|key| key.is_huge() && key.accessor() < NODES) {
                let part = (key.page() - key.unit()) as u16
                    | (key.accessor() as u16) << 9
                    | u16::from(key.is_write()) << 15;
                let next = usize::from(record[NEXT]);
                record[2 * next..2 * next + 2].copy_from_slice(&part.to_le_bytes());
                record[NEXT] = ((next + 1) % RECENT) as u8;
                record[COUNT] = (record[COUNT] + 1).min(RECENT as u8);
            }
        }
        self.table.insert(&pages, &bytes);
        touched
    }

    /// The recent samples of a huge page, in address order.
    pub fn parts(&self, page: u64) -> Vec<Part> {
        let Some(at) = self.table.position(page) else { return Vec::new() };
        let record = self.table.record(at);
        let mut parts: Vec<_> = record[..2 * usize::from(record[COUNT])]
            .chunks_exact(2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .map(|b| Part { base_page: b & 511, accessor: (b >> 9 & 63) as u8, write: b >> 15 != 0 })
            .collect();
        parts.sort_unstable();
        parts
    }

    /// Whether a page that several nodes use has too few samples yet to say how.
    pub fn has_unjudged(&self) -> bool {
        (0..self.table.len()).any(|at| {
            let record = self.table.record(at);
            let mut nodes = nodes_of(record);
            let first = nodes.next();
            usize::from(record[COUNT]) < RECENT && nodes.any(|node| Some(node) != first)
        })
    }

    /// The huge pages of a range that several nodes use, and whether each has samples enough to be sure that all use all of it, unless it is
    /// found to be falsely shared.
    pub fn shared_in(&self, range: PageRange) -> impl Iterator<Item = (u64, bool)> {
        self.table.positions(range.start.0, range.end.0).filter_map(|at| {
            let record = self.table.record(at);
            let mut nodes = nodes_of(record);
            let first = nodes.next();
            let judged = usize::from(record[COUNT]) >= RECENT;
            nodes.any(|node| Some(node) != first).then_some((self.table.pages()[at], judged))
        })
    }

    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        self.table.retain(|page, _| keep(page));
    }

    pub fn heap_bytes(&self) -> usize {
        self.table.heap_bytes()
    }
}

/// The accessor nodes of a record's samples.
fn nodes_of(record: &[u8]) -> impl Iterator<Item = u16> {
    let parts = record[..2 * usize::from(record[COUNT])].chunks_exact(2);
    parts.map(|part| u16::from_le_bytes([part[0], part[1]]) >> 9 & 63)
}

/// By how many standard deviations more neighbours agree on the node than in a random order; none when there are too few
/// samples to judge, or one accessor only.
pub fn order(parts: &[Part]) -> Option<f64> {
    let n = parts.len() as f64;
    let mut counts = [0.0_f64; NODES];
    for part in parts {
        counts[usize::from(part.accessor)] += 1.0;
    }
    // Single strays do not make a page shared.
    if parts.len() < MIN_SAMPLES || counts.iter().filter(|&&count| count >= 2.0).count() < 2 {
        return None;
    }
    // Samples of one base page in the order that shows the least agreement would be fairest; they are few among 512, and a
    // page truly shared has them disagree anyway.
    let joins = parts.windows(2).filter(|pair| pair[0].accessor == pair[1].accessor).count() as f64;
    let (s2, s3) =
        counts.iter().fold((0.0, 0.0), |(a, b), &c| (a + c * (c - 1.0), b + c * (c - 1.0) * (c - 2.0)));
    let cross: f64 = s2 * s2 - counts.iter().map(|&c| (c * (c - 1.0)).powi(2)).sum::<f64>();
    let fourth: f64 = counts.iter().map(|&c| c * (c - 1.0) * (c - 2.0) * (c - 3.0)).sum();
    let mean = s2 / n;
    // E[joins²]: a pair with itself, two pairs that share a sample, two pairs that do not.
    let square = mean
        + 2.0 * (n - 2.0) * s3 / (n * (n - 1.0) * (n - 2.0))
        + (n - 2.0) * (n - 3.0) * (fourth + cross) / (n * (n - 1.0) * (n - 2.0) * (n - 3.0));
    let variance = (square - mean * mean).max(1e-9);
    Some((joins - mean) / variance.sqrt())
}

/// Whether a page with these samples is falsely shared, and no node uses so much of it that it had better go there as a whole.
pub fn falsely_shared(parts: &[Part]) -> bool {
    let of = |node: u8| parts.iter().filter(|part| part.accessor == node).count();
    let dominated = parts.iter().any(|part| of(part.accessor) as f64 > DOMINANT_SHARE * parts.len() as f64);
    !dominated && order(parts).is_some_and(|deviations| deviations >= MIN_DEVIATIONS)
}

#[cfg(test)]
mod tests {
    use super::{Part, falsely_shared, order};

    fn parts(n: u16, node: impl Fn(u16) -> u8) -> Vec<Part> {
        (0..n).map(|i| Part { base_page: i * 512 / n, accessor: node(i), write: false }).collect()
    }

    #[test]
    fn quarters_and_halves_are_falsely_shared() {
        assert!(falsely_shared(&parts(12, |i| (i / 3) as u8)));
        assert!(falsely_shared(&parts(24, |i| (i / 12) as u8)));
    }

    #[test]
    fn random_order_is_not() {
        let mut found = 0;
        for seed in 0..10_000_u64 {
            let node = |i: u16| {
                let x = (seed * 512 + u64::from(i) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 62) as u8
            };
            found += u32::from(falsely_shared(&parts(24, node)));
        }
        assert!(found <= 20, "{found} of 10000 shared pages taken for falsely shared");
    }

    #[test]
    fn one_accessor_or_few_samples_tell_nothing() {
        assert_eq!(order(&parts(24, |_| 1)), None);
        assert_eq!(order(&parts(8, |i| (i / 4) as u8)), None);
        assert_eq!(order(&parts(24, |i| u8::from(i == 5))), None, "a single stray");
    }
}
