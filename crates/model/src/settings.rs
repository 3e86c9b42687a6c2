//! The words between `nodewise rig` and the plugin: what machine it is to be, and what came of it.

use nodewise_engine::imbalance_percent;
use nodewise_hardware::{Counters, Error, Load, Node, Preset};
use nodewise_sys::device::Shape;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The modelled machine under a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The machine, as a preset's TOML text.
    pub preset: String,
    /// The name of the place that the text is from, for errors.
    pub origin: String,
    /// CPUs of each of the guest's nodes. CPUs are numbered node by node.
    pub cpus: Vec<usize>,
    /// Memory of each node in bytes, in the order of guest-physical addresses.
    pub memory_bytes: Vec<u64>,
    /// The factor by which caches are shrunk.
    pub scale: f64,
    /// The factor by which every modelled part is slower.
    pub slow: f64,
    /// Whether accesses to memory take time. Without, instructions alone do.
    pub memory: bool,
    /// The socket on which the plugin is asked to begin and to report.
    pub socket: PathBuf,
    /// The file that is the memory of the guest's device with counters and samples
    /// ([`nodewise_sys::device`]).
    pub device: PathBuf,
    /// The trace that is to be written of the program, if any.
    pub trace: Option<Tracing>,
}

/// A trace that is to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracing {
    /// A file that is there; it has a trace once the [`Report`] tells so.
    pub file: PathBuf,
    /// Most bytes of the file.
    pub limit_bytes: u64,
}

/// A trace that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Accesses in it.
    pub accesses: u64,
    /// Most threads at a time.
    pub threads: usize,
    /// Address spaces.
    pub processes: u64,
    /// Whether it ends where the file had no room for more.
    pub reached_limit: bool,
    /// Why there is none, if there is none.
    pub error: Option<String>,
}

impl Settings {
    /// The size of the machine as the guest's device tells it.
    ///
    /// # Errors
    /// As [`machine`](Self::machine).
    pub(crate) fn shape(&self) -> Result<Shape, Error> {
        let preset = self.machine()?;
        Ok(Shape {
            nodes: preset.nodes.len(),
            cpus: preset.cpus(),
            links: preset.links.iter().map(|link| (link.from, link.to)).collect(),
            cycle_fs: (preset.cycle_ps() * 1000.0).round() as u64,
            line_bytes: preset.line_bytes,
            slow_thousandths: (self.slow * 1000.0).round().max(1.0) as u64,
        })
    }

    /// The bytes of the guest's device.
    ///
    /// # Errors
    /// As [`machine`](Self::machine).
    pub fn device_bytes(&self) -> Result<u64, Error> {
        self.shape().map(|shape| nodewise_sys::device::bytes(&shape) as u64)
    }

    /// The machine with the guest's CPUs and memory, its caches scaled and its parts slowed down. Each CPU is
    /// a core: a guest's cores have one thread.
    ///
    /// # Errors
    /// The text is no preset, or it has another number of nodes than the guest.
    pub fn machine(&self) -> Result<Preset, Error> {
        let mut preset = Preset::parse(&self.preset, &self.origin)?.scaled(self.scale).slowed(self.slow);
        (preset.core.threads, preset.core.smt_speedup) = (1, 1.0);
        for (index, node) in preset.nodes.iter_mut().enumerate() {
            node.cores = self.cpus.get(index).copied().unwrap_or(0);
            node.memory_bytes = self.memory_bytes.get(index).copied().unwrap_or(0);
        }
        Ok(preset)
    }
}

/// The address from which on a PC's memory continues, 4 GiB. QEMU's i440FX leaves 1 GiB below it to devices
/// once there are 3.5 GiB of memory or more (`pc_init1`, QEMU 10.0).
const HIGH: u64 = 4 << 30;
const ALL_LOW: u64 = 0xe000_0000;
const LOW_OF_MORE: u64 = 0xc000_0000;

/// The node of each guest-physical address.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    /// The end of each node's memory, counted without the hole.
    ends: Vec<u64>,
    low: u64,
}

impl Homes {
    pub fn new(memory_bytes: &[u64]) -> Self {
        let mut end = 0;
        let ends: Vec<u64> = memory_bytes
            .iter()
            .map(|bytes| {
                end += bytes;
                end
            })
            .collect();
        Self { ends, low: if end < ALL_LOW { ALL_LOW } else { LOW_OF_MORE } }
    }

    /// The node whose memory this is; none if it is a device's.
    #[inline]
    pub fn node(&self, physical: u64) -> Option<usize> {
        let offset = match physical {
            _ if physical < self.low => physical,
            HIGH.. => physical - HIGH + self.low,
            _ => return None,
        };
        self.ends.iter().position(|&end| offset < end)
    }
}

/// The machine's work between the model's begin and the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Modelled time.
    pub modelled_seconds: f64,
    /// Host time for a modelled second.
    pub slow_down: f64,
    /// Share of the modelled time in which CPUs were ordered wrongly, since one stood still too long, in
    /// percent.
    pub late_percent: f64,
    /// Instructions of all CPUs.
    pub instructions: u64,
    /// Share of the time in which CPUs ran, in percent.
    pub cpus_busy_percent: f64,
    /// DRAM accesses, a row for each accessor node and a column for each home node.
    pub traffic: Vec<Vec<u64>>,
    /// Share of DRAM accesses from the page's own node, in percent; none without accesses.
    pub local_access_percent: Option<f64>,
    /// Mean latency of DRAM accesses in cycles of the modelled core.
    pub dram_latency_cycles: f64,
    /// Standard deviation (n-1) of the accesses to each controller over their mean, in percent.
    pub controller_imbalance_percent: Option<f64>,
    /// The same of the bytes of each link.
    pub link_imbalance_percent: Option<f64>,
    /// Misses of the last-level caches for every thousand instructions.
    pub llc_misses_per_kilo_instruction: f64,
    /// Work of each controller.
    pub controllers: Vec<Work>,
    /// Work of each link.
    pub links: Vec<LinkWork>,
    /// The trace, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Traced>,
}

