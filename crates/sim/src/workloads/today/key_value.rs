//! A key-value store in memory: one thread loads it, then all serve requests.
//!
//! Scale 1 is a million keys with values of 128 bytes. As in YCSB's workload B, 95 % of the requests read a
//! value and the others update one; keys follow Zipf's law (with exponent 1; YCSB's is 0.99), popular ones
//! lying anywhere. An update counts, so that the result does not depend on who comes first.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, alone, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const KEYS: usize = 1 << 20;
const REQUESTS_PER_KEY: usize = 16;
const READ_PERCENT: usize = 95;
const VALUE_BYTES: u64 = 128;
const BATCH: usize = 32;

/// To parse a request, hash its key and answer.
const REQUEST: u64 = 150;
const COMPARE: u64 = 6;
/// To put an entry in, from a file.
const LOAD: u64 = 40;
const VALUE: Lines = Lines { at_once: 2, instructions: 16 };

/// An entry of a chain, 24 bytes; the value lies elsewhere.
#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    /// The value, by number.
    value: u32,
    /// The next entry, by number plus one; 0 at the end.
    next: u32,
    /// Updates.
    count: u64,
}

struct KeyValue {
    areas: Vec<Area>,
    threads: usize,
    /// The first entry of each bucket, plus one.
    buckets: Array<u32>,
    entries: Array<Entry>,
    /// Base of the values.
    values: u64,
    /// Each thread's next requests.
    requests: Vec<Random>,
    seed: u64,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let keys = scaled(KEYS, parameters.scale, 64).next_power_of_two();
    let mut buckets = vec![0; keys];
    let mut entries = Vec::with_capacity(keys);
    for number in 0..keys {
        let key = number as u64;
        let bucket = &mut buckets[hash(key) as usize & (keys - 1)];
        entries.push(Entry { key, value: number as u32, next: *bucket, count: 0 });
        *bucket = number as u32 + 1;
    }
    let mut space = Space::new();
    let buckets = space.array("buckets", buckets, Role::WriteShared);
    let entries = space.array("entries", entries, Role::WriteShared);
    let values = space.area("values", keys as u64 * VALUE_BYTES, Role::WriteShared);
    let program = KeyValue {
        areas: space.into_areas(),
        threads: parameters.threads,
        buckets,
        entries,
        values,
        requests: requests(parameters.seed, parameters.threads),
        seed: parameters.seed,
    };
    Phases::program(program, parameters.threads)
}

fn hash(key: u64) -> u64 {
    Random::new(key).next()
}

fn requests(seed: u64, threads: usize) -> Vec<Random> {
    (0..threads as u64).map(|thread| Random::new(hash(seed ^ thread << 32))).collect()
}

/// The next request: its key, and whether it reads.
fn next(random: &mut Random, keys: usize) -> (u64, bool) {
    // The logarithm of the rank is even; an odd factor scatters ranks over the keys.
    let rank = ((keys as f64).powf(random.unit()) as u64).saturating_sub(1);
    let key = rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (keys as u64 - 1);
    (key, random.below(100) < READ_PERCENT)
}

impl KeyValue {
    fn keys(&self) -> usize {
        self.entries.values().len()
    }

    fn serve(&mut self, thread: usize, trace: &mut Trace) {
        let keys = self.keys();
        let (key, reads) = next(&mut self.requests[thread], keys);
        trace.compute(REQUEST);
        let mut place = self.buckets.chase(hash(key) as usize & (keys - 1), trace);
        while place > 0 {
            let number = place as usize - 1;
            let entry = self.entries.chase(number, trace);
            wait_for(self.entries.address(number), trace);
            trace.compute(COMPARE);
            if entry.key == key {
                let value = self.values + u64::from(entry.value) * VALUE_BYTES;
                if reads {
                    VALUE.read(value, VALUE_BYTES, trace);
                } else {
                    write_lines(value, VALUE_BYTES, trace);
                    self.entries.write(number, Entry { count: entry.count + 1, ..entry }, trace);
                }
                return;
            }
            place = entry.next;
        }
    }
}

impl Phased for KeyValue {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        2
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        if phase == 0 {
            alone(self.keys().div_ceil(BATCH), thread)
        } else {
            part(self.keys() * REQUESTS_PER_KEY / BATCH, thread, self.threads)
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == 1 {
            return (0..BATCH).for_each(|_| self.serve(thread, trace));
        }
        for number in item * BATCH..((item + 1) * BATCH).min(self.keys()) {
            trace.compute(LOAD);
            let entry = self.entries.values()[number];
            let bucket = hash(entry.key) as usize & (self.keys() - 1);
            self.buckets.write(bucket, self.buckets.values()[bucket], trace);
            self.entries.write(number, entry, trace);
            write_lines(self.values + u64::from(entry.value) * VALUE_BYTES, VALUE_BYTES, trace);
        }
    }

    fn check(&self) -> Result<(), Error> {
        let mut counts = vec![0; self.keys()];
        for (thread, mut random) in requests(self.seed, self.threads).into_iter().enumerate() {
            for _ in 0..self.items(1, thread).len() * BATCH {
                let (key, reads) = next(&mut random, self.keys());
                counts[key as usize] += u64::from(!reads);
            }
        }
        for entry in self.entries.values() {
            let wanted = counts[entry.key as usize];
            if entry.count != wanted {
                return Err(Error::wrong_result(format!(
                    "key {} has {} updates, not {wanted}",
                    entry.key, entry.count
                )));
            }
        }
        Ok(())
    }
}
