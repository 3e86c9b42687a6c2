//! numactl's placement options, and starting a program under them.

use crate::commands::{Exit, exit};
use crate::output::{note, shown};
use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use nodewise_sys::{ErrorKind, HugePageLimit, NodeMask, Policy, PolicyFlags, PolicyMode};
use nodewise_topology::{Allowed, CpuSet, ListError, Lists, NodeSet, Topology};
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

/// The options `numactl` has for where a program runs and where its memory goes: letters, names and meanings
/// are its own (numactl(8)); one memory policy at most, as there.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Placement (numactl's options)")]
pub struct PlacementArgs {
    /// Run on the CPUs of these nodes
    ///
    /// NODES is a list like 0,2-3 or all. After + its numbers count within the nodes that this process may
    /// use (+0-1). After ! it means all other nodes (!1). A device stands for its node: netdev:eth0,
    /// block:sda, pci:3b:00.0, ip:192.0.2.1, or file: with a path. The word same stands for the other
    /// option's list.
    #[arg(
        short = 'N',
        long,
        visible_short_alias = 'c',
        visible_alias = "cpubind",
        value_name = "NODES",
        overrides_with = "cpunodebind"
    )]
    cpunodebind: Option<String>,
    /// Run on these CPUs, a list like 0-3,8, all, +0-3 or !0
    #[arg(short = 'C', long, value_name = "CPUS", overrides_with = "physcpubind")]
    physcpubind: Option<String>,
    /// Allocate memory on these nodes only
    #[arg(short = 'm', long, value_name = "NODES", group = "memory_policy")]
    membind: Option<String>,
    /// Allocate page by page round these nodes
    #[arg(short = 'i', long, value_name = "NODES", group = "memory_policy")]
    interleave: Option<String>,
    /// Allocate page by page round these nodes, each by its weight (Linux 6.9)
    #[arg(short = 'w', long, value_name = "NODES", group = "memory_policy")]
    weighted_interleave: Option<String>,
    /// Allocate on this node while it has room
    #[arg(short = 'p', long, value_name = "NODE", group = "memory_policy")]
    preferred: Option<String>,
    /// Allocate on these nodes while they have room (Linux 5.15)
    #[arg(short = 'P', long, value_name = "NODES", group = "memory_policy")]
    preferred_many: Option<String>,
    /// Allocate on the node of the CPU that touches the memory first
    #[arg(short = 'l', long, group = "memory_policy")]
    localalloc: bool,
    /// Let the kernel's NUMA balancing move pages within --membind or --preferred-many all the same
    #[arg(short = 'b', long, overrides_with = "balancing")]
    balancing: bool,
    /// Count the lists that follow within the whole machine, not within what this process may use
    #[arg(short = 'a', long, overrides_with = "all")]
    all: bool,
    /// Give the program no transparent huge pages (never), or those it asks for (advised, Linux 6.18)
    ///
    /// It and what it starts are limited, and no other program is. A huge page lies on one node, and several
    /// nodes may use parts of it. numactl has no such option.
    #[arg(long, value_enum, value_name = "WHICH")]
    huge_pages: Option<HugePages>,
}

/// The transparent huge pages that a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HugePages {
    Never,
    Advised,
}

impl HugePages {
    const fn limit(self) -> HugePageLimit {
        match self {
            Self::Never => HugePageLimit::None,
            Self::Advised => HugePageLimit::Advised,
        }
    }
}

/// Where a program runs and where its memory goes. Nothing is placed where the options said nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPUs it may run on.
    pub cpus: Option<CpuSet>,
    /// Its memory policy.
    pub policy: Option<MemoryPolicy>,
    /// Its transparent huge pages, if they are limited.
    pub huge_pages: Option<HugePages>,
}

/// A memory policy (`set_mempolicy(2)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// The mode, which says what the policy does with its nodes.
    pub mode: PolicyMode,
    /// Its nodes; none for [`PolicyMode::Local`].
    pub nodes: NodeSet,
    /// Whether NUMA balancing may move pages under it.
    pub balancing: bool,
}

