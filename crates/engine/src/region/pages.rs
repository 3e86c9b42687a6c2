//! The knowledge of single pages, where the pages of a region differ.
//!
//! A record is `6 + nodes` bytes. It begins with the round of the last decay and the home. The last node that
//! used the page follows, and in how many rounds in a row it alone did. Then come the exponent of two of its
//! size in base pages, and for each node reads (low four bits) and writes (high four bits). Counts halve when
//! one would overflow, and with time: only their proportions matter.

use super::RegionSettings;
use super::folios::Folios;
use super::key::{Key, NO_NODE};
use super::table::Table;
use crate::PageRange;
use crate::memory::HUGE_PAGE_PAGES;

const STAMP: usize = 0;
const HOME: usize = 2;
const USER: usize = 3;
const ALONE: usize = 4;
const SIZE: usize = 5;
const COUNTS: usize = 6;

/// Per-page records of a process.
#[derive(Clone, Debug)]
pub struct Pages {
    nodes: usize,
    half_life: u32,
    capacity: usize,
    table: Table,
    /// Pages that found no room.
    dropped: u64,
    unseen: Vec<u64>,
    unseen_bytes: Vec<u8>,
}

/// One page's record.
#[derive(Clone, Copy)]
pub struct Page<'a> {
    record: &'a [u8],
    shift: u32,
}

impl Pages {
    pub fn new(nodes: usize, settings: &RegionSettings) -> Self {
        Self {
            nodes,
            half_life: settings.page_half_life_intervals,
            capacity: settings.max_tracked_pages,
            table: Table::new(COUNTS + nodes),
            dropped: 0,
            unseen: Vec::new(),
            unseen_bytes: Vec::new(),
        }
    }

    /// Adds an interval's samples of tracked regions: slices of keys in ascending page order,
    /// with each whether to keep only the chosen pages. `folios` tells how many base pages move at once.
    pub fn add(&mut self, slices: &[(&[Key], bool)], folios: &Folios, round: u32) {
        let mut at = 0;
        let stride = COUNTS + self.nodes;
        let groups = slices.iter().flat_map(|&(keys, thinned)| {
            let groups = keys.chunk_by(|a, b| a.unit() == b.unit());
            groups.filter(move |group| !thinned || Self::is_chosen(group[0].unit()))
        });
        for group in groups {
            let unit = group[0].unit();
            at = self.table.seek(at, unit);
            let record = if self.table.pages().get(at) == Some(&unit) {
                let record = self.table.record_mut(at);
                decay(record, round, self.half_life);
                record
            } else if self.table.len() + self.unseen.len() < self.capacity {
                let start = self.unseen_bytes.len();
                self.unseen.push(unit);
                self.unseen_bytes.resize(start + stride, 0);
                let record = &mut self.unseen_bytes[start..];
                record[STAMP..STAMP + 2].copy_from_slice(&(round as u16).to_le_bytes());
                record[USER] = NO_NODE;
                record
            } else {
                self.dropped += 1;
                continue;
            };
            let pages = if group[0].is_huge() { HUGE_PAGE_PAGES } else { folios.pages(unit) };
            record[SIZE] = pages.ilog2() as u8;
            for &key in group {
                count(record, key);
            }
            note_user(record, group);
        }
        self.table.insert(&self.unseen, &self.unseen_bytes);
        // Steady state needs neither, and memory per page is a promise.
        self.unseen = Vec::new();
        self.unseen_bytes = Vec::new();
    }

    /// One page in sixteen, for regions whose pages are all alike.
    pub const fn is_chosen(page: u64) -> bool {
        page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60 == 0
    }

    /// Makes no new records beyond so many.
    pub const fn limit(&mut self, most: usize) {
        self.capacity = most;
    }

    /// How many nodes there are.
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// The records of pages in `start..end`.
    pub fn range(&self, start: u64, end: u64, round: u32) -> impl Iterator<Item = (u64, Page<'_>)> {
        self.table.positions(start, end).map(move |at| (self.table.pages()[at], self.at(at, round)))
    }

    /// The same, or of more than `most` only some, spread evenly: what a range is like shows in some
    /// thousands.
    pub fn survey(&self, range: PageRange, most: usize, round: u32) -> impl Iterator<Item = (u64, Page<'_>)> {
        let positions = self.table.positions(range.start.0, range.end.0);
        let step = positions.len().div_ceil(most).max(1);
        // One of each `step`, but not always the same: patterns repeat every so many pages.
        let pick = move |k: usize| {
            let any = (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            positions.start + k * step + ((any * step as u64) >> 32) as usize
        };
        (0..self.count(range.start.0, range.end.0) / step)
            .map(pick)
            .map(move |at| (self.table.pages()[at], self.at(at, round)))
    }

    fn at(&self, at: usize, round: u32) -> Page<'_> {
        let record = self.table.record(at);
        Page { record, shift: shift(record, round, self.half_life) }
    }

