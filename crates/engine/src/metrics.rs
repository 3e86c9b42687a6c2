//! Machine-wide figures from counters, or from the region maps where counters are missing.

use crate::region::{Nature, RegionMap};
use crate::round::Metrics;
use crate::{Counters, Measure};
use nodewise_topology::{NodeIndex, Topology};

/// Samples with a known home that are needed for an estimate.
const MIN_SAMPLES: f64 = 20.0;

/// The nodes with both memory and CPUs, over which traffic should be even.
pub fn balanced_nodes(topology: &Topology, counters: &Counters) -> Vec<bool> {
    let nodes = topology.nodes().iter().enumerate();
    nodes.map(|(n, node)| !node.cpus.is_empty() && memory_bytes(topology, counters, n) > 0).collect()
}

/// A node's memory, as counted now or else the most that it can have by what the topology says.
pub fn memory_bytes(topology: &Topology, counters: &Counters, node: usize) -> u64 {
    let most = || topology.most_memory_bytes(NodeIndex(node as u8)).unwrap_or(u64::MAX);
    counters.total_bytes.get(node).copied().unwrap_or_else(most)
}

/// Derives the figures.
pub fn metrics<'a>(
    topology: &Topology,
    counters: &Counters,
    maps: impl Iterator<Item = &'a RegionMap>,
    targets: &[bool],
) -> Metrics {
    let nodes = topology.node_count();
    let mut estimate = Estimate::new(nodes);
    maps.for_each(|map| estimate.add(map));
    let measured = match &counters.traffic {
        Measure::Measured(traffic) => Some((
            traffic.local_access_percent(),
            traffic.controller_loads(),
            Measure::Measured as fn(f64) -> _,
        )),
        Measure::Estimated(traffic) | Measure::Proxy(traffic) => Some((
            traffic.local_access_percent(),
            traffic.controller_loads(),
            Measure::Estimated as fn(f64) -> _,
        )),
        Measure::Unknown => None,
    };
    let (lar, loads, error) = match &measured {
        Some((Some(lar), loads, standing)) => {
            let (lar, loads) = (*lar, loads.clone());
            if matches!(counters.traffic, Measure::Measured(_)) {
                (standing(lar), Measure::Measured(loads), 0.0)
            } else {
                let error = 100.0 * ((nodes as f64 - 1.0) / loads.iter().sum::<f64>()).sqrt();
                (standing(lar), Measure::Estimated(loads), error)
            }
        }
        _ if measured.is_none() && estimate.samples >= MIN_SAMPLES => {
            let lar = 100.0 * estimate.local / estimate.located;
            let error = 100.0 * ((nodes as f64 - 1.0) / estimate.samples).sqrt();
            (Measure::Estimated(lar), Measure::Estimated(estimate.loads), error)
        }
        _ => (Measure::Unknown, Measure::Unknown, 0.0),
    };
    let (loads, error) = match &counters.controller_loads {
        Measure::Unknown => (loads, error),
        known => (known.clone(), 0.0),
    };
    let imbalance = match &loads {
        Measure::Measured(loads) => imbalance_percent(loads, targets).map(Measure::Measured),
        Measure::Estimated(loads) | Measure::Proxy(loads) => {
            imbalance_percent(loads, targets).map(Measure::Estimated)
        }
        Measure::Unknown => None,
    };
    let read_percent = match &counters.read_percent {
        Measure::Unknown if estimate.known_kind >= MIN_SAMPLES => {
            Measure::Estimated(100.0 * estimate.reads / estimate.known_kind)
        }
        other => other.clone(),
    };
    let total =
        (0..nodes).fold(0, |sum: u64, node| sum.saturating_add(memory_bytes(topology, counters, node)));
    let free: u64 = counters.free_bytes.iter().sum();
    Metrics {
        access_rate: counters.access_rate.clone(),
        local_access_percent: lar,
        controller_loads: loads,
        controller_imbalance_percent: imbalance.unwrap_or(Measure::Unknown),
        controller_imbalance_error: error,
        read_percent,
        memory_use_percent: 100.0 * (1.0 - free as f64 / total.max(1) as f64).max(0.0),
    }
}

/// The share of a process's accesses that are local, as far as its samples tell.
pub(crate) fn local_access_percent(map: &RegionMap, nodes: usize) -> Option<f64> {
    let mut estimate = Estimate::new(nodes);
    estimate.add(map);
    (estimate.samples >= MIN_SAMPLES).then(|| 100.0 * estimate.local / estimate.located)
}

/// Sums over regions.
struct Estimate {
    /// Samples with a known home, decayed.
    samples: f64,
    /// Accesses of regions whose homes are known, and how many of them were local.
    located: f64,
    local: f64,
    loads: Vec<f64>,
    known_kind: f64,
    reads: f64,
}

impl Estimate {
    fn new(nodes: usize) -> Self {
        Self { samples: 0.0, located: 0.0, local: 0.0, loads: vec![0.0; nodes], known_kind: 0.0, reads: 0.0 }
    }

    fn add(&mut self, map: &RegionMap) {
        let weight = f64::from(map.weight());
        for region in map.regions() {
            let evidence = &region.evidence;
            let total = f64::from(evidence.total()) * weight;
            let homes: f64 = evidence.homes().iter().map(|&home| f64::from(home)).sum();
            if homes > 0.0 {
                self.samples += homes;
                self.located += total;
                // The kernel may have moved a page to its accessor just before its home was asked for, which
                // makes any page look local. Where all nodes use all pages it does not matter
                // which page an access met.
                let local = if region.nature() == Nature::Shared {
                    let located =
                        (0..evidence.homes().len()).map(|n| evidence.accesses(n) * evidence.homes()[n]);
                    f64::from(located.sum::<f32>() / evidence.total())
                } else {
                    f64::from(evidence.local())
                };
                self.local += total * (local / homes).min(1.0);
                for (load, &home) in self.loads.iter_mut().zip(evidence.homes()) {
                    *load += total * f64::from(home) / homes;
                }
            }
            let writes: f64 = evidence.writes().iter().map(|&count| f64::from(count)).sum();
            let known = f64::from(evidence.total() - evidence.unknown()).max(0.0);
            self.known_kind += known;
            self.reads += (known - writes).max(0.0);
        }
    }
}

/// Sample standard deviation over mean, in percent, of the loads of the balanced nodes and of any other node
/// that serves accesses; none when there is nothing to compare.
#[must_use]
pub fn imbalance_percent(loads: &[f64], balanced: &[bool]) -> Option<f64> {
    let loads: Vec<f64> = loads
        .iter()
        .zip(balanced)
        .filter(|&(&load, &balanced)| balanced || load > 0.0)
        .map(|(&load, _)| load)
        .collect();
    let n = loads.len() as f64;
    let mean = loads.iter().sum::<f64>() / n;
    if loads.len() < 2 || mean <= 0.0 {
        return None;
    }
    let variance = loads.iter().map(|load| (load - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some(100.0 * variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::imbalance_percent;

    #[test]
    fn all_on_one_of_four_nodes_is_200_percent() {
        let imbalance = imbalance_percent(&[12.0, 0.0, 0.0, 0.0], &[true; 4]).unwrap();
        assert!((imbalance - 200.0).abs() < 1e-9, "{imbalance}");
        assert_eq!(imbalance_percent(&[3.0; 4], &[true; 4]), Some(0.0));
        assert_eq!(imbalance_percent(&[0.0; 4], &[true; 4]), None);
        assert_eq!(imbalance_percent(&[5.0, 0.0], &[true, false]), None);
    }
}
