//! A program on the bare hardware: its pages lie where they are told to, its threads stay on their cores, and
//! no operating system costs time but what the caller makes of it. For measuring machines.

use nodewise_hardware::{Counters, Hardware, Preset};

use crate::{Error, Op, Program, Progress, Trace};

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// When the last thread finished.
    pub time_ps: u64,
    /// The hardware's counts.
    pub counters: Counters,
}

/// Operations that a thread may do before it is looked for one that is behind.
const TURN: usize = 16;

struct Thread {
    core: usize,
    trace: Trace,
    done: usize,
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
        .map(|&core| Thread { core, trace: Trace::default(), done: 0, after: Progress::Running })
        .collect();
    let mut running: Vec<usize> = (0..threads.len()).collect();
    let mut waiting: Vec<usize> = Vec::new();
    loop {
        let behind =
            running.iter().enumerate().min_by_key(|&(_, &thread)| hardware.clock(threads[thread].core));
        let Some((place, &index)) = behind else {
            if waiting.is_empty() {
                break;
            }
            let last = waiting.iter().map(|&thread| hardware.clock(threads[thread].core)).max().unwrap_or(0);
            for &thread in &waiting {
                hardware.set_clock(threads[thread].core, last);
            }
            running.append(&mut waiting);
            running.sort_unstable();
            continue;
        };
        let thread = &mut threads[index];
        if thread.done == thread.trace.len() {
            match std::mem::replace(&mut thread.after, Progress::Running) {
                Progress::Running => {
                    thread.trace.clear();
                    thread.done = 0;
                    thread.after = program.advance(index, &mut thread.trace);
                }
                ended => {
                    hardware.drain(thread.core);
                    running.swap_remove(place);
                    thread.trace.clear();
                    thread.done = 0;
                    if ended == Progress::Barrier {
                        waiting.push(index);
                    }
                }
            }
            continue;
        }
        let words = thread.trace.words();
        let end = (thread.done + TURN).min(words.len());
        for &word in &words[thread.done..end] {
            perform(&mut hardware, thread.core, Op::decode(word), &mut home);
        }
        thread.done = end;
    }
    program.check()?;
    let time_ps = threads.iter().map(|thread| hardware.clock(thread.core)).max().unwrap_or(0);
    Ok(Outcome { time_ps, counters: hardware.counters().clone() })
}

fn perform(
    hardware: &mut Hardware,
    core: usize,
    op: Op,
    mut home: impl FnMut(&mut Hardware, usize, u64) -> usize,
) {
    match op {
        Op::Compute { instructions } => hardware.execute(core, instructions),
        Op::Read { address, instructions } => {
            hardware.execute(core, instructions);
            let node = home(hardware, core, address);
            hardware.read(core, address, node);
        }
        Op::Chase { address, instructions } => {
            hardware.execute(core, instructions);
            let node = home(hardware, core, address);
            hardware.chase(core, address, node);
        }
        Op::Write { address, instructions } => {
            hardware.execute(core, instructions);
            let node = home(hardware, core, address);
            hardware.write(core, address, node);
        }
        Op::Atomic { address, instructions } => {
            hardware.execute(core, instructions);
            let node = home(hardware, core, address);
            hardware.atomic(core, address, node);
        }
    }
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
