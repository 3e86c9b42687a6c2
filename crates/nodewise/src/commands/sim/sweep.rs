//! `nodewise sim sweep`: many runs, cut into shards that any cluster's scheduler can start.

use super::bar::Bar;
use super::{Size, check_passes, check_scale, machine_named, policy, usage, warn_of_small, workload};
use crate::commands::{Exit, exit};
use crate::output::{PUBLIC, WholeFile, note, shown};
use anyhow::Context as _;
use nodewise_hardware::Preset;
use nodewise_sim::workloads::Parameters;
use nodewise_sim::{Costs, PASSES, Report, Settings, Simulation, simulate, studies};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use toml::Spanned;

/// Run a sweep of machines, workloads, policies, sizes and seeds, or one shard of it
///
/// SPEC.toml says what is run. Each run is a file of its own in DIR, which appears whole or not at all. A run
/// whose file is there is not repeated, so that a sweep goes on where it was stopped. Shards may run at the
/// same time, anywhere that sees DIR. `sim merge DIR` puts the results together, whatever the shards were.
///
/// SPEC.toml has lists: machines (names, or files beside it), workloads, policies, scales, passes,
/// `huge_pages`, and a count, seeds. The first three have to be there. Runs are all their combinations, but a
/// machine's lack the policies that it does not run.
///
/// A run's seed comes of its content: machine, workload, scale, passes, huge pages and which of the seeds it
/// is. Its number in the sweep does not count, so that a longer list leaves other runs as they are. The
/// policies of a comparison have the same seed.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise sim sweep spec.toml --out results
  nodewise sim sweep spec.toml --list
  nodewise sim sweep spec.toml --shard 0/16 --out results
  #SBATCH --array=0-15, then
      nodewise sim sweep spec.toml --shard $SLURM_ARRAY_TASK_ID/16 --out results
  hq submit --array 0-15 sh -c \\
      'nodewise sim sweep spec.toml --shard $HQ_TASK_ID/16 --out results'

Exit status:
  0  every run of the shard has its file
  1  a run failed, or its file could not be written
  2  the specification or the shard is wrong, or DIR holds another sweep")]
pub struct Args {
    /// Run what this file says
    #[arg(value_name = "SPEC.toml")]
    spec: PathBuf,

    /// Run every N-th run, from the I-th on; I is 0 to N-1
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    shard: Shard,

    /// Write results to this directory, which is made if it is not there
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    out: Option<PathBuf>,

    /// Print the shard's runs as lines of JSON, and run none
    #[arg(long)]
    list: bool,
}

/// A part of the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shard {
    index: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers =
            text.split_once('/').and_then(|(index, of)| Some((index.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((index, of)) if index < of => Ok(Self { index, of }),
            _ => Err("not I/N with I from 0 to N-1".to_owned()),
        }
    }
}

/// The contents of SPEC.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    machines: Vec<Spanned<String>>,
    workloads: Vec<Spanned<String>>,
    policies: Vec<Spanned<String>>,
    #[serde(default = "default_scales")]
    scales: Vec<Spanned<f64>>,
    #[serde(default = "default_passes")]
    passes: Vec<Spanned<f64>>,
    #[serde(default = "default_huge_pages")]
    huge_pages: Vec<bool>,
    #[serde(default = "default_seeds")]
    seeds: u64,
}

fn default_scales() -> Vec<Spanned<f64>> {
    vec![Spanned::new(0..0, 0.0625)]
}

fn default_passes() -> Vec<Spanned<f64>> {
    vec![Spanned::new(0..0, PASSES)]
}

fn default_huge_pages() -> Vec<bool> {
    vec![false]
}

fn default_seeds() -> u64 {
    1
}

/// Most runs of a sweep.
const MOST_RUNS: usize = 10_000_000;

/// A run of a sweep: all that decides its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub machine: String,
    /// The hash of the machine's figures, as a file may have changed.
    pub machine_hash: String,
    pub workload: String,
    pub policy: String,
    pub scale: f64,
    pub passes: f64,
    pub huge_pages: bool,
    /// Which of the seeds, from 1 on.
    pub repetition: u64,
    pub seed: u64,
    /// Nodewise's version.
    pub version: String,
}

impl Run {
    /// The name of its file.
    pub fn file_name(&self) -> anyhow::Result<String> {
        Ok(format!("{:016x}.json", hash(&serde_json::to_string(self)?)))
    }
}

/// The list of a sweep's runs in DIR, in order. Written before the first run.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sweep {
    pub version: String,
    pub runs: Vec<Run>,
}

/// Its name in DIR.
pub(super) const SWEEP: &str = "sweep.json";

/// The content of a run's file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Done<R> {
    pub run: Run,
    pub report: R,
}

