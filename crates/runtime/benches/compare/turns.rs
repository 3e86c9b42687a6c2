//! Contenders that take turns, and ratios of what these took.
//!
//! Other programs and the host slow single turns down, by more than what is to be told apart. So contenders
//! take short turns and many, each round in another order, and are compared within rounds. Each of ours takes
//! a second turn in each round: the ratio of the two says how much is noise.

use std::time::{Duration, Instant};

/// The pause between turns, in which the last contender's workers fall asleep.
const SETTLE: Duration = Duration::from_micros(200);
/// Rounds at least and at most, after one that does not count.
const ROUNDS_LEAST: usize = 31;
const ROUNDS_MOST: usize = 4001;
/// After so many, others that take more than twice as long as the best sit out. Rounds are shorter then.
const ROUNDS_OF_ALL: usize = 15;
/// A contest ends when each median ratio is known within so much.
const NARROW: f64 = 1.02;

pub struct Contender<'a> {
    pub name: &'static str,
    /// How many operations one turn makes.
    pub operations: u64,
    /// Takes one turn. A turn's time is measured around it unless it gives its own, in nanoseconds for all
    /// operations.
    pub turn: Box<dyn FnMut() -> Option<u64> + 'a>,
}

impl Contender<'_> {
    pub fn is_ours(&self) -> bool {
        self.name.starts_with("nodewise")
    }

    /// Bodies that users write are code of this compiler, and some are twice as quick by one as by another.
    fn compiler(&self) -> &'static str {
        ["gcc", "clang"].into_iter().find(|compiler| self.name.ends_with(compiler)).unwrap_or("rustc")
    }

    fn ns_each(&mut self) -> f64 {
        std::thread::sleep(SETTLE);
        let begin = Instant::now();
        let own = (self.turn)();
        let ns = own.unwrap_or_else(|| begin.elapsed().as_nanos() as u64);
        ns as f64 / self.operations as f64
    }
}

pub struct Contest<'a> {
    pub name: &'static str,
    pub operation: &'static str,
    pub contenders: Vec<Contender<'a>>,
}

/// Times of one contender's turns, in nanoseconds an operation.
pub struct Turns {
    /// By round.
    first: Vec<f64>,
    /// The second turn of each round, if it is one of ours.
    second: Vec<f64>,
}

/// The ratio of two contenders.
#[derive(Clone, Copy)]
pub struct Ratio {
    /// The median of the ratios within rounds.
    pub median: f64,
    /// The ends of the interval that has the true median with a probability of 95 %.
    pub low: f64,
    pub high: f64,
    /// The ratio of the tenth percentiles, the speed when other programs leave the CPUs alone.
    pub tenth: f64,
}

impl Turns {
    pub fn rounds(&self) -> usize {
        self.first.len()
    }

    pub fn median(&self) -> f64 {
        percentile(&sorted(self.first.iter().copied()), 0.5)
    }

    pub fn tenth(&self) -> f64 {
        percentile(&sorted(self.first.iter().copied()), 0.1)
    }

    pub fn over(&self, other: &Self) -> Ratio {
        Ratio::of(&self.first, &other.first)
    }

    /// The second turns over the first: noise. None for others.
    pub fn again(&self) -> Option<Ratio> {
        (!self.second.is_empty()).then(|| Ratio::of(&self.second, &self.first))
    }
}

impl Ratio {
    fn of(these: &[f64], others: &[f64]) -> Self {
        let ratios = sorted(these.iter().zip(others).map(|(this, other)| this / other));
        // The ranks of the ends, by the binomial distribution of how many are below the median.
        let (half, apart) = (ratios.len() as f64 / 2.0, 0.98 * (ratios.len() as f64).sqrt());
        let at = |rank: f64| ratios[(rank.max(0.0) as usize).min(ratios.len() - 1)];
        let tenth = |numbers: &[f64]| percentile(&sorted(numbers.iter().copied()), 0.1);
        Self {
            median: percentile(&ratios, 0.5),
            low: at((half - apart).floor()),
            high: at((half + apart).ceil()),
            tenth: tenth(these) / tenth(others),
        }
    }

