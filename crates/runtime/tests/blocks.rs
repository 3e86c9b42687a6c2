//! Loops over blocks of memory, and the grain of loops, on this machine's nodes and on invented ones (whose
//! workers are not confined).

mod watchdog;

use nodewise_runtime::{Allowance, Allowed, Block, Layout, NodeId, NodePool, NodeVec, Topology};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

fn machine(nodes: usize, cpus: usize) -> NodePool {
    let topology = Topology::synthetic(nodes, cpus, 1 << 30);
    let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
    NodePool::builder().allowance(allowance).confined(false).build().unwrap()
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

fn block(node: u32, elements: Range<usize>) -> Block {
    Block { node: NodeId(node), elements }
}

/// The first piece takes until all others are done.
#[test]
fn a_worker_that_is_held_up_leaves_its_pieces_to_its_peers() {
    watchdog::start();
    let pool = machine(1, 2);
    let mut vec = NodeVec::<u64>::new(1 << 20, Layout::Interleaved).unwrap();
    for _ in 0..20 {
        let (len, done) = (vec.len(), AtomicUsize::new(0));
        vec.for_each_block(&pool, |block, values| {
            if block.elements.start == 0 {
                wait_until(|| done.load(Ordering::Acquire) == len - values.len());
            }
            done.fetch_add(values.len(), Ordering::Release);
        });
        assert_eq!(done.into_inner(), len);
    }
}

#[test]
fn blocks_are_done_once_by_workers_of_their_nodes() {
    watchdog::start();
    let pool = machine(3, 2);
    // The last node is none of the pool's.
    let blocks: Vec<_> = (0..40).map(|i| block(i % 4, i as usize * 1000..(i as usize + 1) * 1000)).collect();
    let seen: Vec<AtomicUsize> = (0..40_000).map(|_| AtomicUsize::new(0)).collect();
    let see_all = || {
        pool.for_each_block(blocks.iter().cloned(), |block| {
            assert!(block.node == NodeId(3) || pool.worker_node() == Some(block.node));
            for i in block.elements {
                seen[i].fetch_add(1, Ordering::Relaxed);
            }
        });
    };
    see_all();
    pool.scope(|_| see_all());
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 2));
    let sum = |block: Block| block.elements.sum::<usize>();
    assert_eq!(pool.reduce_blocks(blocks.iter().cloned(), sum, |a, b| a + b), Some(39_999 * 20_000));
    assert_eq!(pool.reduce_blocks([block(0, 5..5)], sum, |a, b| a + b), None);
}

/// The pieces of both are the same elements, on workers of the first one's nodes.
#[test]
fn two_arrays_are_changed_together() {
    watchdog::start();
    for pool in [machine(1, 2), machine(3, 2)] {
        let mut numbers = NodeVec::<u32>::new(100_000, Layout::Interleaved).unwrap();
        // Elements of other sizes, an array of other pages, and a slice.
        let mut squares = NodeVec::<u64>::new(100_000, Layout::Blocked).unwrap();
        let mut names = vec![String::new(); 100_000];
        numbers.for_each_block_with(&mut squares, &pool, |block, numbers, squares| {
            for ((i, number), square) in block.elements.zip(numbers).zip(squares) {
                *number += i as u32;
                *square += (i * i) as u64;
            }
        });
        numbers.for_each_block_with(&mut names, &pool, |_, numbers, names| {
            names.iter_mut().zip(numbers).for_each(|(name, number)| *name = number.to_string());
        });
        for i in 0..100_000 {
            assert_eq!((numbers[i], squares[i], &names[i]), (i as u32, (i * i) as u64, &i.to_string()));
        }
        let shorter = &mut squares[1..];
        let panic =
            catch_unwind(AssertUnwindSafe(|| numbers.for_each_block_with(shorter, &pool, |_, _, _| ())));
        assert!(panic.is_err());
    }
}

/// One of a node's two workers is held up until its peer has done the rest, whoever else is idle.
#[test]
fn what_a_nodes_workers_have_not_begun_is_not_taken_by_other_nodes() {
    watchdog::start();
    let pool = machine(2, 2);
    for _ in 0..20 {
        let done = AtomicUsize::new(0);
        pool.for_each_block([block(0, 0..1000)], |block| {
            assert_eq!(pool.worker_node(), Some(NodeId(0)));
            if block.elements.start == 0 {
                wait_until(|| done.load(Ordering::Acquire) == 1000 - block.elements.len());
            }
            done.fetch_add(block.elements.len(), Ordering::Release);
        });
    }
}

#[test]
fn a_panic_in_a_block_arrives_when_all_else_is_done() {
    watchdog::start();
    let pool = machine(2, 2);
    let ended = AtomicUsize::new(0);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        pool.for_each_block([block(0, 0..1000), block(1, 1000..2000)], |block| {
            assert!(!block.elements.contains(&1500), "half of it");
            ended.fetch_add(block.elements.len(), Ordering::Relaxed);
        });
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"half of it"));
    assert!((1900..2000).contains(&ended.into_inner()));
}

#[test]
fn no_part_is_smaller_than_the_grain() {
    watchdog::start();
    for (nodes, cpus) in [(1, 2), (3, 2)] {
        let pool = machine(nodes, cpus);
        for (len, grain) in [(10_000, 1), (10_000, 1000), (10_000, 4000), (10, 100), (0, 5), (5, 0)] {
            let part = |part: Range<usize>| (part.len(), part.len());
            let both = |(a, b): (usize, usize), (c, d): (usize, usize)| (a.min(c), b + d);
            for _ in 0..20 {
                let parts = pool.grain(grain).parallel_reduce_parts(0..len, part, both);
                let (least, all) = parts.unwrap_or_default();
                assert!(all == len && least >= grain.min(len), "{least} of {len}, and not {grain}");
                let blocks = [block(0, 0..len), block(1, len..2 * len)];
                let pieces = pool.grain(grain).reduce_blocks(blocks, |block| part(block.elements), both);
                let (least, all) = pieces.unwrap_or_default();
                assert!(all == 2 * len && least >= grain.min(len), "{least} of {len}, and not {grain}");
            }
        }
    }
}
