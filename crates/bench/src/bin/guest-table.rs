//! `guest-table`: how long programs' memory takes to follow them, by the kernel's balancing alone and under
//! Nodewise.
#![forbid(unsafe_code)]

use clap::Parser;
use nodewise_bench::follow::{PLACERS, private, redis, stress_ng, table};
use nodewise_bench::results;
use nodewise_bench::scenario::Programs;
use std::path::PathBuf;

/// Measure, in guests of 4 nodes, how long programs' memory takes to follow them to other nodes
#[derive(Parser)]
struct Args {
    /// Print everything that was measured as JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a file for docs/results
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let programs = Programs::build()?;
    let mut followed = private(&programs, false)?;
    followed.extend(private(&programs, true)?);
    followed.extend(redis(&programs, &PLACERS)?);
    followed.extend(stress_ng(&programs, &PLACERS)?);
    if let Some(path) = &args.results {
        let measured = followed.iter().map(|followed| {
            let after =
                followed.seconds_to_95.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"));
            let figures = format!("{after}; {:.1} % at the end", followed.last_percent());
            (format!("{} by {}: time to 95 %", followed.program, followed.placer), figures)
        });
        let command = "cargo run --profile guest -p nodewise-bench --bin guest-table";
        results::write(path, command, "Guests of 4 nodes", &measured.collect::<Vec<_>>())?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&followed)?);
    } else {
        println!("{}", table(&followed));
    }
    Ok(())
}
