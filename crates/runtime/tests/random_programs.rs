//! Random programs for the pool, nested, panicking and cancelling, from two threads at a time: each ends, and
//! what it did is what a sequential run does; where a panic or a cancellation leaves open which tasks beside
//! it are run, something between.

use nodewise_runtime::{Allowance, NodePool, Scope};
use nodewise_topology::{Allowed, NodeId, Topology};
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A step of a task, in order.
#[derive(Clone, Debug)]
enum Step {
    Count(u8),
    Spawn(Vec<Self>),
    SpawnOn(u8, Vec<Self>),
    Scope(Vec<Self>),
    Join(Vec<Self>, Vec<Self>),
    For(u8, Vec<Self>),
    Reduce(u8),
    /// A task of the pool's own that is waited for after the steps, or dropped with their panic.
    Detached(u8, Vec<Self>),
    Yield,
    /// Caught by the innermost `Catch`.
    Panic,
    Catch(Vec<Self>),
    Cancel,
}

/// Half of them without panics and cancellations.
fn program() -> impl Strategy<Value = Vec<Step>> {
    prop_oneof![program_with(0), program_with(1)]
}

fn program_with(disturbances: u32) -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![
        8 => any::<u8>().prop_map(Step::Count),
        2 => any::<u8>().prop_map(Step::Reduce),
        2 => Just(Step::Yield),
        disturbances => Just(Step::Panic),
        disturbances => Just(Step::Cancel),
    ];
    let steps = |inner| proptest::collection::vec(inner, 0..5);
    let step = leaf.prop_recursive(5, 64, 5, move |inner| {
        prop_oneof![
            3 => steps(inner.clone()).prop_map(Step::Spawn),
            1 => (any::<u8>(), steps(inner.clone())).prop_map(|(node, steps)| Step::SpawnOn(node, steps)),
            2 => steps(inner.clone()).prop_map(Step::Scope),
            2 => (steps(inner.clone()), steps(inner.clone())).prop_map(|(a, b)| Step::Join(a, b)),
            2 => (0..9_u8, steps(inner.clone())).prop_map(|(len, steps)| Step::For(len, steps)),
            2 => (any::<u8>(), steps(inner.clone())).prop_map(|(by, steps)| Step::Detached(by, steps)),
            2 => steps(inner).prop_map(Step::Catch),
        ]
    });
    proptest::collection::vec(step, 2..9)
}

struct Run<'a> {
    pool: &'a NodePool,
    sum: AtomicU64,
}

impl Run<'_> {
    fn add(&self, by: u64) {
        self.sum.fetch_add(by, Ordering::Relaxed);
    }

    fn steps<'s>(&'s self, scope: &Scope<'s>, steps: &'s [Step]) {
        for step in steps {
            match step {
                Step::Count(by) => self.add(u64::from(*by)),
                Step::Spawn(steps) => scope.spawn(|scope| self.steps(scope, steps)),
                Step::SpawnOn(node, steps) => {
                    let node = NodeId(u32::from(*node) % self.pool.nodes().count() as u32);
                    scope.spawn_on(node, |scope| self.steps(scope, steps)).unwrap();
                }
                Step::Scope(steps) => self.in_scope(steps),
                Step::Join(a, b) => {
                    self.pool.join(|| self.in_scope(a), || self.in_scope(b));
                }
                Step::For(len, steps) => self.pool.parallel_for(0..*len as usize, |_| self.in_scope(steps)),
                Step::Reduce(len) => {
                    let len = *len as usize;
                    self.add(self.pool.parallel_reduce(0..len, || 0, |sum, i| sum + i as u64, |a, b| a + b));
                }
                Step::Detached(by, steps) => {
                    let by = u64::from(*by);
                    let task = self.pool.spawn(move || by);
                    self.steps(scope, steps);
                    self.add(task.join());
                }
                Step::Yield => std::thread::yield_now(),
                // Without the hook's message.
                Step::Panic => resume_unwind(Box::new("a program's")),
                Step::Catch(steps) => {
                    self.caught(steps);
                }
                Step::Cancel => scope.cancel(),
            }
        }
    }

    fn in_scope(&self, steps: &[Step]) {
        self.pool.scope(|scope| self.steps(scope, steps));
    }

    /// Whether it panicked.
    fn caught(&self, steps: &[Step]) -> bool {
        let ended = catch_unwind(AssertUnwindSafe(|| self.in_scope(steps)));
        ended.is_err_and(|panic| {
            assert_eq!(panic.downcast_ref(), Some(&"a program's"));
            true
        })
    }
}

/// The outcome of steps, as a sequential run has it.
#[derive(Clone, Copy, Default)]
struct Outcome {
    /// The sum that they add.
    least: u64,
    most: u64,
    may_panic: bool,
    /// For sure.
    panics: bool,
}

impl Outcome {
    fn adds(sum: u64) -> Self {
        Self { least: sum, most: sum, ..Self::default() }
    }

    /// The outcome of these steps and those after them.
    fn then(self, next: Self) -> Self {
        Self {
            least: self.least + if self.may_panic { 0 } else { next.least },
            most: self.most + if self.panics { 0 } else { next.most },
            may_panic: self.may_panic || next.may_panic,
            panics: self.panics || next.panics,
        }
    }

