//! Blocks of known sizes by Rust's collections.

use std::collections::HashMap;
use std::hint::black_box;

#[inline(never)]
fn table() -> Vec<u64> {
    vec![7; 100_000]
}

#[inline(never)]
fn zeroed() -> Vec<u8> {
    black_box(vec![0; 300_000])
}

#[inline(never)]
fn grown() -> Vec<u32> {
    let mut numbers = Vec::new();
    for i in 0..1 << 16 {
        numbers.push(black_box(i));
    }
    numbers
}

#[inline(never)]
fn map() -> HashMap<u32, u32> {
    let mut map = HashMap::with_capacity(10_000);
    map.insert(1, 2);
    map
}

fn main() {
    let first = black_box(table());
    let second = std::thread::spawn(|| black_box(table()).len()).join().unwrap();
    let sum = first.len() + second + zeroed().len() + grown().len() + map().len();
    assert_eq!(sum, 565_537);
}
