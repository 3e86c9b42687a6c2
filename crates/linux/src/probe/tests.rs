//! Reports of machines that are not this one.

use super::*;
use nodewise_sys::Capability;

fn works(text: &str) -> Outcome {
    Outcome::Works(text.to_owned())
}

/// A server with four nodes, root, everything there.
fn server() -> Facts {
    Facts {
        kernel: "6.12.1-amd64".to_owned(),
        architecture: "x86_64".to_owned(),
        cpus: 128,
        nodes: 4,
        topology_warnings: Vec::new(),
        nodes_allowed: 4,
        capabilities: u64::MAX,
        seccomp: false,
        perf_event_paranoid: Some(3),
        balancing: Some(1),
        balancing_writable: true,
        scan_settings: true,
        settings_barred: None,
        settings_changed: Ok(Changed::No),
        hint_faults: works("1024 seen on resident pages after 1.2 s"),
        page_fault_event: works("opened on a CPU"),
        page_fault_tracepoint: works("opened on a CPU: reads and writes are told apart"),
        hardware_sampler: works(
            "Intel PEBS on every CPU, one sample in 10007 slow loads and in 100003 stores",
        ),
        move_pages: works("moved a page of another process from node 0 to 1"),
        split: works("split a huge page of another process"),
        collapse: works("made a huge page in another process"),
        mempolicy: works("set and read back"),
        preferred_many: works("set and read back"),
        bind_balancing: works("set and read back"),
        preferred_many_balancing: works("set and read back"),
        weighted_interleave: works("set and read back"),
        rseq_feature_bytes: 28,
        huge_pages: Some("madvise".to_owned()),
        khugepaged: Some((4096, 10_000)),
        debugfs: true,
        lockdown: Some("none".to_owned()),
        ptrace_scope: Some(1),
        file_limit: Some(FileLimit { soft: 1024, hard: 524_288 }),
    }
}

/// A user without rights in a container on Debian 12, with balancing off.
fn container() -> Facts {
    let refused = |call: &str| Outcome::Refused(format!("{call}: operation not permitted (errno 1)"));
    let since =
        |version: &str| Outcome::Lacking(format!("not known to this kernel; in Linux since {version}"));
    Facts {
        kernel: "6.1.0-26-amd64".to_owned(),
        nodes_allowed: 2,
        capabilities: 0,
        seccomp: true,
        balancing: Some(0),
        balancing_writable: false,
        scan_settings: false,
        hint_faults: Outcome::Untried("NUMA balancing is off".to_owned()),
        page_fault_event: refused("perf_event_open"),
        page_fault_tracepoint: Outcome::Refused(
            "tracefs is not mounted, or not to be read by this user".to_owned(),
        ),
        hardware_sampler: Outcome::Lacking("this CPU's PMU is not visible (virtual machine)".to_owned()),
        move_pages: refused("move_pages"),
        split: refused("process_madvise"),
        collapse: refused("process_madvise"),
        mempolicy: refused("set_mempolicy"),
        preferred_many: refused("set_mempolicy"),
        bind_balancing: refused("set_mempolicy"),
        preferred_many_balancing: since("6.10"),
        weighted_interleave: since("6.9"),
        rseq_feature_bytes: 0,
        huge_pages: Some("never".to_owned()),
        khugepaged: Some((4096, 10)),
        debugfs: false,
        lockdown: Some("integrity".to_owned()),
        file_limit: Some(FileLimit { soft: 256, hard: 256 }),
        ..server()
    }
}

/// One line a check, as the command prints it.
fn text(facts: &Facts) -> String {
    let report = Report::new(facts);
    let lines = report.checks.iter().map(|check| {
        let advice = check.advice.as_ref().map(|advice| format!("\n    {advice}")).unwrap_or_default();
        format!("{:?} {}: {}{advice}\n", check.status, check.name, check.found)
    });
    format!("sampler {:?}, manageable {}\n{}", report.sampler, report.manageable, lines.collect::<String>())
}

#[test]
fn everything_works_on_a_server() {
    insta::assert_snapshot!(text(&server()));
}

#[test]
fn a_container_is_told_what_hinders_it() {
    insta::assert_snapshot!(text(&container()));
}

#[test]
fn balancing_that_is_off_can_be_switched_on_by_root() {
    let off = Facts {
        balancing: Some(0),
        hint_faults: Outcome::Untried("NUMA balancing is off".to_owned()),
        hardware_sampler: Outcome::Lacking("the kernel exports no CPU PMU".to_owned()),
        ..server()
    };
    assert_eq!(Report::new(&off).sampler, Some("hint-faults"));
    assert!(Report::new(&off).manageable);
    let by_a_user = Facts { balancing_writable: false, ..off };
    assert_eq!(Report::new(&by_a_user).sampler, None);
    assert!(!Report::new(&by_a_user).manageable);
}

