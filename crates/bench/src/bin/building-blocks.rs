//! `building-blocks`: uses the runtime library on a machine with several nodes and says what came of it, for
//! the tests in guests.
#![forbid(unsafe_code)]

use allocator_api2::vec::Vec as VecIn;
use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use nodewise_runtime::{
    Allowance, ErrorKind, Fallback, Hint, HonouredBy, Layout, NodeArena, NodeArenaBuilder, NodeCounter,
    NodePool, NodeReplicated, NodeVec, NodeVecBuilder, Operate, Replicated, ReplicatedVec, Scope,
    SharedArena, TaskCounter, bind_thread, current_cpu, current_node, hint, is_managed, nodes_near, refresh,
};
use nodewise_sys::{getcpu, page_bytes, query_pages, sched_getaffinity, sched_setaffinity};
use nodewise_topology::{NodeId, Topology};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Use the runtime library, and print the outcome
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Print each layout's pages, as the kernel sees them: a line of JSON each, with runs of pages and their
    /// node
    Layouts {
        /// Put those that are on one node here
        on: u32,
        /// Weight the weighted ones so, as in NODE:WEIGHT
        #[arg(value_parser = weight)]
        weights: Vec<(NodeId, u32)>,
    },
    /// Print the pages of a node that has no room for the memory that is to lie there
    Full {
        /// The node
        node: u32,
    },
    /// Print on which nodes blocks are worked on, and where workers run
    Blocks {
        /// The node of an array to work on, instead of an array in blocks
        on: Option<u32>,
    },
    /// Print the placements that leave out a node of memory only
    Apart {
        /// The node
        node: u32,
    },
    /// Take a CPU online and offline again, and print what the library says of it, a line of JSON each time
    Plug {
        /// The CPU
        cpu: u32,
    },
    /// Print which nodes are near a device, where a thread bound to them runs, and where an arena lies
    Near {
        /// The device
        device: String,
    },
    /// Wait for a manager, say how two arrays on node 0 are used, and write one from all nodes for so many
    /// seconds
    Hints {
        /// How long
        seconds: u64,
    },
    /// Update a replicated value by all nodes at once, and print a line of JSON for each node's copy
    Log,
    /// Print how many pages of replicated values, and of all they have, each node finds on another: a line of
    /// JSON for each size
    Copies,
    /// Run tasks on all nodes for so many seconds, and fail if one of the first runs on another node
    ///
    /// The first after a refresh count, too
    Pool {
        /// How long
        seconds: u64,
        /// The file that tells it to refresh
        refresh: Option<PathBuf>,
    },
}

const PAGES: usize = 2048;

fn main() -> anyhow::Result<()> {
    match Args::parse().part {
        Part::Layouts { on, weights } => layouts(NodeId(on), weights),
        Part::Full { node } => full(NodeId(node)),
        Part::Blocks { on } => blocks(on.map_or(Layout::Blocked, |node| Layout::On(NodeId(node)))),
        Part::Apart { node } => apart(NodeId(node)),
        Part::Plug { cpu } => plug(cpu),
        Part::Near { device } => near(&device),
        Part::Hints { seconds } => hints(Duration::from_secs(seconds)),
        Part::Log => log(),
        Part::Copies => copies(),
        Part::Pool { seconds, refresh } => pool(Duration::from_secs(seconds), refresh),
    }
}

/// The node of each base page, asked of the kernel without the library.
fn homes<T: bytemuck::Pod>(values: &[T], pages: usize) -> anyhow::Result<Vec<i32>> {
    homes_from(values.as_ptr().addr(), pages)
}

fn homes_from(start: usize, pages: usize) -> anyhow::Result<Vec<i32>> {
    let addresses: Vec<u64> = (0..pages).map(|page| (start + page * page_bytes()) as u64).collect();
    let mut status = vec![i32::MIN; pages];
    query_pages(0, &addresses, &mut status)?;
    Ok(status)
}

