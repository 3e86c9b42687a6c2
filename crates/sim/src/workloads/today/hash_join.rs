//! A hash join without partitioning: all threads put the smaller relation into one table, then look up the
//! larger one.
//!
//! Scale 1 is 2^20 tuples of 16 bytes, joined with four times as many, as in Blanas, Li and Patel (SIGMOD
//! 2011) with a table of twice the smaller relation's tuples. Relations are where the threads that scan them
//! read them; the table is where it is cleared.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Lines, Phased, Phases, Random, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const TUPLES: usize = 1 << 20;
const LARGER: usize = 4;
const BATCH: usize = 64;
const TUPLE_BYTES: u64 = 16;
const STRIDE: usize = LINE as usize / 8;

/// To hash a key, and to compare it with one of the table.
const HASH: u64 = 8;
const COMPARE: u64 = 4;
const SCAN: Lines = Lines { at_once: 4, instructions: 8 };
/// Lookups that are in flight together.
const AT_ONCE: usize = 4;

/// A key, never 0, and what belongs to it.
type Tuple = [u64; 2];

struct HashJoin {
    areas: Vec<Area>,
    threads: usize,
    smaller: Array<Tuple>,
    larger: Array<Tuple>,
    table: Array<Tuple>,
    /// Where each tuple of the smaller relation has its place, so that it does not depend on who comes
    /// first.
    places: Vec<usize>,
    /// Each thread's matches, a line each: their number and the sum of what belongs together.
    found: Array<u64>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let count = scaled(TUPLES, parameters.scale, 64);
    let mut random = Random::new(parameters.seed);
    let mut tuples: Vec<Tuple> = (0..count as u64).map(|key| [key + 1, random.next() >> 40]).collect();
    for place in (1..count).rev() {
        tuples.swap(place, random.below(place + 1));
    }
    // Every other one has a partner.
    let lookups = (0..count * LARGER).map(|_| [1 + random.below(2 * count) as u64, random.next() >> 40]);
    let lookups = lookups.collect();
    let slots = (2 * count).next_power_of_two();
    let mut taken = vec![false; slots];
    let places = tuples.iter().map(|tuple| {
        let mut place = slot(tuple[0], slots);
        while taken[place] {
            place = (place + 1) % slots;
        }
        taken[place] = true;
        place
    });
    let places = places.collect();
    let mut space = Space::new();
    let smaller = space.array("smaller relation", tuples, Role::ReadShared);
    let larger = space.array("larger relation", lookups, Role::ReadShared);
    let table = space.array("table", vec![[0; 2]; slots], Role::WriteShared);
    let found = space.array("found", vec![0; parameters.threads * STRIDE], Role::WriteShared);
    let program = HashJoin {
        areas: space.into_areas(),
        threads: parameters.threads,
        smaller,
        larger,
        table,
        places,
        found,
    };
    Phases::program(program, parameters.threads)
}

fn slot(key: u64, slots: usize) -> usize {
    Random::new(key).next() as usize & (slots - 1)
}

// The kinds of phases.
const MAKE: usize = 0;
const BUILD: usize = 1;

impl HashJoin {
    /// A batch of a thread's part of `total`.
    fn batch(&self, total: usize, thread: usize, item: usize) -> Range<usize> {
        let own = part(total, thread, self.threads);
        let start = (own.start + item * BATCH).min(own.end);
        start..(start + BATCH).min(own.end)
    }

    fn probe(&mut self, thread: usize, batch: Range<usize>, trace: &mut Trace) {
        let slots = self.table.values().len();
        let (mut matches, mut sum) = (0, 0);
        for index in batch {
            let [key, belongs] = self.larger.values()[index];
            let mut place = slot(key, slots);
            trace.compute(HASH);
            loop {
                let [other, payload] = self.table.read(place, trace);
                trace.compute(COMPARE);
                if other == key {
                    matches += 1;
                    sum += belongs ^ payload;
                }
                if other == key || other == 0 {
                    break;
                }
                place = (place + 1) % slots;
            }
            if index % AT_ONCE == 0 {
                wait_for(self.table.address(place), trace);
            }
        }
        let line = thread * STRIDE;
        for (place, more) in [(line, matches), (line + 1, sum)] {
            let before = self.found.read(place, trace);
            self.found.write(place, before + more, trace);
        }
    }
}

impl Phased for HashJoin {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        3
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let total = if phase == BUILD { &self.smaller } else { &self.larger }.values().len();
        0..part(total, thread, self.threads).len().div_ceil(BATCH)
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        match phase {
            MAKE => {
                for array in [&self.smaller, &self.larger, &self.table] {
                    let batch = self.batch(array.values().len(), thread, item);
                    trace.compute(batch.len() as u64 * 4);
                    write_lines(array.address(batch.start), batch.len() as u64 * TUPLE_BYTES, trace);
                }
            }
            BUILD => {
                let batch = self.batch(self.smaller.values().len(), thread, item);
                SCAN.read(self.smaller.address(batch.start), batch.len() as u64 * TUPLE_BYTES, trace);
                for index in batch {
                    let tuple = self.smaller.values()[index];
                    trace.compute(HASH);
                    let place = self.places[index];
                    let first = slot(tuple[0], self.table.values().len());
                    if first != place {
                        trace.read(self.table.address(first));
                        trace.compute(COMPARE);
                    }
                    self.table.write(place, tuple, trace);
                }
            }
            _ => {
                let batch = self.batch(self.larger.values().len(), thread, item);
                SCAN.read(self.larger.address(batch.start), batch.len() as u64 * TUPLE_BYTES, trace);
                self.probe(thread, batch, trace);
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let mut payloads = vec![0; self.smaller.values().len() + 1];
        for &[key, payload] in self.smaller.values() {
            payloads[key as usize] = payload;
        }
        let partners = self.larger.values().iter().filter(|tuple| (tuple[0] as usize) < payloads.len());
        let (mut matches, mut sum) = (0, 0);
        for &[key, belongs] in partners {
            matches += 1;
            sum += belongs ^ payloads[key as usize];
        }
        let total = |place: usize| self.found.values().iter().skip(place).step_by(STRIDE).sum::<u64>();
        if (total(0), total(1)) == (matches, sum) {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("{} matches of {}, not {matches} of {sum}", total(0), total(1))))
        }
    }
}
