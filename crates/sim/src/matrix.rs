//! Every workload on every machine under every policy.

use crate::os::{Costs, POLICIES, Policy, Report, Settings, Simulation, candidates, oracle, simulate};
use crate::studies::{Progress, in_parallel};
use crate::workloads::{self, Parameters, Workload};
use crate::{Error, PASSES};
use nodewise_hardware::Preset;
use serde::Serialize;
use std::num::NonZeroUsize;

/// The runs of a matrix.
#[derive(Clone)]
pub struct Matrix {
    /// Machines at their full size.
    pub machines: Vec<Preset>,
    /// Workloads, each with a thread on every CPU.
    pub workloads: Vec<Workload>,
    /// Policies; a machine's cells lack those that it does not run.
    pub policies: Vec<Policy>,
    /// Problems and caches relative to the real ones.
    pub scale: f64,
    /// How many times as often the real program goes over its data.
    pub passes: f64,
    /// Whether first touches map huge pages.
    pub huge_pages: bool,
    /// Seed of the programs' inputs and of the engine's choices.
    pub seed: u64,
}

/// The outcome of one run beside that under first touch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The machine, by name.
    pub machine: String,
    /// The workload, by name.
    pub workload: String,
    /// Whether first touches map huge pages.
    pub huge_pages: bool,
    /// The policy, by name.
    pub policy: String,
    /// The run time over that under first touch.
    pub relative_time: f64,
    /// Share of DRAM accesses that went to the accessor's own node; none without accesses.
    pub local_access_percent: Option<f64>,
    /// Threads of the program.
    #[serde(skip)]
    pub threads: usize,
    /// Pages that a policy could place, as in [`Report`].
    #[serde(skip)]
    pub placeable_pages: u64,
}

impl Matrix {
    /// All machines, workloads and policies that come along, but policies that name a node.
    ///
    /// Fails if a machine that comes along cannot be read.
    pub fn all(scale: f64) -> Result<Self, Error> {
        let machines: Result<_, nodewise_hardware::Error> = Preset::names().map(Preset::named).collect();
        Ok(Self {
            machines: machines?,
            workloads: workloads::all(),
            policies: POLICIES.iter().filter_map(|(name, _)| name.parse().ok()).collect(),
            scale,
            passes: PASSES,
            huge_pages: false,
            seed: 1,
        })
    }

    /// Whether each policy is run by a machine; if not, why not by the first.
    pub fn check(&self) -> Result<(), Error> {
        for policy in &self.policies {
            let mut refused = self.machines.iter().map(|machine| {
                let settings = self.settings(machine);
                Simulation::check(machine, machine.cpus(), &settings, policy)
            });
            let first = refused.next().unwrap_or(Ok(()));
            if first.is_err() && refused.all(|result| result.is_err()) {
                return first;
            }
        }
        Ok(())
    }

    fn settings(&self, machine: &Preset) -> Settings {
        let settings = Settings {
            seed: self.seed,
            costs: Costs::of(machine),
            period_scale: self.scale / self.passes,
            ..Settings::scaled(self.scale)
        };
        if self.huge_pages { settings.with_huge_pages() } else { settings }
    }

    /// Runs it, so many programs at a time. The cells are in the order of machines, then workloads, then
    /// policies.
    ///
    /// Fails as [`simulate`] does; the error says in which cell.
    pub fn run(&self, jobs: NonZeroUsize, progress: Progress<'_>) -> Result<Vec<Cell>, Error> {
        let pairs: Vec<(&Preset, &Workload)> = self
            .machines
            .iter()
            .flat_map(|machine| self.workloads.iter().map(move |workload| (machine, workload)))
            .collect();
        let rows = in_parallel(&pairs, jobs, progress, |(machine, workload)| {
            self.row(machine, workload)
                .map_err(|error| error.of(format_args!("{} on {}", workload.name, machine.name)))
        });
        Ok(rows.into_iter().collect::<Result<Vec<_>, _>>()?.concat())
    }

    fn row(&self, machine: &Preset, workload: &Workload) -> Result<Vec<Cell>, Error> {
        let preset = machine.scaled(self.scale);
        let threads = preset.cpus();
        let settings = self.settings(&preset);
        let build = || (workload.build)(Parameters { threads, scale: self.scale, seed: self.seed });
        let run = |policy: &Policy| {
            simulate(&preset, &build, &settings, policy, &mut |_| ()).map_err(|error| error.of(policy))
        };
        let mut reports: Vec<Report> = Vec::new();
        let with_oracle = self.policies.contains(&Policy::Oracle);
        let seen = if with_oracle { candidates(&preset, threads, &settings) } else { Vec::new() };
        for policy in [Policy::FirstTouch].iter().chain(&self.policies).chain(&seen) {
            let runs = Simulation::check(&preset, threads, &settings, policy).is_ok();
            if runs && *policy != Policy::Oracle && report(&reports, policy).is_none() {
                reports.push(run(policy)?);
            }
        }
        if with_oracle {
            reports.push(oracle(&preset, &build, &settings, &reports, &mut |_| ())?);
        }
        let first_touch_s = reports[0].run_time_s;
        let cell = |report: &Report| Cell {
            machine: machine.name.clone(),
            workload: workload.name.to_owned(),
            huge_pages: self.huge_pages,
            policy: report.policy.clone(),
            relative_time: report.run_time_s / first_touch_s,
            local_access_percent: report.local_access_percent,
            threads,
            placeable_pages: report.placeable_pages,
        };
        Ok(self.policies.iter().filter_map(|policy| report(&reports, policy)).map(cell).collect())
    }
}

/// The run under a policy, if there is one.
fn report<'a>(reports: &'a [Report], policy: &Policy) -> Option<&'a Report> {
    let name = policy.to_string();
    reports.iter().find(|report| report.policy == name)
}
