//! Obstacles to a good placement of memory, as far as `/proc` and `/sys` tell: support for NUMA that is
//! switched off in silence, and others.

use crate::bounds;
use crate::kernel::policies_file;
use nodewise_engine::Pid;
use nodewise_topology::Topology;
use std::fs;
use std::io::Read as _;
use std::path::Path;

/// The facts about a process. Plain data, so that a report can be made of any.
#[derive(Clone, Debug, Default)]
struct Facts {
    arguments: Vec<String>,
    environment: Vec<String>,
    maps: String,
    status: String,
    /// Nodes with memory.
    nodes: usize,
}

/// So much of a file is read: a process can make its own as long as it likes.
const MOST_BYTES: u64 = 4 << 20;
/// Memory in huge pages by reservation that matters, in percent of resident memory.
const HUGE_TLB_PERCENT: u64 = 5;
/// A node with a smaller share of free memory gives new memory elsewhere.
const FREE_PERCENT: u64 = 2;
/// A larger share of page cache is what is in its way.
const CACHE_PERCENT: u64 = 30;

/// The obstacles to placing a process's memory, each in a sentence.
#[must_use]
pub fn obstacles(pid: u32, topology: &Topology) -> Vec<String> {
    let read = |name: &str| text(&format!("/proc/{pid}/{name}"));
    let words = |text: String| text.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let nodes = topology.nodes().iter().filter(|node| node.may_have_memory()).count();
    let facts = Facts {
        arguments: words(read("cmdline")),
        environment: words(read("environ")),
        maps: read("maps"),
        status: read("status"),
        nodes,
    };
    let mut obstacles = of_process(&facts);
    for node in topology.nodes().iter().filter(|node| node.may_have_memory()) {
        let meminfo = text(&format!("/sys/devices/system/node/node{}/meminfo", node.id));
        obstacles.extend(page_cache(&meminfo, &node.id.to_string()));
    }
    obstacles.extend(of_machine());
    obstacles
}

fn of_process(facts: &Facts) -> Vec<String> {
    let checks = [java(facts), dotnet(facts), filter(facts), huge_tlb(facts), confined(facts)];
    checks.into_iter().flatten().collect()
}

/// The JVM keeps `UseNUMA` off unless asked. It switches it off without a word if it finds no library or one
/// node only (`os_linux.cpp`, `libnuma_init`, `os::init_2`).
fn java(facts: &Facts) -> Option<String> {
    if !facts.maps.contains("/libjvm.so") {
        return None;
    }
    let options = ["JAVA_TOOL_OPTIONS=", "JDK_JAVA_OPTIONS=", "_JAVA_OPTIONS="];
    let is_options = |variable: &&String| options.iter().any(|name| variable.starts_with(name));
    let by_environment =
        facts.environment.iter().filter(is_options).flat_map(|variable| variable.split(['=', ' ']));
    let mut words = facts.arguments.iter().map(String::as_str).chain(by_environment);
    // The last one counts.
    let asked = words.rfind(|word| word.ends_with("UseNUMA"));
    Some(match asked {
        Some(word) if word.contains('+') || word == "UseNUMA" => {
            if !facts.maps.contains("/libnuma.so") {
                "the JVM was asked for NUMA support (-XX:+UseNUMA) and has none: libnuma.so.1 is missing"
                    .to_owned()
            } else if allowed_nodes(&facts.status) == Some(1) && facts.nodes > 1 {
                "the JVM was asked for NUMA support (-XX:+UseNUMA), which it switches off on one allowed node"
                    .to_owned()
            } else {
                return None;
            }
        }
        _ => "the JVM's NUMA support is off, as it is by default: -XX:+UseNUMA switches it on".to_owned(),
    })
}

/// The garbage collector heeds these variables (`clrconfignames.h`, `gcconfig.h`).
fn dotnet(facts: &Facts) -> Option<String> {
    if !facts.maps.contains("/libcoreclr.so") {
        return None;
    }
    let value = |name: &str| {
        let variables = facts.environment.iter().filter_map(|variable| variable.split_once('='));
        let mut named = variables.filter(|(found, _)| {
            found
                .strip_prefix("DOTNET_")
                .or(found.strip_prefix("COMPlus_"))
                .is_some_and(|found| found == name)
        });
        named.next().map(|(_, value)| value)
    };
    if value("GCNumaAware").is_some_and(|value| value == "0") {
        return Some(".NET's garbage collector ignores nodes: DOTNET_GCNumaAware=0".to_owned());
    }
    if value("GCNoAffinitize").is_some_and(|value| value != "0") {
        return Some(".NET's garbage collector lets its threads wander: DOTNET_GCNoAffinitize".to_owned());
    }
    if !facts.maps.contains("/libnuma.so") {
        return Some(".NET has no NUMA support here: libnuma.so.1 is missing".to_owned());
    }
    None
}

