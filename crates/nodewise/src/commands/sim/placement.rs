//! Options that place a program's threads on CPUs.

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

    /// Place threads on the CPUs in this order: sequential (by CPU number), sockorder, spread or none
    #[arg(long, value_name = "ORDER", hide_possible_values = true,
          value_parser = Named(|| PINNINGS.to_vec()))]
    pin: Option<String>,
}

/// CPUs that an option chooses for threads.
pub struct Chosen {
    /// The CPUs, thread by thread, by the hardware's numbers.
    pub cpus: Vec<usize>,
    /// The option as it was given, for messages.
    pub option: String,
}

impl Placement {
    pub fn pinning(&self) -> anyhow::Result<Option<Pinning>> {
        let Some(name) = &self.pin else { return Ok(None) };
        let meant = did_you_mean(name, PINNINGS.into_iter());
        name.parse().map(Some).map_err(|error| usage(format!("--pin: {error}{meant}")))
    }

    /// The CPUs that --nodes or --cpus chooses.
    pub fn chosen(&self, preset: &Preset) -> anyhow::Result<Option<Chosen>> {
        let (option, cpus) = match (&self.nodes, &self.cpus) {
            (Some(list), _) => {
                let order = self.pinning()?.unwrap_or_default();
                (format!("--nodes {list}"), cpus_of_nodes(list, order, preset))
            }
            (None, Some(list)) => (format!("--cpus {list}"), hardware_cpus(list, preset)),
            (None, None) => return Ok(None),
        };
        let cpus = cpus.map_err(|reason| usage(format!("{option}: {reason}")))?;
        if cpus.is_empty() {
            let option = option.trim_end();
            return Err(usage(format!("{option}: the list is empty, and no thread can run")));
        }
        Ok(Some(Chosen { cpus, option }))
    }
}

fn cpus_of_nodes(list: &str, order: Pinning, preset: &Preset) -> Result<Vec<usize>, String> {
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
    let node_of = preset.nodes_of_cpus();
    let is_chosen = |&cpu: &usize| nodes.contains(NodeId(node_of[cpu] as u32));
    Ok(order.cpus(preset).into_iter().filter(is_chosen).collect())
}

fn hardware_cpus(list: &str, preset: &Preset) -> Result<Vec<usize>, String> {
    let name = &preset.name;
    let parsed = |text: &str| text.parse::<CpuSet>().map_err(|error| error.to_string());
    // The list as a whole first: parts of a wrong one may be right.
    parsed(list)?;
    let numbered = Pinning::Sequential.cpus(preset);
    let mut cpus = Vec::new();
    for part in list.split(',') {
        for CpuId(cpu) in parsed(part)?.iter() {
            let Some(&hardware_cpu) = numbered.get(cpu as usize) else {
                let count = numbered.len();
                return Err(format!("{name} has no CPU {cpu}; its CPUs are 0 to {}", count - 1));
            };
            if cpus.contains(&hardware_cpu) {
                return Err(format!("CPU {cpu} is there twice, and has one thread"));
            }
            cpus.push(hardware_cpu);
        }
    }
    Ok(cpus)
}

/// The operating system's numbers of CPUs.
pub fn cpus_of(hardware_cpus: &[usize], preset: &Preset) -> Vec<usize> {
    let numbered = Pinning::Sequential.cpus(preset);
    let mut cpu_of = vec![0; numbered.len()];
    for (cpu, &hardware_cpu) in numbered.iter().enumerate() {
        cpu_of[hardware_cpu] = cpu;
    }
    hardware_cpus.iter().map(|&hardware_cpu| cpu_of[hardware_cpu]).collect()
}
