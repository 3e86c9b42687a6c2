//! The threads that ran on each CPU, by the kernel's records of context switches (Linux 4.3).

use super::files::{make_room, ring_bytes};
use super::streams::largest_granted;
use nodewise_engine::{Pid, Tid};
use nodewise_sys::perf::{
    Attr, AttrFlags, Event, Record, Ring, SampleFormat, SampleType, SoftwareEvent, Target,
};
use std::collections::BTreeMap;

/// Bytes of a ring, which holds some 2700 switches.
const RING_BYTES: usize = 128 << 10;

/// A thread of a process.
type Thread = (Pid, Tid);

/// The threads of every CPU, as far as the kernel lets this process see them.
pub(super) struct Switches {
    streams: BTreeMap<u32, Stream>,
}

struct Stream {
    /// Counts nothing, and its ring has the records.
    _event: Event,
    ring: Ring,
    ran: Timeline,
}

impl Stream {
    fn open(cpu: u32, cpus: usize) -> Option<Self> {
        let mut attr = Attr::software(SoftwareEvent::Dummy);
        attr.sample_type = SampleType::TID | SampleType::TIME;
        attr.flags = attr.flags | AttrFlags::CONTEXT_SWITCH | AttrFlags::SAMPLE_ID_ALL;
        let attr = attr.monotonic();
        let event = Event::open(&attr, Target::Cpu(cpu), None).ok()?;
        let map = |pages| Ring::map(&event, SampleFormat::from(&attr), pages);
        let ring = largest_granted(ring_bytes(cpus, RING_BYTES), map).ok()?;
        event.enable().ok()?;
        Some(Self { _event: event, ring, ran: Timeline::default() })
    }
}

impl Switches {
    /// Watches these CPUs. On those for which the kernel refuses, no thread is known.
    pub(super) fn open(cpus: impl Iterator<Item = u32>) -> Self {
        let cpus: Vec<u32> = cpus.collect();
        let room = make_room(1).unwrap_or(0);
        let open = |&cpu: &u32| Some((cpu, Stream::open(cpu, cpus.len())?));
        Self { streams: cpus.iter().take(room).filter_map(open).collect() }
    }

    /// Takes in what has happened since.
    pub(super) fn read(&mut self) {
        for Stream { ring, ran, .. } in self.streams.values_mut() {
            ring.read(|record| match record {
                Record::Switch { is_out, identity } => {
                    let thread = identity.pid.zip(identity.tid);
                    let thread = thread.map(|(pid, tid)| (Pid(pid as u32), Tid(tid as u32)));
                    if let Some((at_ns, thread)) = identity.time_ns.zip(thread) {
                        ran.switch(at_ns, thread, is_out);
                    }
                }
                Record::Lost { .. } => ran.clear(),
                _ => {}
            });
        }
    }

    /// The thread that ran on a CPU then, by what was read.
    pub(super) fn thread(&self, cpu: u32, at_ns: u64) -> Option<Thread> {
        self.streams.get(&cpu)?.ran.thread(at_ns)
    }

    /// Forgets the threads that had left their CPU by then.
    pub(super) fn forget(&mut self, until_ns: u64) {
        self.streams.values_mut().for_each(|stream| stream.ran.forget(until_ns));
    }
}

/// The threads of a CPU: from each time on, one ran until the next.
#[derive(Default)]
struct Timeline {
    ran: Vec<(u64, Thread)>,
}

impl Timeline {
    /// A thread came to the CPU, or left it.
    fn switch(&mut self, at_ns: u64, thread: Thread, is_out: bool) {
        match (is_out, self.ran.is_empty()) {
            (false, _) => self.ran.push((at_ns, thread)),
            // It ran when the records began, or when some were lost.
            (true, true) => self.ran.push((0, thread)),
            (true, false) => {}
        }
    }

    fn clear(&mut self) {
        self.ran.clear();
    }

    /// The index of the thread that ran then.
    fn index(&self, at_ns: u64) -> Option<usize> {
        self.ran.partition_point(|&(from_ns, _)| from_ns <= at_ns).checked_sub(1)
    }

    fn thread(&self, at_ns: u64) -> Option<Thread> {
        self.index(at_ns).map(|index| self.ran[index].1)
    }

    fn forget(&mut self, until_ns: u64) {
        self.ran.drain(..self.index(until_ns).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::now_ns;
    use nodewise_sys::{AffinityMask, sched_getaffinity, sched_setaffinity};
    use std::time::Duration;

    #[test]
    fn a_thread_has_the_cpu_until_the_next_comes() {
        let [first, second] = [(Pid(1), Tid(10)), (Pid(2), Tid(20))];
        let mut timeline = Timeline::default();
        assert_eq!(timeline.thread(100), None);
        timeline.switch(100, first, true);
        timeline.switch(101, second, false);
        timeline.switch(200, second, true);
        timeline.switch(202, first, false);
        let at = |timeline: &Timeline, times: &[u64]| -> Vec<Option<Thread>> {
            times.iter().map(|&at_ns| timeline.thread(at_ns)).collect()
        };
        let seen = at(&timeline, &[50, 100, 101, 201, 202, 900]);
        assert_eq!(seen, [first, first, second, second, first, first].map(Some));
        timeline.forget(99);
        assert_eq!(at(&timeline, &[50, 101]), [first, second].map(Some));
        timeline.forget(201);
        assert_eq!(at(&timeline, &[50, 150, 202]), [None, Some(second), Some(first)]);
        timeline.forget(900);
        assert_eq!(at(&timeline, &[150, 202]), [None, Some(first)]);
        // Records were lost.
        timeline.clear();
        assert_eq!(timeline.thread(900), None);
        timeline.switch(950, second, true);
        assert_eq!(timeline.thread(900), Some(second));
    }

    #[test]
    fn the_kernel_says_who_ran() {
        let cpu = sched_getaffinity(0).unwrap().iter().next().unwrap();
        let sleeper = std::thread::spawn(move || {
            sched_setaffinity(0, &[cpu].into_iter().collect::<AffinityMask>()).unwrap();
            let me = (Pid(std::process::id()), Tid(nodewise_sys::gettid() as u32));
            let mut switches = Switches::open(std::iter::once(cpu));
            if switches.streams.is_empty() {
                return; // it is not permitted
            }
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                let at_ns = now_ns();
                switches.read();
                assert_eq!(switches.thread(cpu, at_ns), Some(me));
                switches.forget(at_ns);
            }
        });
        sleeper.join().unwrap();
    }
}
