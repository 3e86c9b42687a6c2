//! `guest-table`: how long programs' memory takes to follow them, by the kernel's balancing alone and under
//! Nodewise.
#![forbid(unsafe_code)]

use clap::Parser;
use nodewise_bench::follow::{private, redis, stress_ng, table};
use nodewise_bench::scenario::Programs;

/// Measures, in guests of 4 nodes, how long programs' memory takes to follow them to other nodes
#[derive(Parser)]
struct Args {
    /// Everything that was measured, as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let programs = Programs::build()?;
    let mut followed = private(&programs, false)?;
    followed.extend(private(&programs, true)?);
    followed.extend(redis(&programs)?);
    followed.extend(stress_ng(&programs)?);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&followed)?);
    } else {
        println!("{}", table(&followed));
    }
    Ok(())
}