/// Refuses a command line where --all follows a list, as numactl does: it counts for the lists behind it.
pub fn check_order(run: &ArgMatches) -> Result<(), clap::Error> {
    let lists = [
        "cpunodebind",
        "physcpubind",
        "membind",
        "interleave",
        "weighted_interleave",
        "preferred",
        "preferred_many",
    ];
    let first = lists.iter().filter_map(|list| run.indices_of(list)?.next()).min();
    match (run.get_flag("all").then(|| run.index_of("all")).flatten(), first) {
        (Some(all), Some(first)) if all > first => {
            let message = "--all counts for the lists behind it: write it before them\n";
            Err(clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, message))
        }
        _ => Ok(()),
    }
}

impl PlacementArgs {
    /// Whether any of them is given.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// The meaning of the options on this machine for this process. Errors name the option and the item of
    /// its list.
    pub fn resolve(&self) -> Result<Placement> {
        if !self.is_given() {
            return Ok(Placement::default());
        }
        let machine = Topology::live_nodes()?;
        let everything = Allowed::everything(&machine);
        let allowed = if self.all { everything } else { Allowed::of_this_thread(&machine)? };
        let placement = self.resolve_in(&machine, allowed, Path::new("/"))?;
        if self.balancing && !placement.policy.as_ref().is_some_and(|policy| policy.balancing) {
            note("--balancing: counts with --membind and --preferred-many, and nothing changes without one");
        }
        Ok(placement)
    }

    fn resolve_in(&self, machine: &Topology, allowed: Allowed, root: &Path) -> Result<Placement> {
        // A node is one to run on, though this thread is kept from its CPUs just now: the kernel knows the
        // limits of a cpuset.
        let cpus = machine.online_cpus().clone();
        let nodes = Lists::new(machine, Allowed { cpus, ..allowed.clone() }, root);
        let lists = Lists::new(machine, allowed, root);
        let policy = self.policy(&lists)?;
        Ok(Placement { cpus: self.cpus(&lists, &nodes)?, policy, huge_pages: self.huge_pages })
    }

    /// Both options together mean the CPUs that both name; numactl lets the later win, and nobody can tell.
    fn cpus(&self, lists: &Lists, nodes: &Lists) -> Result<Option<CpuSet>> {
        let of_nodes = self.cpunodebind.as_deref().map(|list| {
            let list = same(list, "--cpunodebind", self.memory_list())?;
            nodes.cpus_of_nodes(list).map_err(|error| in_option("--cpunodebind", &error))
        });
        let named = self
            .physcpubind
            .as_deref()
            .map(|list| lists.cpus(list).map_err(|error| in_option("--physcpubind", &error)));
        match (of_nodes.transpose()?, named.transpose()?) {
            (Some(of_nodes), Some(named)) => {
                let both = &of_nodes & &named;
                if both.is_empty() {
                    let nodes = format!("--cpunodebind stands for CPUs {of_nodes}");
                    return Err(usage(format!(
                        "{nodes}, --physcpubind for {named}: they have none in common"
                    )));
                }
                Ok(Some(both))
            }
            (of_nodes, named) => Ok(of_nodes.or(named)),
        }
    }

    fn policy(&self, lists: &Lists) -> Result<Option<MemoryPolicy>> {
        if self.localalloc {
            return Ok(Some(MemoryPolicy {
                mode: PolicyMode::Local,
                nodes: NodeSet::new(),
                balancing: false,
            }));
        }
        let Some((option, mode, list)) = self.memory_option() else { return Ok(None) };
        let list = same(list, option, self.cpunodebind.as_deref())?;
        let nodes = lists.memory_nodes(list).map_err(|error| in_option(option, &error))?;
        if mode == PolicyMode::Preferred && nodes.len() > 1 {
            return Err(usage(format!("{option}: takes one node, {nodes} are {}; see -P", nodes.len())));
        }
        let may_balance = matches!(mode, PolicyMode::Bind | PolicyMode::PreferredMany);
        Ok(Some(MemoryPolicy { mode, nodes, balancing: self.balancing && may_balance }))
    }

