//! The cost of memory by its distance: from firmware's distances and latencies, a measurement, or a machine's
//! preset.

use anyhow::{Context as _, bail};
use nodewise_hardware::{Controller, Hardware, Preset};
use nodewise_topology::{Access, Node, Topology};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const LINE_BYTES: f64 = 64.0;

/// No memory answers sooner, whatever firmware says.
const LEAST_NS: u64 = 20;

/// How long an access takes, by the node of the CPU and that of the memory, in units of the source's.
pub struct Costs {
    /// The origin of the figures.
    pub source: String,
    cycles_per_instruction: f64,
    latencies: BTreeMap<(u32, u32), f64>,
    unit: Unit,
    /// In the same unit.
    line: Option<f64>,
    bank: Option<f64>,
}

/// The unit of a source's times. Distances tell only ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Distance,
    Cycles,
    Nanoseconds,
}

/// A machine as a model of its loads knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The cost of an access from a node (row) to another's memory (column), if a near one costs 1.
    pub ratios: Vec<Vec<f64>>,
    /// Cycles that an instruction takes without any wait for memory: the preset's, or else 1.
    #[serde(default = "one_cycle")]
    pub cycles_per_instruction: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<Times>,
}

const fn one_cycle() -> f64 {
    1.0
}

/// Times of a machine's memories while nothing else uses them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub unit: Unit,
    /// The latency from a node (row) to another's memory (column).
    pub latencies: Vec<Vec<f64>>,
    /// The time that the slowest memory takes for a line at its full bandwidth; none where that is not known.
    pub line: Option<f64>,
    /// The time for which an access keeps one of a memory's banks busy; 0 without banks, and none where that
    /// is not known.
    pub bank: Option<f64>,
}

impl Costs {
    /// The costs by a preset or file, or else by firmware.
    pub fn of(model: Option<&str>, topology: &Topology) -> anyhow::Result<Self> {
        let Some(name) = model else {
            return Ok(Self::by_latency(topology).unwrap_or_else(|| Self::by_distance(topology)));
        };
        let is_measured = Path::new(name).extension().is_some_and(|extension| extension == "json");
        let costs = if is_measured { Self::measured(name) } else { Self::preset(name, topology) }?;
        let nodes = || topology.nodes().iter().filter(|node| node.may_have_memory());
        for (from, to) in nodes().flat_map(|from| nodes().map(move |to| (from, to))) {
            if !from.cpus.is_empty() && !costs.latencies.contains_key(&(from.id.0, to.id.0)) {
                bail!("--model {name}: it has no latency from node {} to node {}", from.id, to.id);
            }
        }
        Ok(costs)
    }

    fn by_distance(topology: &Topology) -> Self {
        let pairs =
            topology.node_indices().flat_map(|from| topology.node_indices().map(move |to| (from, to)));
        let latency = |(from, to)| {
            let key = (topology.id_of(from).0, topology.id_of(to).0);
            (key, f64::from(topology.distance(from, to)))
        };
        let latencies = pairs.map(latency).collect();
        Self {
            source: "firmware's distances".to_owned(),
            cycles_per_instruction: 1.0,
            latencies,
            unit: Unit::Distance,
            line: None,
            bank: None,
        }
    }

    /// By ACPI's HMAT, if it has a latency of each memory. It has those of the nearest CPUs, and distances
    /// tell how much longer the others wait.
    fn by_latency(topology: &Topology) -> Option<Self> {
        let nearest = |node: &Node| -> Option<Access> {
            let has_cpus = |access: &&Access| {
                let mut nodes = topology.nodes().iter();
                nodes.any(|from| access.initiators.contains(from.id) && !from.cpus.is_empty())
            };
            node.access.iter().rfind(has_cpus).cloned()
        };
        let (mut latencies, mut line) = (BTreeMap::new(), Some(0.0_f64));
        for to in topology.node_indices().filter(|&to| topology.node(to).may_have_memory()) {
            let near = nearest(topology.node(to))?;
            let near_ns = near.read_latency_ns.filter(|&latency_ns| latency_ns >= LEAST_NS)? as f64;
            let distance = |from| f64::from(topology.distance(from, to));
            let of_near =
                topology.node_indices().filter(|&from| near.initiators.contains(topology.id_of(from)));
            let least = of_near.map(distance).min_by(f64::total_cmp)?;
            for from in topology.node_indices() {
                let key = (topology.id_of(from).0, topology.id_of(to).0);
                latencies.insert(key, near_ns * (distance(from) / least).max(1.0));
            }
            let taken =
                near.read_bandwidth_bytes_per_s.map(|bytes_per_s| LINE_BYTES / bytes_per_s as f64 * 1e9);
            line = line.zip(taken).map(|(longest, taken)| longest.max(taken));
        }
        Some(Self {
            source: "firmware's latencies and distances".to_owned(),
            cycles_per_instruction: 1.0,
            latencies,
            unit: Unit::Nanoseconds,
            line,
            bank: None,
        })
    }

