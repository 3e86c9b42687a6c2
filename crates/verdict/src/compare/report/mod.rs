//! The conclusions from all runs.

use super::ace::{Ace, FarCost};
use super::remedy::{Remedy, remedy};
use super::{Against, Experiment, How, LEVEL, Measured, NEVER, Placement, Run, Skipped, blocks_needed};
use crate::paired::signed_rank;
use crate::statistics::{Interval, rank_correlation};
use serde::Serialize;
use std::collections::BTreeSet;

/// A smaller gain is not worth a change.
const WORTH: f64 = 1.02;
/// Far memory that makes a program slower by less does not matter.
const FAR_MATTERS: f64 = 1.05;
/// A weaker correlation is not listed.
const CORRELATION_LEAST: f64 = 0.5;
/// Correlations are listed, the strongest first.
const CORRELATIONS: usize = 10;

/// The answer to whether NUMA hurts the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Another placement is better.
    Hurt,
    /// None is.
    Healthy,
    /// There are too few runs to tell.
    Unknown,
}

/// The command that was compared, and where.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The command.
    pub command: Vec<String>,
    /// The metric: `seconds`, or as the user named it.
    pub metric: String,
    /// Whether less of it is better.
    pub less_is_better: bool,
    /// The machine in a line: kernel, nodes, CPUs, and the settings that matter.
    pub machine: String,
    /// Nodes with memory or CPUs.
    pub nodes: usize,
}

/// A placement's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The placement.
    #[serde(flatten)]
    pub placement: Placement,
    /// Runs that count.
    pub runs: usize,
    /// The metric.
    pub value: Interval,
    /// Median time of a run.
    pub wall_seconds: f64,
    /// Median CPU time in user mode.
    pub user_seconds: f64,
    /// Median CPU time in the kernel.
    pub system_seconds: f64,
    /// Against the default; none for the default itself.
    pub against: Option<Against>,
}

impl Row {
    /// Whether it differs from the default, by more than chance.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.against.is_some_and(|against| against.p_corrected <= LEVEL)
    }

    /// Whether it is better than the default, by more than chance and by enough to matter.
    #[must_use]
    pub fn is_better(&self) -> bool {
        self.differs() && self.speedup() >= WORTH
    }

    /// How many times better it is than the default.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.against.map_or(1.0, |against| against.speedup.median)
    }
}

/// How much slower the program is where its memory is far away, all else being equal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Far {
    /// Times slower.
    pub slowdown: Interval,
    /// The p-value of Wilcoxon's signed-rank test.
    pub p: f64,
    /// Whether the difference is no chance, and large enough to matter.
    pub matters: bool,
}

/// An event that comes with slow runs, or with fast ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Correlation {
    /// Its name.
    pub event: String,
    /// Spearman's correlation with the metric, over all runs, from -1 to 1.
    pub correlation: f64,
}

/// The kernel's balancing, off and on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Migrations {
    /// Pages that the kernel moved with balancing on, beyond those with balancing off.
    pub pages: f64,
    /// Time in the kernel that balancing adds, in seconds.
    pub system_seconds: f64,
    /// Time in user mode that it adds, in seconds: below 0, it saves some.
    pub user_seconds: f64,
}

/// The verdict and what it asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Whether NUMA hurts.
    pub verdict: Kind,
    /// In plain words.
    pub text: String,
    /// The best placement, where it is not the default.
    pub winner: Option<String>,
    /// How many times better it is.
    pub speedup: Option<f64>,
    /// Others that are as good, as far as these runs can tell.
    pub as_good: Vec<String>,
    /// How to have it.
    pub remedy: Option<Remedy>,
}

/// Everything that a comparison found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The command and the machine.
    #[serde(flatten)]
    pub setting: Setting,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
    /// Blocks of runs, each with every placement once.
    pub blocks: u32,
    /// The seed of their order.
    pub seed: u64,
    /// The placements, the default first.
    pub placements: Vec<Row>,
    /// Placements that were not tried, or proved impossible.
    pub skipped: Vec<Skipped>,
    /// Whether the program keeps threads on CPUs of its own choice. Placements on a node are then about its
    /// memory only.
    pub own_cpus: bool,
    /// The cost of far memory; none where that was not tried, or the program chooses its CPUs.
    pub far: Option<Far>,
    /// The factors of the ACE paper; none where its runs are missing, or the program chooses its CPUs.
    pub ace: Option<Ace>,
    /// The cost of the kernel's migrations; none where balancing was not compared.
    pub migrations: Option<Migrations>,
    /// The events that come with slow or fast runs, the strongest first.
    pub correlations: Vec<Correlation>,
    /// All runs in the order in which they were made.
    pub runs: Vec<Run>,
}

