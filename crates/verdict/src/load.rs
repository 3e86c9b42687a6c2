//! The time of accesses to memory under load: as it was measured, and after a change.
//!
//! # The model
//!
//! A CPU works for some cycles, and then accesses memory. It goes on while up to `overlap` of its accesses
//! are on their way. An access takes the time of its way, and waits at its node's memory while others are
//! served there. So a change saves ways, or queues, or both. That is a closed network of queues. The time in
//! each is found by mean value analysis (Reiser and Lavenberg, 1980), with Schweitzer's (1979) estimate of
//! the queue that an access meets. Services take equal times, so the one that is under way is half over.
//!
//! Three numbers are fitted. The time of a service follows from how much longer accesses took than their
//! ways. A CPU's time for an access, all in all, and the part that its instructions took, give the
//! cycles between accesses and the overlap.
//!
//! A memory has many banks. It may serve others while one of them is busy with an access, for most of the
//! idle latency. So accesses already wait for banks where a memory is far from its full bandwidth, and half
//! as long if half as many come. A memory is not slower than its bandwidth, where that is known. If queues
//! then do not explain all, the rest is a longer way: page walks, say.
//!
//! - A CPU that took longer than an access is on its way waited for some of them, and worked meanwhile in the
//!   others. Its instructions are the cycles between, and the rest is what it waited.
//! - One that was quicker had several on their way, and waited for the next to end. It worked meanwhile.
//!
//! A CPU that goes through memory in order accesses a whole page on one node, and then the next on another.
//! All of its accesses that are on their way meet in one queue. So memory that is spread over nodes serves
//! such CPUs less evenly than those that access it at random.
//!
//! Accesses that caches serve are on their way beside those to memory. They take as long wherever it lies.
//! Nobody waits for prefetches, which count as none. They keep memory busy, so that a service is longer.
//!
//! No change makes it quicker than its instructions. So a program that hides all of its accesses behind them
//! gains nothing.

use serde::Serialize;

/// The accesses of a program, by the CPU's node (row) and the memory's (column), as they were measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// How many there were.
    pub accesses: Vec<Vec<f64>>,
    /// Their mean latency, in cycles.
    pub latencies: Vec<Vec<f64>>,
    /// Their latency where no other is served before them, in cycles.
    pub ways: Vec<Vec<f64>>,
    /// Cycles in which the program's CPUs ran.
    pub cycles: f64,
    /// How many of them its instructions took, without any wait for memory.
    pub work_cycles: f64,
    /// How many CPUs ran on average.
    pub cpus: f64,
    /// The share of accesses, up to 1, by threads that go through memory in order.
    pub in_order: f64,
    /// Cycles that other accesses took, by the CPU's node: those to lines in another node's cache, which
    /// had written them. They meet no queue, and go nowhere else.
    pub taken: Vec<f64>,
    /// How many these were.
    pub lines_taken: Vec<f64>,
    /// Cycles that accesses took which a node's own caches served, by node. They go nowhere else, either.
    pub cached: Vec<f64>,
    /// Cycles for which a line keeps a memory busy at its full bandwidth; none where that is not known.
    pub line_cycles: Option<f64>,
    /// Cycles for which an access keeps one of a memory's banks busy, which may be 0; none where
    /// that is not known. It is then a share of the idle latency.
    pub bank_cycles: Option<f64>,
}

/// The share of time that a change saves, in percent; below 0 where it costs time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// The share of all CPUs' time.
    pub of_cpus: f64,
    /// The same of the slowest node's CPUs, for which all others wait in many programs. Each CPU makes as
    /// many accesses, lines from other nodes' caches among them.
    pub of_slowest: f64,
}

impl Saved {
    /// The larger of the two.
    #[must_use]
    pub const fn most(self) -> f64 {
        self.of_cpus.max(self.of_slowest)
    }
}

