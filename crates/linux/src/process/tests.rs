//! Tests of managed processes: of those that live, start others, or end.

use super::*;
use crate::bounds::MAPS_TIME;
use nodewise_engine::MappingKind;
use nodewise_sys::{sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// Such a name, as all longer ones of many languages when they are cut at 15 bytes, is neither UTF-8 in
/// `stat` nor in `maps`.
#[test]
fn names_are_bytes() {
    use std::os::unix::ffi::OsStrExt as _;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9 \xc3"));
    fs::copy("/bin/sleep", &program).unwrap();
    let mut child = Command::new(&program).arg("100").spawn().unwrap();
    let pid = Pid(child.id());
    while !fs::read(format!("/proc/{pid}/comm")).unwrap().starts_with(b"caf\xe9") {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(require_access(pid).is_ok());
    let mut processes = Processes::new(&[pid], true, false).unwrap();
    processes.update();
    let process = processes.iter().next().unwrap();
    assert!(
        process.details.mappings.as_ref().unwrap().iter().filter(|m| m.kind == MappingKind::File).count()
            >= 2
    );
    assert!(processes.is_same(pid));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!processes.is_same(pid));
}

#[test]
fn the_cpus_of_a_process_are_those_of_all_its_threads() {
    let first = sched_getaffinity(0).unwrap().iter().next().unwrap();
    let mut child = Command::new("sleep").arg("100").spawn().unwrap();
    let pid = Pid(child.id());
    sched_setaffinity(pid.0 as i32, &[first].into_iter().collect()).unwrap();
    let mut processes = Processes::new(&[pid], false, false).unwrap();
    let cpus = |processes: &mut Processes| {
        processes.update();
        processes.iter().next().unwrap().details.cpus.clone()
    };
    assert_eq!(cpus(&mut processes), Some([first].into_iter().collect()));
    child.kill().unwrap();
    child.wait().unwrap();
    // This process has threads besides the one that binds itself.
    let before = sched_getaffinity(0).unwrap();
    sched_setaffinity(0, &[first].into_iter().collect()).unwrap();
    let mut processes = Processes::new(&[Pid(std::process::id())], false, false).unwrap();
    let found = cpus(&mut processes);
    sched_setaffinity(0, &before).unwrap();
    assert_eq!(found, Some(before));
}

#[test]
fn mappings_are_read_again_when_they_have_changed() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // It answers once its libraries are loaded, and maps nothing more.
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let pid = Pid(child.id());
    let mut processes = Processes::new(&[pid], false, false).unwrap();
    // Whenever that is due.
    let look = |processes: &mut Processes| {
        processes.begin_interval();
        processes.alive.values_mut().for_each(|process| process.details.due = Instant::now());
        processes.update();
        processes.iter().next().unwrap().details.mappings.is_some()
    };
    assert!(look(&mut processes), "not read yet");
    assert!(!look(&mut processes), "as much is mapped as before");
    processes.distrust_mappings(pid);
    assert!(look(&mut processes), "something was seen outside");
    assert!(!look(&mut processes));
    processes.alive.get_mut(&pid).unwrap().details.mapped_bytes = Some(1);
    assert!(look(&mut processes), "less was mapped");
    processes.alive.get_mut(&pid).unwrap().details.old = Instant::now();
    assert!(look(&mut processes), "after a while");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A shell with so many children, the processes that are managed of them, and the bounds that were met.
fn managed(children: usize, limits: Limits) -> (Vec<usize>, BTreeSet<Bound>) {
    let script = format!("{} echo; wait", "sleep 100 >&- & ".repeat(children));
    let mut child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    // A child in the middle of executing its program has hardly any mappings.
    let sleeps =
        |pid: Pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n");
    let begin = Instant::now();
    while descendants(child.id()).into_iter().filter(|&pid| sleeps(pid)).count() < children {
        assert!(begin.elapsed() < Duration::from_secs(60), "its children do not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut processes = Processes::new(&[Pid(child.id())], true, false).unwrap();
    processes.limits = limits;
    processes.update();
    let mapped = processes.iter().map(|process| process.details.count).collect();
    let met = processes.met().clone();
    for pid in descendants(child.id()) {
        let _ = nodewise_sys::kill(pid.0 as i32, 9);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (mapped, met)
}

#[test]
fn bounds_are_those_of_all_processes_together() {
    let (mapped, met) = managed(5, Limits::default());
    assert_eq!((mapped.len(), met), (6, BTreeSet::new()));
    let (some, met) = managed(5, Limits { processes: 3, ..Limits::default() });
    assert_eq!((some.len(), met), (3, [Bound::Processes].into()));
    // The shell's thread, and those of two of its children.
    let (all, met) = managed(5, Limits { threads: 3, ..Limits::default() });
    assert_eq!((all.len(), met), (6, [Bound::Threads].into()));
    let (all, met) = managed(5, Limits { mappings: 16, mappings_each: 1, ..Limits::default() });
    assert!(all.len() == 6 && all.iter().all(|&mapped| (1..=8).contains(&mapped)), "{all:?}");
    assert!(all.iter().sum::<usize>() <= 16 + 6, "{all:?}");
    assert_eq!(met, [Bound::Mappings].into());
}

#[test]
fn mappings_that_there_is_no_time_for_are_read_the_next_time() {
    let own = Pid(std::process::id());
    let mut processes = Processes::new(&[own], false, false).unwrap();
    processes.update_until(Instant::now());
    assert!(processes.get(own).unwrap().details.mappings.is_none());
    processes.update();
    assert!(processes.get(own).unwrap().details.mappings.is_some());
    assert!(processes.get(own).unwrap().fresh);
}

#[test]
fn children_are_looked_for_no_sooner_than_is_due() {
    let mut child = Command::new("sh").args(["-c", "sleep 100 & sleep 100 & wait"]).spawn().unwrap();
    let mut processes = Processes::new(&[Pid(child.id())], true, false).unwrap();
    processes.children.took(Duration::from_secs(1));
    for _ in 0..100 {
        processes.update();
        assert_eq!(processes.iter().count(), 1, "a look took a second, and the next is due in 100");
        std::thread::sleep(Duration::from_millis(1));
    }
    processes.children = OnePercent::default();
    while processes.iter().count() < 3 {
        processes.update();
    }
    processes.iter().filter(|process| process.pid.0 != child.id()).for_each(|process| {
        nodewise_sys::kill(process.pid.0 as i32, 9).unwrap();
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn follows_children_and_notices_their_end() {
    let mut child = Command::new("sh")
        .args(["-c", "echo; read x; sleep 100 >&- & wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // spawn returns in the middle of execve, when the stack's start is not set yet.
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let root = Pid(child.id());
    let mut processes = Processes::new(&[root], true, false).unwrap();
    processes.update();
    assert!(processes.iter().all(|p| !p.from_the_start));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
    let grandchild = loop {
        processes.begin_interval();
        processes.update();
        // Fresh ones may be in the middle of executing their program.
        if processes.iter().any(|p| p.fresh) {
            continue;
        }
        if let Some(p) = processes.iter().find(|p| p.pid != root) {
            assert!(p.from_the_start, "born since we came");
            break p.pid;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(processes.contains(root) && processes.is_same(root));
    child.kill().unwrap();
    child.wait().unwrap();
    processes.update();
    assert!(!processes.contains(root) && !processes.is_same(root));
    assert!(processes.contains(grandchild), "an orphan of a managed process stays managed");
    Command::new("sh").args(["-c", &format!("kill {grandchild}")]).status().unwrap();
    assert!(processes.cost().files > 0 && processes.cost().bytes > 0);
}

#[test]
fn another_program_in_the_same_process_is_fresh() {
    use std::io::Write as _;
    let mut child =
        Command::new("sh").args(["-c", "read x; exec sleep 100"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut processes = Processes::new(&[Pid(child.id())], true, true).unwrap();
    for _ in 0..2 {
        processes.update();
        assert!(
            processes.iter().all(|p| p.fresh && p.details.mappings.is_some()),
            "news until the interval ends"
        );
    }
    // spawn() may return while the kernel is still laying out the new program's stack.
    while processes.iter().any(|p| p.fresh) {
        processes.begin_interval();
        processes.update();
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    while !fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap().starts_with("sleep") {
        std::thread::sleep(Duration::from_millis(5));
    }
    processes.update();
    assert!(processes.iter().all(|p| p.fresh));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_wrong_pid_is_an_error() {
    assert_eq!(Processes::new(&[Pid(u32::MAX)], true, false).unwrap_err().kind(), ErrorKind::NoSuchProcess);
}

#[test]
fn a_program_that_ended_as_soon_as_it_was_started_is_no_error() {
    let mut processes = Processes::new(&[Pid(u32::MAX)], true, true).unwrap();
    processes.update();
    assert_eq!(processes.iter().count(), 0);
}

#[test]
fn a_process_is_not_read_where_new_ones_have_had_their_share() {
    let own = Pid(std::process::id());
    let mut processes = Processes::new(&[own], false, false).unwrap();
    processes.first_reads.take(3_600_000_000_000);
    for _ in 0..2 {
        processes.update();
        assert!(processes.get(own).unwrap().details.mappings.is_none());
    }
    processes.first_reads = Allowance::default();
    processes.update();
    assert!(processes.get(own).unwrap().details.mappings.is_some());
    assert!(processes.first_reads.left_ns < MAPS_TIME.as_nanos() as i64);
}