/// Equal neighbours together: how many and which.
fn runs(homes: &[i32]) -> Vec<(usize, i32)> {
    homes.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect()
}

/// This process's memory of a kind that `smaps` tells, exactly, unlike `statm`.
fn kib_of(kind: &str) -> anyhow::Result<usize> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let mut lines = rollup.lines();
    let kib = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).context("no such kind")?;
    Ok(kib.trim().trim_end_matches(" kB").parse()?)
}

/// Memory of this process that is no file's, in pages.
fn own_pages() -> anyhow::Result<usize> {
    Ok(kib_of("Anonymous")? * 1024 / page_bytes())
}

/// This process's memory in huge pages.
fn huge_kib() -> anyhow::Result<usize> {
    kib_of("AnonHugePages")
}

/// Page faults of each node's workers so far; pages that they have the kernel bring in count as well.
fn faults_of_workers() -> anyhow::Result<BTreeMap<u32, u64>> {
    let mut faults = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let thread = thread?.path();
        // Threads that are no workers may end meanwhile.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        let Some((node, _)) = name.strip_prefix("node").and_then(|name| name.split_once('-')) else {
            continue;
        };
        let stat = std::fs::read_to_string(thread.join("stat"))?;
        let (_, fields) = stat.rsplit_once(')').context("the name is in parentheses")?;
        // The tenth field of all (proc_pid_stat(5)).
        let minor: u64 = fields.split_whitespace().nth(7).context("minor faults")?.parse()?;
        *faults.entry(node.parse()?).or_default() += minor;
    }
    Ok(faults)
}

/// `NODE:WEIGHT`.
fn weight(text: &str) -> anyhow::Result<(NodeId, u32)> {
    let (node, weight) = text.split_once(':').context("a weight is written NODE:WEIGHT")?;
    Ok((NodeId(node.parse()?), weight.parse()?))
}

fn layouts(on: NodeId, weights: Vec<(NodeId, u32)>) -> anyhow::Result<()> {
    let pool = NodePool::new()?;
    let len = PAGES * page_bytes() / 8;
    let before = own_pages()?;
    let layouts = [
        ("on", Layout::On(on)),
        ("interleaved", Layout::Interleaved),
        ("weighted", Layout::Weighted(weights)),
        ("blocked", Layout::Blocked),
    ];
    for (name, layout) in &layouts {
        for (huge, pooled) in [(false, false), (false, true), (true, false)] {
            let mut builder = NodeVecBuilder::new(layout.clone());
            if huge {
                builder = builder.huge_pages();
            }
            if pooled {
                builder = builder.pool(&pool);
            }
            let (huge_before, mut touched) = (huge_kib()?, faults_of_workers()?);
            let vec: NodeVec<u64> = builder.build(len)?;
            let faults = faults_of_workers()?;
            for (node, before) in &mut touched {
                *before = faults[node] - *before;
            }
            let line = json!({
                "layout": name,
                "huge": huge,
                "homes": runs(&homes(&vec, PAGES)?),
                "huge_kib": huge_kib()? - huge_before,
                "pooled": pooled,
                "touched": touched,
            });
            println!("{line}");
        }
        for huge in [false, true] {
            arena_is_laid_out(name, layout, huge)?;
        }
    }
    let mut moved = NodeVec::<u64>::new(len, Layout::On(NodeId(0)))?;
    moved.iter_mut().zip(0..).for_each(|(value, i)| *value = i);
    moved.lay_out(Layout::Blocked)?;
    ensure!(moved.iter().copied().eq(0..len as u64), "moving changes no value");
    println!("{}", json!({"layout": "moved", "homes": runs(&homes(&moved, PAGES)?)}));
    // Pages 100 to 199.
    let elements = 100 * page_bytes() / 8..200 * page_bytes() / 8;
    moved.lay_out_range(elements.clone(), &Layout::Interleaved)?;
    let kernel = homes(&moved, PAGES)?;
    let library: Vec<i32> =
        moved.nodes_of(elements)?.iter().map(|node| node.map_or(-1, |node| node.0 as i32)).collect();
    let with_cpus: Vec<i32> = pool.nodes().map(|node| node.0 as i32).collect();
    let wanted: Vec<i32> = with_cpus.iter().copied().cycle().take(100).collect();
    ensure!(kernel[100..200] == wanted && library == wanted, "a part: {:?}, {library:?}", runs(&kernel));
    ensure!(moved.placement()?.misplaced == 0, "{:?}", moved.placement()?);
    ensure!(moved.iter().copied().eq(0..len as u64), "moving a part changes no value");
    moved.lay_out(Layout::Blocked)?;
    let replicated = ReplicatedVec::new(&moved)?;
    ensure!(replicated.nodes().eq(pool.nodes()), "a copy on each node with CPUs: {replicated:?}");
    for node in replicated.nodes() {
        let homes = homes(replicated.near(node), PAGES)?;
        ensure!(homes.iter().all(|&home| home == node.0 as i32), "copy of node {node}: {:?}", runs(&homes));
    }
    arena_lies_there(on)?;
    drop((moved, replicated));
    let left = own_pages()?.saturating_sub(before);
    println!("{}", json!({"left_pages": left}));
    Ok(())
}

