//! The runtime, from Rust and by nodewise.hpp, beside oneTBB and OpenMP (where they are installed), rayon and
//! std in one run.
//!
//! `cargo bench -p nodewise-runtime --bench compare` prints one table, and `-- --json` the same as JSON.
//! `-- NAME...` does only the contests with one of these in their names. `-- --seconds N` gives each contest
//! N seconds at most. Pools have as many workers as each other. On a machine that others use, the table means
//! something with `nice -n -20` and a few contests at a time.
//!
//! A figure is the median of a contender's turns, or their tenth percentile for machines that are never
//! quiet. A ratio is the median of the ratios within rounds, with the interval that has it in 95 of 100 runs.
//! The other ratio is that of the tenth percentiles. `its compiler` compares with the others that the same
//! compiler has built. `noise` is the ratio of a contender's second turns to its first: a difference means
//! something only if it is larger.
#![forbid(unsafe_code)]

#[path = "compare/contestant.rs"]
mod contestant;
#[path = "compare/newer.rs"]
mod newer;
#[path = "compare/numbers.rs"]
mod numbers;
#[path = "compare/turns.rs"]
mod turns;

use allocator_api2::alloc::{Allocator, Global};
use allocator_api2::vec::Vec as VecIn;
use contestant::Contestant;
use nodewise_runtime::{
    NodeArena, NodeCounter, NodePool, NodeReplicated, Operate, Replicated, TaskCounter, current_node,
};
use nodewise_sys::{
    AffinityMask, Clock, clock_ns, getcpu, sched_getaffinity, sched_getcpu, sched_setaffinity,
};
use rayon::prelude::*;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use turns::{Contender, Contest, Ratio, Turns};

/// How long a contest goes on at most, unless the caller says so.
const CONTEST: Duration = Duration::from_secs(10);

fn plain<'a>(name: &'static str, operations: u64, mut turn: impl FnMut() + 'a) -> Contender<'a> {
    let turn = move || {
        turn();
        None
    };
    Contender { name, operations, turn: Box::new(turn) }
}

fn timed<'a>(name: &'static str, operations: u64, turn: impl FnMut() -> u64 + 'a) -> Contender<'a> {
    let mut turn = turn;
    Contender { name, operations, turn: Box::new(move || Some(turn())) }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut json, mut most, mut wanted) = (false, CONTEST, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => json = true,
            "--seconds" => {
                let seconds = arguments.next().and_then(|seconds| seconds.parse().ok());
                most = Duration::from_secs_f64(seconds.expect("--seconds takes a number"));
            }
            _ => wanted.push(argument),
        }
    }
    let pool = NodePool::new().expect("this machine has a node");
    let workers = pool.workers();
    let rayon = rayon_pool(workers);
    let contestants = Contestant::all(workers);
    let mut rows = Vec::new();
    if !json {
        print_head(&pool);
    }
    for mut contest in contests(&pool, &rayon, workers) {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| contest.name.contains(wanted)) {
            continue;
        }
        for contestant in &contestants {
            contest.contenders.extend(in_contest(contestant, contest.name, contest.contenders[0].operations));
        }
        let turns = contest.run(most);
        if json {
            rows.extend(as_json(&contest, &turns));
        } else {
            print(&contest, &turns);
        }
    }
    drop((pool, rayon));
    if wanted.is_empty() {
        let others = contestants.iter().filter_map(|contestant| {
            let cpu_ns = contestant.turn("idle CPU", 1)?;
            Some((contestant.name, cpu_ns as f64 / 1e6))
        });
        for (name, idle) in idle_cpu(workers).into_iter().chain(others) {
            if json {
                rows.push(
                    serde_json::json!({ "contest": "idle CPU", "contender": name, "cpu_per_mille": idle }),
                );
            } else {
                println!("{:<22} {name:<26} {idle:>10.2} thousandths of a CPU", "idle CPU");
            }
        }
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("numbers and names"));
    }
}

