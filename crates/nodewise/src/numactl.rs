//! numactl's other options: what it shows, in its own words for the scripts that read them, and what only
//! numactl does.

use crate::commands::{Exit, exit};
use crate::output::note;
use anyhow::Result;
use nodewise_sys::{Policy, PolicyMode};
use nodewise_topology::{Allowed, NodeId, NodeSet, Topology};
use std::ffi::OsString;
use std::fmt::Display;

/// The tasks of numactl that it does instead of running a program.
#[allow(clippy::struct_excessive_bools)] // switches are bools
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Instead of a program (numactl's options)")]
pub struct NumactlArgs {
    /// Show the CPUs and the memory policy that a program would get
    #[arg(short, long)]
    show: bool,
    /// Show nodes, their CPUs and memory, and distances; 'nodewise topo' shows more
    #[arg(short = 'H', long)]
    hardware: bool,
    /// Show CPUs as ranges, with --hardware
    #[arg(long)]
    cpu_compress: bool,
    /// Show the version
    #[arg(long)]
    version: bool,
    #[command(flatten)]
    shared: SharedMemoryArgs,
}

/// All that can stand instead of a program.
pub const INSTEAD: [&str; 14] = [
    "show",
    "hardware",
    "version",
    "shm",
    "shmid",
    "file",
    "shmmode",
    "offset",
    "length",
    "huge",
    "touch",
    "dump",
    "dump_nodes",
    "verify",
];

/// Policies of memory that outlives programs. They are understood, so that it can be said where to find them.
#[allow(clippy::struct_excessive_bools)] // switches are bools
#[derive(clap::Args, Default)]
struct SharedMemoryArgs {
    #[arg(short = 'S', long, hide = true)]
    shm: Option<OsString>,
    #[arg(short = 'I', long, hide = true)]
    shmid: Option<OsString>,
    #[arg(short = 'f', long, hide = true)]
    file: Option<OsString>,
    #[arg(short = 'M', long, hide = true)]
    shmmode: Option<OsString>,
    #[arg(short, long, hide = true)]
    offset: Option<OsString>,
    #[arg(short = 'L', long, hide = true)]
    length: Option<OsString>,
    #[arg(short = 'u', long, hide = true)]
    huge: bool,
    #[arg(short = 'T', long, hide = true)]
    touch: bool,
    #[arg(short, long, hide = true)]
    dump: bool,
    #[arg(short = 'D', long, hide = true)]
    dump_nodes: bool,
    #[arg(short = 'V', long, hide = true)]
    verify: bool,
    #[arg(short = 't', long, hide = true)]
    strict: bool,
}

impl SharedMemoryArgs {
    /// The first option given.
    fn given(&self) -> Option<&'static str> {
        let Self { shm, shmid, file, shmmode, offset, length, .. } = self;
        let given = [
            ("--shm", shm.is_some()),
            ("--shmid", shmid.is_some()),
            ("--file", file.is_some()),
            ("--shmmode", shmmode.is_some()),
            ("--offset", offset.is_some()),
            ("--length", length.is_some()),
            ("--huge", self.huge),
            ("--touch", self.touch),
            ("--dump", self.dump),
            ("--dump-nodes", self.dump_nodes),
            ("--verify", self.verify),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

impl NumactlArgs {
    /// Refuses what only numactl does.
    pub fn check(&self) -> Result<()> {
        if let Some(option) = self.shared.given() {
            let message = format!(
                "{option}: numactl itself gives shared memory and files their policies: 'command numactl {option} ...' \
                 runs it past an alias"
            );
            return Err(Exit { code: exit::USAGE, message }.into());
        }
        if self.shared.strict {
            note("--strict: counts for shared memory only, so nothing changes for a program");
        }
        Ok(())
    }

    /// Whether something is to be shown instead of a program being run.
    pub const fn is_given(&self) -> bool {
        self.show || self.hardware || self.version
    }

    /// The text that is to be shown.
    pub fn text(&self) -> Result<String> {
        if self.version {
            return Ok(concat!("nodewise ", env!("CARGO_PKG_VERSION"), "\n").to_owned());
        }
        let machine = Topology::live()?;
        if self.hardware {
            return Ok(hardware(&machine, self.cpu_compress));
        }
        let next = nodewise_sys::next_interleave_node().unwrap_or(0);
        Ok(show(&machine, &Allowed::of_this_thread(&machine)?, &nodewise_sys::get_mempolicy()?, next))
    }
}

/// Numbers as numactl lists them.
fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(" ")
}

/// `next`: where interleaving goes on.
fn show(machine: &Topology, allowed: &Allowed, policy: &Policy, next: i32) -> String {
    let name = match policy.mode {
        PolicyMode::Default => "default",
        PolicyMode::Preferred => "preferred",
        PolicyMode::Bind => "bind",
        PolicyMode::Interleave => "interleave",
        PolicyMode::Local => "local",
        PolicyMode::PreferredMany => "preferred-many",
        PolicyMode::WeightedInterleave => "weighted-interleave",
    };
    let interleaves = matches!(policy.mode, PolicyMode::Interleave | PolicyMode::WeightedInterleave);
    let nodes: NodeSet = policy.nodes.iter().map(NodeId).collect();
    let first = nodes.first().unwrap_or(NodeId(0));
    let preferred = match policy.mode {
        PolicyMode::Preferred | PolicyMode::Bind => first.to_string(),
        PolicyMode::PreferredMany => format!("{first} (preferred-many)"),
        _ if interleaves => format!("{next} (interleave next)"),
        _ => "current".to_owned(),
    };
    let mut text = format!("policy: {name}\npreferred node: {preferred}\n");
    let mut line = |name: &str, list: &str| text += &[name, ": ", list, "\n"].concat();
    if interleaves {
        line("interleavemask", &list(nodes.iter()));
        if policy.mode == PolicyMode::WeightedInterleave {
            let weights = machine.nodes().iter().filter(|node| nodes.contains(node.id));
            line("interleaveweights", &list(weights.filter_map(|node| node.interleave_weight)));
        }
        line("interleavenode", &next.to_string());
    }
    let may_run = |id: &NodeId| {
        machine.nodes().iter().any(|node| node.id == *id && node.cpus.intersects(&allowed.cpus))
    };
    let run_on = list(allowed.memory_nodes.iter().filter(may_run));
    line("physcpubind", &list(allowed.cpus.iter()));
    line("cpubind", &run_on);
    line("nodebind", &run_on);
    let bound = if policy.mode == PolicyMode::Bind { &nodes } else { &allowed.memory_nodes };
    line("membind", &list(bound.iter()));
    line("preferred", &if interleaves { String::new() } else { list(nodes.iter()) });
    text
}

fn megabytes(bytes: Option<u64>) -> String {
    bytes.map_or("<not available>".to_owned(), |bytes| format!("{} MB", bytes >> 20))
}

fn hardware(machine: &Topology, ranges: bool) -> String {
    let nodes = machine.nodes();
    let ids: NodeSet = nodes.iter().map(|node| node.id).collect();
    let mut text = format!("available: {} nodes ({ids})\n", nodes.len());
    let mut add = |line: String| text += &(line + "\n");
    for node in nodes {
        let id = node.id;
        let cpus = if ranges {
            format!(" {} ({})", node.cpus.to_string().replace(',', ", "), node.cpus.len())
        } else {
            format!(" {}", list(node.cpus.iter()))
        };
        add(format!("node {id} cpus:{cpus}"));
        add(format!("node {id} size: {}", megabytes(node.memory_total_bytes)));
        add(format!("node {id} free: {}", megabytes(node.memory_free_bytes)));
    }
    let row = |cells: &mut dyn Iterator<Item = u32>| list(cells.map(|cell| format!("{cell:4}")));
    add("node distances:".to_owned());
    add(format!("node  {}", row(&mut nodes.iter().map(|node| node.id.0))));
    for node in nodes {
        add(format!("{:4}: {}", node.id.0, row(&mut node.distances.iter().copied())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_is_listed_as_numactl_lists_it() {
        let machine = Topology::synthetic(2, 3, 1 << 30);
        let expected = "\
available: 2 nodes (0-1)
node 0 cpus: 0 1 2
node 0 size: 1024 MB
node 0 free: 1024 MB
node 1 cpus: 3 4 5
node 1 size: 1024 MB
node 1 free: 1024 MB
node distances:
node     0    1
   0:   10   20
   1:   20   10
";
        assert_eq!(hardware(&machine, false), expected);
        assert!(hardware(&machine, true).contains("node 1 cpus: 3-5 (3)\n"));
    }

    #[test]
    fn policies_are_shown_as_numactl_shows_them() {
        let machine = Topology::synthetic(4, 1, 1 << 30);
        let allowed = Allowed::everything(&machine);
        let shown = |mode, nodes: &[u32]| {
            let policy = Policy::new(mode, nodes.iter().copied().collect());
            show(&machine, &allowed, &policy, 2).replace(": \n", ":\n")
        };
        let rest = "physcpubind: 0 1 2 3\ncpubind: 0 1 2 3\nnodebind: 0 1 2 3\n";
        assert_eq!(
            shown(PolicyMode::Default, &[]),
            format!("policy: default\npreferred node: current\n{rest}membind: 0 1 2 3\npreferred:\n")
        );
        assert_eq!(
            shown(PolicyMode::Bind, &[1, 3]),
            format!("policy: bind\npreferred node: 1\n{rest}membind: 1 3\npreferred: 1 3\n")
        );
        assert_eq!(
            shown(PolicyMode::Interleave, &[0, 2]),
            format!(
                "policy: interleave\npreferred node: 2 (interleave next)\ninterleavemask: 0 2\ninterleavenode: 2\n\
                 {rest}membind: 0 1 2 3\npreferred:\n"
            )
        );
    }
}