/// Small blocks share chunks of 2 MiB, each laid out by itself; a large one has a mapping of its own.
fn arena_is_laid_out(name: &str, layout: &Layout, huge: bool) -> anyhow::Result<()> {
    const CHUNK_BYTES: usize = 2 << 20;
    let huge_before = huge_kib()?;
    let arena = NodeArenaBuilder::new(layout.clone()).huge_pages(huge).build()?;
    let mut chunks = BTreeSet::new();
    for _ in 0..100 {
        chunks.insert(arena.allocate(30_000, 8)?.addr().get() & !(CHUNK_BYTES - 1));
    }
    let large = arena.allocate(PAGES * page_bytes(), 8)?.addr().get();
    let chunks = chunks.into_iter().map(|chunk| homes_from(chunk, CHUNK_BYTES / page_bytes()));
    let chunks = chunks.collect::<anyhow::Result<Vec<_>>>()?;
    let line = json!({
        "layout": name,
        "huge": huge,
        "homes": runs(&homes_from(large, PAGES)?),
        "chunks": chunks.iter().map(|homes| runs(homes)).collect::<Vec<_>>(),
        "huge_kib": huge_kib()? - huge_before,
    });
    println!("{line}");
    Ok(())
}

/// Blocks of all sizes, some of them from several chunks, lie on the arena's node.
fn arena_lies_there(node: NodeId) -> anyhow::Result<()> {
    let arena = NodeArena::on(node)?;
    let mut addresses = Vec::new();
    for bytes in [16, 5000, 100_000, 1 << 20, 3 << 20].into_iter().cycle().take(60) {
        let block = arena.allocate(bytes, 8)?;
        addresses.extend((0..bytes as u64).step_by(page_bytes()).map(|at| block.addr().get() as u64 + at));
    }
    let mut homes = vec![i32::MIN; addresses.len()];
    query_pages(0, &addresses, &mut homes)?;
    ensure!(homes.iter().all(|&home| home == node.0 as i32), "blocks of an arena: {:?}", runs(&homes));
    ensure!(arena.placement()?.misplaced == 0, "{:?}", arena.placement()?);
    Ok(())
}

