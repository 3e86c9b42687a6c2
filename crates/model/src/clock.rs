//! The modelled time of all CPUs, kept together.
//!
//! Each running CPU has its own time. None gets further ahead of the slowest than a quantum, as in Graphite
//! (Miller et al., HPCA 2010). So the order in which CPUs ask a controller is right to within a quantum, and
//! no time depends on how fast the host is. A CPU that idles holds nobody up. While all idle, time goes on to
//! the next timer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far a CPU may be ahead of the slowest that runs, on a machine that is not slowed down. The hardware's
/// queues remember idle time for longer.
pub(crate) const QUANTUM_PS: u64 = 8_000_000;

/// How long a CPU waits for one whose time stands still. QEMU sometimes stops all CPUs for a moment, and a
/// CPU that waits here would never stop.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// How long a sleep lasts at most, so that no wake-up can get lost for good.
const NAP: Duration = Duration::from_millis(5);

/// One CPU's time, on a line of the host's cache.
#[repr(align(64))]
#[derive(Default)]
struct Cpu {
    ps: AtomicU64,
    runs: AtomicBool,
    /// Whether it runs only because it was woken: its thread has not come back yet.
    woken: AtomicBool,
}

/// The times of all CPUs. Monotone: no CPU sees time go backwards, also not after it moved.
pub(crate) struct Clock {
    cpus: Vec<Cpu>,
    quantum_ps: u64,
    /// The latest time that anybody was told.
    now_ps: AtomicU64,
    /// The slowest CPU's time from which on somebody that waits may go on.
    wanted_ps: AtomicU64,
    /// How many times a CPU went on although another's time stood still, and by how much in all.
    overtaken_ps: AtomicU64,
    lock: Mutex<()>,
    moved: Condvar,
}

impl Clock {
    /// A clock for so many CPUs, all of which idle at time 0. None gets further ahead than the quantum.
    pub fn new(cpus: usize, quantum_ps: u64) -> Self {
        Self {
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            quantum_ps,
            now_ps: AtomicU64::new(0),
            wanted_ps: AtomicU64::new(u64::MAX),
            overtaken_ps: AtomicU64::new(0),
            lock: Mutex::new(()),
            moved: Condvar::new(),
        }
    }

    /// The latest time that anybody was told.
    pub fn now_ps(&self) -> u64 {
        self.now_ps.load(Ordering::Acquire)
    }

    /// How far CPUs went on although another's time stood still: for these times the order is not right.
    pub fn overtaken_ps(&self) -> u64 {
        self.overtaken_ps.load(Ordering::Relaxed)
    }

    /// Time goes on to this moment at least. Returns the time.
    pub fn reach(&self, ps: u64) -> u64 {
        self.now_ps.fetch_max(ps, Ordering::AcqRel).max(ps)
    }

    /// Whether any CPU runs.
    pub fn any_runs(&self) -> bool {
        self.cpus.iter().any(|cpu| cpu.runs.load(Ordering::Acquire))
    }

    /// An idle CPU gets an interrupt at this time, and runs from then on. It holds the others up until its
    /// thread has come back ([`resume`](Self::resume)), however long this computer takes for that.
    ///
    /// Calls about the same CPU must not overlap; QEMU's lock sees to that.
    pub fn interrupt(&self, cpu: usize, ps: u64) {
        let state = &self.cpus[cpu];
        if !state.runs.load(Ordering::Relaxed) {
            state.ps.fetch_max(ps, Ordering::Relaxed);
            state.woken.store(true, Ordering::Relaxed);
            state.runs.store(true, Ordering::Release);
        }
    }

    /// A CPU begins to run, or its thread comes back after an interrupt. Returns its time.
    pub fn resume(&self, cpu: usize) -> u64 {
        let state = &self.cpus[cpu];
        if !state.woken.swap(false, Ordering::Relaxed) {
            state.ps.fetch_max(self.now_ps(), Ordering::Relaxed);
            state.runs.store(true, Ordering::Release);
        }
        state.ps.load(Ordering::Relaxed)
    }

