//! Hints about arrays that a manager places.

use crate::PAGES;
use anyhow::ensure;
use nodewise_runtime::{Hint, HonouredBy, Layout, NodePool, NodeVec, hint, is_managed};
use nodewise_sys::page_bytes;
use nodewise_topology::NodeId;
use serde_json::json;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub fn hints(time: Duration) -> anyhow::Result<()> {
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
