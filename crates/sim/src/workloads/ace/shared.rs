//! The memory that C-Threads programs share: numbers behind a spin lock, and their stacks.

use crate::{Array, Error, Role, Space, Trace};

/// A shared number that hands out work or places: a spin lock, a value, on a page of its own.
pub struct Counter {
    // [lock, value]
    words: Array<u32>,
}

impl Counter {
    pub fn new(space: &mut Space, name: &str) -> Self {
        Self { words: space.array(name, vec![0; 2], Role::WriteShared) }
    }

    /// Adds `amount` unless the value has reached `limit`; gives the value before.
    pub fn take(&mut self, amount: u32, limit: u32, trace: &mut Trace) -> u32 {
        // Test and set; no one waits for a lock, as in the paper ("None of the applications spend much time
        // contending").
        trace.compute(4);
        self.words.read(0, trace);
        self.words.write(0, 1, trace);
        let value = self.words.read(1, trace);
        if value < limit {
            self.words.write(1, value + amount, trace);
        }
        self.words.write(0, 0, trace);
        value
    }

    /// The value, without touching simulated memory.
    pub fn value(&self) -> u32 {
        self.words.values()[1]
    }
}

/// A thread's stack: only its top frame is touched.
pub struct Stack {
    base: u64,
}

impl Stack {
    pub const BYTES: u64 = 4096;

    pub fn new(space: &mut Space, thread: usize) -> Self {
        Self { base: space.area(format!("stack {thread}"), Self::BYTES, Role::Private(thread)) }
    }

    /// Fetches a word of the frame.
    #[inline]
    pub fn fetch(&self, word: u64, trace: &mut Trace) {
        trace.read(self.base + word * 4);
    }

    /// Stores a word of the frame.
    #[inline]
    pub fn store(&self, word: u64, trace: &mut Trace) {
        trace.write(self.base + word * 4);
    }
}

/// The primes up to `limit`, by a plain sieve: what the programs' results are compared with.
pub fn primes_to(limit: u32) -> Vec<u32> {
    let mut composite = vec![false; limit as usize + 1];
    let mut primes = Vec::new();
    for number in 2..=limit as usize {
        if !composite[number] {
            primes.push(number as u32);
            for multiple in (number * number..=limit as usize).step_by(number) {
                composite[multiple] = true;
            }
        }
    }
    primes
}

/// Whether `found` holds every prime up to `limit` once, in any order.
pub fn check_primes(found: &[u32], limit: u32) -> Result<(), Error> {
    let mut sorted = found.to_vec();
    sorted.sort_unstable();
    let primes = primes_to(limit);
    if sorted == primes {
        return Ok(());
    }
    Err(Error::wrong_result(format!(
        "{} numbers found up to {limit}, which are not its {} primes",
        sorted.len(),
        primes.len()
    )))
}

/// The largest number whose square is not above `number`.
pub fn square_root(number: u32) -> u32 {
    // Exact: a f64 holds every u32, and its root is rounded correctly.
    f64::from(number).sqrt() as u32
}

/// Room for every prime up to `limit`, and some more: no more than 1.26 n / ln n (Rosser and Schoenfeld).
pub fn output_words(limit: u32) -> usize {
    (1.26 * f64::from(limit) / f64::from(limit).ln()).ceil() as usize
}
