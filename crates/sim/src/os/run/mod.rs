//! Runs of a program, from start to end.

pub(super) mod events;
pub(super) mod oracle;
pub(super) mod pinning;
pub(super) mod report;
pub(super) mod settings;
pub(super) mod sharing;
pub(super) mod simulation;

use crate::os::policy::Policy;
use crate::os::run::oracle::{candidates, oracle};
use crate::os::run::report::Report;
use crate::os::run::settings::Settings;
use crate::os::run::simulation::Simulation;
use crate::{Error, Program};
use nodewise_hardware::Preset;

/// Runs a program under a policy to its end, as often as the policy needs: the [`oracle`] under all others
/// first. `build` makes the program anew each time; `progress` is told now and then how many operations have
/// been simulated, all runs together.
///
/// Fails as [`Simulation::new`] and [`Simulation::run`] do.
pub fn simulate(
    preset: &Preset,
    build: &dyn Fn() -> Box<dyn Program>,
    settings: &Settings,
    policy: &Policy,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, Error> {
    if *policy != Policy::Oracle {
        return Simulation::new(preset, build(), settings.clone(), policy.clone())?.run(progress);
    }
    let threads = build().threads();
    Simulation::check(preset, threads, settings, policy)?;
    let (mut before, mut last) = (0, 0);
    let mut others = Vec::new();
    for other in candidates(preset, threads, settings).iter().filter(|other| **other != Policy::FirstTouch) {
        let run = simulate(preset, build, settings, other, &mut |now| {
            last = now;
            progress(before + now);
        });
        others.push(run.map_err(|error| error.of(other))?);
        before += last;
    }
    oracle(preset, build, settings, &others, &mut |now| progress(before + now))
}
