//! The CPUs on which a process may run.

use super::read_cost::ReadCost;
use super::stat::Stat;
use crate::ending::Until;
use nodewise_engine::Pid;
use nodewise_sys::{AffinityMask, sched_getaffinity};
use std::fs;
use std::time::Instant;

impl ReadCost {
    /// The CPUs on which any thread of `pid` may run.
    pub(super) fn allowed_cpus(&mut self, pid: Pid) -> Option<AffinityMask> {
        const MOST_THREADS: usize = 256;
        let begin = Instant::now();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let tids: Vec<i32> = tasks
            .flatten()
            .filter_map(|task| task.file_name().to_str()?.parse().ok())
            .take(MOST_THREADS + 1)
            .collect();
        let asked = tids.len() <= MOST_THREADS;
        let cpus = if asked { union(tids.iter().map(|&tid| sched_getaffinity(tid))) } else { None };
        self.files += 1;
        self.time_ns += begin.elapsed().as_nanos() as u64;
        cpus
    }
}

impl ReadCost {
    /// The threads of `pid`, `most` of them, as many as can be read until then.
    pub(crate) fn threads(&mut self, pid: Pid, most: usize, until: &Until) -> Vec<Stat> {
        let tids = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        self.files += 1;
        let tids = tids.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let tids = tids.take(most).take_while(|_| !until.is_over());
        let stat = |tid: u32| Stat::parse(&self.read(&format!("/proc/{pid}/task/{tid}/stat"))?);
        tids.filter_map(stat).collect()
    }
}

/// The CPUs of all threads; none where one thread's are not known, which may run anywhere.
fn union(threads: impl Iterator<Item = nodewise_sys::Result<AffinityMask>>) -> Option<AffinityMask> {
    let mut union = AffinityMask::new();
    for cpus in threads {
        match cpus {
            Ok(cpus) => cpus.iter().for_each(|cpu| union.insert(cpu)),
            // It has ended meanwhile, and runs nowhere.
            Err(error) if error.kind() == nodewise_sys::ErrorKind::NoSuchProcess => {}
            Err(_) => return None,
        }
    }
    Some(union).filter(|union| !union.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_asked_may_run_anywhere() {
        let cpus = |number: u32| Ok([number].into_iter().collect::<AffinityMask>());
        let refused = |errno| Err(nodewise_sys::Error::new("sched_getaffinity", errno));
        let (ended, not_permitted) = (3, 1);
        assert_eq!(union([cpus(1), refused(ended), cpus(2)].into_iter()), Some([1, 2].into_iter().collect()));
        assert_eq!(union([cpus(1), refused(not_permitted)].into_iter()), None);
        assert_eq!(union([refused(ended)].into_iter()), None);
    }
}