fn print_head(pool: &NodePool) {
    let nodes = pool.nodes().count();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{} workers on {nodes} node(s); turns are taken in turn;", pool.workers());
    println!("load average before: {}\n", load.split(' ').next().unwrap_or_default());
    println!(
        "{:<22} {:<26} {:>21} {:>25} {:>13} {:>13}",
        "", "", "ns each", "over best other", "its compiler", "noise"
    );
    println!(
        "{:<22} {:<26} {:>10} {:>10} {:>6} {:>11} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "", "", "median", "10th pct", "median", "interval", "10th", "median", "10th", "median", "10th"
    );
}

fn print(contest: &Contest<'_>, turns: &[Turns]) {
    let (over_best, of_compiler) = (contest.over_best(turns, false), contest.over_best(turns, true));
    for (index, contender) in contest.contenders.iter().enumerate() {
        let (name, turns) = (if index == 0 { contest.name } else { "" }, &turns[index]);
        print!("{name:<22} {:<26} {:>10.2} {:>10.2}", contender.name, turns.median(), turns.tenth());
        if let (Some((ratio, other)), Some(noise)) = (over_best[index], turns.again()) {
            let Ratio { median, low, high, tenth } = ratio;
            print!(" {median:>6.2} {low:>5.2}-{high:>5.2} {tenth:>6.2}");
            match of_compiler[index] {
                Some((ratio, _)) => print!(" {:>6.2} {:>6.2}", ratio.median, ratio.tenth),
                None => print!(" {:>6} {:>6}", "", ""),
            }
            print!(" {:>6.2} {:>6.2}", noise.median, noise.tenth);
            print!("  {} rounds, {}", turns.rounds(), contest.contenders[other].name);
        }
        println!();
    }
}

fn as_json(contest: &Contest<'_>, turns: &[Turns]) -> Vec<serde_json::Value> {
    let ratio = |ratio: Ratio| {
        let Ratio { median, low, high, tenth } = ratio;
        serde_json::json!({ "median": median, "interval": [low, high], "tenth_percentile": tenth })
    };
    let over = |over: Option<(Ratio, usize)>| {
        let (over, other) = over?;
        Some(serde_json::json!({ "other": contest.contenders[other].name, "ratio": ratio(over) }))
    };
    let (over_best, of_compiler) = (contest.over_best(turns, false), contest.over_best(turns, true));
    let row = |(index, contender): (usize, &Contender<'_>)| {
        let turns = &turns[index];
        serde_json::json!({
            "contest": contest.name, "operation": contest.operation, "contender": contender.name,
            "turns": turns.rounds(), "median_ns": turns.median(), "tenth_percentile_ns": turns.tenth(),
            "over_best_other": over(over_best[index]), "over_best_of_its_compiler": over(of_compiler[index]),
            "noise": turns.again().map(ratio),
        })
    };
    contest.contenders.iter().enumerate().map(row).collect()
}

/// Has the compiler make it.
fn use_up<T>(thing: T) {
    black_box(thing);
}

fn rayon_pool(workers: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(workers).build().expect("threads can be started")
}

thread_local! {
    /// Atomic so that the compiler makes every addition, in memory; a load and a store, since no other thread
    /// looks.
    static COUNT: AtomicU64 = const { AtomicU64::new(0) };
}

