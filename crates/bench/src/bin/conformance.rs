//! `conformance`: holds the live machine to what every machine must do. Takes a machine with several nodes,
//! and root; it fills a node's memory and changes settings of the kernel, so it is for guests.
#![forbid(unsafe_code)]

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use nodewise_bench::{first_touch, pin_to};
use nodewise_engine::conformance::{Part, Testbed, check};
use nodewise_engine::{PAGE_BYTES, PageRange, Pid};
use nodewise_linux::process::Processes;
use nodewise_linux::sampler::hint_faults::HintFaults;
use nodewise_linux::settings::{Place, Settings};
use nodewise_linux::{LinuxMachine, MachineSettings};
use nodewise_sys::{Advice, Mapping, MappingOptions, query_pages};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Hold the live machine to everything that every machine must do
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    actor: Option<Actor>,
}

#[derive(Subcommand)]
enum Actor {
    /// Be one of the processes: say where the parts are, then do as standard input says until it ends
    #[command(hide = true)]
    Actor {
        /// Pages, the node that touches them first, and the node that uses them if any does, as in 512:0:2
        #[arg(value_name = "PART")]
        parts: Vec<PartArgument>,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().actor {
        Some(Actor::Actor { parts }) => act(&parts),
        None => {
            check(|processes| LiveTestbed::new(processes).expect("the testbed is set"));
            println!("the live machine conforms");
            Ok(())
        }
    }
}

#[derive(Clone, Copy)]
struct PartArgument(Part);

impl FromStr for PartArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("'{text}' is not a number"));
        let fields = text.split(':').map(number).collect::<Result<Vec<u32>, String>>()?;
        let (pages, touched_on, used_on) = match fields[..] {
            [pages, touched_on] => (pages, touched_on, None),
            [pages, touched_on, used_on] => (pages, touched_on, Some(used_on)),
            _ => return Err("not two or three numbers with colons between".to_owned()),
        };
        let node = |n| NodeIndex(n as u8);
        Ok(Self(Part { pages: pages.into(), touched_on: node(touched_on), used_on: used_on.map(node) }))
    }
}

fn act(parts: &[PartArgument]) -> anyhow::Result<()> {
    let topology = Topology::live()?;
    let mut memory = Vec::new();
    for PartArgument(part) in parts {
        let mapping = Mapping::new((part.pages * PAGE_BYTES) as usize, MappingOptions::default())?;
        mapping.advise(0..mapping.bytes(), Advice::NoHugePage)?;
        pin_to(topology.node(part.touched_on))?;
        first_touch(&mapping);
        memory.push(Some(Arc::new(mapping)));
    }
    for (PartArgument(part), mapping) in parts.iter().zip(&memory) {
        let (Some(node), Some(mapping)) = (part.used_on, mapping.clone()) else { continue };
        let node = topology.node(node).clone();
        std::thread::spawn(move || {
            pin_to(&node).expect("a node's own CPUs are there");
            loop {
                first_touch(&mapping);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
    let addresses: Vec<String> =
        memory.iter().flatten().map(|mapping| mapping.address().to_string()).collect();
    println!("{}", addresses.join(" "));
    for line in std::io::stdin().lines() {
        let part: usize = line?.parse().context("not the number of a part")?;
        drop(memory[part].take());
        println!("unmapped");
    }
    Ok(())
}

/// Processes of this very program, managed by the live machine.
struct LiveTestbed {
    machine: LinuxMachine,
    processes: Vec<Process>,
    filled: bool,
}

struct Process {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
    ranges: Vec<PageRange>,
}

impl Process {
    fn start(parts: &[Part]) -> anyhow::Result<Self> {
        let argument = |part: &Part| {
            let used = part.used_on.map_or(String::new(), |node| format!(":{}", node.0));
            format!("{}:{}{used}", part.pages, part.touched_on.0)
        };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("actor")
            .args(parts.iter().map(argument))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut says = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut line = String::new();
        says.read_line(&mut line)?;
        let addresses = line.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        ensure!(addresses.len() == parts.len(), "the process says '{line}'");
        let range = |(address, part): (&u64, &Part)| {
            PageRange::new(address / PAGE_BYTES, address / PAGE_BYTES + part.pages)
        };
        let ranges = addresses.iter().zip(parts).map(range).collect();
        Ok(Self { child, says, ranges })
    }

    fn end(&mut self) {
        // Fails where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl LiveTestbed {
    fn new(processes: &[Vec<Part>]) -> anyhow::Result<Self> {
        let started =
            processes.iter().map(|parts| Process::start(parts)).collect::<anyhow::Result<Vec<_>>>()?;
        let topology = Topology::live()?;
        let settings = Settings::open(Place::live());
        let sampler = HintFaults::open(&topology, settings.into())?;
        let pids: Vec<Pid> = started.iter().map(|process| Pid(process.child.id())).collect();
        let managed = Processes::new(&pids, true, false)?;
        let machine = LinuxMachine::new(topology, managed, Box::new(sampler), MachineSettings::default());
        Ok(Self { machine, processes: started, filled: false })
    }

    fn topology(&self) -> &Topology {
        nodewise_engine::Machine::topology(&self.machine)
    }
}

/// A file bound to the node leaves 10 MiB of it: more than the mover keeps free, less than is to be moved.
/// The kernel keeps so much free for making huge pages that it would end the writer of the file, so it is
/// told to keep less.
const FILL: &str = "
    set -e
    echo 4096 >/proc/sys/vm/min_free_kbytes
    mkdir -p /full; mount -t tmpfs -o size=64G,mpol=bind:$1 tmpfs /full
    free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node$1/meminfo)
    dd if=/dev/zero of=/full/file bs=1M count=$((free - 10)) 2>/dev/null";

impl Testbed for LiveTestbed {
    type Machine = LinuxMachine;

    fn machine(&mut self) -> &mut LinuxMachine {
        &mut self.machine
    }

    fn pid(&self, process: usize) -> Pid {
        Pid(self.processes[process].child.id())
    }

    fn range(&self, process: usize, part: usize) -> PageRange {
        self.processes[process].ranges[part]
    }

    fn homes(&mut self, pid: Pid, range: PageRange) -> Vec<Option<NodeIndex>> {
        let addresses: Vec<u64> = (range.start.0..range.end.0).map(|page| page * PAGE_BYTES).collect();
        let mut homes = vec![-1; addresses.len()];
        if query_pages(pid.0 as i32, &addresses, &mut homes).is_err() {
            homes.fill(-1);
        }
        let home = |home: i32| self.topology().index_of(NodeId(u32::try_from(home).ok()?));
        homes.into_iter().map(home).collect()
    }

    fn pass(&mut self) {
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(100));
            self.machine.drain();
        }
    }

    fn end(&mut self, process: usize) {
        self.processes[process].end();
    }

    fn unmap(&mut self, process: usize, part: usize) -> bool {
        let Process { child, says, .. } = &mut self.processes[process];
        writeln!(child.stdin.as_mut().expect("it is piped"), "{part}").expect("the process listens");
        says.read_line(&mut String::new()).expect("the process answers");
        true
    }

    fn fill(&mut self, node: NodeIndex) -> bool {
        let node = self.topology().id_of(node).to_string();
        let filled = Command::new("sh").args(["-c", FILL, "sh", &node]).status();
        self.filled = filled.is_ok_and(|status| status.success());
        assert!(self.filled, "node {node} is filled");
        true
    }
}

impl Drop for LiveTestbed {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(Process::end);
        if self.filled {
            // Anything that is left in a guest goes with it.
            let _ = Command::new("umount").arg("/full").status();
        }
    }
}
