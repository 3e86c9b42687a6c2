//! The types, as a program sees them that knows no other crate than this one.

use nodewise_runtime::{
    Error, ErrorKind, Layout, NodeArena, NodeCounter, NodeId, NodePool, NodePoolBuilder, NodeReplicated,
    NodeVec, Operate, Pod, ReadGuard, Replicated, ReplicatedVec, Task, TaskCounter, Zeroable,
};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};

#[derive(Clone, Copy)]
#[repr(C, align(16384))]
struct Wide([u8; 16384]);

// SAFETY: nothing but bytes, without padding.
unsafe impl Zeroable for Wide {}
// SAFETY: as above.
unsafe impl Pod for Wide {}

#[test]
fn elements_are_aligned_above_a_page() {
    // New mappings lie side by side, so that these begin at several pages of such an element.
    let vecs = [1, 2, 3, 4].map(|len| {
        let between = NodeVec::<u8>::new(1, Layout::Interleaved).unwrap();
        (NodeVec::<Wide>::new(len, Layout::Interleaved).unwrap(), between)
    });
    for ((vec, _), len) in vecs.iter().zip(1..) {
        assert_eq!((vec.len(), vec[len - 1].0[0]), (len, 0));
    }
}

#[test]
fn loops_go_over_an_array_itself() {
    let mut squares = NodeVec::<u32>::new(10, Layout::Interleaved).unwrap();
    for (i, square) in (0..).zip(&mut squares) {
        *square = i * i;
    }
    let mut sum = 0;
    for square in &squares {
        sum += square;
    }
    assert_eq!(sum, 285);
}

#[test]
fn a_guard_serves_all_workers_of_a_loop() {
    let pool = NodePoolBuilder::default().build().unwrap();
    let copied = Replicated::new(vec![1_u64; 1000]).unwrap();
    let guard: ReadGuard<'_, _> = copied.read();
    let sum = NodeCounter::new();
    pool.parallel_for(0..1000, |i| sum.add(guard[i]));
    assert_eq!(sum.exact(), Some(1000));
}

#[derive(Clone)]
struct Sum(u64);

impl Operate for Sum {
    type Operation = u64;
    type Response = u64;

    fn operate(&mut self, number: &u64) -> u64 {
        self.0 += number;
        self.0
    }
}

#[test]
fn panics_may_pass_by_without_an_assertion() {
    fn whole<T: UnwindSafe + RefUnwindSafe>() {}
    whole::<NodePool>();
    whole::<NodePoolBuilder>();
    whole::<Task<u64>>();
    whole::<NodeArena>();
    whole::<NodeVec<u64>>();
    whole::<ReplicatedVec<u64>>();
    whole::<NodeCounter>();
    whole::<TaskCounter>();
    whole::<Replicated<Vec<u64>>>();
    whole::<NodeReplicated<Sum>>();
    whole::<Error>();

    let pool = NodePool::new().unwrap();
    let copied = Replicated::new(1).unwrap();
    let panicked = catch_unwind(|| {
        pool.scope(|scope| scope.spawn(|_| copied.update(|value| assert_eq!(*value, 0, "it is one"))));
    });
    assert!(panicked.is_err());
    assert_eq!(pool.join(|| *copied.read(), || 2), (1, 2));
}

#[test]
fn errors_name_what_there_is() {
    let pool = NodePool::builder().workers(1).build().unwrap();
    let node = pool.nodes().next().unwrap();
    let error = pool.spawn_on(NodeId(1000), || ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoWorkers);
    assert_eq!(error.to_string(), format!("the pool has no workers on node 1000; it has some on: {node}"));
}