fn full(node: NodeId) -> anyhow::Result<()> {
    // Most of what the node has, whatever that is.
    let meminfo = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo"))?;
    let free = meminfo.lines().find(|line| line.contains("MemFree:")).context("MemFree")?;
    let free_kb: usize = free.split_whitespace().nth(3).context("a number")?.parse()?;
    let len = free_kb * 1024 * 3 / 4 / 8;
    let first = NodeVecBuilder::new(Layout::On(node)).fallback(Fallback::Anywhere).build::<u64>(len)?;
    let refused = NodeVec::<u64>::new(len, Layout::On(node)).err().context("there is no room for two")?;
    ensure!(refused.kind() == ErrorKind::NodeFull, "{refused}");
    let huge = NodeVecBuilder::new(Layout::On(node)).huge_pages().build::<u64>(len);
    let refused_huge = huge.err().context("there is no room in huge pages either")?;
    ensure!(refused_huge.kind() == ErrorKind::NodeFull, "{refused_huge}");
    let arena = NodeArena::on(node)?;
    let refused_block = arena.allocate(len * 8, 8).err().context("an arena finds no room either")?;
    ensure!(refused_block.kind() == ErrorKind::NodeFull, "{refused_block}");
    let second = NodeVecBuilder::new(Layout::On(node)).fallback(Fallback::Anywhere).build::<u64>(len)?;
    println!(
        "{}",
        json!({
            "first_misplaced": first.placement()?.misplaced,
            "refused": refused.to_string(),
            "second_misplaced": second.placement()?.misplaced,
            "pages": len * 8 / page_bytes(),
        })
    );
    Ok(())
}

fn blocks(layout: Layout) -> anyhow::Result<()> {
    let pool = NodePool::new()?;
    let mut vec = NodeVec::<u64>::new(PAGES * page_bytes() / 8, layout)?;
    let worked = Mutex::new(BTreeMap::<(u32, u32, u32), (usize, usize)>::new());
    vec.for_each_block(&pool, |block, values| {
        values.fill(1);
        let by_kernel = getcpu().map_or(u32::MAX, |(_, node)| node);
        let mut worked = worked.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, elements) = worked.entry((block.node.0, by_kernel, current_node().0)).or_default();
        *parts += 1;
        *elements += values.len();
    });
    let worked = worked.into_inner().unwrap_or_else(PoisonError::into_inner);
    for ((wanted, by_kernel, by_library), (parts, elements)) in worked {
        println!(
            "{}",
            json!({
                "wanted": wanted,
                "kernel": by_kernel,
                "library": by_library,
                "parts": parts,
                "elements": elements,
            })
        );
    }
    Ok(())
}

fn apart(node: NodeId) -> anyhow::Result<()> {
    let pool = NodePool::new()?;
    let refused = |error: Option<nodewise_runtime::Error>| error.map(|error| error.kind());
    let no_workers = Some(ErrorKind::NoWorkers);
    ensure!(refused(pool.spawn_on(node, || ()).err()) == no_workers, "a task for node {node}");
    let only_there = NodePool::builder().nodes(&[node].into_iter().collect());
    ensure!(refused(only_there.build().err()) == no_workers, "a pool on node {node}");

    let counter = NodeCounter::new();
    let nodes: Vec<NodeId> = pool.nodes().collect();
    for &of_worker in &nodes {
        let on = Mutex::new(None);
        let count = |_: &Scope<'_>| {
            counter.add(1);
            *on.lock().unwrap_or_else(PoisonError::into_inner) = Some(current_node());
        };
        pool.scope(|scope| scope.spawn_on(of_worker, count))?;
        let on = on.into_inner().unwrap_or_else(PoisonError::into_inner);
        ensure!(on == Some(of_worker), "a worker of node {of_worker} is on {on:?}");
    }
    let counts: Vec<u64> = nodes.iter().chain([&node]).map(|&node| counter.on_node(node)).collect();

    let before = anonymous_pages(node)?;
    let len = PAGES * page_bytes() / 8;
    let replicated = Replicated::new_in(|arena| ones(len, arena))?;
    let mut homes_near = Vec::new();
    for &reader in &nodes {
        let homes_here = Mutex::new(None);
        let look = |_: &Scope<'_>| {
            let homes = homes(&replicated.read(), PAGES);
            *homes_here.lock().unwrap_or_else(PoisonError::into_inner) = Some(homes);
        };
        pool.scope(|scope| scope.spawn_on(reader, look))?;
        let homes = homes_here.into_inner().unwrap_or_else(PoisonError::into_inner);
        homes_near.push(runs(&homes.context("the task has ended")??));
    }
    let log = NodeReplicated::new_in(|arena| Counts { all: 0, counts: ones(len, arena) })?;
    ensure!(log.update(0) == 1);
    let mut hinted = Vec::new();
    for huge in [false, true] {
        let builder = NodeVecBuilder::new(Layout::On(nodes[0]));
        let builder = if huge { builder.huge_pages() } else { builder };
        let shared = builder.build::<u64>(len)?;
        ensure!(hint(&shared[..], Hint::WriteShared)? == HonouredBy::Library);
        let pages: BTreeMap<u32, usize> =
            shared.placement()?.pages.into_iter().map(|(node, pages)| (node.0, pages)).collect();
        hinted.push(json!({"pages": pages, "runs": runs(&self::homes(&shared, PAGES)?).len()}));
    }
    let pages = anonymous_pages(node)?;
    let line = json!({
        "nodes": nodes.iter().map(|node| node.0).collect::<Vec<_>>(),
        "counts": counts,
        "homes": homes_near,
        "hinted": hinted,
        "replicated": format!("{replicated:?}"),
        "log": format!("{log:?}"),
        "pages_there": [before, pages],
    });
    println!("{line}");
    Ok(())
}

