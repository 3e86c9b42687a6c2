//! A CPU of this computer for a modelled guest alone.
//!
//! The guest's CPUs ask the modelled hardware one after the other. On several CPUs of this computer its state
//! would go from cache to cache, and they would wait for each other. On one they take turns, and a guest is
//! quicker. Guests that run side by side take one each.

use crate::lock::Lock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::process::{Child, Command};

/// Held until dropped, or until the process ends in whatever way.
pub(crate) struct OwnCpu {
    cpu: usize,
    /// The CPUs that this thread may run on.
    allowed: CpuSet,
    _lock: Lock,
}

impl OwnCpu {
    /// One of those that this thread may run on. There is none where this user's other guests have all, or
    /// where the kernel does not tell. A guest is slower then.
    pub fn take() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        cpus.find_map(|cpu| {
            let lock = Lock::of(&format!("-cpu{cpu}"))?;
            Some(Self { cpu, allowed, _lock: lock })
        })
    }

    /// Starts a program that runs on this CPU alone.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let mut own = CpuSet::new();
        own.set(self.cpu);
        // A thread passes its CPUs on. A CPU may have gone offline since: then on whatever there is.
        let _ = sched_setaffinity(None, &own);
        let child = command.spawn();
        let _ = sched_setaffinity(None, &self.allowed);
        child
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_on_its_cpu_and_its_parent_on_all() {
        // Guests on this computer may have all of them.
        let Some(own) = OwnCpu::take() else { return };
        let mut command = Command::new("grep");
        command.args(["-h", "Cpus_allowed_list", "/proc/self/status"]).stdout(std::process::Stdio::piped());
        let output = own.spawn(&mut command).unwrap().wait_with_output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some(own.cpu.to_string().as_str()));
        assert!(sched_getaffinity(None).unwrap() == own.allowed);
        let other = OwnCpu::take();
        assert!(other.is_none_or(|other| other.cpu != own.cpu), "nobody gets it meanwhile");
    }
}
