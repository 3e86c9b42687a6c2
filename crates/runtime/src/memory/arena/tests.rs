use super::*;
use crate::ErrorKind;
use allocator_api2::{boxed::Box, vec::Vec as VecIn};
use hashbrown::HashMap;
use proptest::prelude::*;
use std::collections::hash_map::RandomState;
use std::sync::mpsc::sync_channel;

fn here() -> NodeId {
    MemoryNodes::of_this_process().unwrap().allowed.first().unwrap()
}

/// Takes a block and writes all of it.
fn taken(arena: &NodeArena, bytes: usize, align: usize, mark: u8) -> NonNull<u8> {
    let block = arena.allocate(bytes, align).unwrap();
    assert!(block.len() >= bytes && block.addr().get() % align == 0, "{bytes} at {align}: {block:?}");
    // SAFETY: the block is new, and so long.
    unsafe { block.cast::<u8>().write_bytes(mark, block.len()) };
    block.cast()
}

fn give_back(arena: &NodeArena, block: NonNull<u8>, bytes: usize, align: usize, mark: u8) {
    // SAFETY: the block was taken with this request and written.
    let contents = unsafe { std::slice::from_raw_parts(block.as_ptr(), bytes) };
    assert!(contents.iter().all(|&byte| byte == mark), "{bytes} bytes at {align}");
    // SAFETY: it was taken with this request, and is not used any more.
    unsafe { arena.deallocate(block, bytes, align) };
}

#[test]
fn collections_take_their_memory_from_it() {
    let arena = NodeArena::on(here()).unwrap();
    let mut numbers = VecIn::new_in(&arena);
    let mut names = HashMap::with_hasher_in(RandomState::new(), &arena);
    for i in 0..100_000_u64 {
        numbers.push(i);
        names.insert(i, Box::new_in([i; 3], &arena));
    }
    assert!(numbers.iter().copied().eq(0..100_000));
    assert!((0..100_000).all(|i| *names[&i] == [i; 3]));
    let placement = arena.placement().unwrap();
    assert_eq!((placement.misplaced, placement.absent), (0, 0));
    assert_eq!(placement.pages.values().sum::<usize>() * page_bytes(), arena.reserved_bytes());
    assert_eq!(placement.pages.keys().copied().collect::<Vec<_>>(), [here()]);
}

#[test]
fn what_is_freed_is_used_again() {
    let arena = NodeArena::on(here()).unwrap();
    for round in 0..200 {
        let sizes = [1, 100, 5000, 9000, 200_000, 1 << 20];
        let blocks = sizes.map(|bytes| (taken(&arena, bytes, 8, round), bytes));
        for (block, bytes) in blocks {
            give_back(&arena, block, bytes, 8, round);
        }
    }
    assert_eq!(
        arena.reserved_bytes(),
        HUGE_BYTES + (1 << 20),
        "the last large one, and a chunk for the rest"
    );
}

#[test]
fn of_large_blocks_the_last_is_kept_for_one_as_large() {
    let arena = NodeArena::on(here()).unwrap();
    let mib = |count: usize| count << 20;
    let take = |bytes| taken(&arena, bytes, 8, 1);
    let give = |block, bytes| give_back(&arena, block, bytes, 8, 1);
    let (one, other) = (take(mib(4)), take(mib(3)));
    give(one, mib(4));
    assert_eq!(arena.reserved_bytes(), mib(7));
    give(other, mib(3));
    assert_eq!(arena.reserved_bytes(), mib(3), "the one before is gone");
    let [larger, smaller] = [mib(3) + 1, mib(3) / 2].map(|bytes| (take(bytes), bytes));
    assert!(larger.0 != other && smaller.0 != other);
    let fits = take(mib(3) / 2 + 1);
    assert_eq!(fits, other);
    assert_eq!(arena.placement().unwrap().absent, 0);
    give(larger.0, larger.1);
    give(fits, mib(3) / 2 + 1);
    give(smaller.0, smaller.1);
    assert_eq!(arena.reserved_bytes(), mib(3) / 2);
    let huge = take(mib(9));
    give(huge, mib(9));
    assert_eq!(arena.reserved_bytes(), mib(3) / 2, "too large to be kept");
    // One that is aligned to more than it is does not do.
    let odd = taken(&arena, mib(1), 1 << 30, 1);
    assert_eq!(odd.addr().get() % (1 << 30), 0);
    give_back(&arena, odd, mib(1), 1 << 30, 1);
}