impl Report {
    /// The conclusions from an experiment.
    #[must_use]
    pub fn of(
        experiment: &Experiment,
        setting: Setting,
        skipped: Vec<Skipped>,
        cost: Option<FarCost>,
    ) -> Self {
        let rows = rows(experiment);
        let on_nodes = experiment.placements.iter().filter(|placement| is_on_a_node(&placement.how));
        let own_cpus =
            on_nodes.flat_map(|placement| experiment.runs_of(&placement.name)).any(|run| run.own_cpus);
        let far = far(experiment).filter(|_| !own_cpus);
        let migrations = migrations(experiment, &rows);
        let answer = answer(experiment, &setting, &rows, far.as_ref(), migrations.as_ref(), own_cpus);
        let impossible = experiment.impossible.iter();
        let impossible = impossible.map(|(name, why)| Skipped { name: name.clone(), why: why.clone() });
        Self {
            setting,
            answer,
            blocks: experiment.blocks(),
            seed: experiment.seed,
            own_cpus,
            far,
            ace: cost.filter(|_| !own_cpus).and_then(|cost| ace(experiment, &rows, cost)),
            migrations,
            correlations: correlations(experiment),
            runs: experiment.runs.clone(),
            skipped: skipped.into_iter().chain(impossible).collect(),
            placements: rows,
        }
    }

    /// The words for a program that chooses its CPUs.
    #[must_use]
    pub fn note_on_cpus(&self) -> Option<&'static str> {
        self.own_cpus.then_some(
            "The program chooses its threads' CPUs itself. Placements on a node (node..., far) gave it that \
             node's memory, and no CPUs.",
        )
    }
}

const fn is_on_a_node(how: &How) -> bool {
    matches!(how, How::Node { .. } | How::Far { .. })
}

fn median<'a>(runs: impl Iterator<Item = &'a Measured>, of: impl Fn(&Measured) -> f64) -> f64 {
    Interval::of(runs.map(of)).map_or(f64::NAN, |interval| interval.median)
}

fn rows(experiment: &Experiment) -> Vec<Row> {
    let against = experiment.against();
    let row = |placement: &Placement| {
        let runs = || experiment.runs_of(&placement.name);
        Some(Row {
            placement: placement.clone(),
            runs: runs().count(),
            value: Interval::of(runs().map(|run| run.value))?,
            wall_seconds: median(runs(), |run| run.wall_seconds),
            user_seconds: median(runs(), |run| run.user_seconds),
            system_seconds: median(runs(), |run| run.system_seconds),
            against: against.get(&placement.name).copied(),
        })
    };
    experiment.possible().filter_map(row).collect()
}

/// The runs with memory far away, and those on the same CPUs with memory near.
fn far_and_near(experiment: &Experiment) -> Option<(&Placement, &Placement)> {
    let far = experiment.possible().find(|placement| matches!(placement.how, How::Far { .. }))?;
    let How::Far { node: here, .. } = &far.how else { return None };
    let is_near = |placement: &&Placement| matches!(&placement.how, How::Node { node, .. } if node == here);
    Some((far, experiment.possible().find(is_near)?))
}

fn far(experiment: &Experiment) -> Option<Far> {
    let (far, near) = far_and_near(experiment)?;
    let ratios = experiment.ratios(&near.name, &far.name);
    let (slowdown, p) = (Interval::of(ratios.iter().copied())?, signed_rank(&ratios));
    Some(Far { slowdown, p, matters: p <= LEVEL && slowdown.median >= FAR_MATTERS })
}

fn ace(experiment: &Experiment, rows: &[Row], cost: FarCost) -> Option<Ace> {
    let (far, near) = far_and_near(experiment)?;
    let user = |name: &str| {
        let row = rows.iter().find(|row| row.placement.name == name)?;
        (row.user_seconds > 0.0).then_some(row.user_seconds)
    };
    let default = &experiment.placements.first()?.name;
    (cost.ratio > 1.0).then_some(())?;
    Some(Ace::of(user(&far.name)?, user(default)?, user(&near.name)?, cost))
}

