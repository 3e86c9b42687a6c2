//! Requests that are served on the node that has what they ask for: a table in one part a node, filled there
//! by a task bound to the node, so that its pages lie there, and tasks that look things up where they are.
//!
//! `cargo run -p nodewise-runtime --example near_requests`
#![forbid(unsafe_code)]

use nodewise_runtime::{NodeCounter, NodePool, TaskCounter, current_node};
use std::sync::Arc;

const NUMBERS_A_NODE: u64 = 100_000;
const REQUESTS: u64 = 10_000;

fn main() -> Result<(), nodewise_runtime::Error> {
    let pool = NodePool::new()?;
    let nodes: Vec<_> = pool.nodes().collect();
    let mut parts = Vec::new();
    for (part, &node) in (0..).zip(&nodes) {
        let numbers = part * NUMBERS_A_NODE..(part + 1) * NUMBERS_A_NODE;
        let squares =
            pool.spawn_on(node, move || numbers.map(|number| number * number).collect::<Vec<_>>())?;
        parts.push(Arc::new(squares.join()));
    }
    let (open, sum, far) =
        (Arc::new(TaskCounter::new()), Arc::new(NodeCounter::new()), Arc::new(NodeCounter::new()));
    for request in 0..REQUESTS {
        let number = request * 7919 % (NUMBERS_A_NODE * parts.len() as u64);
        let (part, place) = ((number / NUMBERS_A_NODE) as usize, (number % NUMBERS_A_NODE) as usize);
        let (squares, node) = (parts[part].clone(), nodes[part]);
        let (open_here, sum, far) = (open.clone(), sum.clone(), far.clone());
        open.submit(1);
        pool.spawn_on(node, move || {
            sum.add(squares[place]);
            far.add(u64::from(current_node() != node));
            open_here.done(1);
        })?;
    }
    open.wait();
    println!(
        "{REQUESTS} requests, {} served far from their data; the sum is {}",
        far.approximate(),
        sum.approximate()
    );
    Ok(())
}
