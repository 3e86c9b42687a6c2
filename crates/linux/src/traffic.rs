//! The traffic of an interval, as far as samples and the kernel's own figures tell it.

use crate::kernel::LiveKernel;
use crate::mover::Kernel as _;
use nodewise_engine::{Counters, Measure, TrafficMatrix};
use nodewise_topology::Topology;

/// The traffic of the last intervals, fading.
pub(crate) struct Traffic {
    /// A fading mean.
    recent: TrafficMatrix,
    /// A fading mean.
    samples_per_s: f64,
    /// Free memory by node, as it was read last.
    free_bytes: Vec<u64>,
    /// Samples since then.
    samples_since: usize,
    /// The kernel's count of migrated pages when it was read last.
    migrated: u64,
    moved_by_kernel: u64,
}

/// The figures of an interval.
pub(crate) struct Interval {
    pub duration_ns: u64,
    pub samples: usize,
    /// Accesses by accessor and by the home that they met.
    pub met: TrafficMatrix,
    /// By home node; none where samples are in proportion to accesses.
    pub pages_in_use: Option<Vec<f64>>,
}

/// Fewer samples in an interval say too little about its traffic; the engine then goes by what it remembers.
const TRAFFIC_SAMPLES: f64 = 100.0;

/// The share that an interval's figures still have one interval later.
const FADED_SHARE: f64 = 0.5;

impl Traffic {
    pub(crate) fn new(kernel: &mut LiveKernel, nodes: usize) -> Self {
        Self {
            recent: TrafficMatrix::new(nodes),
            samples_per_s: 0.0,
            free_bytes: Vec::new(),
            samples_since: 0,
            migrated: kernel.pages_migrated(),
            moved_by_kernel: 0,
        }
    }

    /// Pages that the kernel's own balancing moved so far, machine-wide.
    pub(crate) const fn moved_by_kernel(&self) -> u64 {
        self.moved_by_kernel
    }

    /// Pages that the kernel's balancing moved since the last call.
    pub(crate) fn note_kernel_moves(&mut self, kernel: &mut LiveKernel) -> u64 {
        let migrated = kernel.pages_migrated();
        let since = migrated.saturating_sub(self.migrated);
        self.migrated = migrated;
        self.moved_by_kernel += since;
        since
    }

    pub(crate) fn counters(
        &mut self,
        kernel: &mut LiveKernel,
        topology: &Topology,
        interval: Interval,
    ) -> Counters {
        let Interval { duration_ns, samples, met, pages_in_use } = interval;
        let mut moved_by_kernel = 0;
        // Few samples decide little, and reading is most of what a program at rest costs. The mover reads
        // anew how much is free before it moves anything.
        self.samples_since += samples;
        if self.samples_since as f64 >= TRAFFIC_SAMPLES || self.free_bytes.is_empty() {
            self.samples_since = 0;
            moved_by_kernel = self.note_kernel_moves(kernel);
            self.free_bytes = topology.nodes().iter().map(|node| kernel.free_bytes(node.id)).collect();
        }
        // Samples come in bursts, once a pass over the memory.
        self.recent.fade(FADED_SHARE);
        self.recent.merge(&met);
        let rate = samples as f64 / (duration_ns.max(1) as f64 / 1e9);
        self.samples_per_s = FADED_SHARE * self.samples_per_s + (1.0 - FADED_SHARE) * rate;
        let by_faults = pages_in_use.is_some();
        let loads = pages_in_use.filter(|pages| pages.iter().sum::<f64>() >= TRAFFIC_SAMPLES);
        let enough = self.recent.total() >= TRAFFIC_SAMPLES;
        let nodes = topology.node_indices().zip(&self.free_bytes);
        let most = |(node, &free)| topology.most_memory_bytes(node).unwrap_or(free);
        let total_bytes = nodes.map(most).collect();
        Counters {
            controller_loads: loads.map_or(Measure::Unknown, Measure::Estimated),
            traffic: if enough { Measure::Estimated(self.recent.clone()) } else { Measure::Unknown },
            access_rate: if by_faults { Measure::Proxy(self.samples_per_s) } else { Measure::Unknown },
            pages_moved_by_kernel: Measure::Measured(moved_by_kernel),
            ..Counters::unknown(self.free_bytes.clone(), total_bytes)
        }
    }
}