fn migrations(experiment: &Experiment, rows: &[Row]) -> Option<Migrations> {
    let switched = rows.iter().find(|row| matches!(row.placement.how, How::Balancing { .. }))?;
    let How::Balancing { on } = switched.placement.how else { return None };
    let default = rows.first()?;
    let (with, without) = if on { (switched, default) } else { (default, switched) };
    let pages = |row: &Row| {
        let moved = |run: &Measured| run.events.get("numa_pages_migrated").copied().unwrap_or(0.0);
        median(experiment.runs_of(&row.placement.name), moved)
    };
    Some(Migrations {
        pages: pages(with) - pages(without),
        system_seconds: with.system_seconds - without.system_seconds,
        user_seconds: with.user_seconds - without.user_seconds,
    })
}

/// The share of CPU time in the kernel says more than the time, of which the metric is often made.
fn events(run: &Measured) -> impl Iterator<Item = (&str, f64)> {
    let cpu = run.user_seconds + run.system_seconds;
    let share = (cpu > 0.0).then(|| ("share of CPU time in the kernel", run.system_seconds / cpu));
    run.events.iter().map(|(name, &count)| (name.as_str(), count)).chain(share)
}

fn correlations(experiment: &Experiment) -> Vec<Correlation> {
    let runs: Vec<&Measured> = experiment.runs.iter().map(|run| &run.measured).collect();
    let values: Vec<f64> = runs.iter().map(|run| run.value).collect();
    let names: BTreeSet<&str> = runs.iter().flat_map(|run| events(run)).map(|(name, _)| name).collect();
    let count = |run: &&Measured, event: &str| {
        events(run).find(|(name, _)| *name == event).map_or(0.0, |(_, count)| count)
    };
    let correlation = |event: &str| {
        let counts: Vec<f64> = runs.iter().map(|run| count(run, event)).collect();
        let correlation = rank_correlation(&counts, &values)?;
        (correlation.abs() >= CORRELATION_LEAST).then(|| Correlation { event: event.to_owned(), correlation })
    };
    let mut found: Vec<Correlation> = names.into_iter().filter_map(correlation).collect();
    found.sort_by(|a, b| b.correlation.abs().total_cmp(&a.correlation.abs()));
    found.truncate(CORRELATIONS);
    found
}

/// The less a placement asks of its user, the lower.
fn effort(how: &How) -> u8 {
    match how {
        How::Default => 0,
        How::Interleave { .. } => 1,
        How::Node { .. } | How::Far { .. } => 2,
        How::WeightedInterleave { .. } => 3,
        How::Pinned { .. } => 4,
        How::Nodewise => 5,
        How::Balancing { .. } | How::HugePages { .. } => 6,
    }
}

fn answer(
    experiment: &Experiment,
    setting: &Setting,
    rows: &[Row],
    far: Option<&Far>,
    migrations: Option<&Migrations>,
    own_cpus: bool,
) -> Answer {
    let mut answer = Answer {
        verdict: Kind::Healthy,
        text: String::new(),
        winner: None,
        speedup: None,
        as_good: Vec::new(),
        remedy: None,
    };
    let compared = rows.len().saturating_sub(1);
    let (blocks, needed) = (experiment.blocks(), blocks_needed(compared));
    if compared == 0 {
        answer.verdict = Kind::Unknown;
        "There is no other placement to compare with.".clone_into(&mut answer.text);
        return answer;
    }
    let better = |row: &&Row| row.is_better();
    let best = rows.iter().filter(better).map(Row::speedup).fold(0.0, f64::max);
    // The one that asks the least of its user comes first.
    let mut good: Vec<&Row> =
        rows.iter().filter(better).filter(|row| row.speedup() * WORTH >= best).collect();
    good.sort_by(|a, b| {
        let by_effort = effort(&a.placement.how).cmp(&effort(&b.placement.how));
        by_effort.then(b.speedup().total_cmp(&a.speedup()))
    });
    let Some((winner, others)) = good.split_first() else {
        if blocks < needed {
            answer.verdict = Kind::Unknown;
            answer.text = format!(
                "Cannot tell: {blocks} runs of each placement can show no difference among {compared}, {needed} can."
            );
        } else {
            answer.text = healthy(rows, far);
        }
        return answer;
    };
    let is_numa = setting.nodes > 1 && !matches!(winner.placement.how, How::HugePages { .. });
    answer.verdict = if is_numa { Kind::Hurt } else { Kind::Healthy };
    answer.text = hurt(winner, far, migrations, setting, own_cpus);
    answer.winner = Some(winner.placement.name.clone());
    answer.speedup = Some(winner.speedup());
    answer.as_good = others.iter().map(|row| row.placement.name.clone()).collect();
    // Nobody else can bind threads that the program binds.
    let is_its_own = own_cpus && matches!(winner.placement.how, How::Pinned { .. });
    answer.remedy = (!is_its_own).then(|| remedy(&winner.placement.how, &setting.command, own_cpus));
    answer
}

