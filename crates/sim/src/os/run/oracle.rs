//! The oracle: a policy that has seen the whole run before.
//!
//! Bolosky et al. (section 3.1) could not measure `T_optimal`, the time "when running under a page placement
//! strategy that minimizes the sum of user and NUMA-related system time using future knowledge". Here the
//! program runs first under first touch, which records who uses each page. Then each page is put where it
//! belongs when it is first touched, and stays there. That costs nothing but the first touch. The owner of a
//! page is a guess that a run has to judge, so there is a run for each of two guesses.
//!
//! A policy that moves pages after a program's phases, or copies them between writes, can do better. So can
//! one that spreads private pages when all threads are on one node. Under some policies threads come into
//! step, and share what their caches hold. The oracle therefore also sees the program run under every other
//! policy that names no node. The fastest of all these runs is the oracle's. It is an upper bound for the
//! policies that there are, and no claim that no placement is better.

use crate::Error;
use crate::Program;
use crate::os::policy::{POLICIES, Policy};
use crate::os::run::report::Report;
use crate::os::run::settings::Settings;
use crate::os::run::simulation::Simulation;
use nodewise_hardware::Preset;

/// The policies whose runs the oracle has to have seen: all that name no node and that this machine runs.
#[must_use]
pub fn candidates(preset: &Preset, threads: usize, settings: &Settings) -> Vec<Policy> {
    let others = POLICIES.iter().filter_map(|(name, _)| name.parse().ok());
    others
        .filter(|policy| *policy != Policy::Oracle)
        .filter(|policy| Simulation::check(preset, threads, settings, policy).is_ok())
        .collect()
}

/// The oracle's run, given those under all [`candidates`]. `build` makes the program anew for each run;
/// `progress` is told now and then how many operations have been simulated, all runs together.
///
/// Fails as [`Simulation::new`] and [`Simulation::run`] do.
pub fn oracle(
    preset: &Preset,
    build: &dyn Fn() -> Box<dyn Program>,
    settings: &Settings,
    others: &[Report],
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    let simulation = |policy: &Policy| Simulation::new(preset, build(), settings.clone(), policy.clone());
    let (mut before, mut last) = (0, 0);
    let (seen, plans) = simulation(&Policy::FirstTouch)?.observe(&mut |now| {
        last = now;
        progress(now);
    })?;
    let mut best = seen;
    for plan in plans {
        before += last;
        let report = simulation(&Policy::Oracle)?.after(plan).run(&mut |now| {
            last = now;
            progress(before + now);
        })?;
        if report.run_time_s < best.run_time_s {
            best = report;
        }
    }
    let fastest = others.iter().min_by(|one, other| one.run_time_s.total_cmp(&other.run_time_s));
    if let Some(other) = fastest.filter(|other| other.run_time_s < best.run_time_s) {
        best = other.clone();
    }
    Ok(Report { policy: Policy::Oracle.to_string(), ..best })
}
