//! Which placement to run next, until enough is known.

use super::Placement;
use crate::paired::signed_rank;
use crate::statistics::{Interval, Random, holm};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The chance of a false alarm that a test is held to, of all comparisons of a command together. It is half
/// of the 5 % that are promised: to end when intervals are narrow takes some of them.
pub const LEVEL: f64 = 0.025;
/// An interval is narrow whose half is at most this share of its median.
pub const NARROW: f64 = 0.02;
/// A placement that is slower than this, even at the better end of its interval, is not run any more.
const SLOWER: f64 = 0.95;

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The metric by which placements are compared: the run's time, unless the user names another.
    pub value: f64,
    /// Time from start to end.
    pub wall_seconds: f64,
    /// CPU time in user mode, of all CPUs.
    pub user_seconds: f64,
    /// CPU time in the kernel, of all CPUs.
    pub system_seconds: f64,
    /// Counts of events by name, most of them machine-wide.
    #[serde(default)]
    pub events: BTreeMap<String, f64>,
    /// Whether the program gave threads other CPUs than those of the placement.
    #[serde(default)]
    pub own_cpus: bool,
}

/// The end of one run.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// The program ended well.
    Well(Measured),
    /// The program cannot run so, and why. Its other placements go on.
    Impossible(String),
}

/// Makes the runs.
pub trait Runner {
    /// Why no further run is made.
    type Error;

    /// Runs the program once.
    fn run(&mut self, placement: &Placement) -> Result<Ran, Self::Error>;
}

/// A run that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The name of its placement.
    pub placement: String,
    /// The round of all placements that it was part of.
    pub block: u32,
    /// Its figures.
    #[serde(flatten)]
    pub measured: Measured,
}

/// A comparison of placements: what is to be run, and the runs so far.
///
/// Runs come in blocks. Each block has every placement once, in an order of its own by the seed. So whatever
/// changes slowly meets all placements alike, and runs of a block make pairs. The default comes first of the
/// placements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// The placements, the default first.
    pub placements: Vec<Placement>,
    /// Blocks at most.
    pub repeat: u32,
    /// Decides the order of runs.
    pub seed: u64,
    /// Whether a smaller value is better, as of times.
    pub less_is_better: bool,
    /// The runs so far.
    pub runs: Vec<Run>,
    /// Placements that proved impossible, by name, and why.
    pub impossible: BTreeMap<String, String>,
    /// Placements that are so much slower that they are not run any more.
    pub settled: BTreeSet<String>,
}

/// How a placement compares with the default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// How many times better it is: above 1, it is.
    pub speedup: Interval,
    /// The p-value of Wilcoxon's signed-rank test.
    pub p: f64,
    /// The same, corrected for all placements that are compared (Holm).
    pub p_corrected: f64,
}

/// The fewest blocks in which one of so many comparisons can be significant.
#[must_use]
pub fn blocks_needed(comparisons: usize) -> u32 {
    // Holm's most, times the least p-value of a signed-rank test.
    let needed = (2.0 * comparisons.max(1) as f64 / LEVEL).log2();
    needed.ceil() as u32
}

impl Experiment {
    /// One without runs.
    #[must_use]
    pub fn new(placements: Vec<Placement>, repeat: u32, seed: u64, less_is_better: bool) -> Self {
        let (runs, impossible, settled) = Default::default();
        Self { placements, repeat, seed, less_is_better, runs, impossible, settled }
    }

    /// The placements that are not known to be impossible.
    pub fn possible(&self) -> impl Iterator<Item = &Placement> {
        self.placements.iter().filter(|placement| !self.impossible.contains_key(&placement.name))
    }

    /// The run of a placement in a block.
    #[must_use]
    pub fn run_of(&self, placement: &str, block: u32) -> Option<&Measured> {
        let mut runs = self.runs.iter().filter(|run| run.block == block && run.placement == placement);
        runs.next().map(|run| &run.measured)
    }

