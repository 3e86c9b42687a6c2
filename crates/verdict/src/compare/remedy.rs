//! How to have a placement for good: as a command line, in a unit of systemd, in a container, under Slurm.

use super::{How, NEVER};
use nodewise_topology::CpuId;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// One placement, in the words of those who start programs. A way that has no words for it is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remedy {
    /// For a shell.
    pub command: String,
    /// Lines for the section `[Service]` of a unit.
    pub systemd: Vec<String>,
    /// Fields of a container's `config.json`. Modes of `memoryPolicy` are named as in `mempolicy.h`. It is in
    /// the OCI runtime specification from 1.3 on, and in crun, runc and youki.
    pub oci: Option<String>,
    /// For Slurm.
    pub srun: Option<String>,
}

/// The kernel's file of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// A step that has all of its node's CPUs: it may be bound to no others than its own (srun(1)).
const SRUN: &str = "srun --exclusive";

/// How to have the placement for a command. With `own_cpus`, it keeps its threads on CPUs of its own choice.
#[must_use]
pub fn remedy(how: &How, command: &[String], own_cpus: bool) -> Remedy {
    let words = quoted(command);
    let under = |prefix: &str| format!("{prefix} -- {words}");
    // systemd wants a whole path where it starts a program.
    let unit = |prefix: &str| vec![format!("ExecStart=/usr/bin/{prefix} -- {words}")];
    match how {
        How::Default => Remedy { command: words, ..Remedy::default() },
        How::Node { node: memory, .. } | How::Far { memory, .. } if own_cpus => {
            let command = under(&format!("nodewise run -m {memory}"));
            Remedy {
                systemd: vec!["NUMAPolicy=bind".to_owned(), format!("NUMAMask={memory}")],
                oci: Some(policy("MPOL_BIND", &memory.to_string())),
                srun: Some(format!("srun {command}")),
                command,
            }
        }
        How::Node { node, cpus } => bound(&words, &cpus.to_string(), &node.to_string()),
        How::Far { cpus, memory, .. } => bound(&words, &cpus.to_string(), &memory.to_string()),
        How::Interleave { nodes } => Remedy {
            command: under(&format!("nodewise run -i {nodes}")),
            systemd: vec!["NUMAPolicy=interleave".to_owned(), format!("NUMAMask={nodes}")],
            oci: Some(policy("MPOL_INTERLEAVE", &nodes.to_string())),
            srun: Some(format!("srun {}", under(&format!("nodewise run -i {nodes}")))),
        },
        How::WeightedInterleave { nodes } => {
            let prefix = format!("nodewise run -w {nodes}");
            Remedy {
                command: under(&prefix),
                systemd: unit(&prefix),
                oci: Some(policy("MPOL_WEIGHTED_INTERLEAVE", &nodes.to_string())),
                srun: Some(format!("srun {}", under(&prefix))),
            }
        }
        How::Pinned { cpus } => {
            let places: Vec<String> = cpus.iter().map(|cpu| format!("{{{cpu}}}")).collect();
            let openmp = [format!("OMP_PLACES={}", places.join(",")), "OMP_PROC_BIND=true".to_owned()];
            let list = cpus.iter().map(CpuId::to_string).collect::<Vec<_>>().join(",");
            let command = format!("likwid-pin -c {list} {words}");
            Remedy {
                systemd: openmp.iter().map(|variable| format!("Environment={variable}")).collect(),
                oci: None,
                // Slurm's own lists are of tasks: all threads of one would be on its CPU.
                srun: Some(format!("{SRUN} --cpu-bind=none {command}")),
                command,
            }
        }
        How::Balancing { on } => {
            let setting = format!("kernel.numa_balancing={}", u8::from(*on));
            Remedy {
                command: format!("sudo sysctl {setting}"),
                systemd: vec![format!("ExecStartPre=+/sbin/sysctl {setting}")],
                ..Remedy::default()
            }
        }
        How::HugePages { enabled } if enabled == NEVER => {
            let prefix = "nodewise run --huge-pages never";
            Remedy {
                command: under(prefix),
                systemd: unit(prefix),
                oci: None,
                srun: Some(format!("srun {}", under(prefix))),
            }
        }
        How::HugePages { enabled } => Remedy {
            command: format!("echo {enabled} | sudo tee {HUGE_PAGES}"),
            systemd: vec![format!("ExecStartPre=+/bin/sh -c 'echo {enabled} >{HUGE_PAGES}'")],
            ..Remedy::default()
        },
        How::Nodewise => Remedy {
            command: under("nodewise run"),
            systemd: unit("nodewise run"),
            oci: None,
            srun: Some(format!("srun {}", under("nodewise run"))),
        },
    }
}