/// The program's own calls fail under a container's default filter, unless it has the capability.
fn filter(facts: &Facts) -> Option<String> {
    const SYS_NICE: u32 = 23;
    let filtered = value(&facts.status, "Seccomp:") == Some("2");
    let effective = u64::from_str_radix(value(&facts.status, "CapEff:")?, 16).ok()?;
    (filtered && effective >> SYS_NICE & 1 == 0).then(|| {
        "a seccomp filter may refuse the program's own mbind and set_mempolicy: containers allow them with \
         CAP_SYS_NICE"
            .to_owned()
    })
}

fn huge_tlb(facts: &Facts) -> Option<String> {
    let kib = |key: &str| value(&facts.status, key)?.split(' ').next()?.parse::<u64>().ok();
    let (huge, resident) = (kib("HugetlbPages:")?, kib("VmRSS:")?);
    (huge * 100 > (huge + resident) * HUGE_TLB_PERCENT).then(|| {
        format!(
            "{} MiB are huge pages by reservation (hugetlb), which are not balanced by the kernel",
            huge >> 10
        )
    })
}

fn confined(facts: &Facts) -> Option<String> {
    (allowed_nodes(&facts.status)? < facts.nodes).then(|| {
        let list = value(&facts.status, "Mems_allowed_list:").unwrap_or_default();
        format!("a cpuset confines its memory to node {list} of {}", facts.nodes)
    })
}

fn allowed_nodes(status: &str) -> Option<usize> {
    let list: nodewise_topology::NodeSet = value(status, "Mems_allowed_list:")?.parse().ok()?;
    Some(list.len())
}

/// A node that is full of page cache gives new memory elsewhere, until somebody reclaims.
fn page_cache(meminfo: &str, node: &str) -> Option<String> {
    let kib = |key: &str| {
        let line = meminfo.lines().find(|line| line.contains(&format!(" {key}:")))?;
        line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()
    };
    let (total, free, cache) = (kib("MemTotal")?, kib("MemFree")?, kib("FilePages")?);
    (free * 100 < total * FREE_PERCENT && cache * 100 > total * CACHE_PERCENT).then(|| {
        format!(
            "node {node} is full of page cache ({} MiB), so that new memory comes from others",
            cache >> 10
        )
    })
}

/// Other programs that decide about balancing, and about where threads run.
fn of_machine() -> Vec<String> {
    let mut notes = Vec::new();
    let scheduler = text("/sys/kernel/sched_ext/state");
    if scheduler.trim() == "enabled" {
        notes.push("a sched_ext scheduler runs, and the kernel places no threads by node".to_owned());
    }
    for (program, does) in
        [("numad", "moves processes between nodes"), ("tuned", "may set kernel.numa_balancing")]
    {
        if runs(program) {
            notes.push(format!("{program} runs, which {does}"));
        }
    }
    notes
}

fn runs(program: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = processes.filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit());
    let name = |path: &Path| fs::read_to_string(path.join("comm")).unwrap_or_default();
    numbered.take(bounds::PROCESSES).any(|entry| name(&entry.path()).trim() == program)
}

/// Memory that the kernel's hint faults do not reach, in percent of what is resident: bound or huge by
/// reservation, or of files. None where that cannot be read, or takes too long.
#[must_use]
pub fn hidden_percent(pid: u32) -> Option<f64> {
    let maps = text(&policies_file(Pid(pid), &text(&format!("/proc/{pid}/status")))?);
    (!maps.is_empty()).then(|| hidden(&maps))
}

fn hidden(policies: &str) -> f64 {
    let (mut all, mut hidden) = (0, 0);
    for line in policies.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let count = |word: &&str| word.strip_prefix('N')?.split_once('=')?.1.parse::<u64>().ok();
        let kib = words.iter().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        let resident: u64 = words.iter().filter_map(count).sum::<u64>() * kib.unwrap_or(4);
        let policy = words.get(1).copied().unwrap_or_default();
        let is_file = words.iter().any(|word| word.starts_with("file=")) && !line.contains("anon=");
        let is_hidden = policy.starts_with("bind") || words.contains(&"huge") || is_file;
        all += resident;
        hidden += if is_hidden { resident } else { 0 };
    }
    100.0 * hidden as f64 / all.max(1) as f64
}