/// A load that the model was fitted to.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The share of each node's accesses (row) that go to each node (column).
    shares: Vec<Vec<f64>>,
    accesses: Vec<f64>,
    ways: Vec<Vec<f64>>,
    /// Accesses of each node, lines from other nodes' caches among them.
    uses: Vec<f64>,
    /// Cycles of a use in which nothing is on its way, from memory or caches.
    think: f64,
    /// Cycles that the instructions of a use take.
    instructions: f64,
    /// Cycles that its own caches' accesses took of each node.
    cached: Vec<f64>,
    /// All cycles of a use.
    cycles: f64,
    taken: Vec<f64>,
    /// Cycles for which an access keeps a bank of each node's memory busy.
    banks: Vec<f64>,
    overlap: f64,
    /// Accesses of each node that are on their way, or that a CPU thinks before.
    customers: Vec<f64>,
    /// The CPUs that make them.
    cpus: Vec<f64>,
    /// The share of accesses that meet all others of their CPU in one queue.
    together: f64,
    service: f64,
}

/// Fewer samples than this of a pair of nodes do not tell its way.
const LEAST_SAMPLES: usize = 10;
/// A node with less of the busiest one's accesses than this share keeps nobody waiting.
const SLACK: f64 = 0.5;
/// At least this share of the cycles counts as waiting, so that no overlap is infinite.
const HIDDEN: f64 = 1e-3;
/// So little of the time of accesses needs no explanation by queues.
const UNEXPLAINED: f64 = 0.01;
/// A memory's bank is busy with an access for this share of the idle latency. That of the presets with banks
/// is calibrated by a server's latency under load (`Controller::with_banks` of nodewise-hardware).
const BANK_OF_WAY: f64 = 0.8;
/// The banks that are busy at the peak of the bandwidth, of all, as there.
const BUSY_BANKS: f64 = 0.74;
/// A line may bring its neighbour along. Both may go back, when they have been written, or when another node
/// reads them then.
const LINES_EACH: f64 = 4.0;
/// At the end of a page, accesses that are on their way are on two nodes.
const LINES_OF_PAGE: f64 = 64.0;
/// Rounds of an iteration whose steps are halved, and of one that halves an interval.
const ROUNDS: usize = 400;
const HALVINGS: usize = 40;

