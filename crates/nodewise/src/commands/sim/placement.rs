//! Options that place a program's threads on cores.

use super::{Named, did_you_mean, usage};
use nodewise_hardware::Preset;
use nodewise_sim::{PINNINGS, Pinning};
use nodewise_topology::{CpuId, CpuSet, NodeId, NodeSet, ParseError};

#[derive(clap::Args)]
pub struct Placement {
    /// Run threads only on the CPUs of these nodes, as in 0-2,5, where they stay. Nodes get threads in turn,
    /// or as --pin says
    #[arg(long, value_name = "LIST", conflicts_with = "study")]
    nodes: Option<String>,

    /// Run the first thread on the first of these CPUs, and so on, as in 8,0-3, where they stay. CPUs have
    /// the numbers that the machine's operating system gives them
    #[arg(long, value_name = "LIST", conflicts_with_all = ["study", "nodes", "pin"])]
    cpus: Option<String>,

    /// Place threads on the cores in this order: sequential (by CPU number), sockorder, spread or none
    #[arg(long, value_name = "ORDER", hide_possible_values = true,
          value_parser = Named(|| PINNINGS.to_vec()))]
    pin: Option<String>,
}

/// Cores that an option chooses for threads.
pub struct Chosen {
    /// The cores, thread by thread.
    pub cores: Vec<usize>,
    /// The option as it was given, for messages.
    pub option: String,
}

impl Placement {
    pub fn pinning(&self) -> anyhow::Result<Option<Pinning>> {
        let Some(name) = &self.pin else { return Ok(None) };
        let meant = did_you_mean(name, PINNINGS.into_iter());
        name.parse().map(Some).map_err(|error| usage(format!("--pin: {error}{meant}")))
    }

    /// The cores that --nodes or --cpus chooses.
    pub fn chosen(&self, preset: &Preset) -> anyhow::Result<Option<Chosen>> {
        let (option, cores) = match (&self.nodes, &self.cpus) {
            (Some(list), _) => {
                let order = self.pinning()?.unwrap_or_default();
                (format!("--nodes {list}"), cores_of_nodes(list, order, preset))
            }
            (None, Some(list)) => (format!("--cpus {list}"), cores_of_cpus(list, preset)),
            (None, None) => return Ok(None),
        };
        let cores = cores.map_err(|reason| usage(format!("{option}: {reason}")))?;
        if cores.is_empty() {
            let option = option.trim_end();
            return Err(usage(format!("{option}: the list is empty, and no thread can run")));
        }
        Ok(Some(Chosen { cores, option }))
    }
}

fn cores_of_nodes(list: &str, order: Pinning, preset: &Preset) -> Result<Vec<usize>, String> {
    let name = &preset.name;
    let nodes: NodeSet = list.parse().map_err(|error: ParseError| error.to_string())?;
    for NodeId(node) in nodes.iter() {
        match preset.nodes.get(node as usize) {
            None => {
                let count = preset.nodes.len();
                return Err(format!("{name} has no node {node}; its nodes are 0 to {}", count - 1));
            }
            Some(of_node) if of_node.cores == 0 => return Err(format!("{name} has no CPUs on node {node}")),
            Some(_) => {}
        }
    }
    let node_of = preset.nodes_of_cores();
    let is_chosen = |&core: &usize| nodes.contains(NodeId(node_of[core] as u32));
    Ok(order.cores(preset).into_iter().filter(is_chosen).collect())
}

fn cores_of_cpus(list: &str, preset: &Preset) -> Result<Vec<usize>, String> {
    let name = &preset.name;
    let parsed = |text: &str| text.parse::<CpuSet>().map_err(|error| error.to_string());
    // The list as a whole first: parts of a wrong one may be right.
    parsed(list)?;
    let core_of = Pinning::Sequential.cores(preset);
    let mut cores = Vec::new();
    for part in list.split(',') {
        for CpuId(cpu) in parsed(part)?.iter() {
            let Some(&core) = core_of.get(cpu as usize) else {
                let count = core_of.len();
                return Err(format!("{name} has no CPU {cpu}; its CPUs are 0 to {}", count - 1));
            };
            if cores.contains(&core) {
                return Err(format!("CPU {cpu} is there twice, and has one thread"));
            }
            cores.push(core);
        }
    }
    Ok(cores)
}

/// The operating system's numbers of cores.
pub fn cpus_of(cores: &[usize], preset: &Preset) -> Vec<usize> {
    let core_of = Pinning::Sequential.cores(preset);
    let mut cpu_of = vec![0; core_of.len()];
    for (cpu, &core) in core_of.iter().enumerate() {
        cpu_of[core] = cpu;
    }
    cores.iter().map(|&core| cpu_of[core]).collect()
}
