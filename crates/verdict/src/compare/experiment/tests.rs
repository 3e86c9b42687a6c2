use super::super::How;
use super::*;
use nodewise_topology::NodeId;

/// A program whose times are made up.
pub(crate) struct Clock {
    random: Random,
    /// How many times longer it takes under a placement.
    pub(crate) slower: BTreeMap<String, f64>,
    /// Relative deviation.
    noise: f64,
    /// How it is distributed.
    shape: Shape,
    /// Runs that were made.
    made: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Normal,
    /// Few runs are much slower.
    Skewed,
    /// The machine becomes slower and faster again by a fifth, in some 1000 runs.
    Drifting,
    /// Clocks with a coarse tick: many times are equal.
    Coarse,
}

impl Clock {
    pub(crate) fn new(seed: u64, noise: f64, shape: Shape) -> Self {
        Self { random: Random::new(seed), slower: BTreeMap::new(), noise, shape, made: 0 }
    }

    pub(crate) fn seconds(&mut self, placement: &str) -> f64 {
        self.made += 1;
        let (normal, noise) = (self.random.normal(), self.noise);
        let factor = match self.shape {
            Shape::Normal => 1.0 + noise * normal,
            Shape::Skewed => (noise * normal.abs().powi(2)).exp(),
            Shape::Drifting => (1.0 + noise * normal) * (1.0 + 0.2 * (f64::from(self.made) / 160.0).sin()),
            Shape::Coarse => ((1.0 + noise * normal) * 50.0).round() / 50.0,
        };
        100.0 * factor * self.slower.get(placement).copied().unwrap_or(1.0)
    }
}

impl Runner for Clock {
    type Error = std::convert::Infallible;

    fn run(&mut self, placement: &Placement) -> Result<Ran, Self::Error> {
        let value = self.seconds(&placement.name);
        let measured = Measured { value, wall_seconds: value, user_seconds: value, ..Measured::default() };
        Ok(Ran::Well(measured))
    }
}

/// The default and so many others.
pub(crate) fn placements(others: u32) -> Vec<Placement> {
    let other = |node| Placement {
        name: format!("node{node}"),
        how: How::Node { node: NodeId(node), cpus: "0".parse().unwrap() },
    };
    let default = Placement { name: "default".to_owned(), how: How::Default };
    std::iter::once(default).chain((0..others).map(other)).collect()
}

const REPEAT: u32 = 20;

fn finished(clock: &mut Clock, others: u32, seed: u64) -> Experiment {
    let mut experiment = Experiment::new(placements(others), REPEAT, seed, true);
    let Ok(()) = experiment.go(clock, |_| Ok(()));
    experiment
}

fn is_alarm(experiment: &Experiment) -> bool {
    experiment.against().values().any(|against| against.p_corrected <= LEVEL)
}

/// At most 5 % false alarms in 1000 comparisons of equal commands, whatever the noise and however many
/// placements there are. An alarm is any difference from the default that counts as no chance, small ones
/// included.
#[test]
fn equal_commands_give_few_alarms() {
    for (others, noise, shape) in [
        (1, 0.02, Shape::Normal),
        (4, 0.02, Shape::Skewed),
        (12, 0.02, Shape::Normal),
        (12, 0.005, Shape::Normal),
        (12, 0.02, Shape::Drifting),
        (6, 0.1, Shape::Skewed),
        (6, 0.02, Shape::Coarse),
    ] {
        let alarms = (0..1000)
            .filter(|&seed| is_alarm(&finished(&mut Clock::new(seed, noise, shape), others, seed)))
            .count();
        println!("{others} others, noise {noise}, {shape:?}: {alarms} alarms of 1000");
        assert!(alarms <= 50, "{alarms} of 1000 for {others} others, noise {noise}, {shape:?}");
    }
}

