//! A process to try on what Nodewise does to others: moving a page, splitting a huge page, making one.

use super::Outcome;
use crate::kernel::LiveKernel;
use crate::mover::Kernel as _;
use nodewise_engine::{HUGE_PAGE_PAGES, PAGE_BYTES, VirtAddr};
use nodewise_sys::{
    AddressRange, Advice, Capability, Mapping, MappingOptions, MoveFlags, ProcessAdvice, mems_allowed,
    move_pages, pidfd_open, process_madvise, query_pages,
};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

const HUGE_BYTES: usize = (HUGE_PAGE_PAGES * PAGE_BYTES) as usize;

/// The target's side: maps 2 MiB, as a huge page if the kernel gives one, and prints the address. It waits
/// until its standard input is closed.
///
/// # Errors
/// No memory, or nobody listens.
pub fn run_probe_target() -> std::io::Result<()> {
    let options = MappingOptions { align_bytes: HUGE_BYTES, ..MappingOptions::default() };
    let mapping = Mapping::new(HUGE_BYTES, options)?;
    // Either advice may fail where the kernel has no huge pages; the doctor sees whether there is one.
    let _ = mapping.advise(0..HUGE_BYTES, Advice::HugePage);
    for word in mapping.as_atomics().iter().step_by(PAGE_BYTES as usize / 8) {
        word.store(1, Ordering::Relaxed);
    }
    let _ = mapping.advise(0..HUGE_BYTES, Advice::Collapse);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", mapping.address())?;
    out.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The results of the trials on the target.
pub(super) struct ProbeResults {
    pub(super) move_pages: Outcome,
    pub(super) split: Outcome,
    pub(super) collapse: Outcome,
}

/// The doctor's side.
pub(super) fn probe(command: &mut Command, capabilities: u64) -> ProbeResults {
    let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(e) => return all_untried(&format!("cannot start a process to try it on: {e}")),
    };
    let results = match ProbeTarget::meet(&mut child, capabilities) {
        Ok(target) => {
            let split = target.split();
            // A page of its own by now, if the split went well; else the huge page moves as a whole.
            let move_pages = target.move_page();
            ProbeResults { move_pages, split, collapse: target.collapse() }
        }
        Err(why) => all_untried(&why),
    };
    // Closing its standard input ends it; should it not listen, the signal does.
    drop(child.stdin.take());
    let _ = child.kill();
    let _ = child.wait();
    results
}

fn all_untried(why: &str) -> ProbeResults {
    let outcome = || Outcome::Untried(why.to_owned());
    ProbeResults { move_pages: outcome(), split: outcome(), collapse: outcome() }
}

struct ProbeTarget {
    pid: u32,
    pidfd: OwnedFd,
    address: u64,
    /// Whether page frames may be looked at, which tells a split huge page from one that is only mapped in
    /// pieces.
    sees_frames: bool,
}

impl ProbeTarget {
    fn meet(child: &mut Child, capabilities: u64) -> Result<Self, String> {
        let mut line = String::new();
        if let Some(out) = child.stdout.as_mut() {
            BufReader::new(out).read_line(&mut line).map_err(|e| format!("the process to try it on: {e}"))?;
        }
        let address =
            line.trim().parse().map_err(|_| "the process to try it on did not start well".to_owned())?;
        let pidfd = pidfd_open(child.id() as i32).map_err(|e| e.to_string())?;
        let sees_frames =
            Capability::SysAdmin.is_in(capabilities) && fs::File::open("/proc/kpageflags").is_ok();
        Ok(Self { pid: child.id(), pidfd, address, sees_frames })
    }

    fn is_huge(&self) -> bool {
        if self.sees_frames {
            return LiveKernel::default().is_huge(self.pid, VirtAddr(self.address).page()) == Some(true);
        }
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", self.pid)).unwrap_or_default();
        let begin = format!("{:x}-", self.address);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begin));
        let huge = lines.find_map(|line| line.strip_prefix("AnonHugePages:"));
        huge.is_some_and(|size| size.trim() == format!("{} kB", HUGE_BYTES / 1024))
    }

    fn advise(&self, bytes: u64, advice: ProcessAdvice) -> Result<(), Outcome> {
        let range = AddressRange { address: self.address, bytes };
        process_madvise(&self.pidfd, &[range], advice).map(|_| ()).map_err(Outcome::failed)
    }

    fn split(&self) -> Outcome {
        if !self.is_huge() {
            return Outcome::Untried("the kernel gave no huge page to try it on".to_owned());
        }
        if let Err(outcome) = self.advise(PAGE_BYTES, ProcessAdvice::Cold) {
            return outcome;
        }
        // Advice is a hint: the kernel drops pages from its batches now and then, so one more try is fair.
        if self.is_huge() && (self.advise(PAGE_BYTES, ProcessAdvice::Cold).is_err() || self.is_huge()) {
            return Outcome::Lacking("the kernel takes the advice but does not split".to_owned());
        }
        Outcome::Works("split a huge page of another process".to_owned())
    }

    fn collapse(&self) -> Outcome {
        match self.advise(HUGE_BYTES as u64, ProcessAdvice::Collapse) {
            Ok(()) if self.is_huge() => Outcome::Works("made a huge page in another process".to_owned()),
            Ok(()) => Outcome::Lacking("the kernel takes the advice but makes no huge page".to_owned()),
            Err(outcome) => outcome,
        }
    }

    fn move_page(&self) -> Outcome {
        let page = [self.address];
        let mut status = [0];
        if let Err(e) = query_pages(self.pid as i32, &page, &mut status) {
            return Outcome::failed(e);
        }
        let home = status[0];
        let other = mems_allowed().ok().and_then(|nodes| nodes.iter().map(|n| n as i32).find(|&n| n != home));
        let target = other.unwrap_or(home);
        if let Err(e) = move_pages(self.pid as i32, &page, &[target], &mut status, MoveFlags::Exclusive) {
            return Outcome::failed(e);
        }
        match (status[0] == target, other) {
            (true, Some(_)) => {
                Outcome::Works(format!("moved a page of another process from node {home} to {target}"))
            }
            (true, None) => {
                Outcome::Works("permitted on another process; no other node to move to".to_owned())
            }
            (false, _) => Outcome::Lacking(format!("a page stayed on node {home}: status {}", status[0])),
        }
    }
}
