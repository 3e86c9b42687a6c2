//! Counts how long the words of a text are: a loop on all nodes, counters that no two CPUs share, and who did
//! how much.
//!
//! `cargo run -p nodewise-runtime --example word_lengths [FILE]`
#![forbid(unsafe_code)]

use nodewise_runtime::{NodeCounter, NodePool};

const LONGEST: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = match std::env::args().nth(1) {
        Some(file) => std::fs::read_to_string(file)?,
        None => include_str!("word_lengths.rs").repeat(100),
    };
    let lines: Vec<&str> = text.lines().collect();
    let pool = NodePool::new()?;
    let lengths: Vec<NodeCounter> = (0..=LONGEST).map(|_| NodeCounter::new()).collect();
    pool.parallel_for(0..lines.len(), |line| {
        for word in lines[line].split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            lengths[word.chars().count().min(LONGEST)].add(1);
        }
    });
    for (length, count) in lengths.iter().enumerate().skip(1) {
        // The loop is over: nobody adds any more.
        println!("{length:>3}{} {:>8}", if length == LONGEST { "+" } else { " " }, count.approximate());
    }
    for node in pool.statistics() {
        println!(
            "node {}: {} parts, {} stolen inside, {} across",
            node.node, node.run, node.stolen_inside, node.stolen_across
        );
    }
    Ok(())
}