    /// The outcome with steps that are done whether these panic or not.
    fn beside(self, other: Self) -> Self {
        Self {
            least: self.least + other.least,
            most: self.most + other.most,
            may_panic: self.may_panic || other.may_panic,
            panics: self.panics || other.panics,
        }
    }
}

impl Step {
    /// Whether steps cancel the scope that they are in.
    fn cancel(steps: &[Self]) -> bool {
        steps.iter().any(|step| match step {
            Self::Cancel => true,
            Self::Spawn(steps) | Self::SpawnOn(_, steps) | Self::Detached(_, steps) => Self::cancel(steps),
            _ => false,
        })
    }

    /// The outcome of a scope with these steps: tasks are run even where others panic, unless it is
    /// cancelled.
    fn in_scope(steps: &[Self]) -> Outcome {
        let mut tasks = Outcome::default();
        let body = Self::one_after_the_other(steps, !Self::cancel(steps), &mut tasks);
        body.beside(tasks)
    }

    /// The outcome of the steps without the tasks that they spawn. These are added to `tasks`, as tasks that
    /// may not be run if not `sure`.
    fn one_after_the_other(steps: &[Self], sure: bool, tasks: &mut Outcome) -> Outcome {
        let mut before = Outcome::default();
        for step in steps {
            let sure = sure && !before.may_panic;
            let next = match step {
                Self::Count(by) => Outcome::adds(u64::from(*by)),
                Self::Reduce(len) => Outcome::adds((0..u64::from(*len)).sum()),
                Self::Spawn(steps) | Self::SpawnOn(_, steps) => {
                    let task = Self::one_after_the_other(steps, sure, tasks);
                    let unsure = Outcome { least: 0, panics: false, ..task };
                    *tasks = tasks.beside(if sure { task } else { unsure });
                    Outcome::default()
                }
                Self::Detached(by, steps) => {
                    Self::one_after_the_other(steps, sure, tasks).then(Outcome::adds(u64::from(*by)))
                }
                Self::Scope(steps) => Self::in_scope(steps),
                Self::Join(a, b) => {
                    // The second is run if a thief has it, or the first did not panic.
                    let (a, b) = (Self::in_scope(a), Self::in_scope(b));
                    Outcome { least: a.then(b).least, ..a.beside(b) }
                }
                Self::For(0, _) | Self::Yield | Self::Cancel => Outcome::default(),
                Self::For(len, steps) => {
                    // A panic ends the loop, but not in the middle of other turns.
                    let turn = Self::in_scope(steps);
                    let turns = if turn.may_panic { 1 } else { u64::from(*len) };
                    Outcome { least: turns * turn.least, most: u64::from(*len) * turn.most, ..turn }
                }
                Self::Catch(steps) => Outcome { may_panic: false, panics: false, ..Self::in_scope(steps) },
                Self::Panic => Outcome { may_panic: true, panics: true, ..Outcome::default() },
            };
            before = before.then(next);
            if before.panics {
                break;
            }
        }
        before
    }
}

/// Runs that have ended, and how many of them could have one result only.
static ENDED: AtomicU64 = AtomicU64::new(0);
static EXACT: AtomicU64 = AtomicU64::new(0);

fn check(pool: &NodePool, program: &[Step]) -> Result<(), TestCaseError> {
    let run = Run { pool, sum: AtomicU64::new(0) };
    let panicked = run.caught(program);
    let (sum, expected) = (run.sum.load(Ordering::Relaxed), Step::in_scope(program));
    prop_assert!((expected.least..=expected.most).contains(&sum), "{}", sum);
    prop_assert!(if panicked { expected.may_panic } else { !expected.panics }, "panicked: {}", panicked);
    EXACT.fetch_add(u64::from(expected.least == expected.most), Ordering::Relaxed);
    ENDED.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Aborts the process when no program has ended for two minutes, since a hang is what is looked for.
fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            let mut before = 0;
            loop {
                // Short ones, since a process that was stopped meanwhile does not hang.
                (0..120).for_each(|_| std::thread::sleep(Duration::from_secs(1)));
                let ended = ENDED.load(Ordering::Relaxed);
                if ended == before {
                    eprintln!("a program has hung after {ended} others: aborting");
                    std::process::abort();
                }
                before = ended;
            }
        });
    });
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

/// Runs programs on each of four pools, from two threads. The variable `NODEWISE_PROGRAMS` says how many each
/// of these makes up. With 125 000 there are a million runs, which take minutes in a release build.
#[test]
fn programs_end_with_the_sequential_result() {
    const FEW: u32 = 75;
    watch();
    let cases = std::env::var("NODEWISE_PROGRAMS").ok().and_then(|cases| cases.parse().ok());
    let config = ProptestConfig {
        cases: cases.unwrap_or(FEW),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let pools = pools();
    let (pools, config) = (&pools, &config);
    let make_up = move || {
        proptest!(config.clone(), |(program in program())| {
            for pool in pools {
                check(pool, &program)?;
            }
        });
    };
    std::thread::scope(|threads| {
        threads.spawn(make_up);
        make_up();
    });
    let [ended, exact] = [&ENDED, &EXACT].map(|count| count.load(Ordering::Relaxed));
    println!("{ended} runs have ended, {exact} of which could have one result only");
}
