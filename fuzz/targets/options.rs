//! Times and sizes as `run` and `attach` take them: never a panic, and what is accepted is within its bounds.
#![no_main]

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use std::time::Duration;

/// As much of the command line as its options need.
mod commands {
    #[derive(Debug)]
    pub struct Exit {
        pub code: u8,
        pub message: String,
    }

    impl std::fmt::Display for Exit {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{}: {}", self.code, self.message)
        }
    }

    impl std::error::Error for Exit {}

    pub mod exit {
        pub const USAGE: u8 = 2;
    }
}

#[allow(dead_code)]
#[path = "../../crates/nodewise/src/manage/options.rs"]
mod reader;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: reader::Options,
}

fuzz_target!(|text: &str| {
    if let Ok(cli) = Cli::try_parse_from(["run", &format!("--interval={text}")]) {
        assert!((Duration::from_millis(50)..=Duration::from_secs(3600)).contains(&cli.options.interval()));
    }
    if let Ok(cli) = Cli::try_parse_from(["run", &format!("--move-budget={text}")]) {
        assert!(cli.options.move_budget() >= 1 << 20);
    }
});
