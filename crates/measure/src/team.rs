//! Threads that start together, each on one CPU.

use crate::error::Error;
use nodewise_sys::sched_setaffinity;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs a piece of work on each CPU, all at once; the results are in the order of the pieces. No piece starts
/// unless every thread is on its CPU.
pub fn on_cpus<W: Send, T: Send>(
    pieces: impl IntoIterator<Item = (u32, W)>,
    run: impl Fn(W) -> T + Sync,
) -> Result<Vec<T>, Error> {
    let pieces: Vec<(u32, W)> = pieces.into_iter().collect();
    let (together, refused) = (Barrier::new(pieces.len()), AtomicBool::new(false));
    let (together, refused, run) = (&together, &refused, &run);
    thread::scope(|scope| {
        let work = |(cpu, piece): (u32, W)| {
            scope.spawn(move || {
                let pinned = sched_setaffinity(0, &[cpu].into_iter().collect());
                refused.fetch_or(pinned.is_err(), Ordering::Relaxed);
                together.wait();
                pinned.map_err(|error| Error::call(&format!("cannot run on CPU {cpu}"), error))?;
                Ok((!refused.load(Ordering::Relaxed)).then(|| run(piece)))
            })
        };
        let threads: Vec<_> = pieces.into_iter().map(work).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("no piece of work panics"));
        let done: Vec<Option<T>> = joined.collect::<Result<_, Error>>()?;
        Ok(done.into_iter().flatten().collect())
    })
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

    #[test]
    fn each_piece_runs_on_its_cpu() {
        let cpus: Vec<u32> = sched_getaffinity(0).unwrap().iter().collect();
        let ran = on_cpus(cpus.iter().map(|&cpu| (cpu, cpu)), |cpu| (cpu, sched_getcpu().unwrap())).unwrap();
        assert_eq!(ran, cpus.iter().map(|&cpu| (cpu, cpu)).collect::<Vec<_>>());
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