    /// The memory policy given, by the option's name.
    fn memory_option(&self) -> Option<(&'static str, PolicyMode, &str)> {
        [
            ("--membind", PolicyMode::Bind, &self.membind),
            ("--interleave", PolicyMode::Interleave, &self.interleave),
            ("--weighted-interleave", PolicyMode::WeightedInterleave, &self.weighted_interleave),
            ("--preferred", PolicyMode::Preferred, &self.preferred),
            ("--preferred-many", PolicyMode::PreferredMany, &self.preferred_many),
        ]
        .into_iter()
        .find_map(|(option, mode, list)| Some((option, mode, list.as_deref()?)))
    }

    fn memory_list(&self) -> Option<&str> {
        self.memory_option().map(|(_, _, list)| list)
    }
}

impl Placement {
    /// Whether there is nothing to place.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Starts a program with this placement.
    ///
    /// Affinity and policy belong to threads, and a child takes those of the thread that starts it. So a
    /// thread of its own places itself and starts the program; the caller stays as it is. That thread is
    /// gone when this returns: do not ask for a signal on the parent's death (`PR_SET_PDEATHSIG`), which
    /// would come at once.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        self.limit_huge_pages(command);
        let mut spawn = || {
            self.apply()?;
            command.spawn().map_err(|error| self.not_started(command, &error))
        };
        if self.is_empty() {
            return spawn();
        }
        std::thread::scope(|scope| match scope.spawn(spawn).join() {
            Ok(child) => child,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Has this process become the program, with this placement. Returns only when that fails.
    pub fn become_program(&self, command: &mut Command) -> anyhow::Error {
        if let Err(error) = self.apply() {
            return error;
        }
        self.limit_huge_pages(command);
        let error = command.exec();
        self.not_started(command, &error)
    }

    fn limit_huge_pages(&self, command: &mut Command) {
        if let Some(huge_pages) = self.huge_pages {
            nodewise_sys::start_with_huge_page_limit(command, huge_pages.limit());
        }
    }

    fn not_started(&self, command: &Command, error: &std::io::Error) -> anyhow::Error {
        if self.huge_pages == Some(HugePages::Advised) && error.kind() == std::io::ErrorKind::InvalidInput {
            let message = "this kernel cannot limit a program to the huge pages it asks for (Linux 6.18 can); \
                           --huge-pages never gives it none";
            return Exit { code: exit::FAILURE, message: message.to_owned() }.into();
        }
        cannot_execute(&command.get_program().to_string_lossy(), error).into()
    }

    /// Places the calling thread, and what it starts from now on.
    pub fn apply(&self) -> Result<()> {
        if let Some(cpus) = &self.cpus {
            let set = cpus.iter().map(|cpu| cpu.0).collect();
            nodewise_sys::sched_setaffinity(0, &set).with_context(|| format!("cannot run on CPUs {cpus}"))?;
        }
        if let Some(policy) = &self.policy {
            policy.apply()?;
        }
        Ok(())
    }
}

impl MemoryPolicy {
    fn apply(&self) -> Result<()> {
        let mut nodes = NodeMask::EMPTY;
        for node in self.nodes.iter() {
            if !nodes.insert(node.0) {
                bail!("node {node} is beyond what set_mempolicy can name");
            }
        }
        let flags = if self.balancing { PolicyFlags::NUMA_BALANCING } else { PolicyFlags::NONE };
        let policy = Policy::new(self.mode, nodes).with_flags(flags);
        nodewise_sys::set_mempolicy(&policy).map_err(|error| self.refused(error))
    }

    /// Why the kernel refuses, and what to do.
    fn refused(&self, error: nodewise_sys::Error) -> anyhow::Error {
        let (code, hint) = match (error.kind(), self.mode) {
            (ErrorKind::NotPermitted, _) => {
                let hint = "memory policies are not permitted here; a container needs CAP_SYS_NICE (--cap-add SYS_NICE) or a \
                            seccomp profile that allows set_mempolicy";
                (exit::NOT_PERMITTED, hint)
            }
            (ErrorKind::NotSupported, _) => (exit::FAILURE, "this kernel is built without NUMA"),
            (ErrorKind::Invalid, PolicyMode::WeightedInterleave) => (
                exit::FAILURE,
                "this kernel has no weighted interleaving (Linux 6.9 has); -i interleaves evenly",
            ),
            (ErrorKind::Invalid, PolicyMode::PreferredMany) if self.balancing => {
                (exit::FAILURE, "this kernel does not balance under --preferred-many (Linux 6.10 does)")
            }
            (ErrorKind::Invalid, PolicyMode::PreferredMany) => {
                (exit::FAILURE, "this kernel cannot prefer several nodes (Linux 5.15 can); -p prefers one")
            }
            (ErrorKind::Invalid, PolicyMode::Bind) if self.balancing => {
                (exit::FAILURE, "this kernel does not balance under --membind (Linux 5.12 does)")
            }
            _ => (exit::FAILURE, "the kernel refuses this memory policy"),
        };
        Exit { code, message: format!("{hint} ({error})") }.into()
    }
}

/// As a summary says it: `CPUs 0-3, memory interleaved over nodes 0-1`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.cpus.as_ref().map(|cpus| format!("CPUs {cpus}"));
        let memory = self.policy.as_ref().map(|policy| {
            let plural = if policy.nodes.len() == 1 { "" } else { "s" };
            let nodes = format!("node{plural} {}", policy.nodes);
            let how = match policy.mode {
                PolicyMode::Default => "by default".into(),
                PolicyMode::Local => "local".into(),
                PolicyMode::Bind => format!("on {nodes}"),
                PolicyMode::Preferred | PolicyMode::PreferredMany => {
                    format!("preferably on {nodes}")
                }
                PolicyMode::Interleave => format!("interleaved over {nodes}"),
                PolicyMode::WeightedInterleave => {
                    format!("interleaved by weight over {nodes}")
                }
            };
            format!("memory {how}")
        });
        let huge_pages = self.huge_pages.map(|huge_pages| match huge_pages {
            HugePages::Never => "no huge pages".to_owned(),
            HugePages::Advised => "huge pages where it asks for them".to_owned(),
        });
        let parts: Vec<String> = cpus.into_iter().chain(memory).chain(huge_pages).collect();
        f.write_str(&if parts.is_empty() { "not placed".into() } else { parts.join(", ") })
    }
}