    fn is_narrow(&self) -> bool {
        self.high <= self.median * NARROW && self.low >= self.median / NARROW
    }
}

fn sorted(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

fn percentile(ascending: &[f64], part: f64) -> f64 {
    ascending[(ascending.len() as f64 * part) as usize]
}

impl Contest<'_> {
    /// Has all take turns until their ratios are known, or for so long.
    pub fn run(&mut self, most: Duration) -> Vec<Turns> {
        let turns = |_: &Contender<'_>| Turns { first: Vec::new(), second: Vec::new() };
        let mut turns: Vec<Turns> = self.contenders.iter().map(turns).collect();
        let ours = self.contenders.iter().enumerate().filter(|(_, contender)| contender.is_ours());
        let ours: Vec<usize> = ours.map(|(index, _)| index).collect();
        // The order of turns in this round.
        let all = (0..turns.len()).map(|index| (index, false)).chain(ours.iter().map(|&index| (index, true)));
        let mut order: Vec<(usize, bool)> = all.collect();
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let end = Instant::now() + most;
        for round in 0..=ROUNDS_MOST {
            if round > ROUNDS_LEAST && (Instant::now() > end || round % 16 == 0 && self.is_known(&turns)) {
                break;
            }
            if round == ROUNDS_OF_ALL {
                let slow = self.too_slow(&turns);
                order.retain(|(index, _)| !slow.contains(index));
            }
            // The contender before decides the state of the CPUs, and where the scheduler has the threads.
            shuffle(&mut order, &mut random);
            for &(index, again) in &order {
                let ns = self.contenders[index].ns_each();
                let turns = &mut turns[index];
                if round > 0 {
                    if again { &mut turns.second } else { &mut turns.first }.push(ns);
                }
            }
        }
        turns
    }

    fn too_slow(&self, turns: &[Turns]) -> Vec<usize> {
        let medians = turns.iter().map(Turns::median).enumerate();
        let others: Vec<_> = medians.filter(|(index, _)| !self.contenders[*index].is_ours()).collect();
        let best = others.iter().map(|(_, median)| *median).fold(f64::INFINITY, f64::min);
        others.into_iter().filter(|(_, median)| *median > 2.0 * best).map(|(index, _)| index).collect()
    }

    fn is_known(&self, turns: &[Turns]) -> bool {
        self.over_best(turns, false).iter().flatten().all(|(ratio, _)| ratio.is_narrow())
            && turns.iter().filter_map(Turns::again).all(|ratio| ratio.is_narrow())
    }

    /// Each of ours over the other that it is furthest behind, and that one's index: of all others, or of
    /// those by the same compiler. None for others.
    pub fn over_best(&self, turns: &[Turns], by_compiler: bool) -> Vec<Option<(Ratio, usize)>> {
        let all_rounds = turns.iter().map(Turns::rounds).max();
        let over_best = |(index, contender): (usize, &Contender<'_>)| {
            let others = self.contenders.iter().enumerate().filter(|(index, other)| {
                // The best of all is none of those that sit out.
                let may_be_best = || Some(turns[*index].rounds()) == all_rounds;
                let is_meant = by_compiler && other.compiler() == contender.compiler();
                !other.is_ours() && (is_meant || !by_compiler && may_be_best())
            });
            let ratios = others.map(|(other, _)| (turns[index].over(&turns[other]), other));
            let worst = ratios.max_by(|(a, _), (b, _)| a.median.total_cmp(&b.median));
            worst.filter(|_| contender.is_ours())
        };
        self.contenders.iter().enumerate().map(over_best).collect()
    }
}

/// Fisher and Yates's, by Marsaglia's xorshift64.
fn shuffle<T>(items: &mut [T], random: &mut u64) {
    for end in (1..items.len()).rev() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        items.swap(end, (*random % (end as u64 + 1)) as usize);
    }
}
