//! A program starts as many processes as it likes. The manager keeps room to open files for all else: it has
//! to read, and to put settings back. A test program of its own, since the limit is the whole process's.

use nodewise_engine::Pid;
use nodewise_linux::process::{Processes, descendants};
use nodewise_sys::{FileLimit, kill, set_file_limit};
use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

#[test]
fn processes_leave_room_for_other_files() {
    set_file_limit(FileLimit { soft: 100, hard: 100 }).unwrap();
    let script = format!("{} echo; wait", "sleep 100 >&- & ".repeat(90));
    let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    shell.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let mut processes = Processes::new(&[Pid(shell.id())], true, false).unwrap();
    for _ in 0..3 {
        processes.update();
    }
    let managed = processes.iter().count();
    let others: Result<Vec<File>, _> = (0..60).map(|_| File::open("/dev/null")).collect();
    for pid in descendants(shell.id()) {
        let _ = kill(pid.0 as i32, 9);
    }
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert!((5..=12).contains(&managed), "{managed} processes");
    others.unwrap();
}
