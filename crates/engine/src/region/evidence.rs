//! Accesses to a range of pages, by accessor and by home, as decayed sample counts.

use super::huge::Part;
use super::key::{Key, NO_NODE};

/// Sample counts of one region, fading with time.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    nodes: usize,
    /// Reads (and accesses of unknown kind), writes, homes: `nodes` numbers each.
    counts: Box<[f32]>,
    /// Accesses of unknown kind, a part of the above.
    unknown: f32,
    /// Samples with a known home that was the accessor's node.
    local: f32,
    /// Stores that a cache served, none of the above.
    stored: f32,
}

impl Evidence {
    /// Nothing seen yet.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { nodes, counts: vec![0.0; 3 * nodes].into_boxed_slice(), unknown: 0.0, local: 0.0, stored: 0.0 }
    }

    /// Counts samples.
    pub(crate) fn from_keys(keys: &[Key], nodes: usize) -> Self {
        // Integers first: exact for any number of samples, and quick.
        let mut accesses = vec![0_u32; 2 * nodes];
        let mut homes = vec![0_u32; 256];
        let (mut unknown, mut local) = (0_u32, 0_u32);
        for &key in keys {
            let accessor = key.accessor();
            accesses[accessor + if key.is_write() { nodes } else { 0 }] += 1;
            homes[usize::from(key.home())] += 1;
            unknown += u32::from(key.is_unknown());
            local += u32::from(usize::from(key.home()) == accessor);
        }
        homes[usize::from(NO_NODE)] = 0;
        let counts = accesses.iter().chain(&homes[..nodes]).map(|&count| count as f32).collect();
        Self { nodes, counts, unknown: unknown as f32, local: local as f32, stored: 0.0 }
    }

    /// Counts recent samples of a huge page.
    pub(crate) fn from_parts(parts: &[Part], nodes: usize) -> Self {
        let mut evidence = Self::new(nodes);
        for part in parts.iter().filter(|part| usize::from(part.accessor) < nodes) {
            let kind = if part.write { nodes } else { 0 };
            evidence.counts[kind + usize::from(part.accessor)] += 1.0;
        }
        evidence
    }

    /// Reads and accesses of unknown kind, by accessor node.
    #[must_use]
    pub fn reads(&self) -> &[f32] {
        &self.counts[..self.nodes]
    }

    /// Writes by accessor node.
    #[must_use]
    pub fn writes(&self) -> &[f32] {
        &self.counts[self.nodes..2 * self.nodes]
    }

    /// Samples by home node, since homes were last reset.
    #[must_use]
    pub fn homes(&self) -> &[f32] {
        &self.counts[2 * self.nodes..]
    }

    /// All accesses of one node.
    #[must_use]
    pub fn accesses(&self, node: usize) -> f32 {
        self.counts[node] + self.counts[self.nodes + node]
    }

    /// All accesses.
    #[must_use]
    pub fn total(&self) -> f32 {
        self.counts[..2 * self.nodes].iter().sum()
    }

    /// Accesses of unknown kind.
    #[must_use]
    pub const fn unknown(&self) -> f32 {
        self.unknown
    }

    /// Samples that were local, among those with a known home.
    #[must_use]
    pub const fn local(&self) -> f32 {
        self.local
    }

    /// Stores that a cache served. A thread that loads a word, computes and stores it reads memory only.
    #[must_use]
    pub const fn stored(&self) -> f32 {
        self.stored
    }

    /// Counts a store that a cache served.
    pub(crate) const fn note_stored(&mut self) {
        self.stored += 1.0;
    }

    /// Adds other evidence.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.unknown += other.unknown;
        self.local += other.local;
        self.stored += other.stored;
    }

    /// Multiplies everything.
    pub(crate) fn scale(&mut self, factor: f32) {
        self.counts.iter_mut().for_each(|count| *count *= factor);
        self.unknown *= factor;
        self.local *= factor;
        self.stored *= factor;
    }

    /// Takes a part away: the given share of each count: `nodes` reads, `nodes` writes, `nodes` homes, and
    /// the local samples. The part that is taken and the part that stays add up to what was.
    pub(crate) fn take(&mut self, shares: &[f32]) -> Self {
        let before = self.total();
        let mut part = Self::new(self.nodes);
        for (i, (mine, theirs)) in self.counts.iter_mut().zip(&mut part.counts).enumerate() {
            *theirs = *mine * shares[i];
            *mine -= *theirs;
        }
        // Not more local than located, on either side: homes and local samples are divided by different keys.
        let (mine, theirs) = (self.homes().iter().sum::<f32>(), part.homes().iter().sum::<f32>());
        let local = self.local * shares[3 * self.nodes];
        part.local = local.max(self.local - mine).min(theirs).min(self.local).max(0.0);
        self.local -= part.local;
        let taken = if before > 0.0 { part.total() / before } else { 0.0 };
        (part.unknown, part.stored) = (self.unknown * taken, self.stored * taken);
        self.unknown -= part.unknown;
        self.stored -= part.stored;
        part
    }

    /// Replaces what is known of homes: pages were moved. `expected` (shares by node) carries next to no
    /// weight, so that the first samples decide.
    pub(crate) fn reset_homes(&mut self, expected: &[f32]) {
        const WEIGHT: f32 = 0.01;
        let total = self.total().max(f32::MIN_POSITIVE);
        self.local =
            WEIGHT * (0..self.nodes).map(|node| expected[node] * self.accesses(node)).sum::<f32>() / total;
        for (home, &share) in self.counts[2 * self.nodes..].iter_mut().zip(expected) {
            *home = share * WEIGHT;
        }
    }

    /// The accessor nodes with at least `min_share` of all accesses, by index.
    pub(crate) fn accessors(&self, min_share: f32) -> impl Iterator<Item = usize> + '_ {
        let least = (self.total() * min_share).max(f32::MIN_POSITIVE);
        (0..self.nodes).filter(move |&node| self.accesses(node) >= least)
    }

    /// The one accessor node, if there is only one.
    pub(crate) fn only_accessor(&self, min_share: f32) -> Option<usize> {
        let mut accessors = self.accessors(min_share);
        let first = accessors.next()?;
        accessors.next().is_none().then_some(first)
    }

    /// The node with most accesses.
    pub(crate) fn most_frequent(&self) -> usize {
        (0..self.nodes)
            .max_by(|&a, &b| self.accesses(a).total_cmp(&self.accesses(b)).then(b.cmp(&a)))
            .unwrap_or(0)
    }

    /// Accesses of all but the most frequent accessor.
    pub(crate) fn minority(&self) -> f32 {
        let most = (0..self.nodes).map(|node| self.accesses(node)).fold(0.0, f32::max);
        (self.total() - most).max(0.0)
    }

    /// Twice the logarithm of how much better two distributions of accessors explain the two parts than one
    /// does (the G statistic), and its degrees of freedom. With `kinds`, reads and writes are told apart.
    pub(crate) fn divergence(&self, other: &Self, kinds: bool) -> (f64, f64) {
        let categories = if kinds { 2 * self.nodes } else { self.nodes };
        let of = |e: &Self, i: usize| f64::from(if kinds { e.counts[i] } else { e.accesses(i) });
        let (mine, theirs) = (f64::from(self.total()), f64::from(other.total()));
        let mut g = xlogx(mine + theirs) - xlogx(mine) - xlogx(theirs);
        let mut used = 0.0;
        for i in 0..categories {
            let (x, y) = (of(self, i), of(other, i));
            if x + y > 0.0 {
                used += 1.0;
                g += xlogx(x) + xlogx(y) - xlogx(x + y);
            }
        }
        (2.0 * g.max(0.0), (used - 1.0_f64).max(0.0))
    }

    /// How far apart two distributions of accesses are: half the sum of differences of shares, 0 to 1.
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        let (mine, theirs) = (self.total().max(f32::MIN_POSITIVE), other.total().max(f32::MIN_POSITIVE));
        let pairs = self.counts[..2 * self.nodes].iter().zip(&other.counts);
        pairs.map(|(a, b)| (a / mine - b / theirs).abs()).sum::<f32>() / 2.0
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.counts.len() * size_of::<f32>()
    }
}

/// x ln x, continuous at 0.
pub fn xlogx(x: f64) -> f64 {
    if x > 0.0 { x * x.ln() } else { 0.0 }
}
