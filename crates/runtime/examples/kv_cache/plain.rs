//! A cache of keys and values in shards, each served by a thread, under a load of reads and some writes.
//!
//! `cargo run --release -p nodewise-runtime --example kv_cache_plain [KEYS]`
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::time::Instant;

const REQUESTS_A_KEY: u64 = 10;

fn main() {
    let keys = std::env::args().nth(1).and_then(|text| text.parse().ok());
    println!("(hits, sum) {:?}", run(keys.unwrap_or(200_000)));
}

struct Shard {
    values: HashMap<u64, Vec<u8>>,
}

impl Shard {
    fn new() -> Self {
        Self { values: HashMap::new() }
    }

    fn put(&mut self, key: u64, value: &[u8]) {
        self.values.insert(key, value.to_vec());
    }

    fn get(&self, key: u64) -> Option<&[u8]> {
        self.values.get(&key).map(Vec::as_slice)
    }

    /// How many keys were there, and the sum of their values' bytes.
    fn serve(&mut self, requests: &[u64]) -> (u64, u64) {
        let (mut hits, mut sum) = (0, 0);
        for &request in requests {
            let key = request / REQUESTS_A_KEY;
            if request % REQUESTS_A_KEY == 0 {
                self.put(key, &value_of(key));
            } else if let Some(value) = self.get(key) {
                hits += 1;
                sum += value.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            }
        }
        (hits, sum)
    }
}

/// 64 to 575 bytes.
fn value_of(key: u64) -> Vec<u8> {
    vec![key as u8; 64 + (mix(key) % 512) as usize]
}

/// Numbers that look random (`SplitMix64`).
fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// Hits, and the sum of the bytes that were read.
pub(crate) fn run(keys: u64) -> (u64, u64) {
    let mut shards = Vec::new();
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        shards.push(Shard::new());
    }
    // Whoever starts the cache fills it, from a file for instance.
    let count = shards.len() as u64;
    for key in 0..keys {
        shards[(key % count) as usize].put(key, &value_of(key));
    }
    let mut requests = vec![Vec::new(); shards.len()];
    for request in 0..keys * REQUESTS_A_KEY {
        let request = mix(request) % (keys * REQUESTS_A_KEY);
        requests[(request / REQUESTS_A_KEY % count) as usize].push(request);
    }
    let began = Instant::now();
    let mut results = vec![(0, 0); shards.len()];
    std::thread::scope(|scope| {
        for ((shard, requests), result) in shards.iter_mut().zip(&requests).zip(&mut results) {
            scope.spawn(move || *result = shard.serve(requests));
        }
    });
    let rate = (keys * REQUESTS_A_KEY) as f64 / began.elapsed().as_secs_f64();
    eprintln!("{rate:.0} requests a second");
    results.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}