/// `same` is the list of the other option.
fn same<'a>(list: &'a str, option: &str, other: Option<&'a str>) -> Result<&'a str> {
    match (list, other) {
        ("same", None | Some("same")) => {
            Err(usage(format!("{option}: 'same' needs a list in another option")))
        }
        ("same", Some(other)) => Ok(other),
        (list, _) => Ok(list),
    }
}

fn usage(message: impl Into<String>) -> anyhow::Error {
    Exit { code: exit::USAGE, message: message.into() }.into()
}

fn in_option(option: &str, error: &ListError) -> anyhow::Error {
    usage(format!("{option}: {error}"))
}

/// A program that does not start, with the exit codes of env(1) and timeout(1).
fn cannot_execute(program: &str, error: &std::io::Error) -> Exit {
    let (code, why) = match error.kind() {
        std::io::ErrorKind::NotFound => (exit::NOT_FOUND, "not found".to_owned()),
        _ => (exit::CANNOT_EXECUTE, format!("cannot execute: {error}")),
    };
    Exit { code, message: format!("{}: {why}", shown(program)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::process::Stdio;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Options {
        #[command(flatten)]
        placement: PlacementArgs,
    }

    /// The meaning of the options on four nodes with four CPUs each.
    fn resolve(options: &str) -> Result<Placement> {
        let machine = Topology::synthetic(4, 4, 1 << 30);
        let allowed = Allowed::everything(&machine);
        let options = Options::try_parse_from(options.split_ascii_whitespace())?;
        options.placement.resolve_in(&machine, allowed, Path::new("/nowhere"))
    }

    fn error(options: &str) -> String {
        resolve(options).unwrap_err().to_string()
    }

    #[test]
    fn options_mean_what_they_mean_to_numactl() {
        for (options, meaning) in [
            ("", "not placed"),
            ("-N 1,3", "CPUs 4-7,12-15"),
            ("--cpunodebind=!0-2", "CPUs 12-15"),
            ("-C 1-2", "CPUs 1-2"),
            ("-N 0-1 --physcpubind 3-4", "CPUs 3-4"),
            ("-m 0", "memory on node 0"),
            ("-m 0-1 -b", "memory on nodes 0-1"),
            ("-b", "not placed"),
            ("-b -i 0", "memory interleaved over node 0"),
            ("-N 1 -N 3", "CPUs 12-15"),
            ("-c 1 --cpubind=2", "CPUs 8-11"),
            ("-C 1 -C 2 -b -b", "CPUs 2"),
            ("-i all", "memory interleaved over nodes 0-3"),
            ("-w 0,2", "memory interleaved by weight over nodes 0,2"),
            ("-p +2", "memory preferably on node 2"),
            ("-P 1-2", "memory preferably on nodes 1-2"),
            ("-l", "memory local"),
            ("-N 2 -m same", "CPUs 8-11, memory on node 2"),
            ("-i 1 -N same", "CPUs 4-7, memory interleaved over node 1"),
            ("--huge-pages never", "no huge pages"),
            ("-l --huge-pages advised", "memory local, huge pages where it asks for them"),
        ] {
            assert_eq!(resolve(options).unwrap().to_string(), meaning, "{options}");
        }
        assert!(resolve("-m 0 --balancing").unwrap().policy.unwrap().balancing);
    }

    #[test]
    fn one_memory_policy_at_most() {
        for options in ["-m 0 -i 0", "-l -p 0", "-w 0 -P 0", "-m 0 -m 1"] {
            assert!(error(options).contains("cannot be used"), "{options}");
        }
    }

    #[test]
    fn errors_name_option_and_item() {
        assert_eq!(error("-m 0,9"), "--membind: '9' in node list '0,9': 9 is not allowed, only 0-3");
        assert_eq!(error("-C 3-99"), "--physcpubind: CPU list '3-99': 99 is not allowed, only 0-15");
        assert_eq!(error("-p 0-1"), "--preferred: takes one node, 0-1 are 2; see -P");
        assert_eq!(error("-m same"), "--membind: 'same' needs a list in another option");
        assert_eq!(error("-N same -m same"), "--membind: 'same' needs a list in another option");
        assert_eq!(
            error("-N 0 -C 5"),
            "--cpunodebind stands for CPUs 0-3, --physcpubind for 5: they have none in common"
        );
        let code = resolve("-m 9").unwrap_err().downcast::<Exit>().unwrap().code;
        assert_eq!(code, exit::USAGE);
    }

    #[test]
    fn the_kernels_refusals_are_explained() {
        let refused = |mode, balancing, errno| {
            let policy = MemoryPolicy { mode, nodes: NodeSet::new(), balancing };
            let error = policy.refused(nodewise_sys::Error::new("set_mempolicy", errno));
            let exit = error.downcast::<Exit>().unwrap();
            (exit.code, exit.message)
        };
        let (einval, eperm, enosys) = (22, 1, 38);
        let (code, message) = refused(PolicyMode::WeightedInterleave, false, einval);
        assert_eq!(code, exit::FAILURE);
        assert!(message.starts_with("this kernel has no weighted interleaving (Linux 6.9 has)"), "{message}");
        let (code, message) = refused(PolicyMode::Bind, false, eperm);
        assert_eq!(code, exit::NOT_PERMITTED);
        assert!(message.contains("CAP_SYS_NICE"), "{message}");
        assert!(refused(PolicyMode::Interleave, false, enosys).1.contains("without NUMA"));
        assert!(refused(PolicyMode::Bind, true, einval).1.contains("5.12"));
    }

    #[test]
    fn a_program_that_is_not_there_has_its_exit_code() {
        let error = Placement::default().spawn(&mut Command::new("/no/such/program")).unwrap_err();
        assert_eq!(error.downcast::<Exit>().unwrap().code, exit::NOT_FOUND);
        let error = Placement::default().spawn(&mut Command::new("/etc/hostname")).unwrap_err();
        assert_eq!(error.downcast::<Exit>().unwrap().code, exit::CANNOT_EXECUTE);
    }

    /// A program that is started with each option finds what numactl gives it.
    #[test]
    fn a_program_finds_what_numactl_would_give_it() {
        let machine = Topology::live().unwrap();
        let last = machine.online_cpus().last().unwrap();
        let mut lines: Vec<String> =
            ["", "-m 0", "-i 0", "-p 0", "-P 0", "-l", "-N 0", "-b -m 0", "-N 0 -i all"]
                .map(str::to_owned)
                .into();
        lines.push(format!("-C {last}"));
        if machine.node_count() >= 4 {
            let more = [
                "-m 1-2",
                "-i 0,3",
                "-p +2",
                "-P !0",
                "-N 3 -m same",
                "-N +1-2 -i !0-1",
                "-C !0 -p 3",
                "-b -m 2-3",
            ];
            lines.extend(more.map(str::to_owned));
        }
        let show = |child: Child| {
            let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
            // Which node the interleaving has come to is no part of the placement.
            let lasting = text
                .lines()
                .filter(|line| !line.contains("interleave next") && !line.contains("interleavenode"));
            lasting.collect::<Vec<_>>().join("\n")
        };
        for line in lines {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let theirs = Command::new("numactl")
                .args(&words)
                .args(["numactl", "--show"])
                .stdout(Stdio::piped())
                .spawn();
            let theirs = show(theirs.expect("`apt-get install numactl` brings it"));
            let placement = Options::parse_from(words).placement.resolve().unwrap();
            let mut command = Command::new("numactl");
            let ours = show(placement.spawn(command.arg("--show").stdout(Stdio::piped())).unwrap());
            assert_eq!(ours, theirs, "{line}");
        }
        // The thread that asked is where it was.
        assert_eq!(nodewise_sys::get_mempolicy().unwrap(), Policy::DEFAULT);
    }

    /// The same on four nodes, on every kernel there is: this very test program runs in guests.
    #[test]
    fn a_program_finds_it_on_four_nodes_too() {
        let node = |cpus| nodewise_rig::Node { cpus, memory_bytes: 256 << 20 };
        let tests = [
            "a_program_finds_what_numactl_would_give_it",
            "a_program_gets_no_more_huge_pages_than_it_may",
            "weighted_interleaving_is_set_or_explained",
        ];
        let mut this = Command::new(std::env::current_exe().unwrap());
        this.arg("--exact").args(tests.map(|test| format!("placement::tests::{test}")));
        let kernels = nodewise_rig::kernels();
        assert!(!kernels.is_empty(), "no kernel for guests: run 'make setup'");
        for kernel in kernels {
            let guest = nodewise_rig::Guest::new([node(1), node(2), node(1), node(1)]).kernel(kernel);
            let output = guest.copy("/usr/bin/numactl").exclusive(true).output(&this).unwrap();
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status == 0 && stdout.contains("3 passed"), "{stdout}{stderr}");
        }
    }

    /// The limit is the program's, and not of this process.
    #[test]
    fn a_program_gets_no_more_huge_pages_than_it_may() {
        let limit = |which: &str| {
            let placement = Options::parse_from(["--huge-pages", which]).placement.resolve().unwrap();
            let mut command = Command::new("grep");
            let child =
                placement.spawn(command.args(["THP_enabled", "/proc/self/status"]).stdout(Stdio::piped()));
            child.map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        };
        let enabled = || std::fs::read_to_string("/proc/self/status").unwrap().contains("THP_enabled:\t1\n");
        let before = enabled();
        assert_eq!(limit("never").unwrap(), "THP_enabled:\t0\n");
        // Whether it is limited to huge pages that it asks for, the status does not say.
        match limit("advised") {
            Ok(line) => assert!(line.starts_with("THP_enabled:"), "{line}"),
            Err(error) => assert!(error.to_string().contains("(Linux 6.18 can)"), "{error}"),
        }
        assert_eq!(enabled(), before);
    }

    /// Weighted interleaving is newer than Debian 12's numactl and kernel: where the kernel has it, it is
    /// set, else the error says so.
    #[test]
    fn weighted_interleaving_is_set_or_explained() {
        let placement = Options::parse_from(["-w", "all"]).placement.resolve().unwrap();
        let applied = std::thread::spawn(move || {
            placement.apply().map(|()| nodewise_sys::get_mempolicy().unwrap().mode)
        });
        match applied.join().unwrap() {
            Ok(mode) => assert_eq!(mode, PolicyMode::WeightedInterleave),
            Err(error) => assert!(error.to_string().contains("(Linux 6.9 has)"), "{error}"),
        }
    }
}
