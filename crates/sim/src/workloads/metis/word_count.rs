//! Word count: every thread maps its part of the text into a table of its own; then each reduces a part of
//! all tables.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, alone, part, scaled, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

/// Words of the text: 64 MB at eight letters and blanks a word.
const WORDS: usize = 8 << 20;
const VOCABULARY: usize = 100_000;
const WORD_BYTES: u64 = 8;
const WORDS_OF_ITEM: usize = 64;

/// A line has 64 letters: two instructions each to find words and hash them.
const TEXT: Lines = Lines { at_once: 3, instructions: 128 };
/// Comparison and increment of an entry.
const COUNT: u64 = 12;

struct WordCount {
    areas: Vec<Area>,
    threads: usize,
    /// Each word by its number; the letters steer nothing more.
    text: Array<u64>,
    tables: Vec<Array<u64>>,
    totals: Array<u64>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let words = scaled(WORDS, parameters.scale, 1000);
    let vocabulary = scaled(VOCABULARY, parameters.scale, 100);
    let mut random = Random::new(parameters.seed);
    let mut space = Space::new();
    // Zipf's law with exponent one: the logarithm of the rank is even.
    let mut word = || ((vocabulary as f64).powf(random.unit()) as u64 - 1).min(vocabulary as u64 - 1);
    let text = (0..words).map(|_| word()).collect();
    let text = space.array("text", text, Role::ReadShared);
    let tables = (0..parameters.threads)
        .map(|thread| space.array(format!("table {thread}"), vec![0; vocabulary], Role::WriteShared))
        .collect();
    let totals = space.array("totals", vec![0; vocabulary], Role::WriteShared);
    let program = WordCount { areas: space.into_areas(), threads: parameters.threads, text, tables, totals };
    Phases::program(program, parameters.threads)
}

impl Phased for WordCount {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        3
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let items = self.text.values().len().div_ceil(WORDS_OF_ITEM);
        match phase {
            0 => alone(items, thread),
            1 => part(items, thread, self.threads),
            _ => part(self.totals.values().len(), thread, self.threads),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == 2 {
            let mut total = 0;
            for table in &self.tables {
                total += table.read(item, trace);
                trace.compute(4);
            }
            self.totals.write(item, total, trace);
            return;
        }
        let words = item * WORDS_OF_ITEM..((item + 1) * WORDS_OF_ITEM).min(self.text.values().len());
        let (address, bytes) = (self.text.address(words.start), words.len() as u64 * WORD_BYTES);
        if phase == 0 {
            trace.compute(bytes / 8);
            write_lines(address, bytes, trace);
            return;
        }
        TEXT.read(address, bytes, trace);
        for place in words {
            // Table order is hash order: neighbours in rank are not neighbours in memory.
            let entry = scatter(self.text.values()[place] as usize, self.totals.values().len());
            let count = self.tables[thread].read(entry, trace);
            trace.compute(COUNT);
            self.tables[thread].write(entry, count + 1, trace);
        }
    }

    fn check(&self) -> Result<(), Error> {
        let entries = self.totals.values().len();
        let mut counts = vec![0; entries];
        for &word in self.text.values() {
            counts[scatter(word as usize, entries)] += 1;
        }
        if counts == self.totals.values() { Ok(()) } else { Err(Error::wrong_result("the counts are wrong")) }
    }
}

/// A place of its own in the table for each word, or nearly.
fn scatter(word: usize, entries: usize) -> usize {
    (word * 0x9e37_79b1) % entries
}