    /// The output of `nodewise measure --json`.
    fn measured(path: &str) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let json: Value = serde_json::from_str(&text).with_context(|| format!("--model {path}: not JSON"))?;
        let row = |row: &Value| {
            let node = |key: &str| row[key].as_u64().map(|node| node as u32);
            Some(((node("cpu_node")?, node("memory_node")?), row["latency_ns"]["median"].as_f64()?))
        };
        let rows = json["idle_latency"].as_array().map(Vec::as_slice).unwrap_or_default();
        let latencies = rows.iter().map(row).collect::<Option<BTreeMap<_, _>>>();
        match latencies.filter(|latencies| !latencies.is_empty()) {
            Some(latencies) => {
                // There are none if only latencies were measured.
                let bandwidth = |row: &Value| {
                    row["memory_node"].as_u64().and(row["bandwidth_mb_per_s"]["median"].as_f64())
                };
                let rows = json["all_cpus"].as_array().map(Vec::as_slice).unwrap_or_default();
                // A row that caches answered a part of is not the memory's. Older files do not say.
                let memories = rows.iter().filter(|row| row["cached"] == false);
                let slowest = memories.filter_map(bandwidth).min_by(f64::total_cmp);
                Ok(Self {
                    source: format!("latencies measured in {path}"),
                    cycles_per_instruction: 1.0,
                    latencies,
                    unit: Unit::Nanoseconds,
                    line: slowest.map(|mb_per_s| LINE_BYTES / mb_per_s * 1000.0),
                    bank: None,
                })
            }
            None => bail!("--model {path}: no idle_latency, as 'nodewise measure --json' prints it"),
        }
    }

    /// A preset numbers nodes by their place among those with memory, whatever numbers the kernel gives them.
    fn preset(name: &str, topology: &Topology) -> anyhow::Result<Self> {
        let (text, origin) =
            super::rig::preset_text(name).map_err(|why| anyhow::anyhow!("--model: {why}"))?;
        let preset = Preset::parse(&text, &origin).map_err(|error| anyhow::anyhow!("--model: {error}"))?;
        let nodes = topology.nodes().iter().filter(|node| node.may_have_memory());
        let numbers: Vec<u32> = nodes.map(|node| node.id.0).collect();
        let mut latencies = BTreeMap::new();
        let mut cpu = 0;
        for from in (0..preset.nodes.len()).filter(|&node| preset.cpus_of_node(node) > 0) {
            for to in 0..preset.nodes.len() {
                let taken = Hardware::new(&preset).read(cpu, 1 << 30, to).latency_ps;
                // Nodes that this machine does not have are left out.
                if let (Some(&from), Some(&to)) = (numbers.get(from), numbers.get(to)) {
                    latencies.insert((from, to), taken as f64 / preset.cycle_ps());
                }
            }
            cpu += preset.cpus_of_node(from);
        }
        let with_memory = (0..preset.nodes.len()).filter(|&node| preset.nodes[node].memory_bytes > 0);
        let controllers: Vec<_> = with_memory.map(|node| preset.controller_of(node)).collect();
        let longest = |time: fn(&Controller) -> f64| {
            let all = controllers.iter().map(|controller| time(controller) * 1000.0 / preset.cycle_ps());
            all.max_by(f64::total_cmp)
        };
        Ok(Self {
            source: format!("latencies of the machine {origin}"),
            cycles_per_instruction: preset.core.cycles_per_instruction,
            latencies,
            unit: Unit::Cycles,
            line: longest(|controller| controller.service_ns),
            bank: longest(|controller| if controller.banks > 0 { controller.bank_ns } else { 0.0 }),
        })
    }

    /// All that a model of loads takes.
    pub fn machine(&self, topology: &Topology) -> Machine {
        let nodes: Vec<u32> = topology.node_indices().map(|node| topology.id_of(node).0).collect();
        // A node without CPUs accesses nothing.
        let of_pairs = |of: &dyn Fn(u32, u32) -> f64| -> Vec<Vec<f64>> {
            nodes.iter().map(|&from| nodes.iter().map(|&to| of(from, to)).collect()).collect()
        };
        let nearest = |to: u32| {
            let all = self.latencies.iter().filter(|((_, memory), _)| *memory == to);
            all.map(|(_, &latency)| latency).min_by(f64::total_cmp).unwrap_or_default()
        };
        let latency = |from, to| self.latencies.get(&(from, to)).copied().unwrap_or_else(|| nearest(to));
        let times =
            Times { unit: self.unit, latencies: of_pairs(&latency), line: self.line, bank: self.bank };
        Machine {
            ratios: of_pairs(&|from, to| self.ratio(from, to).unwrap_or(1.0)),
            cycles_per_instruction: self.cycles_per_instruction,
            times: (self.unit != Unit::Distance).then_some(times),
        }
    }

    /// How many times longer an access takes than to the CPU's own node; none where it is not known.
    pub fn ratio(&self, cpus: u32, memory: u32) -> Option<f64> {
        let of = |memory| self.latencies.get(&(cpus, memory)).copied();
        Some(of(memory)? / of(cpus)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of an invented machine.
    fn write_below(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn firmware_may_tell_latencies() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| write_below(root.path(), file, text);
        write("sys/devices/system/cpu/online", "0-1\n");
        // Node 2 is memory without CPUs, next to node 1.
        for (node, cpus, distances, latency_ns, mebibytes) in [
            (0, "0", "10 20 30", "100", "32000"),
            (1, "1", "20 10 17", "100", "16000"),
            (2, "", "30 17 10", "250", "8000"),
        ] {
            let directory = format!("sys/devices/system/node/node{node}");
            let near = if node == 2 { 1 } else { node };
            write(&format!("{directory}/access1/initiators/node{near}/x"), "");
            for (file, text) in [
                ("cpulist", cpus),
                ("distance", distances),
                ("meminfo", &format!("Node {node} MemTotal: 1048576 kB\nNode {node} MemFree: 1048576 kB\n")),
                ("access1/initiators/read_latency", latency_ns),
                ("access1/initiators/read_bandwidth", mebibytes),
            ] {
                write(&format!("{directory}/{file}"), &format!("{text}\n"));
            }
        }
        write("sys/devices/system/node/online", "0-2\n");
        write("sys/devices/system/node/has_memory", "0-2\n");
        let topology = Topology::from_root(root.path()).unwrap();
        let costs = Costs::of(None, &topology).unwrap();
        assert_eq!(costs.source, "firmware's latencies and distances");
        let times = costs.machine(&topology).times.unwrap();
        assert_eq!(times.latencies[0][..2], [100.0, 200.0]);
        assert_eq!(times.latencies[1], [200.0, 100.0, 250.0]);
        assert!((times.latencies[0][2] - 250.0 * 30.0 / 17.0).abs() < 1e-9, "{times:?}");
        assert!((times.line.unwrap() - 64.0 / (8000.0 * 1.048_576) * 1000.0).abs() < 1e-9, "{times:?}");
        // No memory answers in a nanosecond.
        write("sys/devices/system/node/node1/access1/initiators/read_latency", "1\n");
        let costs = Costs::of(None, &Topology::from_root(root.path()).unwrap()).unwrap();
        assert_eq!((costs.source.as_str(), costs.ratio(0, 1)), ("firmware's distances", Some(2.0)));
    }

    /// As where nodes 1 and 3 to 7 have no memory, or are not there.
    #[test]
    fn a_presets_nodes_are_those_with_memory_whatever_their_numbers() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| write_below(root.path(), file, text);
        write("sys/devices/system/cpu/online", "0-2");
        for (cpu, node) in [0, 2, 8].into_iter().enumerate() {
            let directory = format!("sys/devices/system/node/node{node}");
            let distances = [20, 20, 20].map(|far: i32| far.to_string());
            let mut distances = distances.to_vec();
            distances[cpu] = "10".to_owned();
            write(&format!("{directory}/cpulist"), &cpu.to_string());
            write(&format!("{directory}/distance"), &distances.join(" "));
            write(&format!("{directory}/meminfo"), &format!("Node {node} MemTotal: 1048576 kB"));
        }
        write("sys/devices/system/node/online", "0,2,8");
        write("sys/devices/system/node/has_memory", "0,2,8");
        let sparse = Topology::from_root(root.path()).unwrap();
        let costs = Costs::of(Some("opteron-8385-4n"), &sparse).unwrap();
        let dense = Costs::of(Some("opteron-8385-4n"), &Topology::synthetic(4, 1, 1 << 30)).unwrap();
        assert!(dense.ratio(0, 1).is_some());
        let of = [costs.ratio(0, 2), costs.ratio(0, 8), costs.ratio(2, 8)];
        assert_eq!(of, [dense.ratio(0, 1), dense.ratio(0, 2), dense.ratio(1, 2)]);
    }

    #[test]
    fn each_source_gives_ratios() {
        let machine = Topology::synthetic(4, 1, 1 << 30);
        let distances = Costs::of(None, &machine).unwrap();
        assert_eq!((distances.ratio(0, 1), distances.ratio(0, 0)), (Some(2.0), Some(1.0)));
        assert_eq!(distances.machine(&machine).times, None);
        // 130 ns and a hop more: see the preset.
        let preset = Costs::of(Some("opteron-8385-4n"), &machine).unwrap();
        let far = preset.ratio(0, 3).unwrap();
        assert!(far > 1.2 && far < 3.0 && preset.ratio(0, 1).unwrap() <= far, "{far}");
        // 130 ns and 10.7 ns a line at 2.3 GHz, and no banks.
        let times = preset.machine(&machine).times.unwrap();
        assert!((times.latencies[2][2] - 299.0).abs() < 1.0, "{times:?}");
        assert!((times.line.unwrap() - 24.6).abs() < 0.1 && times.bank == Some(0.0), "{times:?}");
        let banks = Costs::of(Some("dahu-2n"), &Topology::synthetic(2, 1, 1 << 30)).unwrap();
        assert!((banks.bank.unwrap() - 64.0 * 2.1).abs() < 0.1);
        let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        let row = |from: u32, to: u32, ns: f64| serde_json::json!({"cpu_node": from, "memory_node": to, "latency_ns": {"median": ns}});
        let rows = [row(0, 0, 80.0), row(0, 1, 120.0), row(1, 0, 120.0), row(1, 1, 80.0)];
        let write = |cached| {
            let read = |node: Value, mb_per_s: f64| {
                let bandwidth = serde_json::json!({"median": mb_per_s});
                serde_json::json!({"memory_node": node, "cached": cached, "bandwidth_mb_per_s": bandwidth})
            };
            let all = [read(0.into(), 64e3), read(1.into(), 32e3), read(Value::Null, 16e3)];
            let text = serde_json::json!({ "idle_latency": &rows, "all_cpus": all }).to_string();
            std::fs::write(file.path(), text).unwrap();
        };
        write(false);
        let path = file.path().to_str().unwrap();
        let two = Topology::synthetic(2, 1, 1 << 30);
        let measured = Costs::of(Some(path), &two).unwrap();
        assert_eq!(measured.ratio(1, 0), Some(1.5));
        let latencies = vec![vec![80.0, 120.0], vec![120.0, 80.0]];
        let times = Times { unit: Unit::Nanoseconds, latencies, line: Some(2.0), bank: None };
        assert_eq!(measured.machine(&two).times, Some(times));
        write(true);
        assert_eq!(Costs::of(Some(path), &two).unwrap().machine(&two).times.unwrap().line, None);
        let refused = Costs::of(Some(path), &machine).err().unwrap().to_string();
        assert!(refused.ends_with("it has no latency from node 0 to node 2"), "{refused}");
        assert!(Costs::of(Some("no-such-machine"), &machine).is_err());
    }
}