/// Anonymous pages of this process on a node.
fn anonymous_pages(node: NodeId) -> anyhow::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps")?;
    let anonymous = maps.lines().filter(|line| line.contains(" anon="));
    let there = format!("N{node}=");
    let pages = anonymous.flat_map(|line| line.split(' ').filter_map(|word| word.strip_prefix(&there)));
    pages.map(|pages| Ok(pages.parse::<usize>()?)).sum()
}

fn plug(cpu: u32) -> anyhow::Result<()> {
    let counter = NodeCounter::new();
    let set_online = |online: bool| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
        std::fs::write(&file, u8::from(online).to_string()).with_context(|| format!("cannot write {file}"))
    };
    let tell = |when: &str, (on, kernel, library): (u32, u32, u32)| -> anyhow::Result<()> {
        let nodes = Allowance::of_this_thread()?;
        let nodes: BTreeMap<u32, String> =
            nodes.nodes().iter().map(|node| (node.id.0, node.cpus.to_string())).collect();
        let topology = Topology::live()?;
        let counts: Vec<u64> = topology.nodes().iter().map(|node| counter.on_node(node.id)).collect();
        let line = json!({
            "when": when,
            "cpus": nodes,
            "offline": topology.offline_cpus().to_string(),
            "workers": NodePool::new()?.workers(),
            "on": {"cpu": on, "kernel": kernel, "library": library},
            "counts": counts,
        });
        println!("{line}");
        Ok(())
    };
    let here = || anyhow::Ok((current_cpu().0, getcpu()?.1, current_node().0));
    tell("at first", here()?)?;
    set_online(true)?;
    // A thread on that CPU counts, and says where it is whenever it is asked.
    let (ask, asked) = sync_channel(0);
    let (answer, answers) = sync_channel(0);
    let counter = &counter;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let bound = sched_setaffinity(0, &[cpu].into_iter().collect());
            counter.add(7);
            for () in asked {
                answer.send(bound.map_err(anyhow::Error::from).and_then(|()| here())).expect("it was asked");
            }
        });
        let ask = ask;
        let there = || {
            ask.send(())?;
            answers.recv()?
        };
        tell("online", there()?)?;
        refresh()?;
        tell("refreshed", there()?)?;
        set_online(false)?;
        tell("offline", there()?)
    })
}

fn near(device: &str) -> anyhow::Result<()> {
    let nodes = nodes_near(device)?;
    bind_thread(&nodes)?;
    let cpus: Vec<u32> = sched_getaffinity(0)?.iter().collect();
    let near = nodes.first().context("a device is near some node")?;
    let arena = NodeArena::on(near)?;
    arena.allocate(1 << 20, 8)?;
    let line = json!({
        "device": device,
        "near": nodes.iter().map(|node| node.0).collect::<Vec<_>>(),
        "cpus": cpus,
        "library": current_node().0,
        "arena": arena.placement()?.pages.into_keys().map(|node| node.0).collect::<Vec<_>>(),
    });
    println!("{line}");
    Ok(())
}

