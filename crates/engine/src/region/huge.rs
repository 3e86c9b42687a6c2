//! Huge pages whose parts are used by different nodes: no home is right for such a page.
//!
//! The last [`RECENT`] samples of each sampled huge page are kept, two bytes each: 9 bits base page, 6 bits
//! node, 1 bit write. Sorted by address, samples of a truly shared page come from the nodes in random order;
//! samples of a falsely shared one come in runs. The number of neighbours that agree is compared with its
//! mean and variance over all orders of the same samples. That is the join-count form of the runs test (Wald
//! and Wolfowitz 1940, Mood 1940).

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
/// So many samples of one node, and none of others, make a page its own: of a page that four nodes share they
/// come once in 64 times.
const MIN_OWN: usize = 4;
/// How many standard deviations more neighbours than by chance must agree. That is for all pages of a range,
/// and for one among others that are falsely shared.
const MIN_DEVIATIONS: f64 = 3.5;
/// And of a page alone. A page is judged again with each sample. By 60 samples, one of 80 pages that all use
/// has once had 3.5 by chance, and one of 10 000 has had 5.
const MIN_DEVIATIONS_ALONE: f64 = 5.0;
/// So many samples acquit the huge pages of a range. If a quarter of the pages were falsely shared,
/// neighbours would agree by some four standard deviations more than by chance.
const MANY_SAMPLES: usize = 192;
/// How many standard deviations more neighbours may agree then.
const FEW_DEVIATIONS: f64 = 1.0;
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

/// The knowledge of a huge page.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its first base page.
    pub page: u64,
    /// Whether several nodes use it.
    pub shared: bool,
    /// Samples that are remembered.
    samples: usize,
}

impl Known {
    fn of(page: u64, parts: &[Part]) -> Self {
        let several = parts.iter().any(|part| part.accessor != parts[0].accessor);
        let shared = several && (parts.len() < MIN_SAMPLES || !is_dominated(parts));
        Self { page, shared, samples: parts.len() }
    }

    /// Whether it has samples enough to be sure that all its users use all of it, unless it is found to be
    /// falsely shared.
    pub const fn is_judged(&self) -> bool {
        self.samples >= RECENT
    }

    /// Whether one node's samples are so few that others may use it as well.
    pub const fn is_little_known(&self) -> bool {
        !self.shared && self.samples < MIN_OWN
    }
}

/// Recent samples of huge pages.
#[derive(Clone, Debug)]
pub struct HugePages {
    table: Table,
    capacity: usize,
    /// Pages that found no room.
    dropped: u64,
}

impl HugePages {
    pub fn new() -> Self {
        Self { table: Table::new(STRIDE), capacity: usize::MAX, dropped: 0 }
    }

    /// Makes no new records beyond so many.
    pub const fn limit(&mut self, most: usize) {
        self.capacity = most;
    }

