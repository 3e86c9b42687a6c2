//! Events by the clock, under policies that act while the program runs.

use crate::os::kernel::machine::{MoveBudget, SimMachine};
use crate::os::policies::autonuma27::AutoNuma27;
use crate::os::policies::balancing::Balancing;
use crate::os::policies::exchange::Exchange;
use crate::os::policy::Policy;
use crate::os::run::settings::Settings;
use nodewise_engine::{Engine, Machine, SamplingRate};
use std::collections::BTreeSet;

/// When something is due, and what.
pub(crate) struct Events {
    /// For whoever is most behind.
    next_ps: u64,
    engine: Option<Engine>,
    engine_ps: u64,
    interval_ps: u64,
    /// Barriers before which the engine decides nothing. Its interval shrinks with the passes that the run
    /// stands for, and the program's iterations do not. The engine would see a part of an iteration, where
    /// the real one sees many.
    whole: u64,
}

/// Between two decisions of the engine, as in Carrefour.
const INTERVAL_MS: f64 = 1000.0;
/// Pages that are moved in an interval, at most: Carrefour's module knows no more of them
/// (`carrefour-module`, its table of pages).
const MOST_PAGES: f64 = 30_000.0;
/// DRAM accesses of a thread for each sample, when eager: in Carrefour's 65 528 cycles there are some 230
/// (Streamcluster and PCA in the article's table, 2.5 to 4.9 misses in 1000 cycles), and two of five
/// operations that its sampling tags touch memory (estimate).
const ACCURATE_EVERY: f64 = 600.0;

impl Events {
    pub(crate) fn new(machine: &mut SimMachine, settings: &Settings, policy: &Policy) -> Self {
        let interval_ps = ((INTERVAL_MS * settings.period_scale * 1e9) as u64).max(1_000_000);
        let mut events =
            Self { next_ps: u64::MAX, engine: None, engine_ps: interval_ps, interval_ps, whole: 0 };
        match policy {
            Policy::Carrefour => {
                machine.replication = true;
                machine.sampled = settings.sampled_pages_only.then(BTreeSet::new);
                machine.move_budget = MoveBudget::of((MOST_PAGES * settings.size_scale).max(1.0) as u64);
                machine.sampler.cost_ps =
                    (settings.costs.sample_ns as f64 * 1000.0 * machine.one_off_weight) as u64;
                machine.sampler.accurate_every = (ACCURATE_EVERY * machine.one_off_weight).max(1.0) as u32;
                let Ok(()) = machine.set_sampling(SamplingRate::Accurate);
                events.engine = Some(settings.engine(&machine.topology));
                events.next_ps = interval_ps;
                events.whole = machine.iteration;
            }
            Policy::AutoNuma { split } => {
                let (threads, nodes) = (machine.threads.len(), machine.topology.node_count());
                let (periods, sizes) = (settings.period_scale, settings.size_scale);
                let mappings = &machine.processes[0].mappings;
                let mut balancing = Balancing::new(&machine.memory, mappings, threads, nodes, periods, sizes);
                balancing.split = *split;
                balancing.movable = settings.threads_may_move();
                machine.balancing = Some(balancing);
            }
            Policy::AutoNuma27 => {
                let nodes = machine.topology.node_count();
                let (periods, sizes) = (settings.period_scale, settings.size_scale);
                let exchange =
                    settings.threads_may_move().then(|| Exchange::new(machine.threads.len(), nodes));
                let mut autonuma = AutoNuma27::new(&machine.memory, nodes, periods, sizes, exchange);
                autonuma.begin(settings.until_scan);
                events.next_ps = autonuma.next_ps();
                machine.autonuma27 = Some(autonuma);
            }
            _ => {}
        }
        events
    }

    /// When something is due for a thread.
    pub(crate) fn due_ps(&self, machine: &SimMachine, thread: usize) -> u64 {
        let next_ps = if machine.barriers < self.whole { u64::MAX } else { self.next_ps };
        next_ps.min(machine.balancing_due_ps(thread))
    }

    /// Something is due, and `thread` is the one that is most behind.
    pub(crate) fn tick(&mut self, machine: &mut SimMachine, thread: usize, running: &[usize]) {
        let now_ps = machine.hardware.clock(machine.threads[thread].0);
        if let Some(engine) = &mut self.engine {
            let Ok(_round) = engine.step(machine);
            self.engine_ps = self.engine_ps.max(now_ps) + self.interval_ps;
            self.next_ps = self.engine_ps;
            self.whole = machine.barriers + machine.iteration;
        }
        machine.balance(thread, running);
        if let Some(mut autonuma) = machine.autonuma27.take() {
            let marked = autonuma.scan(&mut machine.memory, now_ps);
            if marked > 0 {
                // The daemon runs on any CPU.
                let thread = machine.next_thread();
                machine.scanned(thread, marked);
            }
            if let Some(exchange) = autonuma.looks(now_ps) {
                machine.exchange_threads(exchange, running);
            }
            self.next_ps = autonuma.next_ps();
            machine.autonuma27 = Some(autonuma);
        }
    }
}