/// A difference of 5 % at a noise of 2 % is found in 95 % at least.
#[test]
fn true_differences_are_found() {
    for (others, shape) in [(1, Shape::Normal), (12, Shape::Normal), (12, Shape::Drifting)] {
        let mut found = 0;
        for seed in 0..1000 {
            let mut clock = Clock::new(seed, 0.02, shape);
            clock.slower.insert("node0".to_owned(), 1.0 / 1.05);
            let experiment = finished(&mut clock, others, seed);
            let against = experiment.against()["node0"];
            found += u32::from(against.p_corrected <= LEVEL && against.speedup.median > 1.0);
        }
        println!("{others} others, {shape:?}: found in {found} of 1000");
        assert!(found >= 950, "{found} of 1000 for {others} others, {shape:?}");
    }
}

#[test]
fn narrow_intervals_end_it_early_and_wide_ones_at_the_limit() {
    let blocks = |noise| finished(&mut Clock::new(1, noise, Shape::Normal), 3, 1).blocks();
    assert_eq!(blocks(0.001), blocks_needed(3));
    assert_eq!(blocks(0.2), REPEAT);
}

/// The rest of the blocks is for those that may win.
#[test]
fn much_slower_placements_are_not_run_any_more() {
    let mut clock = Clock::new(1, 0.05, Shape::Normal);
    clock.slower.extend(["node0", "node2"].map(|node| (node.to_owned(), 3.0)));
    let experiment = finished(&mut clock, 3, 1);
    let counts = ["default", "node0", "node1", "node2"].map(|name| experiment.runs_of(name).count() as u32);
    let few = blocks_needed(3);
    assert_eq!(counts, [REPEAT, few, REPEAT, few]);
    assert!(experiment.against()["node0"].p_corrected <= LEVEL, "few are enough for those");
}

#[test]
fn every_block_has_each_placement_once_in_an_order_of_its_own() {
    let experiment = finished(&mut Clock::new(7, 0.2, Shape::Normal), 5, 42);
    let names = |block| -> Vec<&str> {
        let runs = experiment.runs.iter().filter(|run| run.block == block);
        runs.map(|run| run.placement.as_str()).collect()
    };
    let orders: std::collections::BTreeSet<Vec<&str>> = (0..REPEAT).map(names).collect();
    assert!(orders.len() > 10, "{orders:?}");
    for mut order in orders {
        order.sort_unstable();
        assert_eq!(order, ["default", "node0", "node1", "node2", "node3", "node4"]);
    }
    // Each is first about as often.
    let default_first = (0..REPEAT).filter(|&block| names(block)[0] == "default").count();
    assert!(default_first < 10, "{default_first}");
}

/// After any run: what was written down and read again goes on as if nothing had happened.
#[test]
fn one_that_was_broken_off_goes_on_with_the_same_runs() {
    let whole = finished(&mut Clock::new(3, 0.05, Shape::Normal), 4, 9);
    let mut clock = Clock::new(3, 0.05, Shape::Normal);
    let mut experiment = Experiment::new(placements(4), REPEAT, 9, true);
    while let Some((_, placement)) = experiment.next() {
        let Ok(ran) = clock.run(placement);
        experiment.record(ran);
        experiment = serde_json::from_str(&serde_json::to_string(&experiment).unwrap()).unwrap();
    }
    assert_eq!(experiment, whole);
}

#[test]
fn an_impossible_placement_leaves_the_others_alone() {
    let mut clock = Clock::new(3, 0.05, Shape::Normal);
    let mut experiment = Experiment::new(placements(4), REPEAT, 9, true);
    while let Some((block, placement)) = experiment.next() {
        let ran = if placement.name == "node2" && block == 3 {
            Ran::Impossible("it does not fit".to_owned())
        } else {
            let Ok(ran) = clock.run(placement);
            ran
        };
        experiment.record(ran);
    }
    assert_eq!(experiment.blocks(), REPEAT);
    assert_eq!(experiment.impossible["node2"], "it does not fit");
    assert_eq!(experiment.runs.len(), 4 * REPEAT as usize);
    assert_eq!(experiment.against().len(), 3);
}

#[test]
fn so_many_blocks_are_needed() {
    // 2 of 2⁷ ways are 1.6 %; corrected for 12, 2 of 2¹⁰ are 2.3 %.
    assert_eq!((blocks_needed(1), blocks_needed(12), blocks_needed(13)), (7, 10, 11));
}
