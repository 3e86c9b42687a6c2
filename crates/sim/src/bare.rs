//! A program on the bare hardware, for measuring machines. Its pages lie where they are told to, and its
//! threads stay on their CPUs. No operating system costs time but what the caller makes of it.

use crate::scheduler::{self, Processors};
use crate::{Error, Program};
use nodewise_hardware::{Counters, Hardware, Preset, Touch};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last thread finished.
    pub time_ps: u64,
    /// The hardware's counts.
    pub counters: Counters,
    /// When all threads went on from their first barrier; 0 without barriers.
    pub begun_ps: u64,
    /// The counts of that time.
    pub begun: Counters,
}

/// How far a thread may run ahead of the one that is most behind with what its core's own caches serve.
const SLACK_PS: u64 = 100_000;

/// The hardware with threads on it, each on its CPU, and the home of each address.
struct Bare<'a, F> {
    hardware: Hardware,
    cpus: &'a [usize],
    home: F,
    /// The time of the first barrier, and the counts of then.
    begun: Option<(u64, Counters)>,
}

impl<F: FnMut(&mut Hardware, usize, u64) -> usize> Processors for Bare<'_, F> {
    #[inline]
    fn hardware(&mut self) -> &mut Hardware {
        &mut self.hardware
    }

    #[inline]
    fn cpu(&self, thread: usize) -> usize {
        self.cpus[thread]
    }

    #[inline]
    fn clock(&self, thread: usize) -> u64 {
        self.hardware.clock(self.cpus[thread])
    }

    #[inline]
    fn access(&mut self, _thread: usize, cpu: usize, touch: Touch, address: u64) {
        let node = (self.home)(&mut self.hardware, cpu, address);
        self.hardware.touch(cpu, touch, address, node);
    }

    fn goes_on(&mut self, thread: usize, at_ps: u64) {
        let cpu = self.cpus[thread];
        self.hardware.set_clock(cpu, at_ps.max(self.hardware.clock(cpu)));
    }

    fn everyone_is_there(&mut self, threads: &[usize]) {
        let last = threads.iter().map(|&thread| self.clock(thread)).max().unwrap_or(0);
        for &thread in threads {
            self.hardware.set_clock(self.cpus[thread], last);
        }
        self.begun.get_or_insert_with(|| (last, self.hardware.counters().clone()));
    }
}

/// Runs a program, thread `i` on `cpus[i]`, with every address on the node that `home` says. It is asked at
/// each access with the hardware, the CPU and the address. Threads may share a CPU if they never run at
/// the same time.
///
/// Fails if the program finds its result wrong.
pub fn run(
    preset: &Preset,
    program: &mut dyn Program,
    cpus: &[usize],
    home: impl FnMut(&mut Hardware, usize, u64) -> usize,
) -> Result<Outcome, Error> {
    let nodes = preset.nodes_of_cpus();
    program.placed(&cpus.iter().map(|&cpu| nodes[cpu]).collect::<Vec<_>>());
    let cpus = &cpus[..program.threads()];
    let mut bare = Bare { hardware: Hardware::new(preset), cpus, home, begun: None };
    scheduler::run(program, &mut bare, SLACK_PS, &mut |_| ())?;
    let time_ps = (0..cpus.len()).map(|thread| bare.clock(thread)).max().unwrap_or(0);
    let counters = bare.hardware.counters().clone();
    let (begun_ps, begun) = bare.begun.unwrap_or_else(|| (0, counters.since(&counters)));
    Ok(Outcome { time_ps, counters, begun_ps, begun })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{Parameters, bandwidth::Stream};

    #[test]
    fn bytes_written_reach_the_memory_they_belong_to() {
        let preset = Preset::named("dahu-2n").unwrap().scaled(1e-3);
        let mut stream = Stream::own(Parameters { threads: 4, scale: 1e-3, seed: 1 });
        let outcome = run(&preset, &mut stream, &[0, 5, 16, 17], |_, _, _| 1).unwrap();
        assert!(outcome.time_ps > 0);
        assert_eq!(outcome.counters.controllers[0].bytes, 0);
        let fills: u64 = outcome.counters.dram.iter().sum();
        assert!(fills * 64 >= stream.bytes_written() / 3);
    }
}
