//! Arrays and arenas of each layout, and a node that has no room for one.

use crate::PAGES;
use crate::pages::{faults_of_workers, homes, homes_from, huge_kib, own_pages, runs};
use anyhow::{Context as _, ensure};
use nodewise_runtime::{
    ErrorKind, Fallback, Layout, NodeArena, NodeArenaBuilder, NodePool, NodeVec, NodeVecBuilder,
    ReplicatedVec,
};
use nodewise_sys::{page_bytes, query_pages};
use nodewise_topology::NodeId;
use serde_json::json;
use std::collections::BTreeSet;

/// `NODE:WEIGHT`.
pub fn weight(text: &str) -> anyhow::Result<(NodeId, u32)> {
    let (node, weight) = text.split_once(':').context("a weight is written NODE:WEIGHT")?;
    Ok((NodeId(node.parse()?), weight.parse()?))
}

pub fn layouts(on: NodeId, weights: Vec<(NodeId, u32)>) -> anyhow::Result<()> {
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

pub fn full(node: NodeId) -> anyhow::Result<()> {
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
