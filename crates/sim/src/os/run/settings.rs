//! How a simulation is run.

use crate::os::kernel::costs::Costs;
use crate::os::kernel::memory::HUGE_PAGES;
use crate::os::run::pinning::Pinning;
use nodewise_engine::{Carrefour, CarrefourSettings, Engine, EngineSettings};
use nodewise_topology::Topology;

/// How a simulation is run, whatever the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How threads are laid over the CPUs.
    pub pinning: Pinning,
    /// The CPUs of the threads, one after the other, if the caller chose them. Threads then stay there. CPUs
    /// have the hardware's numbers ([`Hardware`](nodewise_hardware::Hardware)).
    pub cpus: Option<Vec<usize>>,
    /// Whether first touches map a huge page at once.
    pub huge_pages: bool,
    /// 4 KiB pages of a huge page: 512, or a divisor of it that shrinks huge pages with the problem, so that
    /// as many of them are shared as at full size.
    pub huge_page_pages: usize,
    /// The costs that the operating system charges.
    pub costs: Costs,
    /// Simulated memory over real memory: the scale of the problem. The memory that the kernel scans at a
    /// time shrinks by it.
    pub size_scale: f64,
    /// Simulated periods over real ones: the engine's interval of a second and the kernel's scan periods
    /// shrink by it. A simulated run stands for one that takes 1/`period_scale` as long: with fewer
    /// bytes, and fewer iterations over them, by `period_scale / size_scale`. So that a page has as many
    /// samples in an interval, and what is done to it once weighs as much in the run, samples come more
    /// often and all kernel time and copies count less, by the same.
    pub period_scale: f64,
    /// How much of the pause between two scans of version 27 of the `AutoNUMA` patch is left when the
    /// program begins, from 0 to 1: its daemon runs since boot.
    pub until_scan: f64,
    /// Whether decisions of the engine reach only pages that were sampled in the interval, as those of the
    /// article's Carrefour, which knows no others and forgets them each second; else all pages of the
    /// regions they are about.
    pub sampled_pages_only: bool,
    /// How far a thread may run ahead of the one that is most behind, with what its core's own caches serve,
    /// in picoseconds. Whatever asks more of the machine is done in the order of time.
    pub slack_ps: u64,
    /// Seed of the engine's choices.
    pub seed: u64,
}

/// How many times as often the real program goes over its data, if nobody says.
pub const PASSES: f64 = 100.0;

impl Settings {
    /// The settings for a problem of this scale.
    ///
    /// A workload runs few of the iterations of the real program: a hundredth ([`PASSES`]), we say of all of
    /// them.
    #[must_use]
    pub fn scaled(scale: f64) -> Self {
        Self {
            pinning: Pinning::None,
            cpus: None,
            huge_pages: false,
            huge_page_pages: HUGE_PAGES,
            costs: Costs::default(),
            size_scale: scale,
            period_scale: scale / PASSES,
            until_scan: 0.5,
            sampled_pages_only: false,
            slack_ps: 1_000_000,
            seed: 1,
        }
    }

    /// Whether NUMA balancing may move threads.
    pub(crate) fn threads_may_move(&self) -> bool {
        self.pinning == Pinning::None && self.cpus.is_none()
    }

    /// The same with huge pages that shrink with the problem, to two base pages at least. As many threads
    /// share one as at full size, and its first touch zeroes as much less.
    #[must_use]
    pub fn with_huge_pages(self) -> Self {
        let pages = ((HUGE_PAGES as f64 * self.size_scale) as usize).next_power_of_two().clamp(2, HUGE_PAGES);
        let huge_page_fault_ns = self.costs.huge_page_fault_ns * pages as u64 / HUGE_PAGES as u64;
        let costs = Costs { huge_page_fault_ns, ..self.costs };
        Self { huge_pages: true, huge_page_pages: pages, costs, ..self }
    }

    /// The engine that runs under [`Policy::Carrefour`].
    #[must_use]
    pub fn engine(&self, topology: &Topology) -> Engine {
        let settings = EngineSettings { seed: self.seed, ..EngineSettings::default() };
        Engine::new(topology, Box::new(Carrefour::new(CarrefourSettings::default())), settings)
    }
}