fn value<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// The beginning of a file; empty where it cannot be read.
fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    read.map_or_else(|_| String::new(), |_| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const JVM: &str = "7f00-7f10 r-xp 0 0 0 /usr/lib/jvm/17/lib/server/libjvm.so\n";
    const NUMA: &str = "7f20-7f30 r-xp 0 0 0 /usr/lib/x86_64-linux-gnu/libnuma.so.1.0.0\n";

    fn facts(arguments: &[&str], environment: &[&str], maps: &str) -> Facts {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let status = "Mems_allowed_list:\t0-3\nSeccomp:\t0\nCapEff:\t000001ffffffffff\n".to_owned();
        Facts {
            arguments: words(arguments),
            environment: words(environment),
            maps: maps.to_owned(),
            status,
            nodes: 4,
        }
    }

    #[test]
    fn a_jvm_says_what_is_in_force() {
        let with = |arguments: &[&str], environment: &[&str], libraries: &str| {
            java(&facts(arguments, environment, &format!("{JVM}{libraries}")))
        };
        assert!(with(&["java", "-jar", "x.jar"], &[], "").unwrap().contains("off, as it is by default"));
        assert!(with(&["java", "-XX:+UseNUMA"], &[], "").unwrap().contains("libnuma.so.1 is missing"));
        assert_eq!(with(&["java", "-XX:+UseNUMA"], &[], NUMA), None);
        assert_eq!(with(&["java"], &["JAVA_TOOL_OPTIONS=-Xmx1g -XX:+UseNUMA"], NUMA), None);
        let undone = with(&["java", "-XX:-UseNUMA"], &[], NUMA).unwrap();
        assert!(undone.contains("off"), "{undone}");
        let mut one_node = facts(&["java", "-XX:+UseNUMA"], &[], &format!("{JVM}{NUMA}"));
        one_node.status = "Mems_allowed_list:\t1\n".to_owned();
        assert!(java(&one_node).unwrap().contains("one allowed node"));
        assert_eq!(java(&facts(&["redis-server"], &[], NUMA)), None, "no JVM");
    }

    #[test]
    fn dotnet_says_what_is_in_force() {
        let clr = "7f00-7f10 r-xp 0 0 0 /usr/share/dotnet/libcoreclr.so\n";
        let with = |environment: &[&str], libraries: &str| {
            dotnet(&facts(&["dotnet"], environment, &format!("{clr}{libraries}")))
        };
        assert_eq!(with(&[], NUMA), None);
        assert!(with(&[], "").unwrap().contains("libnuma.so.1 is missing"));
        assert!(with(&["DOTNET_GCNumaAware=0"], NUMA).unwrap().contains("ignores nodes"));
        assert!(with(&["COMPlus_GCNoAffinitize=1"], NUMA).unwrap().contains("wander"));
    }

    #[test]
    fn filters_reservations_and_cpusets_are_told() {
        let mut container = facts(&["x"], &[], "");
        assert_eq!(of_process(&container), [""; 0]);
        container.status = "VmRSS:\t 1024 kB\nHugetlbPages:\t 2097152 kB\nMems_allowed_list:\t0-1\n\
                            Seccomp:\t2\nCapEff:\t00000000a80425fb\n"
            .to_owned();
        let notes = of_process(&container);
        assert!(
            notes[0].contains("seccomp")
                && notes[1].contains("2048 MiB")
                && notes[2].contains("node 0-1 of 4")
        );
        container.status = container.status.replace("00000000a80425fb", "00000000a88425fb");
        assert!(!of_process(&container)[0].contains("seccomp"), "it has CAP_SYS_NICE");
    }

    #[test]
    fn a_node_full_of_page_cache_is_told() {
        let meminfo = |free: u64| {
            format!("Node 1 MemTotal: 1000000 kB\nNode 1 MemFree: {free} kB\nNode 1 FilePages: 700000 kB\n")
        };
        assert!(
            page_cache(&meminfo(10_000), "1").unwrap().contains("node 1 is full of page cache (683 MiB)")
        );
        assert_eq!(page_cache(&meminfo(100_000), "1"), None);
    }

    #[test]
    fn memory_that_hint_faults_do_not_reach_is_counted() {
        let maps = "\
7f0000000000 default anon=300 dirty=300 N0=100 N1=200 kernelpagesize_kB=4
7f1000000000 bind:0 anon=500 dirty=500 N0=500 kernelpagesize_kB=4
7f2000000000 default file=/usr/lib/libc.so.6 mapped=200 N0=200 kernelpagesize_kB=4
7f3000000000 default file=/anon_hugepage\\040(deleted) huge anon=1 dirty=1 N0=1 kernelpagesize_kB=2048
";
        assert!((hidden(maps) - 100.0 * (500.0 + 200.0 + 512.0) / 1512.0).abs() < 1e-9, "{}", hidden(maps));
        assert!(hidden("").abs() < f64::EPSILON);
    }
}