impl Load {
    /// The load, and what it was fitted with; none where nothing was measured.
    #[must_use]
    pub fn fitted(&self) -> Option<Fitted> {
        let all: f64 = self.accesses.iter().flatten().sum();
        if !(all > 0.0 && self.cycles > 0.0 && self.cpus > 0.0) {
            return None;
        }
        let accesses: Vec<f64> = self.accesses.iter().map(|row| row.iter().sum()).collect();
        let shares = shares(&self.accesses);
        let latency: Vec<f64> = means(&shares, &self.latencies);
        let waited: f64 = accesses.iter().zip(&latency).map(|(accesses, latency)| accesses * latency).sum();
        let nodes = accesses.len();
        // They are empty if nobody can tell.
        let [taken, lines, cached] = [&self.taken, &self.lines_taken, &self.cached].map(|of| {
            let mut of = of.clone();
            of.resize(nodes, 0.0);
            of
        });
        let elsewhere = taken.iter().chain(&cached).sum::<f64>();
        let overlap = if waited + elsewhere < self.cycles {
            let stalled = (self.cycles - self.work_cycles).max(HIDDEN * self.cycles);
            ((waited + elsewhere) / stalled).max(1.0)
        } else {
            (waited + elsewhere) / self.cycles
        };
        let uses: Vec<f64> = accesses.iter().zip(&lines).map(|(accesses, lines)| accesses + lines).collect();
        let each = 1.0 / uses.iter().sum::<f64>();
        let think = (self.cycles - (waited + elsewhere) / overlap).max(0.0) * each;
        let elapsed = self.cycles / self.cpus;
        let bank = |node: usize| self.bank_cycles.unwrap_or(BANK_OF_WAY * self.ways[node][node]);
        let mut fitted = Fitted {
            shares,
            ways: self.ways.clone(),
            think,
            instructions: self.work_cycles.min(self.cycles) * each,
            cached,
            cycles: self.cycles * each,
            banks: (0..nodes).map(bank).collect(),
            overlap,
            customers: Vec::new(),
            cpus: Vec::new(),
            together: self.in_order * (1.0 - overlap / LINES_OF_PAGE).max(0.0),
            service: 0.0,
            accesses,
            uses,
            taken,
        };
        let on_their_way =
            |node: usize| fitted.accesses[node] * (overlap * fitted.between(node) + latency[node]) / elapsed;
        fitted.customers = (0..nodes).map(on_their_way).collect();
        let each = fitted.customers.iter().sum::<f64>() / self.cpus;
        fitted.cpus = fitted.customers.iter().map(|customers| customers / each).collect();
        // The longer a service, the longer the accesses: up to all waiting for the one. Accesses of few CPUs
        // do not meet at first, so that many services explain the same. The shortest one is taken.
        let explained = waited * (1.0 - UNEXPLAINED);
        let lines = LINES_EACH * fitted.uses.iter().sum::<f64>() / all;
        let longest = self.line_cycles.map_or(f64::INFINITY, |line_cycles| lines * line_cycles);
        let is_explained = |fitted: &Fitted| fitted.waited(&fitted.shares) >= explained;
        fitted.service = least(0.0, (waited / all).min(longest), |service| {
            is_explained(&Fitted { service, ..fitted.clone() })
        });
        if !is_explained(&fitted) {
            let stretched = |by: f64| {
                let ways = fitted.ways.iter().map(|row| row.iter().map(|way| way * by).collect()).collect();
                Fitted { ways, ..fitted.clone() }
            };
            let most = 1.0 + waited / fitted.waited(&fitted.shares);
            fitted = stretched(least(1.0, most, |by| is_explained(&stretched(by))));
        }
        Some(fitted)
    }
}

/// The least number from which on something holds.
fn least(mut from: f64, mut to: f64, holds: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = 0.5 * (from + to);
        if holds(middle) {
            to = middle;
        } else {
            from = middle;
        }
    }
    to
}

impl Fitted {
    /// The time that it saves if the accesses go elsewhere: of each node (row) to each node's memory
    /// (column), in any unit.
    #[must_use]
    pub fn saves(&self, accesses: &[Vec<f64>]) -> Saved {
        self.saved(&self.cycles(&self.latencies(&shares(accesses)), &[]))
    }

    /// The same if a share of the lines that each node takes from others' caches, up to 1, stays in its own.
    #[must_use]
    pub fn saves_without_taken(&self, gone: &[f64]) -> Saved {
        self.saved(&self.cycles(&self.latencies(&self.shares), gone))
    }

    /// Cycles between a node's accesses to memory in which none is on its way.
    fn between(&self, node: usize) -> f64 {
        let accesses = self.accesses[node];
        let elsewhere = (self.taken[node] + self.cached[node]) / self.overlap;
        if accesses > 0.0 { (self.think * self.uses[node] + elsewhere) / accesses } else { 0.0 }
    }

    /// The cycles of each node's CPUs, by the latency, if a share of the lines that it takes is gone.
    fn cycles(&self, latencies: &[f64], gone: &[f64]) -> Vec<f64> {
        let of_node = |(node, latency): (usize, &f64)| {
            let uses = self.uses[node];
            let taken = self.taken[node] * (1.0 - gone.get(node).copied().unwrap_or(0.0));
            let elsewhere = (taken + self.cached[node]) / self.overlap;
            let work = uses * self.instructions + elsewhere;
            let least = work.min(uses * self.cycles).max(uses * self.instructions);
            (uses * self.think + self.accesses[node] * latency / self.overlap + elsewhere).max(least)
        };
        latencies.iter().enumerate().map(of_node).collect()
    }

