//! The cost of memory by its distance: from firmware's distances, a measurement, or a machine's preset.

use anyhow::{Context as _, bail};
use nodewise_hardware::{Hardware, Preset};
use nodewise_topology::Topology;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// How long an access takes, by the node of the CPU and that of the memory, in units of the source's.
pub struct Costs {
    /// The origin of the figures.
    pub source: String,
    /// Cycles that an instruction takes without any wait for memory: the preset's, or else 1.
    pub cycles_per_instruction: f64,
    latencies: BTreeMap<(u32, u32), f64>,
}

impl Costs {
    /// The costs by a preset or file, or else by firmware's distances.
    pub fn of(model: Option<&str>, topology: &Topology) -> anyhow::Result<Self> {
        let Some(name) = model else { return Ok(Self::by_distance(topology)) };
        let is_measured = Path::new(name).extension().is_some_and(|extension| extension == "json");
        let costs = if is_measured { Self::measured(name) } else { Self::preset(name) }?;
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
        Self { source: "firmware's distances".to_owned(), cycles_per_instruction: 1.0, latencies }
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
                let source = format!("latencies measured in {path}");
                Ok(Self { source, cycles_per_instruction: 1.0, latencies })
            }
            None => bail!("--model {path}: no idle_latency, as 'nodewise measure --json' prints it"),
        }
    }

    fn preset(name: &str) -> anyhow::Result<Self> {
        let (text, origin) =
            super::rig::preset_text(name).map_err(|why| anyhow::anyhow!("--model: {why}"))?;
        let preset = Preset::parse(&text, &origin).map_err(|error| anyhow::anyhow!("--model: {error}"))?;
        let mut latencies = BTreeMap::new();
        let mut cpu = 0;
        for from in (0..preset.nodes.len()).filter(|&node| preset.cpus_of_node(node) > 0) {
            for to in 0..preset.nodes.len() {
                let taken = Hardware::new(&preset).read(cpu, 1 << 30, to).latency_ps;
                latencies.insert((from as u32, to as u32), taken as f64);
            }
            cpu += preset.cpus_of_node(from);
        }
        let source = format!("latencies of the machine {origin}");
        Ok(Self { source, cycles_per_instruction: preset.core.cycles_per_instruction, latencies })
    }

    /// How many times longer an access takes than a near one, from each node (row) to each (column).
    pub fn ratios(&self, topology: &Topology) -> Vec<Vec<f64>> {
        let nodes: Vec<u32> = topology.node_indices().map(|node| topology.id_of(node).0).collect();
        // A node without CPUs accesses nothing.
        let row = |from: u32| nodes.iter().map(|&to| self.ratio(from, to).unwrap_or(1.0)).collect();
        nodes.iter().map(|&from| row(from)).collect()
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

    #[test]
    fn each_source_gives_ratios() {
        let machine = Topology::synthetic(4, 1, 1 << 30);
        let distances = Costs::of(None, &machine).unwrap();
        assert_eq!((distances.ratio(0, 1), distances.ratio(0, 0)), (Some(2.0), Some(1.0)));
        // 130 ns and a hop more: see the preset.
        let preset = Costs::of(Some("opteron-8385-4n"), &machine).unwrap();
        let far = preset.ratio(0, 3).unwrap();
        assert!(far > 1.2 && far < 3.0 && preset.ratio(0, 1).unwrap() <= far, "{far}");
        let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        let row = |from: u32, to: u32, ns: f64| serde_json::json!({"cpu_node": from, "memory_node": to, "latency_ns": {"median": ns}});
        let rows = [row(0, 0, 80.0), row(0, 1, 120.0), row(1, 0, 120.0), row(1, 1, 80.0)];
        let text = serde_json::json!({ "idle_latency": rows }).to_string();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let two = Topology::synthetic(2, 1, 1 << 30);
        assert_eq!(Costs::of(Some(path), &two).unwrap().ratio(1, 0), Some(1.5));
        let refused = Costs::of(Some(path), &machine).err().unwrap().to_string();
        assert!(refused.ends_with("it has no latency from node 0 to node 2"), "{refused}");
        assert!(Costs::of(Some("no-such-machine"), &machine).is_err());
    }
}
