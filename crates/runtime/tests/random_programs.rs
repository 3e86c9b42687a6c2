//! Random programs for the pool, nested, panicking and cancelling: each ends, with the result that a sequential run has.

mod watchdog;

use nodewise_runtime::{Allowance, NodePool, Scope};
use nodewise_topology::{Allowed, NodeId, Topology};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a task does, in order.
#[derive(Clone, Debug)]
enum Step {
    Count(u8),
    Spawn(Vec<Step>),
    SpawnOn(u8, Vec<Step>),
    Scope(Vec<Step>),
    Join(Vec<Step>, Vec<Step>),
    For(u8, Vec<Step>),
    Detached(u8),
    Yield,
    /// Caught by the innermost `Catch`.
    Panic,
    Catch(Vec<Step>),
    Cancel,
}

fn program() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![
        8 => any::<u8>().prop_map(Step::Count),
        2 => Just(Step::Yield),
        2 => any::<u8>().prop_map(Step::Detached),
        1 => Just(Step::Panic),
        1 => Just(Step::Cancel),
    ];
    let steps = |inner| proptest::collection::vec(inner, 0..5);
    let step = leaf.prop_recursive(5, 64, 5, move |inner| {
        prop_oneof![
            3 => steps(inner.clone()).prop_map(Step::Spawn),
            1 => (any::<u8>(), steps(inner.clone())).prop_map(|(node, steps)| Step::SpawnOn(node, steps)),
            2 => steps(inner.clone()).prop_map(Step::Scope),
            2 => (steps(inner.clone()), steps(inner.clone())).prop_map(|(a, b)| Step::Join(a, b)),
            2 => (0..9_u8, steps(inner.clone())).prop_map(|(len, steps)| Step::For(len, steps)),
            2 => steps(inner).prop_map(Step::Catch),
        ]
    });
    proptest::collection::vec(step, 0..8)
}

struct Run<'a> {
    pool: &'a NodePool,
    sum: AtomicU64,
    /// With either of these, which of the steps beside it were run is open.
    disturbed: AtomicBool,
}

impl Run<'_> {
    fn steps<'s>(&'s self, scope: &Scope<'s>, steps: &'s [Step]) {
        for step in steps {
            match step {
                Step::Count(by) => {
                    self.sum.fetch_add(u64::from(*by), Ordering::Relaxed);
                }
                Step::Spawn(steps) => scope.spawn(|scope| self.steps(scope, steps)),
                Step::SpawnOn(node, steps) => {
                    let node = NodeId(u32::from(*node) % self.pool.nodes().count() as u32);
                    scope.spawn_on(node, |scope| self.steps(scope, steps)).unwrap();
                }
                Step::Scope(steps) => self.pool.scope(|scope| self.steps(scope, steps)),
                Step::Join(a, b) => {
                    let side = |steps| move || self.pool.scope(|scope| self.steps(scope, steps));
                    self.pool.join(side(a), side(b));
                }
                Step::For(len, steps) => self
                    .pool
                    .parallel_for(0..*len as usize, |_| self.pool.scope(|scope| self.steps(scope, steps))),
                Step::Detached(by) => {
                    let by = *by;
                    let sum = self.pool.spawn(move || u64::from(by)).join();
                    self.sum.fetch_add(sum, Ordering::Relaxed);
                }
                Step::Yield => std::thread::yield_now(),
                Step::Panic => {
                    self.disturbed.store(true, Ordering::Relaxed);
                    // Without the hook's message.
                    resume_unwind(Box::new("a program's"));
                }
                Step::Catch(steps) => {
                    let body = || self.pool.scope(|scope| self.steps(scope, steps));
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                        assert_eq!(panic.downcast_ref(), Some(&"a program's"));
                    }
                }
                Step::Cancel => {
                    self.disturbed.store(true, Ordering::Relaxed);
                    scope.cancel();
                }
            }
        }
    }
}

/// The sum if nothing is cut off.
fn sum(steps: &[Step]) -> u64 {
    let of = |step: &Step| match step {
        Step::Count(by) | Step::Detached(by) => u64::from(*by),
        Step::Spawn(steps) | Step::SpawnOn(_, steps) | Step::Scope(steps) | Step::Catch(steps) => sum(steps),
        Step::Join(a, b) => sum(a) + sum(b),
        Step::For(len, steps) => u64::from(*len) * sum(steps),
        Step::Yield | Step::Panic | Step::Cancel => 0,
    };
    steps.iter().map(of).sum()
}

fn check(pool: &NodePool, program: &[Step]) -> Result<(), TestCaseError> {
    let run = Run { pool, sum: AtomicU64::new(0), disturbed: AtomicBool::new(false) };
    let ended = catch_unwind(AssertUnwindSafe(|| pool.scope(|scope| run.steps(scope, program))));
    if let Err(panic) = ended {
        prop_assert_eq!(panic.downcast_ref(), Some(&"a program's"));
    }
    let (got, all) = (run.sum.load(Ordering::Relaxed), sum(program));
    if run.disturbed.load(Ordering::Relaxed) {
        prop_assert!(got <= all);
    } else {
        prop_assert_eq!(got, all);
    }
    Ok(())
}

fn pools() -> Vec<NodePool> {
    [(1, 1), (1, 2), (2, 2), (4, 1)]
        .map(|(nodes, cpus)| {
            let topology = Topology::synthetic(nodes, cpus, 1 << 30);
            let allowance = Allowance::new(&topology, &Allowed::everything(&topology), None);
            NodePool::builder().allowance(allowance).confined(false).build().unwrap()
        })
        .into()
}

/// How many programs each pool is given; the variable `NODEWISE_PROGRAMS` says otherwise.
fn cases(default: u32) -> ProptestConfig {
    let cases = std::env::var("NODEWISE_PROGRAMS").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(default), failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn programs_end_with_the_sequential_result() {
    watchdog::start();
    let pools = pools();
    proptest!(cases(150), |(program in program())| {
        for pool in &pools {
            check(pool, &program)?;
        }
    });
}

/// `cargo test --release -p nodewise-runtime --test random_programs -- --ignored`
#[test]
#[ignore = "a million runs of programs take minutes"]
fn a_million_runs_of_programs_end() {
    let pools = pools();
    proptest!(cases(250_000), |(program in program())| {
        for pool in &pools {
            check(pool, &program)?;
        }
    });
}