/// FNV-1a of 64 bits, with the finalizer of `SplitMix64` so that seeds of like runs are unlike.
fn hash(text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let (machines, runs) = read(&args.spec)?;
    let shard = args.shard;
    let mine = || runs.iter().skip(shard.index).step_by(shard.of);
    let Some(out) = args.out.as_deref().filter(|_| !args.list) else {
        let lines: Result<String, _> = mine().map(|run| Ok(serde_json::to_string(run)? + "\n")).collect();
        crate::output::print(&lines.map_err(|error: serde_json::Error| error)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    begin(out, &runs)?;
    let mut left: Vec<&Run> = Vec::new();
    for run in mine() {
        if !is_done(out, run)? {
            left.push(run);
        }
    }
    let bar = Bar::new();
    bar.says(&format!("{} runs", left.len()));
    let jobs = studies::Options::default().jobs;
    let results = studies::in_parallel(&left, jobs, &|share| bar.at(share), |run| {
        let machine = machines.iter().find(|machine| machine.name == run.machine);
        let machine = machine.context("a run's machine is one of the sweep")?;
        let report = report(machine, run)?;
        let size = Size {
            run: format!("{} on {}, scale {}: ", run.workload, shown(&run.machine), run.scale),
            threads: machine.cpus(),
            pages: report.placeable_pages,
        };
        let text = serde_json::to_string_pretty(&Done { run: (*run).clone(), report })? + "\n";
        WholeFile::create(&out.join(run.file_name()?), PUBLIC)?.finish(&text)?;
        Ok(size)
    });
    drop(bar);
    let (sizes, failed): (Vec<_>, Vec<anyhow::Result<Size>>) = results.into_iter().partition(Result::is_ok);
    warn_of_small(sizes.into_iter().flatten());
    let failed: Vec<anyhow::Error> = failed.into_iter().filter_map(Result::err).collect();
    for error in &failed {
        note(format_args!("{error:#}"));
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
}

/// A specification, for errors that name its lines.
struct SpecFile<'a> {
    path: &'a Path,
    text: &'a str,
}

impl SpecFile<'_> {
    /// The meaning of each item of a list.
    fn all<T, U>(
        &self,
        list: &str,
        items: &[Spanned<T>],
        meaning: impl Fn(&T) -> Result<U, String>,
    ) -> anyhow::Result<Vec<U>> {
        let one = |item: &Spanned<T>| {
            meaning(item.get_ref()).map_err(|error| {
                let line = self.text[..item.span().start].matches('\n').count() + 1;
                usage(format!("{}:{line}: {list}: {error}", self.path.display()))
            })
        };
        items.iter().map(one).collect()
    }
}

/// The machines and the runs that a specification comes to.
fn read(path: &Path) -> anyhow::Result<(Vec<Preset>, Vec<Run>)> {
    let origin = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read {origin}: {error}")))?;
    let spec: Spec = toml::from_str(&text).map_err(|error| usage(format!("{origin}: {error}")))?;
    let empty = [
        ("machines", spec.machines.is_empty()),
        ("workloads", spec.workloads.is_empty()),
        ("policies", spec.policies.is_empty()),
        ("scales", spec.scales.is_empty()),
        ("passes", spec.passes.is_empty()),
        ("huge_pages", spec.huge_pages.is_empty()),
        ("seeds", spec.seeds == 0),
    ];
    if let Some((name, _)) = empty.iter().find(|(_, empty)| *empty) {
        return Err(usage(format!("{origin}: there are no {name}")));
    }
    let machine = |name: &String| {
        let beside = path.parent().unwrap_or(Path::new("")).join(name);
        if Preset::text(name).is_none() && beside.is_file() {
            machine_named(&beside.to_string_lossy())
        } else {
            machine_named(name)
        }
    };
    let file = SpecFile { path, text: &text };
    let machines: Vec<Preset> = file.all("machines", &spec.machines, machine)?;
    let workloads = file.all("workloads", &spec.workloads, |name| workload(name))?;
    let policies = file.all("policies", &spec.policies, |name| policy(name))?;
    let scales = file.all("scales", &spec.scales, |&scale| check_scale(scale).map(|()| scale))?;
    let all_passes = file.all("passes", &spec.passes, |&passes| check_passes(passes).map(|()| passes))?;
    let lists = [
        machines.len(),
        workloads.len(),
        policies.len(),
        scales.len(),
        all_passes.len(),
        spec.huge_pages.len(),
    ];
    let most = lists.iter().try_fold(spec.seeds as usize, |product, length| product.checked_mul(*length));
    if most.is_none_or(|most| most > MOST_RUNS) {
        return Err(usage(format!("{origin}: more than {MOST_RUNS} runs")));
    }
    let mut runs = Vec::new();
    let mut refused = None;
    for machine in &machines {
        let machine_hash = format!("{:016x}", hash(&machine.to_json()));
        for workload in &workloads {
            for &scale in &scales {
                for &passes in &all_passes {
                    for &huge_pages in &spec.huge_pages {
                        for policy in &policies {
                            let checked =
                                Simulation::check(machine, machine.cpus(), &Settings::scaled(scale), policy);
                            if let Err(error) = checked {
                                refused.get_or_insert(error);
                                continue;
                            }
                            for repetition in 1..=spec.seeds {
                                let content =
                                    (&machine_hash, workload.name, scale, passes, huge_pages, repetition);
                                runs.push(Run {
                                    machine: machine.name.clone(),
                                    machine_hash: machine_hash.clone(),
                                    workload: workload.name.to_owned(),
                                    policy: policy.to_string(),
                                    scale,
                                    passes,
                                    huge_pages,
                                    repetition,
                                    // 53 bits, which every reader of JSON keeps.
                                    seed: hash(&serde_json::to_string(&content)?) >> 11,
                                    version: env!("CARGO_PKG_VERSION").to_owned(),
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    if let Some(error) = refused.filter(|_| runs.is_empty()) {
        return Err(usage(format!("{origin}: {error}")));
    }
    let mut names = HashSet::new();
    for run in &runs {
        if !names.insert(run.file_name()?) {
            return Err(usage(format!(
                "{origin}: {} is named twice, or one of its run's other parts",
                run.machine
            )));
        }
    }
    Ok((machines, runs))
}

/// Writes what the directory will hold, or makes sure that it holds the same sweep.
fn begin(out: &Path, runs: &[Run]) -> anyhow::Result<()> {
    let path = out.join(SWEEP);
    let sweep = Sweep { version: env!("CARGO_PKG_VERSION").to_owned(), runs: runs.to_vec() };
    if !path.exists() {
        let written =
            WholeFile::create(&path, PUBLIC)?.finish(&(serde_json::to_string_pretty(&sweep)? + "\n"));
        // Another shard may have written it meanwhile.
        if written.is_err() && !path.exists() {
            return written;
        }
    }
    if load(out)? == sweep {
        return Ok(());
    }
    Err(usage(format!(
        "{} holds another sweep, or one of another version: take a new directory",
        out.display()
    )))
}

/// The sweep that a directory holds.
pub(super) fn load(out: &Path) -> anyhow::Result<Sweep> {
    let path = out.join(SWEEP);
    let wrong = |error: &dyn std::fmt::Display| Exit {
        code: exit::USAGE,
        message: format!("{} is no directory of a sweep: {}: {error}", out.display(), path.display()),
    };
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
    Ok(serde_json::from_str(&text).map_err(|error| wrong(&error))?)
}

/// The report of a run, if its file is there and whole.
pub(super) fn done(out: &Path, run: &Run) -> anyhow::Result<Option<serde_json::Value>> {
    let path = out.join(run.file_name()?);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let done = serde_json::from_str::<Done<serde_json::Value>>(&text).ok();
    Ok(done.filter(|done| done.run == *run).map(|done| done.report))
}

fn is_done(out: &Path, run: &Run) -> anyhow::Result<bool> {
    Ok(done(out, run)?.is_some())
}

/// Runs one.
fn report(machine: &Preset, run: &Run) -> anyhow::Result<Report> {
    let preset = machine.scaled(run.scale);
    let workload = workload(&run.workload).map_err(anyhow::Error::msg)?;
    let policy = policy(&run.policy).map_err(anyhow::Error::msg)?;
    let parameters = Parameters { threads: preset.cpus(), scale: run.scale, seed: run.seed };
    let settings = Settings {
        seed: run.seed,
        costs: Costs::of(&preset),
        period_scale: run.scale / run.passes,
        ..Settings::scaled(run.scale)
    };
    let settings = if run.huge_pages { settings.with_huge_pages() } else { settings };
    let build = || (workload.build)(parameters);
    let report = simulate(&preset, &build, &settings, &policy, &mut |_| ());
    report.map_err(|error| {
        anyhow::Error::from(error).context(format!(
            "{} on {} under {}, scale {}, seed {}",
            run.workload, run.machine, run.policy, run.scale, run.seed
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_so_many() {
        assert_eq!("3/16".parse(), Ok(Shard { index: 3, of: 16 }));
        for wrong in ["16/16", "0/0", "1", "-1/2", "1/", "a/b", ""] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    fn runs(text: &str) -> Vec<Run> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("spec.toml");
        std::fs::write(&path, text).unwrap();
        read(&path).unwrap().1
    }

    #[test]
    fn what_a_run_is_decides_its_seed_and_not_its_number() {
        let short = runs("machines = ['dahu-2n']\nworkloads = ['cg']\npolicies = ['interleave']\nseeds = 2");
        let long = runs(
            "machines = ['opteron-8385-4n', 'dahu-2n']\nworkloads = ['mg', 'cg']\n\
             policies = ['first-touch', 'interleave']\nscales = [0.01, 0.0625]\nseeds = 3",
        );
        assert_eq!((short.len(), long.len()), (2, 48));
        assert!(short.iter().all(|run| long.contains(run)));
        let seeds: HashSet<u64> = long.iter().map(|run| run.seed).collect();
        // Two policies have each.
        assert_eq!(seeds.len(), 24);
    }
}