    /// Huge pages with a record.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How often a sampled huge page found no room.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds samples (ascending); gives the huge pages that got some. `by_faults` says whether they are hint
    /// faults. A read and a write of one node to one base page are then one access, which stored what it had
    /// loaded. Next to no two hint faults are of one base page by chance.
    pub fn add(&mut self, keys: &[Key], by_faults: bool) -> Vec<u64> {
        let mut touched = Vec::new();
        let (mut pages, mut bytes) = (Vec::new(), Vec::new());
        for group in keys.chunk_by(|a, b| a.unit() == b.unit()).filter(|group| group[0].is_huge()) {
            let first = group[0];
            let known = self.table.position(first.unit());
            if known.is_none() && self.table.len() + pages.len() >= self.capacity {
                self.dropped += 1;
                continue;
            }
            touched.push(first.unit());
            let record = if let Some(at) = known {
                self.table.record_mut(at)
            } else {
                pages.push(first.unit());
                bytes.resize(bytes.len() + STRIDE, 0);
                let start = bytes.len() - STRIDE;
                &mut bytes[start..]
            };
            // Evenly spread samples stand for a group that has more than there is room for: a group is in
            // address order.
            let step = group.len().div_ceil(RECENT);
            for key in group.iter().step_by(step).filter(|key| key.is_huge() && key.accessor() < NODES) {
                let part = (key.page() - key.unit()) as u16
                    | (key.accessor() as u16) << 9
                    | u16::from(key.is_write()) << 15;
                let read = (part & !(1 << 15)).to_le_bytes();
                let count = usize::from(record[COUNT]);
                let mut held = record[..2 * count].chunks_exact_mut(2);
                if let Some(same) = held.find(|held| by_faults && key.is_write() && *held == read) {
                    same.copy_from_slice(&part.to_le_bytes());
                    continue;
                }
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
        self.table.position(page).map_or_else(Vec::new, |at| parts_of(self.table.record(at)))
    }

    /// How many pages of a range that several nodes use have too few samples yet to say how. The others may
    /// say it as well.
    pub fn unjudged(&self, range: PageRange) -> usize {
        let lacks_samples = |&at: &usize| {
            let record = self.table.record(at);
            let mut nodes = nodes_of(record);
            let first = nodes.next();
            usize::from(record[COUNT]) < RECENT && nodes.any(|node| Some(node) != first)
        };
        let lacking = self.table.positions(range.start.0, range.end.0).filter(lacks_samples).count();
        if lacking == 0 || self.are_truly_shared(range) { 0 } else { lacking }
    }

    /// The knowledge of the huge pages of a range, in order.
    pub fn known_in(&self, range: PageRange) -> impl Iterator<Item = Known> {
        let positions = self.table.positions(range.start.0, range.end.0);
        positions.map(|at| Known::of(self.table.pages()[at], &parts_of(self.table.record(at))))
    }

    /// Whether the huge pages of a range, taken together, are falsely shared: more neighbours agree than in
    /// random orders within each page. Each alone may have too few samples to tell. Pages that are known to
    /// have their one node do not count.
    pub fn are_falsely_shared(&self, range: PageRange) -> bool {
        let together = self.together(range);
        together.samples >= 2 * MIN_SAMPLES
            && together.dominant as f64 <= DOMINANT_SHARE * together.samples as f64
            && together.joins.deviations() >= MIN_DEVIATIONS
    }

    /// Whether the huge pages of a range that several nodes use, taken together, are used all over by all of
    /// these. Hardly more neighbours agree than by chance, in a good many samples.
    pub fn are_truly_shared(&self, range: PageRange) -> bool {
        let together = self.together(range);
        together.of_shared >= MANY_SAMPLES && together.joins.deviations() < FEW_DEVIATIONS
    }

    fn together(&self, range: PageRange) -> Together {
        let mut together = Together::default();
        for at in self.table.positions(range.start.0, range.end.0) {
            let parts = parts_of(self.table.record(at));
            if parts.len() >= MIN_SAMPLES && is_dominated(&parts) {
                continue;
            }
            let joins = Joins::of(&parts);
            together.joins.more += joins.more;
            together.joins.variance += joins.variance;
            together.samples += parts.len();
            together.of_shared +=
                if parts.iter().all(|part| part.accessor == parts[0].accessor) { 0 } else { parts.len() };
            together.dominant += most_of_one_node(&parts);
        }
        together
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

/// The samples of a record, in address order. Samples of one base page come in no order. In the order of
/// their nodes they would agree. All are of one base page where threads sweep over memory, since each thread
/// then meets the huge page at its beginning.
fn parts_of(record: &[u8]) -> Vec<Part> {
    let samples = record[..2 * usize::from(record[COUNT])].chunks_exact(2);
    let mut parts: Vec<(usize, Part)> = samples
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .map(|b| Part { base_page: b & 511, accessor: (b >> 9 & 63) as u8, write: b >> 15 != 0 })
        .enumerate()
        .collect();
    // 7 has no factor in common with `RECENT`, so that no two are equal.
    parts.sort_unstable_by_key(|&(at, part)| (part.base_page, at * 7 % RECENT));
    parts.into_iter().map(|(_, part)| part).collect()
}

/// The samples of several huge pages.
#[derive(Clone, Copy, Debug, Default)]
struct Together {
    joins: Joins,
    samples: usize,
    /// Samples of pages that several nodes use. The others tell nothing of how they do.
    of_shared: usize,
    /// Samples of the node that has most of each page's.
    dominant: usize,
}

/// Neighbours among samples in address order that agree on the node.
#[derive(Clone, Copy, Debug, Default)]
struct Joins {
    /// How many more there are than on average over all orders of the samples.
    more: f64,
    variance: f64,
}

impl Joins {
    /// The joins of one page; nothing is to be learnt of one that only one node uses.
    fn of(parts: &[Part]) -> Self {
        let n = parts.len() as f64;
        let mut counts = [0.0_f64; NODES];
        for part in parts {
            counts[usize::from(part.accessor)] += 1.0;
        }
        if counts.contains(&n) {
            return Self::default();
        }
        let joins = parts.windows(2).filter(|pair| pair[0].accessor == pair[1].accessor).count() as f64;
        let (s2, s3) =
            counts.iter().fold((0.0, 0.0), |(a, b), &c| (a + c * (c - 1.0), b + c * (c - 1.0) * (c - 2.0)));
        let cross: f64 = s2 * s2 - counts.iter().map(|&c| (c * (c - 1.0)).powi(2)).sum::<f64>();
        let fourth: f64 = counts.iter().map(|&c| c * (c - 1.0) * (c - 2.0) * (c - 3.0)).sum();
        let mean = s2 / n;
        // E[joins²]: a pair with itself, two pairs that share a sample, two pairs that do not.
        let square = mean + (2.0 * s3 + fourth + cross) / (n * (n - 1.0));
        Self { more: joins - mean, variance: (square - mean * mean).max(0.0) }
    }

    fn deviations(&self) -> f64 {
        self.more / self.variance.max(1e-9).sqrt()
    }
}

/// By how many standard deviations more neighbours agree on the node than in a random order; none when there
/// are too few samples to judge, or one accessor only.
pub fn order(parts: &[Part]) -> Option<f64> {
    let of = |node: u8| parts.iter().filter(|part| part.accessor == node).count();
    // Single strays do not make a page shared.
    let users = (0..NODES as u8).filter(|&node| of(node) >= 2).take(2).count();
    (parts.len() >= MIN_SAMPLES && users == 2).then(|| Joins::of(parts).deviations())
}

/// Samples of the node that has most.
fn most_of_one_node(parts: &[Part]) -> usize {
    let of = |node: u8| parts.iter().filter(|part| part.accessor == node).count();
    parts.iter().map(|part| of(part.accessor)).max().unwrap_or(0)
}

/// Whether one node has nearly all of the samples.
fn is_dominated(parts: &[Part]) -> bool {
    most_of_one_node(parts) as f64 > DOMINANT_SHARE * parts.len() as f64
}

/// Whether a page with these samples is falsely shared. It is not if one node uses so much of it that it had
/// better go there as a whole. `others_are` is asked about the pages around it if its own leave doubt.
pub fn falsely_shared(parts: &[Part], others_are: impl FnOnce() -> bool) -> bool {
    let deviations = order(parts).filter(|_| !is_dominated(parts)).unwrap_or(0.0);
    deviations >= MIN_DEVIATIONS_ALONE || deviations >= MIN_DEVIATIONS && others_are()
}

#[cfg(test)]
mod tests {
    use super::{HugePages, Part, falsely_shared, order};
    use crate::region::key::Key;
    use crate::{Access, PageNumber, PageRange};

    fn parts(n: u16, node: impl Fn(u16) -> u8) -> Vec<Part> {
        (0..n).map(|i| Part { base_page: i * 512 / n, accessor: node(i), write: false }).collect()
    }

    #[test]
    fn quarters_and_halves_are_falsely_shared() {
        assert!(falsely_shared(&parts(16, |i| (i / 4) as u8), || false));
        for (samples, by_quarter) in [(12, true), (24, false)] {
            let parts = parts(samples, |i| (i * if by_quarter { 4 } else { 2 } / samples) as u8);
            assert!(falsely_shared(&parts, || true) && !falsely_shared(&parts, || false));
        }
    }

    /// A page is judged with each sample that it gets, and may be wronged each time.
    #[test]
    fn random_order_is_not() {
        let found = |others_are: bool| {
            let is_found = |seed: u64| {
                let mut page = HugePages::new();
                (0..60).any(|sample| {
                    let random = mix(seed * 64 + sample);
                    page.add(&[Key::in_huge_page(random % 512, (random >> 9 & 3) as u8)], true);
                    falsely_shared(&page.parts(0), || others_are)
                })
            };
            (0..10_000).filter(|&seed| is_found(seed)).count()
        };
        let (alone, among_such) = (found(false), found(true));
        assert!(alone <= 5, "{alone} of 10000 shared pages taken for falsely shared");
        assert!((50..250).contains(&among_such), "{among_such} of 10000: the bound is strict beyond need");
    }

    /// Pages that one node has for itself do not hide those on the border of two.
    #[test]
    fn borders_of_private_memory_are_judged_by_each_other() {
        let anywhere = |page, sample| mix(page * 1009 + sample) % 512;
        let slices = |page: u64, _| ((page + 256) / (8 * 512)) as u8;
        assert!(pages(20, slices, anywhere).are_falsely_shared(ALL));
    }

    /// Samples of 32 huge pages, so many of each.
    fn pages(samples: u64, node: impl Fn(u64, u64) -> u8, base_page: impl Fn(u64, u64) -> u64) -> HugePages {
        let mut pages = HugePages::new();
        for sample in 0..samples {
            let key = |page: u64| {
                let base_page = page * 512 + base_page(page, sample);
                Key::in_huge_page(base_page, node(base_page, page * 97 + sample))
            };
            let mut keys: Vec<Key> = (0..32).map(key).collect();
            keys.sort_unstable();
            pages.add(&keys, true);
        }
        pages
    }

    fn mix(x: u64) -> u64 {
        let x = (x + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
    }

    const ALL: PageRange = PageRange { start: PageNumber(0), end: PageNumber(32 * 512) };

    #[test]
    fn pages_with_few_samples_are_judged_together() {
        let anywhere = |page, sample| mix(page * 1009 + sample) % 512;
        let by_quarter = pages(5, |page, _| (page % 512 / 128) as u8, anywhere);
        assert!(by_quarter.are_falsely_shared(ALL));
        let by_all = pages(5, |_, turn| (mix(turn) % 4) as u8, anywhere);
        assert!(!by_all.are_falsely_shared(ALL));
        let by_one = pages(5, |_, _| 2, anywhere);
        assert!(!by_one.are_falsely_shared(ALL));
        // The others use the beginning of each page.
        let mostly_one = |page, turn| if page % 512 < 32 { (mix(turn) % 4) as u8 } else { 1 };
        assert!(!pages(5, mostly_one, anywhere).are_falsely_shared(ALL));
    }

    /// Too few samples of each page, but enough of all.
    #[test]
    fn pages_with_few_samples_are_acquitted_together() {
        let anywhere = |page, sample| mix(page * 1009 + sample) % 512;
        let by_all = |_, turn| (mix(turn) % 4) as u8;
        assert!(pages(5, by_all, anywhere).unjudged(ALL) > 0);
        let acquitted = pages(8, by_all, anywhere);
        assert!(acquitted.are_truly_shared(ALL) && acquitted.unjudged(ALL) == 0);
        // By one page in four there is something to find.
        let by_quarter = |page: u64, turn| {
            if page / 512 % 4 == 0 { (page % 512 / 128) as u8 } else { by_all(page, turn) }
        };
        assert!(pages(8, by_quarter, anywhere).unjudged(ALL) > 0);
        // Pages that are one node's acquit nobody.
        let few = |page: u64, turn| if page / 512 < 4 { by_all(page, turn) } else { 1 };
        assert!(pages(8, few, anywhere).unjudged(ALL) > 0);
        let by_half = |page: u64, _| (page % 512 / 256) as u8;
        assert!(pages(8, by_half, anywhere).unjudged(ALL) > 0);
    }

    /// Each thread meets a huge page at its beginning.
    #[test]
    fn who_sweeps_over_shared_memory_shares_it_truly() {
        let swept = pages(24, |_, turn| (turn % 4) as u8, |_, _| 0);
        assert!(!swept.are_falsely_shared(ALL));
        for page in 0..32 {
            assert!(!falsely_shared(&swept.parts(page * 512), || true), "{page}");
        }
    }

    /// A thread's load and the store after it are no run of a node.
    #[test]
    fn who_stores_what_was_loaded_uses_it_once() {
        let anywhere = |page, sample| mix(page * 1009 + sample) % 512;
        let node = |turn| (mix(turn) % 4) as u8;
        for (by_faults, expected) in [(true, false), (false, true)] {
            let mut pages = HugePages::new();
            for turn in 0..24 {
                let at = |page: u64| page * 512 + anywhere(page, turn);
                let loads = (0..32).map(|page| Key::in_huge_page(at(page), node(page * 97 + turn)));
                let mut keys: Vec<Key> = loads
                    .flat_map(|load| [load.of_kind(Access::Read), load.of_kind(Access::Write)])
                    .collect();
                keys.sort_unstable();
                pages.add(&keys, by_faults);
            }
            assert_eq!(pages.are_falsely_shared(ALL), expected);
            let written = pages.parts(0).iter().filter(|part| part.write).count();
            assert_eq!(written, if by_faults { 24 } else { 12 });
        }
    }

    #[test]
    fn one_accessor_or_few_samples_tell_nothing() {
        assert_eq!(order(&parts(24, |_| 1)), None);
        assert_eq!(order(&parts(8, |i| (i / 4) as u8)), None);
        assert_eq!(order(&parts(24, |i| u8::from(i == 5))), None, "a single stray");
    }
}
