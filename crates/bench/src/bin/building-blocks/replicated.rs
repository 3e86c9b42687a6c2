//! Replicated values: what their copies say, and where the copies lie.

use crate::PAGES;
use crate::pages::{homes, homes_from, runs};
use allocator_api2::vec::Vec as VecIn;
use anyhow::{Context as _, ensure};
use nodewise_runtime::{NodePool, NodeReplicated, Operate, Replicated, SharedArena, current_node};
use nodewise_sys::page_bytes;
use nodewise_topology::NodeId;
use serde_json::json;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

#[derive(Clone)]
pub struct Counts {
    pub all: u64,
    pub counts: VecIn<u64, SharedArena>,
}

/// So many in an arena.
pub fn ones(len: usize, arena: &SharedArena) -> VecIn<u64, SharedArena> {
    let mut ones = VecIn::new_in(arena.clone());
    ones.resize(len, 1);
    ones
}

impl Operate for Counts {
    type Operation = usize;
    type Response = u64;

    /// Counts, and says as how many-th. A number that is no place has the counts move to other memory.
    fn operate(&mut self, &place: &usize) -> u64 {
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        } else {
            // A clone goes element by element, which takes emulated guests minutes.
            let mut moved = VecIn::new_in(self.counts.allocator().clone());
            moved.resize(self.counts.len(), 0);
            moved.copy_from_slice(&self.counts);
            self.counts = moved;
        }
        self.all += 1;
        self.all
    }
}

pub fn log() -> anyhow::Result<()> {
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
pub fn copies() -> anyhow::Result<()> {
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
                let lengths = [len, len / 8 + 2, len / 4 + 2, len / 2 + 2];
                let length = lengths[update / MOVES_EACH % lengths.len()];
                in_arena.update(|numbers| {
                    numbers.resize(length, 1);
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
