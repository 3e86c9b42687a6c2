//! The traffic of an interval, and how surely each figure is known.

use nodewise_topology::NodeIndex;
use serde::{Deserialize, Serialize};

/// A figure with its standing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "standing", content = "value")]
pub enum Measure<T> {
    /// Read from a counter.
    Measured(T),
    /// Computed from samples that stand for all accesses.
    Estimated(T),
    /// Another figure that moves with the one asked for; rules use it with a threshold of its own.
    Proxy(T),
    /// Not known: rules that need it are off.
    #[default]
    Unknown,
}

impl<T> Measure<T> {
    /// The figure, however it was found.
    pub const fn get(&self) -> Option<&T> {
        match self {
            Self::Measured(v) | Self::Estimated(v) | Self::Proxy(v) => Some(v),
            Self::Unknown => None,
        }
    }

    /// Whether it is not known.
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// DRAM accesses by accessor node (row) and home node (column) in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct TrafficMatrix {
    nodes: usize,
    accesses: Vec<f64>,
}

/// A matrix as a file has it.
#[derive(Deserialize)]
struct Unchecked {
    nodes: usize,
    accesses: Vec<f64>,
}

impl TryFrom<Unchecked> for TrafficMatrix {
    type Error = String;

    fn try_from(Unchecked { nodes, accesses }: Unchecked) -> Result<Self, String> {
        if nodes.checked_mul(nodes) == Some(accesses.len()) {
            Ok(Self { nodes, accesses })
        } else {
            Err(format!("{} counts of traffic among {nodes} nodes", accesses.len()))
        }
    }
}

impl TrafficMatrix {
    /// No traffic among `nodes` nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self { nodes, accesses: vec![0.0; nodes * nodes] }
    }

    /// Counts `accesses` from `accessor` to `home`.
    pub fn add(&mut self, accessor: NodeIndex, home: NodeIndex, accesses: f64) {
        self.accesses[accessor.get() * self.nodes + home.get()] += accesses;
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        self.accesses.iter_mut().zip(&other.accesses).for_each(|(sum, accesses)| *sum += accesses);
    }

    /// Lets all counts fade to this share of what they were.
    pub fn fade(&mut self, share: f64) {
        self.accesses.iter_mut().for_each(|accesses| *accesses *= share);
    }

    /// Accesses from `accessor` to `home`.
    #[must_use]
    pub fn get(&self, accessor: NodeIndex, home: NodeIndex) -> f64 {
        self.accesses[accessor.get() * self.nodes + home.get()]
    }

    /// All accesses.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.accesses.iter().sum()
    }

    /// Local access ratio in percent; none without traffic.
    #[must_use]
    pub fn local_access_percent(&self) -> Option<f64> {
        let total = self.total();
        let local: f64 = (0..self.nodes).map(|n| self.accesses[n * self.nodes + n]).sum();
        (total > 0.0).then(|| 100.0 * local / total)
    }

    /// Accesses that each node's controller served, by home node.
    #[must_use]
    pub fn controller_loads(&self) -> Vec<f64> {
        (0..self.nodes).map(|home| self.accesses.iter().skip(home).step_by(self.nodes).sum()).collect()
    }
}

/// The machine's counts of one interval. All figures are of the managed processes where the counter allows
/// that, else of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// DRAM accesses by accessor and home node. When unknown the engine estimates it from samples' homes.
    pub traffic: Measure<TrafficMatrix>,
    /// The part of `traffic` that programs made, and not the kernel; all programs where they are not told
    /// apart.
    #[serde(default, skip_serializing_if = "Measure::is_unknown")]
    pub user_traffic: Measure<TrafficMatrix>,
    /// The share of `traffic` that instructions asked for, in percent: the rest was prefetched beside it.
    #[serde(default, skip_serializing_if = "Measure::is_unknown")]
    pub demand_percent: Measure<f64>,
    /// Accesses that each node's controller serves, by home node, in any unit; where unknown they follow
    /// from the traffic. A sampler whose samples do not stand for accesses may know better which pages
    /// are in use than how often.
    pub controller_loads: Measure<Vec<f64>>,
    /// DRAM accesses in a microsecond, all nodes together; as proxy: hint faults in a second.
    pub access_rate: Measure<f64>,
    /// Share of DRAM accesses that are reads, in percent.
    pub read_percent: Measure<f64>,
    /// Mean DRAM latency by home node, in core cycles.
    pub latency_cycles: Measure<Vec<f64>>,
    /// Retired instructions.
    pub instructions: Measure<f64>,
    /// Core cycles while not halted.
    pub cycles: Measure<f64>,
    /// Core cycles that accesses took which the accessor's own last-level cache served, by its node. Several
    /// of a CPU may be on their way at once.
    #[serde(default, skip_serializing_if = "Measure::is_unknown")]
    pub llc_cycles: Measure<Vec<f64>>,
    /// Last-level cache misses.
    pub cache_misses: Measure<f64>,
    /// Free memory by node, in bytes.
    pub free_bytes: Vec<u64>,
    /// All memory by node, in bytes.
    pub total_bytes: Vec<u64>,
    /// Pages that somebody else moved meanwhile (the kernel's balancing).
    pub pages_moved_by_kernel: Measure<u64>,
}

impl Counters {
    /// Whether samples are hint faults, of which a page has one a scan.
    pub(crate) const fn are_by_faults(&self) -> bool {
        matches!(self.access_rate, Measure::Proxy(_))
    }

    /// Nothing but how much memory each node has, and how much of it is free, in bytes.
    #[must_use]
    pub const fn unknown(free_bytes: Vec<u64>, total_bytes: Vec<u64>) -> Self {
        Self {
            traffic: Measure::Unknown,
            user_traffic: Measure::Unknown,
            demand_percent: Measure::Unknown,
            controller_loads: Measure::Unknown,
            access_rate: Measure::Unknown,
            read_percent: Measure::Unknown,
            latency_cycles: Measure::Unknown,
            instructions: Measure::Unknown,
            cycles: Measure::Unknown,
            llc_cycles: Measure::Unknown,
            cache_misses: Measure::Unknown,
            free_bytes,
            total_bytes,
            pages_moved_by_kernel: Measure::Unknown,
        }
    }
}