/// The work of a controller or a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes that it moved.
    pub bytes: u64,
    /// Share of the time in which it was busy, in percent.
    pub use_percent: f64,
    /// Mean time that a line waited for it, in ns.
    pub wait_ns: f64,
}

/// The work of a link in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkWork {
    /// From this node
    pub from: usize,
    /// to this one.
    pub to: usize,
    /// The work.
    #[serde(flatten)]
    pub work: Work,
}

/// The clock's part of a report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub modelled_ps: u64,
    pub host_s: f64,
    pub overtaken_ps: u64,
    pub running_ps: u64,
    pub instructions: u64,
}

impl Report {
    pub(crate) fn new(preset: &Preset, counters: &Counters, times: Times) -> Self {
        let nodes = counters.nodes;
        let modelled_ps = times.modelled_ps.max(1) as f64;
        let traffic: Vec<Vec<u64>> =
            (0..nodes).map(|from| (0..nodes).map(|to| counters.dram_between(from, to)).collect()).collect();
        let accesses: u64 = counters.dram.iter().sum();
        let local: u64 = (0..nodes).map(|node| traffic[node][node]).sum();
        let by_home: Vec<f64> =
            (0..nodes).map(|home| traffic.iter().map(|row| row[home]).sum::<u64>() as f64).collect();
        let work = |load: &Load| Work {
            bytes: load.bytes,
            use_percent: 100.0 * load.busy_ps as f64 / modelled_ps,
            wait_ns: load.wait_ps as f64 * preset.line_bytes as f64 / load.bytes.max(1) as f64 / 1000.0,
        };
        let links: Vec<LinkWork> = preset
            .links
            .iter()
            .zip(&counters.links)
            .map(|(link, load)| LinkWork { from: link.from, to: link.to, work: work(load) })
            .collect();
        let serves = |node: &Node| node.memory_bytes > 0 && node.cores > 0;
        let balanced: Vec<bool> = preset.nodes.iter().map(serves).collect();
        let link_bytes: Vec<f64> = links.iter().map(|link| link.work.bytes as f64).collect();
        let all_ps = modelled_ps * preset.cpus() as f64;
        Self {
            modelled_seconds: modelled_ps / 1e12,
            slow_down: times.host_s / (modelled_ps / 1e12),
            late_percent: 100.0 * times.overtaken_ps as f64 / modelled_ps,
            instructions: times.instructions,
            cpus_busy_percent: 100.0 * times.running_ps as f64 / all_ps,
            local_access_percent: (accesses > 0).then(|| 100.0 * local as f64 / accesses as f64),
            dram_latency_cycles: counters.mean_dram_latency_ps() / preset.cycle_ps(),
            controller_imbalance_percent: imbalance_percent(&by_home, &balanced),
            link_imbalance_percent: imbalance_percent(&link_bytes, &vec![true; links.len()]),
            llc_misses_per_kilo_instruction: counters.llc_misses.iter().sum::<u64>() as f64 * 1000.0
                / times.instructions.max(1) as f64,
            controllers: counters.controllers.iter().map(work).collect(),
            links,
            traffic,
            trace: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_of_a_guest_is_a_core() {
        let name = "dahu-2n-smt";
        let settings = Settings {
            preset: Preset::text(name).unwrap().to_owned(),
            origin: name.to_owned(),
            cpus: vec![3, 2],
            memory_bytes: vec![1 << 30; 2],
            scale: 1.0,
            slow: 1.0,
            memory: true,
            socket: PathBuf::new(),
            device: PathBuf::new(),
            trace: None,
        };
        let machine = settings.machine().unwrap();
        assert_eq!((machine.cores(), machine.cpus()), (5, 5));
        let mut one = Preset::named("dahu-2n").unwrap();
        one.nodes.clone_from(&machine.nodes);
        (one.name, one.about) = (machine.name.clone(), machine.about.clone());
        assert_eq!(machine, one);
    }

    #[test]
    fn memory_goes_on_above_the_hole() {
        let small = Homes::new(&[512 << 20; 4]);
        let nodes = |homes: &Homes, places: &[u64]| -> Vec<Option<usize>> {
            places.iter().map(|&physical| homes.node(physical)).collect()
        };
        let ends = [0, (512 << 20) - 1, 512 << 20, (2 << 30) - 1];
        assert_eq!(nodes(&small, &ends), [Some(0), Some(0), Some(1), Some(3)]);
        let large = Homes::new(&[2 << 30; 4]);
        assert_eq!(nodes(&large, &[LOW_OF_MORE - 1, HIGH]), [Some(1), Some(1)]);
        assert_eq!(nodes(&large, &[HIGH + (1 << 30), HIGH + (5 << 30) - 1]), [Some(2), Some(3)]);
        let devices = [LOW_OF_MORE, HIGH - 1, HIGH + (5 << 30), 1 << 40];
        assert_eq!(nodes(&large, &devices), [None; 4]);
    }
}