#[inline]
fn add_to_thread_local() {
    COUNT.with(|count| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
}

/// Some work of about a microsecond.
#[inline]
fn microsecond(rounds: u64) {
    let mut state = 1_u64;
    for _ in 0..rounds {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// How many rounds that is: the quickest of some tries, so that other programs do not shorten it.
fn rounds_a_microsecond() -> u64 {
    const ROUNDS: u64 = 100_000;
    let took = || {
        let begin = Instant::now();
        microsecond(ROUNDS);
        begin.elapsed().as_nanos().max(1) as u64
    };
    let ns = (0..20).map(|_| took()).min().unwrap_or(1);
    (ROUNDS * 1000 / ns).max(1)
}

/// A C++ library in a contest, if it takes part.
fn in_contest<'a>(
    contestant: &'a Contestant,
    contest: &'static str,
    operations: u64,
) -> Option<Contender<'a>> {
    let turn = move || contestant.turn(contest, operations);
    turn()?;
    Some(timed(contestant.name, operations, move || turn().unwrap_or(u64::MAX)))
}

/// Ours first, in each.
fn contests<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool, workers: usize) -> Vec<Contest<'a>> {
    let mut contests = small_things();
    contests.extend(allocation());
    contests.extend(replication());
    contests.extend(tasks(pool, rayon));
    contests.extend(loops(pool, rayon, workers));
    contests.extend(nesting(pool, rayon));
    contests.extend(numbers::contests(pool, rayon, workers));
    contests.extend(from_outside(pool, rayon));
    contests.extend(newer::contests(pool, rayon, workers));
    contests
}

fn small_things<'a>() -> Vec<Contest<'a>> {
    const N: u64 = 200_000;
    let nodes = Contest {
        name: "current_node",
        operation: "call",
        contenders: vec![
            plain("nodewise", N, || (0..N).for_each(|_| use_up(current_node()))),
            plain("sched_getcpu", N, || (0..N).for_each(|_| use_up(sched_getcpu()))),
            plain("getcpu system call", N / 20, || (0..N / 20).for_each(|_| use_up(getcpu()))),
        ],
    };
    let counts =
        [(false, "count, one thread", "addition"), (true, "count, two threads", "addition of each thread")];
    let counts = counts.into_iter().map(|(two, name, operation)| {
        let (counter, atomic) = (NodeCounter::new(), AtomicU64::new(0));
        Contest {
            name,
            operation,
            contenders: vec![
                on_threads(two, "nodewise NodeCounter", N, move || (0..N).for_each(|_| counter.add(1))),
                on_threads(two, "thread-local", N, || (0..N).for_each(|_| add_to_thread_local())),
                on_threads(two, "AtomicU64", N, move || {
                    (0..N).for_each(|_| use_up(atomic.fetch_add(1, Ordering::Relaxed)));
                }),
            ],
        }
    });
    // Nobody counts and does nothing else. A loop of nothing but additions to one address is a matter of how
    // the CPU forwards a store to the next load: between 1 and 15 cycles for the same instructions.
    let among_work = [(false, "count and work, one"), (true, "count and work, two")];
    let among_work = among_work.into_iter().map(|(two, name)| {
        let (counter, atomic) = (NodeCounter::new(), AtomicU64::new(0));
        Contest {
            name,
            operation: "hash of a few words and an addition",
            contenders: vec![
                on_threads(two, "nodewise NodeCounter", N, move || working(N, || counter.add(1))),
                on_threads(two, "thread-local", N, || working(N, add_to_thread_local)),
                on_threads(two, "AtomicU64", N, move || {
                    working(N, || use_up(atomic.fetch_add(1, Ordering::Relaxed)));
                }),
            ],
        }
    });
    std::iter::once(nodes).chain(counts).chain(among_work).collect()
}

/// Counts after each piece of work.
#[inline]
fn working(pieces: u64, count: impl Fn()) {
    let mut hash = black_box(1);
    for piece in 0..pieces {
        for _ in 0..4 {
            hash = (hash ^ (hash >> 29) ^ piece).wrapping_mul(6_364_136_223_846_793_005_u64);
        }
        count();
    }
    use_up(hash);
}

#[derive(Clone)]
struct Table(Vec<u64>);

impl Operate for Table {
    type Operation = (usize, u64);
    type Response = u64;

    fn operate(&mut self, &(place, number): &(usize, u64)) -> u64 {
        std::mem::replace(&mut self.0[place], number)
    }
}

