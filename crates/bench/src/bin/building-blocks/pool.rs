//! Pools: tasks, blocks and reductions, and the nodes of their workers.

use crate::PAGES;
use anyhow::ensure;
use nodewise_runtime::{Layout, NodeCounter, NodePool, NodeVec, TaskCounter, current_node, refresh};
use nodewise_sys::{getcpu, page_bytes};
use nodewise_topology::NodeId;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub fn blocks(layout: Layout) -> anyhow::Result<()> {
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

pub fn pool(time: Duration, mut refresh_when: Option<PathBuf>) -> anyhow::Result<()> {
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