    /// From what was measured to so many cycles of each node's CPUs.
    fn saved(&self, after: &[f64]) -> Saved {
        let before = self.cycles(&self.latencies(&self.shares), &[]);
        let most = self.uses.iter().copied().fold(0.0, f64::max);
        let slowest = |cycles: &[f64]| {
            let working = cycles.iter().zip(&self.uses).filter(|(_, uses)| **uses >= SLACK * most);
            working.map(|(cycles, uses)| cycles / uses).fold(0.0, f64::max)
        };
        Saved {
            of_cpus: 100.0 * (1.0 - after.iter().sum::<f64>() / before.iter().sum::<f64>()),
            of_slowest: 100.0 * (1.0 - slowest(after) / slowest(&before)),
        }
    }

    /// The time that all accesses to memory take, in cycles.
    fn waited(&self, shares: &[Vec<f64>]) -> f64 {
        self.accesses.iter().zip(self.latencies(shares)).map(|(accesses, latency)| accesses * latency).sum()
    }

    /// The mean latency of each node's accesses, in cycles.
    fn latencies(&self, shares: &[Vec<f64>]) -> Vec<f64> {
        let nodes = self.customers.len();
        let mut latencies = means(shares, &self.ways);
        let controllers = Queue::new(vec![self.service; nodes], self.service);
        let banks = Queue::new(self.banks.clone(), BUSY_BANKS * self.service);
        let mut queues = [controllers, banks];
        for _ in 0..ROUNDS {
            // Accesses of each node (row) to each node's memory (column) in a cycle.
            let rate =
                |node: usize| self.customers[node] / (self.overlap * self.between(node) + latencies[node]);
            let row = |node: usize| shares[node].iter().map(|share| share * rate(node)).collect();
            let rates: Vec<Vec<f64>> = (0..nodes).map(row).collect();
            let [controllers, banks] = queues.each_mut().map(|queue| queue.waits(self, &rates));
            for from in (0..nodes).filter(|&from| self.customers[from] > 0.0) {
                let of_pair = |to: usize| {
                    shares[from][to] * (self.ways[from][to] + controllers[from][to] + banks[from][to])
                };
                latencies[from] = 0.5 * (latencies[from] + (0..nodes).map(of_pair).sum::<f64>());
            }
        }
        latencies
    }
}

/// The accesses that wait for servers alike of each node's memory, or are served by them.
struct Queue {
    /// By the CPU's node (row) and the memory's (column).
    lengths: Vec<Vec<f64>>,
    /// Cycles for which an access keeps a server of each node's busy.
    kept: Vec<f64>,
    /// The same by the number of servers: when all are busy one is free again after so many cycles.
    turn: f64,
}

impl Queue {
    fn new(kept: Vec<f64>, turn: f64) -> Self {
        Self { lengths: vec![vec![0.0; kept.len()]; kept.len()], kept, turn }
    }

    /// How long accesses at these rates wait, by pair of nodes. The queues come nearer to what follows from
    /// that.
    fn waits(&mut self, load: &Fitted, rates: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let nodes = self.kept.len();
        let all: Vec<f64> = (0..nodes).map(|to| self.lengths.iter().map(|row| row[to]).sum()).collect();
        let busy = |to: usize| {
            let servers = if self.turn > 0.0 { self.kept[to] / self.turn } else { 0.0 };
            (rates.iter().map(|row| row[to]).sum::<f64>() * self.kept[to]).min(servers)
        };
        let busy: Vec<f64> = (0..nodes).map(busy).collect();
        let mut waits = vec![vec![0.0; nodes]; nodes];
        for from in 0..nodes {
            // An access does not wait for itself.
            let (customers, cpus) = (load.customers[from].max(1.0), load.cpus[from].max(1.0));
            let of_cpu = self.lengths[from].iter().sum::<f64>() / cpus;
            for to in 0..nodes {
                let mine = self.lengths[from][to];
                let apart = all[to] - mine / customers;
                let together = all[to] - mine / cpus + of_cpu * (1.0 - cpus / customers).max(0.0);
                let met = load.together * together + (1.0 - load.together) * apart;
                let wait = self.turn * (met - busy[to] / 2.0).max(0.0);
                self.lengths[from][to] = 0.5 * (mine + rates[from][to] * (self.kept[to] + wait));
                waits[from][to] = wait;
            }
        }
        waits
    }
}