/// A table that all read and few write.
fn replication<'a>() -> Vec<Contest<'a>> {
    const N: u64 = 50_000;
    const WRITES: u64 = 50_000;
    const PLACES: usize = 1000;
    let table = || Table(vec![1; PLACES]);
    let place = |i: u64| i as usize % PLACES;
    let values = || {
        let sides = Replicated::new(table()).expect("there is a node");
        let logged = NodeReplicated::new(table()).expect("there is a node");
        (sides, logged, RwLock::new(table()))
    };
    let reads = [(false, "read, one thread"), (true, "read, two threads")].map(|(two, name)| {
        let (sides, logged, locked) = values();
        Contest {
            name,
            operation: "read of each thread",
            contenders: vec![
                on_threads(two, "nodewise Replicated", N, move || {
                    (0..N).for_each(|i| use_up(sides.read().0[place(i)]));
                }),
                on_threads(two, "nodewise NodeReplicated", N, move || {
                    (0..N).for_each(|i| use_up(logged.read().0[place(i)]));
                }),
                on_threads(two, "RwLock", N, move || {
                    (0..N).for_each(|i| use_up(locked.read().map_or(0, |table| table.0[place(i)])));
                }),
            ],
        }
    });
    let updates = [(false, "update, one thread"), (true, "update, two threads")].map(|(two, name)| {
        let (sides, logged, locked) = values();
        Contest {
            name,
            operation: "update of each thread",
            contenders: vec![
                on_threads(two, "nodewise Replicated", WRITES, move || {
                    (0..WRITES).for_each(|i| use_up(sides.update(|table| table.operate(&(place(i), i)))));
                }),
                on_threads(two, "nodewise NodeReplicated", WRITES, move || {
                    (0..WRITES).for_each(|i| use_up(logged.update((place(i), i))));
                }),
                on_threads(two, "RwLock", WRITES, move || {
                    (0..WRITES).for_each(|i| {
                        use_up(locked.write().map_or(0, |mut table| table.operate(&(place(i), i))));
                    });
                }),
            ],
        }
    });
    reads.into_iter().chain(updates).collect()
}

/// An arena beside the C library's malloc.
fn allocation<'a>() -> Vec<Contest<'a>> {
    const N: u64 = 64_000;
    let contests = [(false, "allocate, one thread"), (true, "allocate, two threads")].map(|(two, name)| {
        let arena = NodeArena::on(current_node()).expect("this node has memory");
        Contest {
            name,
            operation: "block of 16 to 528 bytes, taken and freed",
            contenders: vec![
                on_threads(two, "nodewise NodeArena", N, move || boxes(N, &arena)),
                on_threads(two, "malloc", N, || boxes(N, Global)),
            ],
        }
    });
    contests.into()
}

/// Takes so many blocks, 64 at a time.
fn boxes(blocks: u64, allocator: impl Allocator + Copy) {
    for _ in 0..blocks / 64 {
        black_box::<[_; 64]>(std::array::from_fn(|i| {
            VecIn::<u8, _>::with_capacity_in(i * 37 % 512 + 16, allocator)
        }));
    }
}

/// A turn on this thread, or on two threads at the same time, each on a CPU of its own if there are two: what
/// the slower of them takes, without the threads' start.
fn on_threads<'a>(
    two: bool,
    name: &'static str,
    operations: u64,
    body: impl Fn() + Sync + 'a,
) -> Contender<'a> {
    let turn = move || {
        if !two {
            body();
            return None;
        }
        let cpus: Vec<u32> = sched_getaffinity(0).map(|cpus| cpus.iter().collect()).unwrap_or_default();
        let started = AtomicUsize::new(0);
        let timed = |cpu: Option<u32>| {
            let _ = sched_setaffinity(0, &cpu.into_iter().collect::<AffinityMask>());
            // Not asleep: who is woken comes when the other is through.
            started.fetch_add(1, Ordering::AcqRel);
            while started.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
            let begin = Instant::now();
            body();
            begin.elapsed().as_nanos() as u64
        };
        let timed = &timed;
        std::thread::scope(|scope| {
            let threads =
                [0, 1].map(|place| cpus.get(place).copied()).map(|cpu| scope.spawn(move || timed(cpu)));
            threads.into_iter().filter_map(|thread| thread.join().ok()).max()
        })
    };
    Contender { name, operations, turn: Box::new(turn) }
}

