//! The options that `run` and `attach` share.

use crate::commands::{Exit, exit};
use clap::ValueEnum;
use std::path::PathBuf;
use std::time::Duration;

/// How processes are managed
#[derive(clap::Args, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch on the command line")]
#[command(next_help_heading = "Management")]
pub struct Options {
    /// Place pages by this policy [default: carrefour]
    #[arg(long, value_enum)]
    pub policy: Option<PolicyName>,
    /// Take samples from this source [default: auto]
    #[arg(long, value_enum)]
    sampler: Option<SamplerName>,
    /// Decide this often: seconds, or with a unit (500ms, 2s) [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    interval: Option<Duration>,
    /// Move at most this much memory in a second (200M, 1G) [default: 512M]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    move_budget: Option<u64>,
    /// Decide and report, but move nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Leave khugepaged as it is, and huge pages whole, even if different nodes use their parts
    #[arg(long)]
    pub no_split: bool,
    /// Interleave files that the programs only read, as a model's weights, if they lie unevenly on the nodes
    ///
    /// Hint faults do not tell who uses such memory. A hardware sampler does, and this then does nothing.
    #[arg(long)]
    pub interleave_files: bool,
    /// Do not follow the children of the managed processes
    #[arg(long)]
    pub no_children: bool,
    /// Write every decision here, one JSON object a line
    #[arg(long, value_name = "FILE.jsonl")]
    pub log: Option<PathBuf>,
    /// Write the summary here as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print no summary
    #[arg(short, long)]
    pub quiet: bool,
}

impl Options {
    /// The options of a watch that moves nothing and prints no summary.
    pub fn only_watching() -> Self {
        Self { dry_run: true, quiet: true, ..Self::default() }
    }

    /// Whether no option of management is given.
    pub fn are_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether nothing is to be managed; then nothing can be written about it either.
    pub fn manage_nothing(&self) -> anyhow::Result<bool> {
        if self.policy != Some(PolicyName::None) {
            return Ok(false);
        }
        let reports = [("--log", self.log.is_some()), ("--json", self.json.is_some())];
        if let Some((option, _)) = reports.into_iter().find(|(_, given)| *given) {
            let message =
                format!("{option}: with --policy none nothing is managed, and there is nothing to write");
            return Err(Exit { code: exit::USAGE, message }.into());
        }
        Ok(true)
    }

    pub fn sampler(&self) -> SamplerName {
        self.sampler.unwrap_or(SamplerName::Auto)
    }

    pub fn interval(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(1))
    }

    /// Bytes to move in a second.
    pub fn move_budget(&self) -> u64 {
        self.move_budget.unwrap_or(512 << 20)
    }
}

/// The placement policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// Carrefour (Dashti et al. 2013, Gaud et al. 2015): collocate, interleave, find what could be replicated
    Carrefour,
    /// Manage nothing: only start the program, where the placement options say
    None,
}

/// The samplers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplerName {
    /// The best that works here
    Auto,
    /// The CPU's own: Intel PEBS, AMD IBS or Arm SPE
    Hardware,
    /// The kernel's NUMA hint faults: works everywhere, virtual machines included
    HintFaults,
    /// The modelled machine's, in a guest of 'nodewise rig --machine'
    Model,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        _ => return Err(format!("unknown unit '{unit}'; use ms or s")),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("'{number}' is not a number"))? * scale;
    if (0.05..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be from 50ms to 3600s".to_owned())
    }
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is not a size such as 200M or 1G"))?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes >= 1 << 20).ok_or("must be at least 1M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units_and_bounds() {
        assert_eq!(parse_interval("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_interval("2"), Ok(Duration::from_secs(2)));
        for bad in ["", "0", "1h", "x", "1e9", "nan", "-1"] {
            assert!(parse_interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(parse_bytes("200M"), Ok(200 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for bad in ["", "G", "1T", "12", "-1M", "99999999999999G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
