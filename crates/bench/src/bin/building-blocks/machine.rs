//! Machines with more than nodes of the same kind: memory without CPUs, CPUs that come and go, and devices.

use crate::PAGES;
use crate::pages::{anonymous_pages, homes, runs};
use crate::replicated::{Counts, ones};
use anyhow::{Context as _, ensure};
use nodewise_runtime::{
    Allowance, ErrorKind, Hint, HonouredBy, Layout, NodeArena, NodeCounter, NodePool, NodeReplicated,
    NodeVecBuilder, Replicated, Scope, bind_thread, current_cpu, current_node, hint, nodes_near, refresh,
};
use nodewise_sys::{getcpu, page_bytes, sched_getaffinity, sched_setaffinity};
use nodewise_topology::{NodeId, Topology};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

pub fn apart(node: NodeId) -> anyhow::Result<()> {
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
        hinted.push(json!({"pages": pages, "runs": runs(&homes(&shared, PAGES)?).len()}));
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

pub fn plug(cpu: u32) -> anyhow::Result<()> {
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

pub fn near(device: &str) -> anyhow::Result<()> {
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
