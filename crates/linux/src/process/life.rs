//! The life of a process: whether it is there, is the one that was meant, and may be managed.

use super::read_cost::{ReadCost, lossy};
use super::stat::Stat;
use crate::ending::Ending;
use crate::{Error, ErrorKind, bounds};
use nodewise_engine::Pid;
use nodewise_sys::{Capability, effective_capabilities};
use std::fs;

/// Tells one life of a process from the next. [`Stat`] says what its fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) start_time: u64,
    pub(super) start_stack: u64,
    pub(super) zombie: bool,
    pub(super) of_the_kernel: bool,
}

impl Life {
    pub(super) const fn of(stat: &Stat) -> Self {
        let &Stat { start_time, start_stack, zombie, of_the_kernel, .. } = stat;
        Self { start_time, start_stack, zombie, of_the_kernel }
    }

    pub(super) fn read(pid: u32) -> Option<Self> {
        Some(Self::of(&Stat::read(&format!("/proc/{pid}/stat"))?))
    }
}

/// When a process started, in clock ticks after boot; none if there is no such process.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    Life::read(pid).map(|life| life.start_time)
}

/// Whether a process has not ended.
fn is_alive(pid: Pid) -> bool {
    Life::read(pid.0).is_some_and(|life| !life.zombie)
}

/// All living processes below this one.
#[must_use]
pub fn descendants(pid: u32) -> Vec<Pid> {
    let (mut found, mut left) = (Vec::new(), vec![Pid(pid)]);
    let mut threads = bounds::THREADS;
    while let Some(parent) = left.pop() {
        let before = left.len();
        ReadCost::default().children(parent, &mut threads, &mut left, &Ending::default());
        found.extend_from_slice(&left[before..]);
    }
    found.retain(|&pid| is_alive(pid));
    found.sort_unstable();
    found
}

const NOT_PERMITTED: nodewise_sys::ErrorKind = nodewise_sys::ErrorKind::NotPermitted;

/// Checks that a process exists and that we may see and move its memory.
pub fn require_access(pid: Pid) -> Result<(), Error> {
    let refused = |kind, what: String| Err(Error::new(kind, what));
    let file = |name| lossy(fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default());
    let Some(life) = Life::read(pid.0) else {
        // proc(5): with hidepid a process of another user is not in /proc.
        let hidden = nodewise_sys::kill(pid.0 as i32, 0).is_err_and(|e| e.kind() == NOT_PERMITTED);
        if hidden {
            let what = format!(
                "process {pid} is hidden, as /proc is mounted with hidepid; run as root, or grant CAP_SYS_PTRACE"
            );
            return refused(ErrorKind::NotPermitted, what);
        }
        return refused(ErrorKind::NoSuchProcess, format!("there is no process {pid}"));
    };
    let status = file("status");
    let status = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    if let Some(process) = status("Tgid:").filter(|tgid| *tgid != pid.to_string()) {
        let what = format!(
            "{pid} is a thread of process {process}; processes are managed whole: attach to {process}"
        );
        return refused(ErrorKind::NoSuchProcess, what);
    }
    if life.zombie {
        let what = format!("process {pid} has ended, and waits for its parent to see that");
        return refused(ErrorKind::NoSuchProcess, what);
    }
    if status("VmSize:").is_none() {
        if !life.of_the_kernel {
            return refused(ErrorKind::NoSuchProcess, format!("process {pid} is just ending"));
        }
        let what = format!("process {pid} has no memory of its own to place: it is a thread of the kernel");
        return refused(ErrorKind::Unsupported, what);
    }
    // The right that move_pages asks for too (`mm/migrate.c`, `find_mm_struct`: `PTRACE_MODE_READ`). Opening
    // is checked; the one error that says so counts, as the process may be ending just now.
    match fs::File::open(format!("/proc/{pid}/maps")) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let why = if effective_capabilities().is_ok_and(|set| Capability::SysPtrace.is_in(set)) {
                "a security module or a sandbox keeps its memory from us, though this user has CAP_SYS_PTRACE"
            } else {
                "belongs to somebody else; run as root, or grant CAP_SYS_PTRACE"
            };
            refused(ErrorKind::NotPermitted, format!("process {pid}: {why}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn what_cannot_be_managed_is_refused_with_the_reason() {
        let refusal = |pid: u32| {
            let error = require_access(Pid(pid)).unwrap_err();
            (error.kind(), error.to_string())
        };
        assert!(require_access(Pid(std::process::id())).is_ok());
        assert_eq!(refusal(u32::MAX).0, ErrorKind::NoSuchProcess);

        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = fs::read_link("/proc/thread-self").unwrap();
            told.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let (kind, message) = refusal(tid.recv().unwrap());
        assert_eq!(kind, ErrorKind::NoSuchProcess);
        assert!(message.contains(&format!("is a thread of process {}", std::process::id())), "{message}");
        drop(end);
        thread.join().unwrap();

        let mut child = Command::new("true").spawn().unwrap();
        while !Life::read(child.id()).unwrap().zombie {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (kind, message) = refusal(child.id());
        assert!(kind == ErrorKind::NoSuchProcess && message.contains("has ended"), "{message}");
        child.wait().unwrap();
        assert!(refusal(child.id()).1.contains("there is no process"));

        // The kernel's threads are not seen from within every container.
        let kernel_thread = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
        if kernel_thread {
            let (kind, message) = refusal(2);
            assert!(kind == ErrorKind::Unsupported && message.contains("thread of the kernel"), "{message}");
        }
    }
}