    /// Whether every CPU that runs does so only because of an interrupt.
    pub fn waits_for_woken(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.runs.load(Ordering::Acquire) == cpu.woken.load(Ordering::Relaxed))
    }

    /// CPUs whose threads have not come back after an interrupt idle: it did not wake them.
    pub fn give_up_woken(&self) {
        for cpu in &self.cpus {
            if cpu.woken.swap(false, Ordering::Relaxed) {
                cpu.runs.store(false, Ordering::Release);
            }
        }
        self.wake();
    }

    /// A CPU idles from now on.
    pub fn idle(&self, cpu: usize, ps: u64) {
        self.reach(ps);
        self.cpus[cpu].ps.store(ps, Ordering::Relaxed);
        self.cpus[cpu].woken.store(false, Ordering::Relaxed);
        self.cpus[cpu].runs.store(false, Ordering::Release);
        self.wake();
    }

    /// A running CPU has got to this time, and waits until the slowest is no more than a quantum behind.
    pub fn advance(&self, cpu: usize, ps: u64) {
        self.cpus[cpu].ps.store(ps, Ordering::Release);
        self.reach(ps);
        self.wake();
        if self.slowest_ps().is_some_and(|slowest| ps > slowest + self.quantum_ps) {
            self.wait(ps);
        }
    }

    fn slowest_ps(&self) -> Option<u64> {
        let running = self.cpus.iter().filter(|cpu| cpu.runs.load(Ordering::Acquire));
        running.map(|cpu| cpu.ps.load(Ordering::Acquire)).min()
    }

    /// Wakes those who wait for a time that the slowest has reached.
    fn wake(&self) {
        let wanted = self.wanted_ps.load(Ordering::SeqCst);
        if wanted != u64::MAX && self.slowest_ps().is_none_or(|slowest| slowest >= wanted) {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.wanted_ps.store(u64::MAX, Ordering::SeqCst);
            self.moved.notify_all();
        }
    }

    #[cold]
    fn wait(&self, ps: u64) {
        let wanted = ps - self.quantum_ps;
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut since, mut last) = (Instant::now(), 0);
        loop {
            self.wanted_ps.fetch_min(wanted, Ordering::SeqCst);
            let Some(slowest) = self.slowest_ps().filter(|&slowest| slowest < wanted) else { return };
            if slowest > last {
                (since, last) = (Instant::now(), slowest);
            } else if since.elapsed() > PATIENCE {
                if self.cpus.iter().any(|cpu| cpu.woken.load(Ordering::Relaxed)) {
                    drop(guard);
                    self.give_up_woken();
                    guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                self.overtaken_ps.fetch_add(self.quantum_ps, Ordering::Relaxed);
                return;
            }
            guard = self.moved.wait_timeout(guard, NAP).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_further_ahead_than_a_quantum() {
        let clock = Clock::new(3, QUANTUM_PS);
        for cpu in 0..3 {
            clock.resume(cpu);
        }
        let steps = [900_000, 100_000, 2_500_000];
        let worst = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (cpu, step) in steps.into_iter().enumerate() {
                let (clock, worst) = (&clock, &worst);
                scope.spawn(move || {
                    let mut ps = 0;
                    while ps < 200_000_000 {
                        ps += step;
                        clock.advance(cpu, ps);
                        let ahead = ps.saturating_sub(clock.slowest_ps().unwrap_or(ps));
                        worst.fetch_max(ahead, Ordering::Relaxed);
                    }
                    clock.idle(cpu, ps);
                });
            }
        });
        assert!(worst.load(Ordering::Relaxed) <= QUANTUM_PS, "{worst:?}");
        assert_eq!(clock.overtaken_ps(), 0);
        assert!(!clock.any_runs());
    }

    #[test]
    fn who_idles_holds_nobody_up_and_comes_back_at_the_present() {
        let clock = Clock::new(2, QUANTUM_PS);
        clock.resume(0);
        clock.resume(1);
        clock.idle(1, 10);
        clock.advance(0, 100 * QUANTUM_PS);
        assert_eq!(clock.resume(1), 100 * QUANTUM_PS);
        assert_eq!(clock.overtaken_ps(), 0);
    }

    #[test]
    fn a_cpu_that_is_interrupted_runs_before_its_thread_does() {
        let clock = Clock::new(2, QUANTUM_PS);
        clock.resume(0);
        clock.advance(0, 10 * QUANTUM_PS);
        clock.interrupt(1, 10 * QUANTUM_PS);
        clock.advance(0, 11 * QUANTUM_PS);
        assert_eq!(clock.slowest_ps(), Some(10 * QUANTUM_PS), "it is waited for");
        assert_eq!(clock.resume(1), 10 * QUANTUM_PS, "it begins when it was interrupted");
    }

    #[test]
    fn an_interrupt_that_wakes_nobody_holds_nobody_up_for_long() {
        let clock = Clock::new(2, QUANTUM_PS);
        clock.resume(0);
        clock.interrupt(1, 0);
        clock.advance(0, 20 * QUANTUM_PS);
        assert_eq!(clock.overtaken_ps(), 0);
        assert_eq!(clock.resume(1), 20 * QUANTUM_PS);
    }

    #[test]
    fn a_cpu_that_stands_still_is_overtaken_and_counted() {
        let clock = Clock::new(2, QUANTUM_PS);
        clock.resume(0);
        clock.resume(1);
        clock.advance(0, 2 * QUANTUM_PS);
        assert_eq!(clock.overtaken_ps(), QUANTUM_PS);
    }
}