/// Each row's shares; of a row without accesses, all go near.
fn shares(accesses: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let row = |(from, row): (usize, &Vec<f64>)| {
        let all: f64 = row.iter().sum();
        let near = |to| if to == from { 1.0 } else { 0.0 };
        (0..row.len()).map(|to| if all > 0.0 { row[to].max(0.0) / all } else { near(to) }).collect()
    };
    accesses.iter().enumerate().map(row).collect()
}

fn means(shares: &[Vec<f64>], of: &[Vec<f64>]) -> Vec<f64> {
    let mean =
        |(shares, of): (&Vec<f64>, &Vec<f64>)| shares.iter().zip(of).map(|(share, of)| share * of).sum();
    shares.iter().zip(of).map(mean).collect()
}

/// The ways, in cycles, from the latencies of sampled accesses: by pair of nodes, what few are faster than.
/// Ways of pairs that were not seen follow from `ratios`, the cost of each pair if a near access costs 1.
/// None if no pair was seen.
#[must_use]
pub fn ways(sampled: &mut [Vec<Vec<u32>>], ratios: &[Vec<f64>]) -> Option<Vec<Vec<f64>>> {
    let fastest = |latencies: &mut Vec<u32>| {
        let twentieth = latencies.len() / 20;
        let is_known = latencies.len() >= LEAST_SAMPLES;
        is_known.then(|| f64::from(*latencies.select_nth_unstable(twentieth).1))
    };
    let seen: Vec<Vec<Option<f64>>> =
        sampled.iter_mut().map(|row| row.iter_mut().map(fastest).collect()).collect();
    let pairs = || (0..seen.len()).flat_map(|from| (0..seen.len()).map(move |to| (from, to)));
    let known = || pairs().filter_map(|(from, to)| Some((from, to, seen[from][to]?)));
    let median = |mut of: Vec<f64>| {
        of.sort_by(f64::total_cmp);
        of.get(of.len() / 2).copied()
    };
    let near = median(known().filter(|(from, to, _)| from == to).map(|(_, _, way)| way).collect());
    let near = near.or_else(|| median(known().map(|(from, to, way)| way / ratios[from][to]).collect()))?;
    let way = |from: usize, to: usize| {
        let alike =
            |&(a, b, _): &(usize, usize, f64)| a != b && ratios[a][b].total_cmp(&ratios[from][to]).is_eq();
        let far = || median(known().filter(alike).map(|(_, _, way)| way).collect());
        let unseen = || if from == to { near } else { far().unwrap_or(near * ratios[from][to]) };
        seen[from][to].unwrap_or_else(unseen)
    };
    Some((0..seen.len()).map(|from| (0..seen.len()).map(|to| way(from, to)).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: usize = 4;
    const RATIOS: [f64; 2] = [1.0, 1.3];

    fn matrix(of: impl Fn(usize, usize) -> f64) -> Vec<Vec<f64>> {
        (0..NODES).map(|from| (0..NODES).map(|to| of(from, to)).collect()).collect()
    }

    fn near(from: usize, to: usize) -> f64 {
        f64::from(u8::from(from == to))
    }

    fn way(from: usize, to: usize) -> f64 {
        300.0 * RATIOS[usize::from(from != to)]
    }

    /// Each CPU makes an access after `think` cycles and waits for it, without any queue.
    #[test]
    fn ways_alone_are_saved_where_nothing_waits() {
        for think in [0.0, 100.0, 3000.0] {
            let one = |from: usize, to: usize| if to == 0 { think + way(from, 0) } else { 0.0 };
            let cycles: f64 = 1e6 * matrix(one).iter().flatten().sum::<f64>();
            let load = Load {
                accesses: matrix(|_, to| if to == 0 { 1e6 } else { 0.0 }),
                latencies: matrix(way),
                ways: matrix(way),
                cycles,
                work_cycles: 4e6 * think,
                cpus: 4.0,
                ..Load::default()
            };
            let saved = load.fitted().unwrap().saves(&matrix(near));
            let expected = 100.0 * (1.0 - 4.0 * (think + 300.0) / (4.0 * think + 300.0 + 3.0 * 390.0));
            assert!((saved.of_cpus - expected).abs() < 0.2, "{think}: {saved:?}, {expected}");
            let slowest = 100.0 * (1.0 - (think + 300.0) / (think + 390.0));
            assert!((saved.of_slowest - slowest).abs() < 0.2, "{think}: {saved:?}, {slowest}");
            // Where all goes is where it went.
            let same = load.fitted().unwrap().saves(&load.accesses);
            assert!(same.of_cpus.abs() < 1e-6 && same.of_slowest.abs() < 1e-6, "{same:?}");
        }
    }

    /// Two accesses of one CPU on their way do not meet, however long a service may be.
    #[test]
    fn nothing_queues_where_accesses_take_no_longer_than_their_ways() {
        let load = Load {
            accesses: matrix(|from, to| if (from, to) == (1, 0) { 1e7 } else { 0.0 }),
            latencies: matrix(|from, to| 1.0001 * way(from, to)),
            ways: matrix(way),
            cycles: 1e7 * 390.0 / 1.8,
            work_cycles: 1e7 * 10.0,
            cpus: 1.0,
            ..Load::default()
        };
        let saved = load.fitted().unwrap().saves(&matrix(near));
        assert!((saved.of_cpus - 100.0 * (1.0 - 300.0 / 390.0)).abs() < 1.0, "{saved:?}");
    }

    #[test]
    fn without_lines_that_are_taken_a_program_has_its_work_and_its_memory_left() {
        let cycles = 4e6 * (100.0 + 300.0 + 400.0);
        let load = Load {
            accesses: matrix(|from, to| 1e6 * near(from, to)),
            latencies: matrix(way),
            ways: matrix(way),
            cycles,
            work_cycles: 4e6 * 100.0,
            cpus: 4.0,
            taken: vec![4e8; NODES],
            ..Load::default()
        };
        let fitted = load.fitted().unwrap();
        for (gone, saved) in [(0.0, 0.0), (0.5, 25.0), (1.0, 50.0)] {
            let found = fitted.saves_without_taken(&[gone; NODES]);
            assert!((found.of_cpus - saved).abs() < 0.2, "{gone}: {found:?}");
        }
        // Only one node's are gone, and the others are as slow as before.
        let found = fitted.saves_without_taken(&[1.0, 0.0, 0.0, 0.0]);
        assert!((found.of_cpus - 50.0 / 4.0).abs() < 0.2 && found.of_slowest.abs() < 1e-6, "{found:?}");
        // Wherever memory lies, they take as long.
        let far =
            Load { latencies: matrix(|_, _| 600.0), ways: matrix(|a, b| 300.0 * (2.0 - near(a, b))), ..load };
        let far =
            Load { accesses: matrix(|a, b| 1e6 * near((a + 1) % NODES, b)), cycles: 4e6 * 1100.0, ..far };
        let found = far.fitted().unwrap().saves(&matrix(near));
        assert!((found.of_cpus - 100.0 * 300.0 / 1100.0).abs() < 0.2, "{found:?}");
    }

    /// Several are on their way at once, to memory and to the cache: only the former become quicker.
    #[test]
    fn time_for_the_cache_stays() {
        let load = |cached: f64, overlap: f64| Load {
            accesses: matrix(|from, to| if (from, to) == (1, 0) { 1e7 } else { 0.0 }),
            latencies: matrix(way),
            ways: matrix(way),
            cycles: (1e7 * 390.0 + cached) / overlap,
            work_cycles: 1e7 * 10.0,
            cpus: 1.0,
            cached: vec![0.0, cached],
            ..Load::default()
        };
        for (cached, expected) in [(0.0, 90.0 / 390.0), (1e7 * 210.0, 90.0 / 600.0)] {
            let saved = load(cached, 8.0).fitted().unwrap().saves(&matrix(near)).of_cpus;
            assert!((saved - 100.0 * expected).abs() < 0.5, "{saved}, {expected}");
        }
    }

    /// Against a simulation of CPUs with several accesses on their way. Memories serve one at a time, each
    /// with one of their banks if they have some.
    #[test]
    fn queues_take_what_they_take_when_simulated() {
        let loads = [(1, 200, 40), (1, 0, 100), (4, 100, 25), (8, 0, 25), (8, 0, 60)].map(|load| (load, 0));
        let with_banks = [(4, 0, 2), (8, 0, 2), (8, 0, 5), (8, 0, 10)].map(|load| (load, 240));
        for ((overlap, think, service), bank) in loads.into_iter().chain(with_banks) {
            let measured = simulate(overlap, think, service, bank, |_, _| 0);
            let fitted = measured.fitted().unwrap();
            for (name, home) in [
                ("near", &(|from, _| from) as &dyn Fn(usize, u64) -> usize),
                ("spread", &|_, number| (number % 4) as usize),
            ] {
                let after = simulate(overlap, think, service, bank, home);
                let truth = 100.0 * (1.0 - after.cycles / measured.cycles);
                let saved = fitted.saves(&after.accesses).of_cpus;
                println!("{overlap} {think} {service} {bank} {name}: {saved:.1} %, {truth:.1} % simulated");
                assert!(
                    (saved - truth).abs() < 6.0,
                    "{overlap} {think} {service} {bank} {name}: {saved}, {truth}"
                );
            }
        }
    }

    /// The same where pages of 64 lines, which a CPU accesses one after the other, are spread.
    #[test]
    fn in_order_less_is_gained_by_spreading() {
        let spread = |from: usize, number: u64| {
            let page = number / 7 / 64 + 1000 * from as u64;
            (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62) as usize
        };
        for (overlap, think, service) in [(4, 100, 25), (8, 0, 25), (8, 0, 60), (16, 20, 40)] {
            let measured = Load { in_order: 1.0, ..simulate(overlap, think, service, 0, |_, _| 0) };
            let after = simulate(overlap, think, service, 0, spread);
            let truth = 100.0 * (1.0 - after.cycles / measured.cycles);
            let saved = measured.fitted().unwrap().saves(&after.accesses).of_cpus;
            println!("{overlap} {think} {service}: {saved:.1} %, {truth:.1} % simulated");
            assert!((saved - truth).abs() < 6.0, "{overlap} {think} {service}: {saved}, {truth}");
        }
    }

    /// A CPU a node makes so many accesses, to where `home` says, in the order of time.
    fn simulate(
        overlap: usize,
        think: u64,
        service: u64,
        bank: u64,
        home: impl Fn(usize, u64) -> usize,
    ) -> Load {
        const EACH: u64 = 20_000;
        let (mut free, mut made, mut random) = ([0; NODES], [0; NODES], 1_u64);
        // As many banks as make the service the memory's bandwidth with three quarters of them.
        let mut banks = vec![vec![0; (4 * bank / service / 3) as usize + 1]; NODES];
        let mut cpus = vec![(0, Vec::new()); NODES];
        let (mut accesses, mut latencies) = (matrix(|_, _| 0.0), matrix(|_, _| 0.0));
        // The time at which a CPU asks next.
        let next = |cpu: &(u64, Vec<u64>)| {
            let (ready, on_their_way) = cpu;
            // Whichever is there first.
            let waits = if on_their_way.len() < overlap { 0 } else { *on_their_way.iter().min().unwrap() };
            think + *ready.max(&waits)
        };
        while let Some(from) = (0..NODES).filter(|&cpu| made[cpu] < EACH).min_by_key(|&cpu| next(&cpus[cpu]))
        {
            let asks = next(&cpus[from]);
            let to = home(from, made[from] * 7 + from as u64);
            // The way there, and back.
            let (there, all) = (way(from, to) as u64 / 2, way(from, to) as u64);
            let begins = free[to].max(asks + there);
            free[to] = begins + service;
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % banks[to].len();
            let begins = begins.max(banks[to][at]);
            banks[to][at] = begins + bank;
            let ends = begins - there + all;
            accesses[from][to] += 1.0;
            latencies[from][to] += (ends - asks) as f64;
            made[from] += 1;
            let (ready, on_their_way) = &mut cpus[from];
            *ready = asks;
            if on_their_way.len() == overlap {
                let first = on_their_way.iter().enumerate().min_by_key(|(_, ends)| **ends).unwrap().0;
                on_their_way.swap_remove(first);
            }
            on_their_way.push(ends);
        }
        let ends = |(_, on_their_way): &(u64, Vec<u64>)| *on_their_way.iter().max().unwrap() as f64;
        let cycles: f64 = cpus.iter().map(ends).sum();
        let longest = cpus.iter().map(ends).fold(0.0, f64::max);
        for (row, counts) in latencies.iter_mut().zip(&accesses) {
            row.iter_mut().zip(counts).for_each(|(sum, count)| *sum /= count.max(1.0));
        }
        let work_cycles = (NODES as u64 * EACH * think) as f64;
        Load {
            accesses,
            latencies,
            ways: matrix(way),
            cycles,
            work_cycles,
            cpus: cycles / longest,
            in_order: 0.0,
            taken: Vec::new(),
            lines_taken: Vec::new(),
            cached: Vec::new(),
            line_cycles: None,
            bank_cycles: Some(bank as f64),
        }
    }

    /// The CPU works on while its data is on its way, and is never without any.
    #[test]
    fn a_program_that_waits_for_nothing_gains_nothing() {
        let accesses = matrix(|_, to| if to == 0 { 1e6 } else { 0.0 });
        let (latencies, ways) = (matrix(way), matrix(way));
        let cycles = 4e6 * 500.0;
        let load =
            Load { accesses, latencies, ways, cycles, work_cycles: cycles, cpus: 4.0, ..Load::default() };
        let saved = load.fitted().unwrap().saves(&matrix(near));
        assert!(saved.most() < 0.2, "{saved:?}");
    }

    #[test]
    fn unseen_ways_follow_from_what_was_seen() {
        let ratios = matrix(|from, to| RATIOS[usize::from(from != to)]);
        let mut sampled = vec![vec![Vec::new(); NODES]; NODES];
        assert_eq!(ways(&mut sampled, &ratios), None);
        // Most wait, and some do not.
        sampled[3][0] = (0..100).map(|i| if i % 4 == 0 { 390 } else { 390 + 7 * i }).collect();
        let found = ways(&mut sampled, &ratios).unwrap();
        let rounded = [found[3][0], found[1][2], found[2][2]].map(|way| way.round() as u32);
        assert_eq!(rounded, [390, 390, 300]);
        sampled[1][1] = vec![310; 20];
        let near = ways(&mut sampled, &ratios).unwrap()[2][2];
        assert!((near - 310.0).abs() < 1e-9, "{near}");
    }
}