fn tasks<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> Vec<Contest<'a>> {
    const N: u64 = 5_000;
    /// Starting a thread for each task takes longer.
    const THREADS: u64 = 20;
    let rounds = rounds_a_microsecond();
    let of = |name, operation, work: fn(u64)| Contest {
        name,
        operation,
        contenders: vec![
            plain("nodewise scope", N, move || {
                pool.scope(|scope| (0..N).for_each(|_| scope.spawn(move |_| work(rounds))));
            }),
            plain("rayon scope", N, move || {
                rayon.scope(|scope| (0..N).for_each(|_| scope.spawn(move |_| work(rounds))));
            }),
            plain("std thread each", THREADS, move || {
                std::thread::scope(|scope| {
                    for _ in 0..THREADS {
                        scope.spawn(move || work(rounds));
                    }
                });
            }),
        ],
    };
    vec![of("empty tasks", "task", |_| ()), of("1 us tasks", "task", microsecond)]
}

#[inline]
fn square(i: usize) -> u64 {
    (i as u64).wrapping_mul(i as u64) ^ (i as u64 >> 3)
}

/// The range's parts for so many threads.
fn parts(len: usize, threads: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..threads).map(move |thread| len * thread / threads..len * (thread + 1) / threads)
}

fn loops<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool, threads: usize) -> Vec<Contest<'a>> {
    let each = |name, len: usize| Contest {
        name,
        operation: "element",
        contenders: vec![
            plain("nodewise parallel_for", len as u64, move || pool.parallel_for(0..len, use_up)),
            plain("rayon par_iter", len as u64, move || {
                rayon.install(|| (0..len).into_par_iter().for_each(use_up));
            }),
            plain("std threads", len as u64, move || {
                std::thread::scope(|scope| {
                    for part in parts(len, threads) {
                        scope.spawn(move || part.for_each(use_up));
                    }
                });
            }),
        ],
    };
    let reduce = |name, len: usize| Contest {
        name,
        operation: "element",
        contenders: vec![
            plain("nodewise parallel_reduce", len as u64, move || {
                let add = |sum: u64, i| sum.wrapping_add(square(i));
                black_box(pool.parallel_reduce(0..len, || 0, add, u64::wrapping_add));
            }),
            plain("rayon fold, reduce", len as u64, move || {
                let add = |sum: u64, i| sum.wrapping_add(square(i));
                let sum = || (0..len).into_par_iter().fold(|| 0, add).reduce(|| 0, u64::wrapping_add);
                black_box(rayon.install(sum));
            }),
            plain("std threads", len as u64, move || {
                std::thread::scope(|scope| {
                    let sum =
                        |part: std::ops::Range<usize>| part.fold(0_u64, |sum, i| sum.wrapping_add(square(i)));
                    let threads: Vec<_> =
                        parts(len, threads).map(|part| scope.spawn(move || sum(part))).collect();
                    let sums = threads.into_iter().map(|thread| thread.join().unwrap_or(0));
                    black_box(sums.fold(0, u64::wrapping_add));
                });
            }),
        ],
    };
    vec![
        each("parallel_for, 1e6", 1_000_000),
        each("parallel_for, 1e8", 100_000_000),
        reduce("reduce, 1e6", 1_000_000),
        reduce("reduce, 1e8", 100_000_000),
    ]
}