#[test]
fn blocks_that_another_thread_frees_come_back() {
    let arena = NodeArena::on(here()).unwrap();
    let (send, receive) = sync_channel::<usize>(64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for address in receive {
                let block = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
                give_back(&arena, block, 1000, 8, 7);
            }
        });
        // 100 MB in all.
        for _ in 0..100_000 {
            send.send(taken(&arena, 1000, 8, 7).as_ptr().expose_provenance()).unwrap();
        }
        drop(send);
    });
    assert!(arena.reserved_bytes() <= 2 * HUGE_BYTES, "{} bytes", arena.reserved_bytes());
}

#[test]
fn other_layouts_are_laid_out_chunk_by_chunk() {
    for layout in [Layout::Interleaved, Layout::Blocked] {
        let arena = NodeArenaBuilder::new(layout.clone()).build().unwrap();
        let kept = Box::new_in([7_u8; 100], arena);
        assert_eq!(*kept, [7; 100]);
        let arena = Box::allocator(&kept);
        assert_eq!((arena.layout(), arena.placement().unwrap().misplaced), (&layout, 0));
    }
}

#[test]
fn what_cannot_be_had_is_refused_with_the_reason() {
    assert_eq!(NodeArena::on(NodeId(1000)).unwrap_err().kind(), ErrorKind::Layout);
    let arena = NodeArenaBuilder::new(Layout::Interleaved).fallback(Fallback::Anywhere).build().unwrap();
    for (bytes, align) in [(1, 3), (1, 0), (usize::MAX, 1), (usize::MAX / 4, 8), (1 << 46, 1), (1, 1 << 62)] {
        let error = arena.allocate(bytes, align).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory, "{bytes} at {align}: {error}");
    }
    assert_eq!(arena.reserved_bytes(), 0);
    let odd = taken(&arena, 3, 8 << 20, 1);
    give_back(&arena, odd, 3, 8 << 20, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Take { bytes: usize, shift: u32 },
    GiveBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 0..300_usize, 2 => 0..20_000_usize, 1 => 0..400_000_usize];
    let take = (bytes, 0..13_u32).prop_map(|(bytes, shift)| Step::Take { bytes, shift });
    let step = prop_oneof![3 => take, 2 => any::<usize>().prop_map(Step::GiveBack)];
    proptest::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn blocks_never_overlap(of_threads in proptest::collection::vec(steps(), 2)) {
        let arena = NodeArena::on(here()).unwrap();
        std::thread::scope(|scope| {
            for (thread, steps) in of_threads.into_iter().enumerate() {
                let arena = &arena;
                scope.spawn(move || {
                    let mut held: Vec<(NonNull<u8>, usize, usize, u8)> = Vec::new();
                    for (i, step) in steps.into_iter().enumerate() {
                        match step {
                            Step::Take { bytes, shift } => {
                                let mark = (i * 2 + thread) as u8;
                                held.push((taken(arena, bytes, 1 << shift, mark), bytes, 1 << shift, mark));
                            }
                            Step::GiveBack(which) if !held.is_empty() => {
                                let (block, bytes, align, mark) = held.swap_remove(which % held.len());
                                give_back(arena, block, bytes, align, mark);
                            }
                            Step::GiveBack(_) => {}
                        }
                    }
                    for (block, bytes, align, mark) in held {
                        give_back(arena, block, bytes, align, mark);
                    }
                });
            }
        });
    }
}
