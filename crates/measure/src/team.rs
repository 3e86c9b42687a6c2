//! Threads that start together, each on one CPU.

use crate::error::{Error, ErrorKind};
use nodewise_sys::sched_setaffinity;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Runs a piece of work on each CPU, all at once; the results are in the order of the pieces. No piece starts
/// unless every thread is on its CPU.
pub fn on_cpus<W: Send, T: Send>(
    pieces: impl IntoIterator<Item = (u32, W)>,
    run: impl Fn(W) -> T + Sync,
) -> Result<Vec<T>, Error> {
    on_cpus_by(|_| thread::Builder::new(), pieces, run)
}

/// The same with threads that are made so.
fn on_cpus_by<W: Send, T: Send>(
    thread_of: impl Fn(u32) -> thread::Builder,
    pieces: impl IntoIterator<Item = (u32, W)>,
    run: impl Fn(W) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let pieces: Vec<(u32, W)> = pieces.into_iter().collect();
    let number = pieces.len();
    let (start, run) = (&Start::default(), &run);
    thread::scope(|scope| {
        let work = |(cpu, piece): (u32, W)| {
            let spawned = thread_of(cpu).spawn_scoped(scope, move || {
                let pinned = sched_setaffinity(0, &[cpu].into_iter().collect());
                let all_there = start.wait(pinned.is_ok(), number);
                pinned.map_err(|error| Error::call(&format!("cannot run on CPU {cpu}"), error))?;
                Ok(all_there.then(|| run(piece)))
            });
            // The others would wait for it for ever.
            spawned.map_err(|error| {
                start.refuse();
                let limits = "the limit on processes (RLIMIT_NPROC), or the control group's (pids.max)";
                let what = format!("cannot start a thread for each of {number} CPUs: {error}; see {limits}");
                Error::new(ErrorKind::System, what)
            })
        };
        let threads: Vec<_> = pieces.into_iter().map(work).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("no piece of work panics");
        let joined: Vec<Result<Option<T>, Error>> =
            threads.into_iter().map(|thread| thread.and_then(join)).collect();
        let done: Vec<Option<T>> = joined.into_iter().collect::<Result<_, Error>>()?;
        Ok(done.into_iter().flatten().collect())
    })
}

/// Has threads begin together, or not at all.
#[derive(Default)]
struct Start {
    /// How many have come, and whether one cannot.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Start {
    /// Waits for all; false if one cannot come.
    fn wait(&self, can: bool, all: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 += 1;
        state.1 |= !can;
        self.changed.notify_all();
        while state.0 < all && !state.1 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.1
    }

    /// One cannot come.
    fn refuse(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}

/// Runs one piece of work on a CPU.
pub fn on_cpu<T: Send>(cpu: u32, run: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let done = on_cpus([(cpu, run)], |run| run())?;
    Ok(done.into_iter().next().expect("one piece has one result"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::{sched_getaffinity, sched_getcpu};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn each_piece_runs_on_its_cpu() {
        let cpus: Vec<u32> = sched_getaffinity(0).unwrap().iter().collect();
        let ran = on_cpus(cpus.iter().map(|&cpu| (cpu, cpu)), |cpu| (cpu, sched_getcpu().unwrap())).unwrap();
        assert_eq!(ran, cpus.iter().map(|&cpu| (cpu, cpu)).collect::<Vec<_>>());
    }

    #[test]
    fn a_thread_that_is_refused_ends_the_wait_of_the_others() {
        let cpu = sched_getaffinity(0).unwrap().iter().next().unwrap();
        let ran = AtomicBool::new(false);
        // The second needs a larger stack than there are addresses.
        let thread_of = |piece: u32| match piece {
            1 => thread::Builder::new().stack_size(1 << 62),
            _ => thread::Builder::new(),
        };
        let number = std::cell::Cell::new(0);
        let in_turn = |_| thread_of(number.replace(number.get() + 1));
        let pieces = [(cpu, ()), (cpu, ()), (cpu, ())];
        let error = on_cpus_by(in_turn, pieces, |()| ran.store(true, Ordering::Relaxed)).unwrap_err();
        assert!(error.to_string().starts_with("cannot start a thread for each of 3 CPUs: "), "{error}");
        assert!(!ran.load(Ordering::Relaxed));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_named_and_nothing_runs() {
        let cpu = sched_getaffinity(0).unwrap().iter().next().unwrap();
        let ran = AtomicBool::new(false);
        let error = on_cpus([(cpu, ()), (4000, ())], |()| ran.store(true, Ordering::Relaxed)).unwrap_err();
        assert!(error.to_string().starts_with("cannot run on CPU 4000: "), "{error}");
        assert!(!ran.load(Ordering::Relaxed));
    }
}
