//! Sorting and scanning in parallel gives what one thread gives.

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, NodePool, Topology};
use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

fn machines() -> impl Iterator<Item = NodePool> {
    [(1, 1), (1, 2), (1, 5), (3, 2)].into_iter().map(|(nodes, cpus)| {
        let topology = Topology::synthetic(nodes, cpus, 1 << 30);
        let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
        NodePool::builder().allowance(allowance).confined(false).build().unwrap()
    })
}

const SIZES: [usize; 6] = [0, 1, 2, 5000, 33_000, 70_001];

/// An element by its place and how many there are.
type Pattern = fn(usize, usize) -> usize;

/// x -> ax + b modulo a prime.
type Map = (u64, u64);

/// Knuth's multiplicative hash.
fn mixed(i: usize) -> usize {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20
}

#[test]
fn every_pattern_is_sorted() {
    watchdog::start();
    for pool in machines() {
        for size in SIZES {
            let patterns: [(&str, Pattern); 8] = [
                ("mixed", |i, _| mixed(i)),
                ("two values", |i, _| mixed(i) % 2),
                ("few values", |i, _| mixed(i) % 10),
                ("one value", |_, _| 7),
                ("up", |i, _| i),
                ("down", |i, size| size - i),
                ("up and down", |i, size| i.min(size - i)),
                ("nearly up", |i, size| if mixed(i) % 100 == 0 { mixed(i) % size } else { i }),
            ];
            for (name, pattern) in patterns {
                let numbers: Vec<usize> = (0..size).map(|i| pattern(i, size)).collect();
                let (mut ours, mut theirs) = (numbers.clone(), numbers.clone());
                theirs.sort_unstable();
                pool.parallel_sort_unstable(&mut ours);
                assert!(ours == theirs, "{size} numbers, {name}");
                let (mut ours, mut theirs) = (numbers.clone(), numbers);
                theirs.sort_unstable_by_key(|&number| Reverse(number));
                pool.parallel_sort_unstable_by_key(&mut ours, |&number| Reverse(number));
                assert!(ours == theirs, "{size} numbers, {name}, downwards");
            }
        }
    }
}

#[test]
fn elements_with_memory_of_their_own_are_sorted() {
    watchdog::start();
    for pool in machines() {
        let mut ours: Vec<String> = (0..50_000).map(|i| (mixed(i) % 30_000).to_string()).collect();
        let mut theirs = ours.clone();
        theirs.sort_unstable();
        pool.parallel_sort_unstable(&mut ours);
        assert!(ours == theirs);
    }
}

#[test]
fn no_element_is_lost_where_a_comparison_panics_or_is_no_order() {
    watchdog::start();
    for pool in machines() {
        for panics_after in [1, 1000, 100_000, 500_000] {
            let mut numbers: Vec<usize> = (0..100_000).map(mixed).collect();
            let mut all = numbers.clone();
            let comparisons = AtomicUsize::new(0);
            let panic = catch_unwind(AssertUnwindSafe(|| {
                pool.parallel_sort_unstable_by(&mut numbers, |a, b| {
                    let done = comparisons.fetch_add(1, Ordering::Relaxed);
                    assert!(done != panics_after, "enough");
                    if panics_after == 500_000 { mixed(done).cmp(&0x100) } else { a.cmp(b) }
                });
            }));
            drop(panic);
            numbers.sort_unstable();
            all.sort_unstable();
            assert!(numbers == all);
        }
    }
}

#[test]
fn sums_are_of_all_before_in_their_order() {
    watchdog::start();
    // Associative, and not commutative.
    let then = |&(a, b): &Map, &(c, d): &Map| (a * c % 65_521, (b * c + d) % 65_521);
    for pool in machines() {
        for size in SIZES {
            let maps: Vec<Map> = (0..size).map(|i| (mixed(i) as u64 % 65_521, i as u64 % 7)).collect();
            let mut inclusive = maps.clone();
            pool.parallel_inclusive_scan(&mut inclusive, then);
            let mut all = None;
            for (i, map) in maps.iter().enumerate() {
                let next = all.map_or(*map, |all| then(&all, map));
                assert_eq!(inclusive[i], next, "{i} of {size}");
                all = Some(next);
            }
            let mut exclusive = maps.clone();
            let sum = pool.parallel_exclusive_scan(&mut exclusive, (3, 4), then);
            let all = maps.iter().zip(&exclusive).fold((3, 4), |all, (map, before)| {
                assert_eq!(*before, all);
                then(&all, map)
            });
            assert_eq!(sum, all);
        }
    }
}