fn hints(time: Duration) -> anyhow::Result<()> {
    let began = Instant::now();
    while !is_managed() {
        ensure!(began.elapsed() < Duration::from_secs(20), "no manager has come");
        std::thread::sleep(Duration::from_millis(100));
    }
    let len = PAGES * page_bytes() / 8;
    let idle = NodeVec::<u64>::new(len, Layout::On(NodeId(0)))?;
    let used = NodeVec::<u64>::new(len, Layout::On(NodeId(0)))?;
    ensure!(hint(&used[..], Hint::Private)? == HonouredBy::Manager);
    ensure!(hint(&idle[..], Hint::WriteShared)? == HonouredBy::Manager);
    let at_once = idle.placement()?.pages;
    let pool = NodePool::new()?;
    let used = Mutex::new(used);
    let began = Instant::now();
    while began.elapsed() < time {
        // Each node in turn writes all of it.
        for node in pool.nodes() {
            let used = &used;
            pool.scope(|scope| {
                let _ = scope.spawn_on(node, move |_| {
                    let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
                    used.iter_mut().for_each(|word| *word += 1);
                });
            });
        }
    }
    let used = used.into_inner().unwrap_or_else(PoisonError::into_inner);
    let range = |vec: &NodeVec<u64>| {
        let bytes = vec.as_ptr_range();
        [bytes.start.addr(), bytes.end.addr()]
    };
    println!(
        "{}",
        json!({
            "at_once": at_once.into_values().collect::<Vec<_>>(),
            "idle": idle.placement()?.pages.into_values().collect::<Vec<_>>(),
            "idle_range": range(&idle),
            "used_range": range(&used),
        })
    );
    Ok(())
}

#[derive(Clone)]
struct Counts {
    all: u64,
    counts: VecIn<u64, SharedArena>,
}

/// So many in an arena.
fn ones(len: usize, arena: &SharedArena) -> VecIn<u64, SharedArena> {
    let mut ones = VecIn::new_in(arena.clone());
    ones.resize(len, 1);
    ones
}

impl Operate for Counts {
    type Operation = usize;
    type Response = u64;

    /// Counts, and says as how many-th. A number that is no place has the counts move to other memory.
    fn operate(&mut self, &place: &usize) -> u64 {
        match self.counts.get_mut(place) {
            Some(count) => *count += 1,
            None => self.counts = self.counts.clone(),
        }
        self.all += 1;
        self.all
    }
}