    /// The runs of a placement in order of blocks.
    pub fn runs_of<'a>(&'a self, placement: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.runs.iter().filter(move |run| run.placement == placement).map(|run| &run.measured)
    }

    /// The placements that are still to be run, in every further block.
    fn pending(&self) -> impl Iterator<Item = &Placement> {
        self.possible().filter(|placement| !self.settled.contains(&placement.name))
    }

    /// Blocks of which every placement has its run, but for those that are not run any more.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        let counts = self.pending().map(|placement| self.runs_of(&placement.name).count());
        counts.min().unwrap_or(0) as u32
    }

    /// The block and the placement of the next run; none when enough is known.
    #[must_use]
    pub fn next(&self) -> Option<(u32, &Placement)> {
        let block = self.blocks();
        let begun = self.runs.iter().any(|run| run.block == block);
        if self.pending().count() < 2 || block >= self.repeat || (!begun && self.is_enough()) {
            return None;
        }
        let mut order: Vec<&Placement> = self.pending().collect();
        // A sequence of its own for each block, so that one that goes on has the same order.
        Random::new(self.seed ^ u64::from(block + 1).wrapping_mul(0xa076_1d64_78bd_642f)).shuffle(&mut order);
        let waits = |placement: &&Placement| self.run_of(&placement.name, block).is_none();
        order.into_iter().find(waits).map(|placement| (block, placement))
    }

    /// Takes in how the next run went.
    ///
    /// # Panics
    /// If none is next.
    pub fn record(&mut self, ran: Ran) {
        let (block, placement) = self.next().expect("a run was due");
        let placement = placement.name.clone();
        match ran {
            Ran::Well(measured) => self.runs.push(Run { placement, block, measured }),
            Ran::Impossible(why) => {
                self.runs.retain(|run| run.placement != placement);
                self.impossible.insert(placement, why);
            }
        }
        if self.blocks() > block && self.blocks() >= blocks_needed(self.placements.len() - 1) {
            let against = self.against().into_iter();
            let slower = against.filter(|(_, against)| against.speedup.high < SLOWER);
            self.settled.extend(slower.map(|(name, _)| name));
        }
    }

    /// Makes all runs that are still due. `after` is called after each.
    pub fn go<R: Runner>(
        &mut self,
        runner: &mut R,
        mut after: impl FnMut(&Self) -> Result<(), R::Error>,
    ) -> Result<(), R::Error> {
        while let Some((_, placement)) = self.next() {
            let ran = runner.run(placement)?;
            self.record(ran);
            after(self)?;
        }
        Ok(())
    }

    /// Whether every interval is narrow.
    ///
    /// Only the widths decide, and never whether a difference is significant: runs that end as soon as one
    /// is would find too many.
    fn is_enough(&self) -> bool {
        let against = self.against();
        let mut pending = against.iter().filter(|(name, _)| !self.settled.contains(*name));
        self.blocks() >= blocks_needed(self.placements.len() - 1)
            && pending.all(|(_, against)| against.speedup.half_width() <= NARROW)
    }

    /// How many times better one measurement is than another.
    #[must_use]
    pub fn times_better(&self, this: &Measured, than: &Measured) -> f64 {
        if self.less_is_better { than.value / this.value } else { this.value / than.value }
    }

    /// How many times better a placement is than another, block by block.
    #[must_use]
    pub fn ratios(&self, this: &str, than: &str) -> Vec<f64> {
        let of = |name: &str| -> BTreeMap<u32, &Measured> {
            let runs = self.runs.iter().filter(|run| run.placement == name);
            runs.map(|run| (run.block, &run.measured)).collect()
        };
        let other = of(than);
        let pairs = of(this).into_iter().filter_map(|(block, run)| Some((run, *other.get(&block)?)));
        pairs.map(|(this, than)| self.times_better(this, than)).collect()
    }

    /// Every possible placement against the default, by name.
    #[must_use]
    pub fn against(&self) -> BTreeMap<String, Against> {
        let Some(default) = self.placements.first() else { return BTreeMap::new() };
        let others = self.possible().filter(|placement| *placement != default);
        let compared: Vec<(String, Interval, f64)> = others
            .filter_map(|placement| {
                let ratios = self.ratios(&placement.name, &default.name);
                Some((placement.name.clone(), Interval::of(ratios.iter().copied())?, signed_rank(&ratios)))
            })
            .collect();
        let corrected = holm(&compared.iter().map(|(_, _, p)| *p).collect::<Vec<_>>());
        let against = compared.into_iter().zip(corrected);
        against.map(|((name, speedup, p), p_corrected)| (name, Against { speedup, p, p_corrected })).collect()
    }
}

#[cfg(test)]
mod tests;
