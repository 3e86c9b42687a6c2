//! A program on the bare hardware: its pages lie where they are told to, its threads stay on their cores, and
//! no operating system costs time but what the caller makes of it. For measuring machines.

use nodewise_hardware::{Counters, Hardware, Preset};

use crate::turns::Turns;
use crate::{Error, Op, Program, Progress, Trace};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last thread finished.
    pub time_ps: u64,
    /// The hardware's counts.
    pub counters: Counters,
}

/// How far a thread may run ahead of the one that is most behind with what its core's own caches serve.
const SLACK_PS: u64 = 100_000;

struct Thread {
    core: usize,
    trace: Trace,
    done: usize,
    /// The instructions before the next operation were executed.
    computed: bool,
    after: Progress,
}

/// Runs a program, thread `i` on `cores[i]`, with every address on the node that `home` says, which is asked
/// at each access with the hardware, the core and the address. Threads may share a core if they never run at
/// the same time.
///
/// Fails if the program finds its result wrong.
pub fn run(
    preset: &Preset,
    program: &mut dyn Program,
    cores: &[usize],
    mut home: impl FnMut(&mut Hardware, usize, u64) -> usize,
) -> Result<Outcome, Error> {
    let mut hardware = Hardware::new(preset);
    let nodes = preset.nodes_of_cores();
    program.placed(&cores.iter().map(|&core| nodes[core]).collect::<Vec<_>>());
    let mut threads: Vec<Thread> = cores[..program.threads()]
        .iter()
        .map(|&core| Thread {
            core,
            trace: Trace::default(),
            done: 0,
            computed: false,
            after: Progress::Running,
        })
        .collect();
    let mut turns = Turns::default();
    (0..threads.len()).for_each(|thread| turns.begin(thread, 0));
    let mut waiting: Vec<usize> = Vec::new();
    loop {
        let clock = |thread: usize| hardware.clock(threads[thread].core);
        let Some((index, _, other_ps)) = turns.next(clock) else {
            if waiting.is_empty() {
                break;
            }
            let last = waiting.iter().map(|&thread| clock(thread)).max().unwrap_or(0);
            for thread in waiting.drain(..) {
                hardware.set_clock(threads[thread].core, last);
                turns.begin(thread, last);
            }
            continue;
        };
        let thread = &mut threads[index];
        if thread.done == thread.trace.len() {
            thread.trace.clear();
            thread.done = 0;
            match std::mem::replace(&mut thread.after, Progress::Running) {
                Progress::Running => thread.after = program.advance(index, &mut thread.trace),
                ended => {
                    hardware.drain(thread.core);
                    turns.end();
                    if ended == Progress::Barrier {
                        waiting.push(index);
                    }
                }
            }
            continue;
        }
        let limit_ps = other_ps.saturating_add(SLACK_PS);
        let words = thread.trace.words();
        for &word in &words[thread.done..] {
            let (touch, address, instructions) = Op::decode(word).parts();
            if !thread.computed {
                hardware.execute(thread.core, instructions);
            }
            if let Some(touch) = touch {
                thread.computed = hardware.waits(thread.core, touch, address, other_ps);
                if thread.computed {
                    break;
                }
                let node = home(&mut hardware, thread.core, address);
                hardware.touch(thread.core, touch, address, node);
            }
            thread.done += 1;
            if hardware.clock(thread.core) >= limit_ps {
                break;
            }
        }
    }
    program.check()?;
    let time_ps = threads.iter().map(|thread| hardware.clock(thread.core)).max().unwrap_or(0);
    Ok(Outcome { time_ps, counters: hardware.counters().clone() })
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