#[test]
fn hint_faults_that_do_not_come_are_not_counted_on() {
    let silent = Facts {
        hint_faults: Outcome::Lacking("none in 5 s, though NUMA balancing is on".to_owned()),
        hardware_sampler: Outcome::Lacking("the kernel exports no CPU PMU".to_owned()),
        ..server()
    };
    assert_eq!(Report::new(&silent).sampler, None);
}

/// Nodewise must not promise what it then cannot do.
#[test]
fn settings_that_cannot_be_owned_are_not_promised_to_change() {
    let why = "cannot lock /sys/kernel/debug/sched; mount it: mount -t debugfs none /sys/kernel/debug";
    let facts = Facts { settings_barred: Some(why.to_owned()), balancing: Some(0), ..server() };
    let report = Report::new(&facts);
    let check = |name: &str| report.checks.iter().find(|check| check.name == name).unwrap();
    assert_eq!(check("NUMA balancing").status, Status::Missing);
    assert!(check("NUMA balancing").found.contains("Nodewise cannot switch it on"));
    let settings = check("kernel settings");
    assert!(settings.status == Status::Limited && settings.found.contains(why), "{settings:?}");
    // One who may change them is told so.
    let report = Report::new(&Facts { settings_barred: None, ..facts });
    let balancing = report.checks.iter().find(|check| check.name == "NUMA balancing").unwrap();
    assert!(balancing.advice.as_deref().unwrap().contains("switches it on"), "{balancing:?}");
}

#[test]
fn settings_that_a_killed_nodewise_left_are_named_with_what_to_do() {
    let check = |changed| {
        let report = Report::new(&Facts { settings_changed: changed, ..server() });
        report.checks.into_iter().find(|check| check.name == "kernel settings").unwrap()
    };
    let path = std::path::PathBuf::from("/proc/sys/kernel/numa_balancing");
    let left = check(Ok(Changed::LeftBy { pid: 42, originals: [(path, "0".to_owned())].into() }));
    assert_eq!(
        (left.status, left.found.as_str()),
        (
            Status::Limited,
            "left changed by nodewise 42, which was killed: /proc/sys/kernel/numa_balancing (was 0)"
        )
    );
    assert!(left.advice.unwrap().contains("nodewise run -- true"));
    assert_eq!(check(Ok(Changed::ByRunning(42))).status, Status::Works);
    let broken = check(Err("/run/nodewise/settings.json, line 1: expected a settings journal".to_owned()));
    assert!(broken.status == Status::Limited && broken.found.contains("line 1"));
}

#[test]
fn a_machine_with_one_node_is_told_so_kindly() {
    let laptop = Facts { nodes: 1, nodes_allowed: 1, ..server() };
    let report = Report::new(&laptop);
    assert!(!report.manageable);
    assert_eq!((report.checks[0].name, report.checks[0].status), ("nodes", Status::Missing));
    assert!(report.checks[0].advice.as_deref().unwrap().contains("nodewise rig --nodes 4"));
}

#[test]
fn a_node_that_counts_too_little_memory_is_named_and_hinders_nothing() {
    let warning = "the nodes' MemTotal add up to 7680 MiB, and the machine has 24064 MiB";
    let grown = Facts { topology_warnings: vec![warning.to_owned()], ..server() };
    let report = Report::new(&grown);
    let check = report.checks.iter().find(|check| check.name == "topology").unwrap();
    assert_eq!((check.status, check.found.as_str()), (Status::Limited, warning));
    assert!(report.manageable);
    assert!(Report::new(&server()).checks.iter().all(|check| check.name != "topology"));
}

#[test]
fn rights_are_asked_for_only_where_they_lack() {
    let advice = |facts: &Facts, name: &str| {
        Report::new(facts).checks.iter().find(|check| check.name == name).unwrap().advice.clone()
    };
    let nice_only = Facts { capabilities: 1 << Capability::SysNice as u32, ..server() };
    assert_eq!(
        advice(&nice_only, "capabilities").unwrap(),
        "run as root for samples of every CPU, other users' processes, page frames and kernel settings"
    );
    assert!(advice(&nice_only, "perf_event_paranoid").is_some());
    assert_eq!(advice(&server(), "perf_event_paranoid"), None);
    let no_seccomp = Facts { seccomp: false, ..container() };
    assert!(advice(&container(), "moving pages").unwrap().contains("seccomp"));
    assert!(advice(&no_seccomp, "moving pages").unwrap().contains("CAP_SYS_PTRACE"));
}

#[test]
fn this_machine_is_probed_without_a_patient() {
    // Whatever this machine is: a target that says nothing leaves what needs one untried, and the rest is
    // still probed.
    let facts = Facts::gather(&mut Command::new("true")).unwrap();
    assert!(facts.nodes >= 1 && facts.nodes_allowed >= 1);
    assert!(matches!(facts.move_pages, Outcome::Untried(_)), "{facts:?}");
    assert_eq!(facts.kernel, fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().trim());
    assert!(!facts.mempolicy.text().is_empty());
}