/// On CPUs, with memory of one node.
fn bound(words: &str, cpus: &str, memory: &str) -> Remedy {
    let prefix = format!("nodewise run -C {cpus} -m {memory}");
    let resources = format!("\"resources\": {{\"cpu\": {{\"cpus\": \"{cpus}\", \"mems\": \"{memory}\"}}}}");
    let list = cpus.parse::<nodewise_topology::CpuSet>().unwrap_or_default();
    Remedy {
        command: format!("{prefix} -- {words}"),
        systemd: vec![
            "NUMAPolicy=bind".to_owned(),
            format!("NUMAMask={memory}"),
            format!("CPUAffinity={cpus}"),
        ],
        oci: Some(format!("\"linux\": {{{}, {resources}}}", memory_policy("MPOL_BIND", memory))),
        srun: Some(format!("{SRUN} --cpu-bind=mask_cpu:{} --mem-bind=map_mem:{memory} {words}", mask(&list))),
    }
}

fn policy(mode: &str, nodes: &str) -> String {
    format!("\"linux\": {{{}}}", memory_policy(mode, nodes))
}

fn memory_policy(mode: &str, nodes: &str) -> String {
    format!("\"memoryPolicy\": {{\"mode\": \"{mode}\", \"nodes\": \"{nodes}\"}}")
}

/// A mask in the hexadecimal form that Slurm takes.
fn mask(cpus: &nodewise_topology::CpuSet) -> String {
    let mut digits = String::new();
    for word in cpus.words().iter().rev() {
        let _ = write!(digits, "{word:016x}");
    }
    format!("0x{}", digits.trim_start_matches('0'))
}

/// The command as a shell understands it.
#[must_use]
pub fn quoted(command: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_topology::NodeId;

    fn command() -> Vec<String> {
        ["./solver", "it's", "a b"].map(str::to_owned).to_vec()
    }

    #[test]
    fn one_node_in_everybodys_words() {
        let how = How::Node { node: NodeId(1), cpus: "8-11,64".parse().unwrap() };
        let Remedy { command, systemd, oci, srun } = remedy(&how, &command(), false);
        let words = r"./solver 'it'\''s' 'a b'";
        assert_eq!(command, format!("nodewise run -C 8-11,64 -m 1 -- {words}"));
        assert_eq!(systemd, ["NUMAPolicy=bind", "NUMAMask=1", "CPUAffinity=8-11,64"]);
        let resources = r#""resources": {"cpu": {"cpus": "8-11,64", "mems": "1"}}"#;
        let memory = r#""memoryPolicy": {"mode": "MPOL_BIND", "nodes": "1"}"#;
        assert_eq!(oci.unwrap(), format!(r#""linux": {{{memory}, {resources}}}"#));
        let mask = "0x10000000000000f00";
        let own = "srun --exclusive --cpu-bind";
        assert_eq!(srun.unwrap(), format!("{own}=mask_cpu:{mask} --mem-bind=map_mem:1 {words}"));
    }

    #[test]
    fn a_program_that_has_cpus_of_its_own_is_given_memory_only() {
        let far = How::Far { node: NodeId(1), cpus: "8-11".parse().unwrap(), memory: NodeId(3) };
        let Remedy { command, systemd, oci, srun } = remedy(&far, &["./solver".to_owned()], true);
        assert_eq!(command, "nodewise run -m 3 -- ./solver");
        assert_eq!(systemd, ["NUMAPolicy=bind", "NUMAMask=3"]);
        assert!(!oci.unwrap().contains("cpus"));
        assert_eq!(srun.unwrap(), "srun nodewise run -m 3 -- ./solver");
    }

    #[test]
    fn threads_are_pinned_one_by_one_under_slurm_too() {
        let cpus = [4, 0].map(CpuId).to_vec();
        let Remedy { command, systemd, srun, .. } =
            remedy(&How::Pinned { cpus }, &["./solver".to_owned()], false);
        assert_eq!(command, "likwid-pin -c 4,0 ./solver");
        assert_eq!(systemd, ["Environment=OMP_PLACES={4},{0}", "Environment=OMP_PROC_BIND=true"]);
        assert_eq!(srun.unwrap(), "srun --exclusive --cpu-bind=none likwid-pin -c 4,0 ./solver");
    }

    #[test]
    fn a_program_alone_goes_without_huge_pages() {
        let remedy = |enabled: &str| {
            remedy(&How::HugePages { enabled: enabled.to_owned() }, &["./solver".to_owned()], false)
        };
        let Remedy { command, systemd, oci, srun } = remedy("never");
        assert_eq!(command, "nodewise run --huge-pages never -- ./solver");
        assert_eq!(systemd, ["ExecStart=/usr/bin/nodewise run --huge-pages never -- ./solver"]);
        assert_eq!((oci, srun.unwrap()), (None, format!("srun {command}")));
        assert!(remedy("always").command.contains(HUGE_PAGES), "that is for all programs");
    }

    #[test]
    fn what_has_no_words_is_left_out() {
        let remedy = remedy(&How::Balancing { on: false }, &command(), false);
        assert_eq!(remedy.command, "sudo sysctl kernel.numa_balancing=0");
        assert_eq!((remedy.oci, remedy.srun), (None, None));
    }
}