    /// How many pages of `start..end` have a record.
    pub fn count(&self, start: u64, end: u64) -> usize {
        self.table.positions(start, end).len()
    }

    /// Forgets who accessed the pages of a range.
    pub fn forget(&mut self, range: PageRange) {
        for at in self.table.positions(range.start.0, range.end.0) {
            let record = self.table.record_mut(at);
            (record[USER], record[ALONE]) = (NO_NODE, 0);
            record[COUNTS..].fill(0);
        }
    }

    /// Remembers where a page is now.
    pub fn moved(&mut self, page: u64, to: u8) {
        if let Some(at) = self.table.position(page) {
            self.table.record_mut(at)[HOME] = to;
        }
    }

    /// Forgets the records outside of what `keep` wants, and those that have faded.
    pub fn retain(&mut self, round: u32, mut keep: impl FnMut(u64) -> bool) {
        let half_life = self.half_life;
        self.table.retain(|page, record| {
            let shift = shift(record, round, half_life);
            keep(page) && Page { record, shift }.total() > 0
        });
    }

    /// Pages with a record.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How often a sampled page found no room.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.table.heap_bytes()
    }
}

impl Page<'_> {
    /// Accesses by a node, decayed.
    pub fn accesses(self, node: usize) -> u32 {
        let byte = self.record[COUNTS + node];
        (u32::from(byte & 15) + u32::from(byte >> 4)) >> self.shift
    }

    /// Reads (and unknown accesses) and writes by a node, decayed.
    pub fn kinds(self, node: usize) -> (u32, u32) {
        let byte = self.record[COUNTS + node];
        (u32::from(byte & 15) >> self.shift, u32::from(byte >> 4) >> self.shift)
    }

    /// All accesses, decayed.
    pub fn total(self) -> u32 {
        (0..self.record.len() - COUNTS).map(|node| self.accesses(node)).sum()
    }

    /// The home node when last sampled or moved; none when not known.
    pub fn home(self) -> Option<u8> {
        Some(self.record[HOME]).filter(|&node| node != NO_NODE)
    }

    /// In how many rounds in a row only this node was seen using it, of those in which any was; at most 255.
    pub fn rounds_alone(self, node: usize) -> u32 {
        if usize::from(self.record[USER]) == node { u32::from(self.record[ALONE]) } else { 0 }
    }

    /// How many base pages it is.
    pub fn pages(self) -> u64 {
        1 << self.record[SIZE]
    }
}

/// How many halvings are due.
fn shift(record: &[u8], round: u32, half_life: u32) -> u32 {
    let stamp = u16::from_le_bytes([record[STAMP], record[STAMP + 1]]);
    let age = u32::from((round as u16).wrapping_sub(stamp));
    age.checked_div(half_life).unwrap_or(age.min(1) * 8).min(8)
}

/// Brings a record's counts up to date.
fn decay(record: &mut [u8], round: u32, half_life: u32) {
    let shift = shift(record, round, half_life);
    if shift == 0 {
        return;
    }
    for byte in &mut record[COUNTS..] {
        *byte = ((*byte & 15) >> shift) | (((*byte >> 4) >> shift) << 4);
    }
    let stamp = u16::from_le_bytes([record[STAMP], record[STAMP + 1]]);
    let stamp = if shift >= 8 { round as u16 } else { stamp.wrapping_add((shift * half_life) as u16) };
    record[STAMP..STAMP + 2].copy_from_slice(&stamp.to_le_bytes());
}

/// Follows who uses the page alone, with a round's samples.
fn note_user(record: &mut [u8], group: &[Key]) {
    let user = group[0].accessor();
    if group.iter().any(|key| key.accessor() != user) {
        (record[USER], record[ALONE]) = (NO_NODE, 0);
        return;
    }
    let before = if usize::from(record[USER]) == user { record[ALONE] } else { 0 };
    (record[USER], record[ALONE]) = (user as u8, before.saturating_add(1));
}

/// Counts one sample.
fn count(record: &mut [u8], key: Key) {
    record[HOME] = key.home();
    let at = COUNTS + key.accessor();
    let full = if key.is_write() { record[at] >> 4 == 15 } else { record[at] & 15 == 15 };
    if full {
        for byte in &mut record[COUNTS..] {
            *byte = (*byte >> 1) & 0x77;
        }
    }
    record[at] += if key.is_write() { 16 } else { 1 };
}