fn healthy(rows: &[Row], far: Option<&Far>) -> String {
    let worst = rows.iter().filter(|row| row.differs()).map(Row::speedup).fold(1.0, f64::min);
    let depends = match far {
        Some(far) if far.matters => format!(
            " Far memory would make it {:.2}x slower, and the kernel already keeps it near.",
            far.slowdown.median
        ),
        _ if worst < 1.0 / FAR_MATTERS => {
            format!(" Placement matters to it: the worst here is {:.2}x slower.", 1.0 / worst)
        }
        _ => " Placement does not matter to it.".to_owned(),
    };
    format!("Nothing to do here: no placement is better than the default.{depends}")
}

fn hurt(
    winner: &Row,
    far: Option<&Far>,
    migrations: Option<&Migrations>,
    setting: &Setting,
    own_cpus: bool,
) -> String {
    let word = if setting.metric == "seconds" { "faster" } else { "better" };
    let times = format!("{:.2}x {word}", winner.speedup());
    match &winner.placement.how {
        How::Default => String::new(),
        How::Node { node: memory, .. } | How::Far { memory, .. } if own_cpus => format!(
            "{times} with all its memory on node {memory}. Its threads keep the CPUs that the program chooses, and \
             others touched its memory first."
        ),
        How::Pinned { cpus } if own_cpus => {
            let cpus = cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            format!(
                "{times} with its threads on other CPUs than it chooses. Have it bind them to {cpus}, in the order \
                 in which they are made."
            )
        }
        How::Node { node, .. } => {
            let why = match far {
                Some(far) if far.matters => format!(
                    "sensitive to placement. Far memory alone makes it {:.2}x slower",
                    far.slowdown.median
                ),
                Some(_) => {
                    "sensitive to sharing, not to placement. Far memory alone makes it no slower, so that \
                            lines that go between nodes do"
                        .to_owned()
                }
                None => "sensitive to placement or to sharing".to_owned(),
            };
            format!("{times} on one node, node {node}: {why}.")
        }
        How::Far { node, memory, .. } => {
            format!(
                "{times} on the CPUs of node {node} with memory of node {memory}: its near memory is slower."
            )
        }
        How::Interleave { .. } | How::WeightedInterleave { .. } => {
            format!(
                "{times} with its memory spread over the nodes: by default, one node's memory serves most of it."
            )
        }
        How::Pinned { .. } if setting.nodes < 2 => {
            format!(
                "NUMA does not hurt it: there is one node. It is {times} with each thread kept on a CPU: by default, \
                 threads leave their caches."
            )
        }
        How::Pinned { .. } => {
            format!(
                "{times} with each thread kept on a CPU: by default, threads leave their memory or their caches."
            )
        }
        How::Balancing { on: true } => format!(
            "{times} with the kernel's NUMA balancing: its memory was first touched on other nodes than those \
             that use it."
        ),
        How::Balancing { on: false } => {
            let cost = migrations.map_or(String::new(), |cost| {
                format!(
                    " It moves {:.0} pages a run, which takes {:.2} s in the kernel.",
                    cost.pages, cost.system_seconds
                )
            });
            format!("{times} without the kernel's NUMA balancing, which costs more than it gives.{cost}")
        }
        How::HugePages { enabled } if enabled == NEVER => format!(
            "{times} without transparent huge pages: they cost it more than they give. Several nodes may use \
             parts of them, or the kernel takes long to make them."
        ),
        How::HugePages { enabled } => format!(
            "NUMA does not hurt it. It is {times} with transparent huge pages set to {enabled}: the TLB, not \
             distance, is what it waits for."
        ),
        How::Nodewise => format!(
            "{times} when Nodewise moves its pages: its memory was first touched on other nodes than those that \
             use it."
        ),
    }
}

#[cfg(test)]
mod tests;
