//! IS: integers sorted by counting, ten times.
//!
//! Scale 1 is class B: 2^25 keys below 2^21. Kept: buckets of keys, the ranks counted within them, all ten
//! iterations. As before NPB 3.3, one thread makes the keys, one random number after the other: all of them
//! are where that thread runs.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, Random, alone, part, scaled, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const KEYS: usize = 1 << 25;
/// Keys for each value that they can have.
const KEYS_PER_VALUE: usize = 16;
/// Buckets at scale 1; fewer of fewer keys, so that a thread's keys of a bucket stay some lines.
const BUCKETS: usize = 1 << 10;
const FEWEST_BUCKETS: usize = 1 << 8;
const ITERATIONS: usize = 10;
/// Keys of an item, and of a line.
const BLOCK: usize = 512;
const LINE_KEYS: usize = LINE as usize / 4;

/// A line of 16 keys: shift and count each.
const COUNT: Lines = Lines { at_once: 4, instructions: 16 * 4 };
/// Shift, place, copy and advance each.
const SCATTER: Lines = Lines { at_once: 4, instructions: 16 * 7 };
/// Count each.
const RANK: Lines = Lines { at_once: 4, instructions: 16 * 3 };

struct Is {
    areas: Vec<Area>,
    threads: usize,
    /// One more than the largest key.
    values: usize,
    keys: Array<u32>,
    /// The keys by buckets.
    sorted: Array<u32>,
    /// How many keys are not above each value.
    ranks: Array<u32>,
    /// Keys of each bucket in each thread's part: a row for each thread.
    counts: Array<u32>,
    /// Where each thread's next key of a bucket goes.
    next: Vec<u32>,
    /// Where each bucket ends.
    ends: Vec<u32>,
}

// The kinds of phases: the keys are made, then for each iteration three steps.
const MAKE: usize = 0;
const COUNTING: usize = 0;
const SCATTERING: usize = 1;

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let keys = scaled(KEYS, parameters.scale, 1 << 10);
    let values = (keys / KEYS_PER_VALUE).next_power_of_two();
    let mut random = Random::new(parameters.seed);
    // The mean of four random numbers.
    let key = |_| ((0..4).map(|_| random.unit()).sum::<f64>() / 4.0 * values as f64) as u32;
    let list = (0..keys).map(key).collect();
    let buckets = scaled(BUCKETS, parameters.scale, FEWEST_BUCKETS).next_power_of_two().min(values);
    let mut space = Space::new();
    let keys_of = space.array("keys", list, Role::ReadShared);
    let sorted = space.array("keys by buckets", vec![0; keys], Role::WriteShared);
    let ranks = space.array("ranks", vec![0; values], Role::WriteShared);
    let counts = space.array("bucket sizes", vec![0; buckets * parameters.threads], Role::WriteShared);
    let program = Is {
        areas: space.into_areas(),
        threads: parameters.threads,
        values,
        keys: keys_of,
        sorted,
        ranks,
        counts,
        next: vec![0; buckets * parameters.threads],
        ends: vec![0; buckets],
    };
    Phases::program(program, parameters.threads)
}

impl Is {
    fn buckets(&self) -> usize {
        self.ends.len()
    }

    fn bucket(&self, key: u32) -> usize {
        key as usize / (self.values / self.buckets())
    }

    fn block(&self, item: usize) -> Range<usize> {
        item * BLOCK..((item + 1) * BLOCK).min(self.keys.values().len())
    }

    /// The row of a thread's bucket sizes.
    fn row(&self, thread: usize) -> Range<usize> {
        thread * self.buckets()..(thread + 1) * self.buckets()
    }

    fn count(&mut self, thread: usize, item: usize, first: bool, trace: &mut Trace) {
        let row = self.row(thread);
        if first {
            write_lines(self.counts.address(row.start), row.len() as u64 * 4, trace);
            self.counts.values_mut()[row.clone()].fill(0);
        }
        let block = self.block(item);
        COUNT.read(self.keys.address(block.start), block.len() as u64 * 4, trace);
        for index in block {
            let bucket = self.bucket(self.keys.values()[index]);
            self.counts.values_mut()[row.start + bucket] += 1;
        }
    }