fn log() -> anyhow::Result<()> {
    const UPDATES: usize = 5000;
    let pool = NodePool::new()?;
    let nodes: Vec<NodeId> = pool.nodes().collect();
    let len = PAGES * page_bytes() / 8;
    let log = NodeReplicated::new_in(|arena| Counts { all: 0, counts: ones(len, arena) })?;
    let places = || (0..UPDATES).map(|update| update * 7919 % len);
    // A thread that has seen a number sees no smaller one, on whatever node, and each number is given once.
    let seen = AtomicU64::new(0);
    let numbers = Mutex::new(Vec::new());
    let update = || {
        for place in places() {
            let least = seen.load(Ordering::SeqCst);
            let number = log.update(place);
            let read = log.read().all;
            assert!(least < number && number <= read, "{least}, then {number}, then {read}");
            seen.fetch_max(read, Ordering::SeqCst);
            numbers.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
    };
    pool.scope(|scope| nodes.iter().try_for_each(|&node| scope.spawn_on(node, |_| update())))?;
    let mut numbers = numbers.into_inner().unwrap_or_else(PoisonError::into_inner);
    numbers.sort_unstable();
    ensure!(numbers.into_iter().eq(1..=(nodes.len() * UPDATES) as u64), "each number is given once");
    let mut counts = vec![1; len];
    places().for_each(|place| counts[place] += nodes.len() as u64);
    let read = || {
        let copy = log.read();
        ensure!(copy.counts[..] == counts[..], "the copy of node {} is another", current_node());
        Ok((copy.all, runs(&homes(&copy.counts, PAGES)?)))
    };
    for node in nodes {
        let copy = Mutex::new(None);
        let fill = |filled: anyhow::Result<_>| {
            *copy.lock().unwrap_or_else(PoisonError::into_inner) = Some(filled);
        };
        pool.scope(|scope| scope.spawn_on(node, |_| fill(read())))?;
        let copy = copy.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (updates, homes) = copy.context("the task has ended")??;
        println!("{}", json!({"node": node.0, "updates": updates, "homes": homes}));
    }
    Ok(())
}

/// Updates of each value of [`copies`]; one of so many has contents move to other memory.
const UPDATES: usize = 10_000;
const MOVES_EACH: usize = 32;

/// A value of each size from a word to 4 MiB: a line for each.
fn copies() -> anyhow::Result<()> {
    let pool = NodePool::new()?;
    let nodes: Vec<NodeId> = pool.nodes().collect();
    for bytes in [8, 100 * 8, 4 << 10, 8 << 10, 64 << 10, 1 << 20, 4 << 20] {
        let len = bytes / 8;
        let in_arena = Replicated::new_in(|arena| ones(len, arena))?;
        let log = NodeReplicated::new_in(|arena| Counts { all: 0, counts: ones(len, arena) })?;
        let whole = Replicated::new([1_u64; 1024])?;
        let look = || {
            let (mut seen, in_arena, log) = (Seen::default(), in_arena.read(), log.read());
            seen.look(std::slice::from_ref(&*in_arena))?;
            seen.look(&in_arena)?;
            seen.look(std::slice::from_ref(&*log))?;
            seen.look(&log.counts)?;
            seen.look(&whole.read()[..])?;
            anyhow::Ok(seen)
        };
        let mut moves = 0;
        let mut update = |updates: Range<usize>| {
            // Readers turn to the other side with each update.
            for update in updates {
                whole.update(|numbers| numbers[0] += 1);
                if update % MOVES_EACH > 0 {
                    in_arena.update(|numbers| numbers[0] += 1);
                    log.update(0);
                    continue;
                }
                // To twice the length and back.
                let more = update / MOVES_EACH % 2 * len;
                in_arena.update(|numbers| {
                    numbers.resize(len + more, 1);
                    numbers.shrink_to_fit();
                });
                log.update(usize::MAX);
                moves += 1;
            }
        };
        let (mut seen, turn) = (Seen::default(), UPDATES / 8);
        let mut look_everywhere = || {
            for &node in &nodes {
                let more = on_node(&pool, node, look)??;
                (seen.pages, seen.elsewhere) = (seen.pages + more.pages, seen.elsewhere + more.elsewhere);
            }
            anyhow::Ok(())
        };
        for round in 0..8 {
            look_everywhere()?;
            on_node(&pool, nodes[round % nodes.len()], || update(round * turn..(round + 1) * turn))?;
        }
        look_everywhere()?;
        let mut misplaced = 0;
        for placement in [in_arena.placement()?, log.placement()?] {
            misplaced += placement.misplaced + placement.absent + placement.unknown;
            let pages = bytes.div_ceil(page_bytes());
            ensure!(placement.pages.len() == nodes.len(), "{placement:?}");
            ensure!(placement.pages.values().all(|&there| there > pages), "{placement:?}");
        }
        let line = json!({
            "bytes": bytes, "nodes": nodes.len(), "pages": seen.pages, "elsewhere": seen.elsewhere,
            "misplaced": misplaced, "updates": log.read().all, "moves": moves,
        });
        println!("{line}");
    }
    Ok(())
}

/// Pages with contents, and those on another node than the thread that looked.
#[derive(Default)]
struct Seen {
    pages: usize,
    elsewhere: usize,
}

impl Seen {
    fn look<T>(&mut self, contents: &[T]) -> anyhow::Result<()> {
        let bytes = contents.as_ptr_range();
        let start = bytes.start.addr() & !(page_bytes() - 1);
        let pages = (bytes.end.addr() - start).div_ceil(page_bytes());
        let homes = homes_from(start, pages)?;
        self.pages += pages;
        self.elsewhere += homes.iter().filter(|&&home| home != current_node().0 as i32).count();
        Ok(())
    }
}

/// Runs a task of a node.
fn on_node<R: Send>(pool: &NodePool, node: NodeId, task: impl FnOnce() -> R + Send) -> anyhow::Result<R> {
    let mut returned = None;
    pool.scope(|scope| scope.spawn_on(node, |_| returned = Some(task())))?;
    returned.context("the task has ended")
}

fn pool(time: Duration, mut refresh_when: Option<PathBuf>) -> anyhow::Result<()> {
    let pool = NodePool::new()?;
    tasks_run_where_they_should(&pool)?;
    println!("{}", json!({"looked": "at first"}));
    let began = Instant::now();
    let mut rounds = 0_u64;
    while began.elapsed() < time {
        let sum = pool.parallel_reduce(0..10_000, || 0, |sum, i| sum + i, |a, b| a + b);
        ensure!(sum == 49_995_000, "{sum}");
        let bound: Vec<_> = pool.nodes().map(|node| pool.spawn_on(node, move || node)).collect();
        for task in bound {
            task?.join();
        }
        rounds += 1;
        if refresh_when.take_if(|file| file.exists()).is_some() {
            refresh()?;
            tasks_run_where_they_should(&pool)?;
            println!("{}", json!({"looked": "again"}));
        }
    }
    let run: Vec<u64> = pool.statistics().iter().map(|node| node.run).collect();
    println!("{}", json!({"workers": pool.workers(), "rounds": rounds, "run": run}));
    Ok(())
}

/// Tasks for each node are on it, by the kernel's word and the library's, and are counted there; who waits
/// for them wakes when all are done.
fn tasks_run_where_they_should(pool: &NodePool) -> anyhow::Result<()> {
    const ROUNDS: usize = 10;
    let nodes: Vec<NodeId> = pool.nodes().collect();
    let (counter, running) = (NodeCounter::new(), TaskCounter::new());
    let ran = Mutex::new(Vec::new());
    let task = &|node: NodeId| {
        let by_kernel = getcpu().map_or(u32::MAX, |(_, node)| node);
        counter.add(1);
        ran.lock().unwrap_or_else(PoisonError::into_inner).push((node.0, by_kernel, current_node().0));
        running.done(1);
    };
    for round in 1..=ROUNDS {
        running.submit(nodes.len() as u64);
        let done = std::thread::scope(|threads| {
            let started = threads.spawn(|| {
                pool.scope(|scope| {
                    nodes.iter().try_for_each(|&node| scope.spawn_on(node, move |_| task(node)))
                })
            });
            running.wait();
            let done = ran.lock().unwrap_or_else(PoisonError::into_inner).len();
            started.join().expect("no task panics").map(|()| done)
        })?;
        ensure!(done == round * nodes.len(), "{done} tasks were done when the waiter woke in round {round}");
    }
    let ran = ran.into_inner().unwrap_or_else(PoisonError::into_inner);
    let elsewhere: Vec<_> =
        ran.iter().filter(|(wanted, kernel, library)| [kernel, library] != [wanted; 2]).collect();
    ensure!(elsewhere.is_empty(), "tasks for a node were, by the kernel and the library, on {elsewhere:?}");
    let counts: Vec<u64> = nodes.iter().map(|&node| counter.on_node(node)).collect();
    ensure!(counts.iter().all(|&count| count == ROUNDS as u64), "{counts:?} in {ROUNDS} rounds");
    Ok(())
}