fn nesting<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> Vec<Contest<'a>> {
    const FIB: u64 = 22;
    /// How often fib(22) divides.
    const JOINS: u64 = 28_656;
    const OUTER: usize = 100;
    const INNER: usize = 1000;
    const ELEMENTS: u64 = (OUTER * INNER) as u64;
    fn nodewise_fib(pool: &NodePool, n: u64) -> u64 {
        if n < 2 {
            return n;
        }
        let (a, b) = pool.join(|| nodewise_fib(pool, n - 1), || nodewise_fib(pool, n - 2));
        a + b
    }
    fn rayon_fib(n: u64) -> u64 {
        if n < 2 {
            return n;
        }
        let (a, b) = rayon::join(|| rayon_fib(n - 1), || rayon_fib(n - 2));
        a + b
    }
    vec![
        Contest {
            name: "nested joins",
            operation: "join",
            contenders: vec![
                plain("nodewise join", JOINS, move || {
                    black_box(pool.scope(|_| nodewise_fib(pool, FIB)));
                }),
                plain("rayon join", JOINS, move || {
                    black_box(rayon.install(|| rayon_fib(FIB)));
                }),
            ],
        },
        Contest {
            name: "nested loops",
            operation: "element",
            contenders: vec![
                plain("nodewise parallel_for", ELEMENTS, move || {
                    pool.parallel_for(0..OUTER, |_| pool.parallel_for(0..INNER, use_up));
                }),
                plain("rayon par_iter", ELEMENTS, move || {
                    rayon.install(|| {
                        (0..OUTER).into_par_iter().for_each(|_| {
                            (0..INNER).into_par_iter().for_each(use_up);
                        });
                    });
                }),
            ],
        },
    ]
}

fn from_outside<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> Vec<Contest<'a>> {
    const N: u64 = 2_000;
    const WAKES: u64 = 5;
    /// Long enough for all workers to be asleep, and their CPUs idle: oneTBB's look for work for half a
    /// millisecond.
    const REST: Duration = Duration::from_millis(10);
    let (ours, theirs) = (Arc::new(TaskCounter::new()), Arc::new(TaskCounter::new()));
    let median_of_wakes = |wake: &mut dyn FnMut()| {
        let mut times: Vec<f64> = (0..WAKES)
            .map(|_| {
                std::thread::sleep(REST);
                let begin = Instant::now();
                wake();
                begin.elapsed().as_nanos() as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] as u64
    };
    let (ask, asked) = sync_channel::<()>(1);
    let (answer, answered) = sync_channel::<()>(1);
    std::thread::spawn(move || {
        while asked.recv().is_ok() {
            let _ = answer.send(());
        }
    });
    vec![
        Contest {
            name: "tasks from outside",
            operation: "task",
            contenders: vec![
                plain("nodewise spawn", N, move || {
                    ours.submit(N);
                    for _ in 0..N {
                        let done = ours.clone();
                        drop(pool.spawn(move || done.done(1)));
                    }
                    ours.wait();
                }),
                plain("rayon spawn", N, move || {
                    theirs.submit(N);
                    for _ in 0..N {
                        let done = theirs.clone();
                        rayon.spawn(move || done.done(1));
                    }
                    theirs.wait();
                }),
            ],
        },
        Contest {
            name: "wake-up and back",
            operation: "round trip to a sleeping worker",
            contenders: vec![
                timed("nodewise spawn, join", 1, move || median_of_wakes(&mut || pool.spawn(|| ()).join())),
                timed("rayon install", 1, move || median_of_wakes(&mut || rayon.install(|| ()))),
                timed("std channel", 1, move || {
                    median_of_wakes(&mut || {
                        let _ = ask.send(());
                        let _ = answered.recv();
                    })
                }),
            ],
        },
    ]
}

/// Thousandths of a CPU that a pool with nothing to do uses, over a second.
fn idle_cpu(workers: usize) -> Vec<(&'static str, f64)> {
    let cpu = || clock_ns(Clock::ProcessCpu).unwrap_or(0);
    let measure = || {
        std::thread::sleep(Duration::from_millis(100));
        let (begin, cpu_begin) = (Instant::now(), cpu());
        std::thread::sleep(Duration::from_secs(1));
        (cpu() - cpu_begin) as f64 * 1000.0 / begin.elapsed().as_nanos() as f64
    };
    let pool = NodePool::new().expect("this machine has a node");
    pool.parallel_for(0..1000, use_up);
    let ours = measure();
    drop(pool);
    let rayon = rayon_pool(workers);
    rayon.install(|| (0..1000).into_par_iter().for_each(use_up));
    vec![("nodewise", ours), ("rayon", measure())]
}