    /// Where a thread's keys of each bucket begin: after those of the threads before it.
    fn places(&mut self, thread: usize, trace: &mut Trace) {
        let buckets = self.buckets();
        let mut place = 0;
        for other in 0..self.threads {
            let row = self.row(other);
            COUNT.read(self.counts.address(row.start), row.len() as u64 * 4, trace);
        }
        let counts = self.counts.values();
        for bucket in 0..buckets {
            for other in 0..self.threads {
                if other == thread {
                    self.next[thread * buckets + bucket] = place;
                }
                place += counts[other * buckets + bucket];
            }
            self.ends[bucket] = place;
        }
    }

    fn scatter(&mut self, thread: usize, item: usize, trace: &mut Trace) {
        let (block, buckets) = (self.block(item), self.buckets());
        SCATTER.read(self.keys.address(block.start), block.len() as u64 * 4, trace);
        for index in block {
            let key = self.keys.values()[index];
            let next = &mut self.next[thread * buckets + key as usize / (self.values / buckets)];
            let place = *next as usize;
            *next += 1;
            // The other writes to a line find it in the first-level cache.
            if place % LINE_KEYS == 0 {
                self.sorted.write(place, key, trace);
            }
            self.sorted.values_mut()[place] = key;
        }
    }

    fn rank(&mut self, bucket: usize, trace: &mut Trace) {
        let start = if bucket == 0 { 0 } else { self.ends[bucket - 1] as usize };
        let keys = start..self.ends[bucket] as usize;
        let width = self.values / self.buckets();
        RANK.read(self.sorted.address(keys.start), keys.len() as u64 * 4, trace);
        write_lines(self.ranks.address(bucket * width), width as u64 * 4, trace);
        trace.compute(width as u64 * 4);
        let ranks = &mut self.ranks.values_mut()[bucket * width..(bucket + 1) * width];
        ranks.fill(0);
        for &key in &self.sorted.values()[keys] {
            ranks[key as usize - bucket * width] += 1;
        }
        let mut rank = start as u32;
        for count in ranks {
            rank += *count;
            *count = rank;
        }
    }
}

impl Phased for Is {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        1 + 3 * ITERATIONS
    }

    fn iteration(&self) -> u64 {
        3
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let blocks = self.keys.values().len().div_ceil(BLOCK);
        match phase {
            MAKE => alone(blocks, thread),
            _ if (phase - 1) % 3 == COUNTING || (phase - 1) % 3 == SCATTERING => {
                part(blocks, thread, self.threads)
            }
            // Buckets in the middle are fuller: they are dealt out one by one.
            _ => 0..(self.buckets() + self.threads - 1 - thread) / self.threads,
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == MAKE {
            let block = self.block(item);
            trace.compute(block.len() as u64 * 60);
            write_lines(self.keys.address(block.start), block.len() as u64 * 4, trace);
            return;
        }
        let first = item == self.items(phase, thread).start;
        match (phase - 1) % 3 {
            COUNTING => {
                let iteration = (phase - 1) / 3;
                if first && thread == 0 {
                    // As published: two keys are others in every iteration.
                    self.keys.write(iteration, iteration as u32, trace);
                    self.keys.write(iteration + ITERATIONS, (self.values - 1 - iteration) as u32, trace);
                }
                self.count(thread, item, first, trace);
            }
            SCATTERING => {
                if first {
                    self.places(thread, trace);
                }
                self.scatter(thread, item, trace);
            }
            _ => self.rank(item * self.threads + thread, trace),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let mut counts = vec![0u32; self.values];
        for &key in self.keys.values() {
            counts[key as usize] += 1;
        }
        let mut rank = 0;
        for (value, count) in counts.into_iter().enumerate() {
            rank += count;
            let found = self.ranks.values()[value];
            if found != rank {
                return Err(Error::wrong_result(format!(
                    "{found} keys are not above {value}, counted are {rank}"
                )));
            }
        }
        Ok(())
    }
}
