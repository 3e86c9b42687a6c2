//! Accesses that a core's first-level cache cannot serve, up to the LLC that is asked.

use super::core::{NEVER, NO_LINE};
use super::{Access, Hardware, Source};
use crate::cache::{Entry, WRITABLE};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

impl Hardware {
    /// Loads ahead all that there is to know of a line beyond the core's own caches, while these are looked
    /// through.
    #[inline]
    fn load_ahead(&self, cpu: usize, line: u64) {
        let llc = self.cpus[cpu].llc;
        if let Some(llc) = self.llcs_of_few.get(llc) {
            llc.load_victim_ahead(line);
        } else if let Some(llc) = self.llcs_of_many.get(llc) {
            llc.load_victim_ahead(line);
        } else {
            return;
        }
        self.directory.load_ahead(line);
    }

    pub(super) fn read_beyond_l1(&mut self, cpu: usize, line: u64, home: usize) -> Access {
        if let Some(uncached) = self.uncached {
            return self.word(cpu, home, uncached.local_fetch, uncached.global_fetch);
        }
        self.load_ahead(cpu, line);
        let core = self.core(cpu);
        if let Some(&mut entry) = core.l2.touch(line) {
            core.l1.insert(entry);
            let state = &mut self.cpus[cpu];
            state.last_line = line;
            state.ready = state.clock + self.timing.l2;
            return Access { source: Source::L2, latency_ps: self.timing.l2 };
        }
        let access = self.miss(cpu, line, home, Kind::Read);
        let core = self.core(cpu);
        core.l1.insert(Entry::new(line, 0, 0));
        core.l2.insert(Entry::new(line, 0, 0));
        let state = &mut self.cpus[cpu];
        state.last_line = NO_LINE;
        state.ready = state.clock + access.latency_ps;
        access
    }

    pub(super) fn write_beyond_l1(&mut self, cpu: usize, line: u64, home: usize) -> Access {
        if let Some(uncached) = self.uncached {
            return self.word(cpu, home, uncached.local_store, uncached.global_store);
        }
        self.load_ahead(cpu, line);
        let core = self.core(cpu);
        let mut held = false;
        if let Some(entry) = core.l2.touch(line) {
            if entry.has(WRITABLE) {
                let entry = *entry;
                core.l1.insert(entry);
                return Access { source: Source::L2, latency_ps: self.timing.l2 };
            }
            entry.set(WRITABLE);
            held = true;
        }
        let access = self.miss(cpu, line, home, Kind::Write);
        let entry = Entry::new(line, 0, WRITABLE);
        let core = self.core(cpu);
        if !held {
            core.l2.insert(entry);
        }
        match core.l1.touch(line) {
            Some(in_l1) => in_l1.set(WRITABLE),
            None => core.l1.insert(entry),
        }
        access
    }

    /// An access that the core's own caches cannot serve: takes a place among the outstanding misses. The
    /// CPU's time at the end is the time of its issue.
    fn miss(&mut self, cpu: usize, line: u64, home: usize, kind: Kind) -> Access {
        if self.thread_bits > 0 {
            self.cpus[cpu].clock = self.place_beside(cpu);
            self.cpus[cpu].asks_ps = NEVER;
        }
        let state = &mut self.cpus[cpu];
        let (mut place, mut first, mut second) = (0, u64::MAX, u64::MAX);
        for (index, &(done, _)) in state.window[..self.outstanding_misses].iter().enumerate() {
            if done < first {
                (place, first, second) = (index, done, first);
            } else if done < second {
                second = done;
            }
        }
        state.clock = state.clock.max(first);
        let (at_ps, node) = (state.clock, state.node);
        let (source, done_ps) = if !self.has_llc {
            self.memory(at_ps, node, line, home)
        } else if self.atomics.is_empty() {
            self.llc(at_ps, cpu, line, home, kind)
        } else {
            self.in_turn(at_ps, cpu, line, home, kind)
        };
        let state = &mut self.cpus[cpu];
        state.window[place] = (done_ps, line);
        state.free = second.min(done_ps);
        if self.has_llc {
            self.prefetch(at_ps, cpu, line ^ 1, home);
        }
        Access { source, latency_ps: done_ps - at_ps }
    }

    /// As [`llc`](Self::llc), of a line that an atomic may still work on. A CPU that takes the line away to
    /// write is waited for in turn.
    fn in_turn(&mut self, at_ps: u64, cpu: usize, line: u64, home: usize, kind: Kind) -> (Source, u64) {
        let Some(&free_ps) = self.atomics.get(&line) else {
            return self.llc(at_ps, cpu, line, home, kind);
        };
        let (source, done_ps) = self.llc(at_ps.max(free_ps), cpu, line, home, kind);
        if kind == Kind::Write {
            self.atomics.insert(line, done_ps);
        }
        (source, done_ps)
    }

    /// Brings a neighbouring line into the second-level cache, if a prefetch may be outstanding.
    fn prefetch(&mut self, at_ps: u64, cpu: usize, line: u64, home: usize) {
        let state = &self.cpus[cpu];
        let Some(free) = state.window[self.outstanding_misses..].iter().position(|&(done, _)| done <= at_ps)
        else {
            return;
        };
        if self.thread_bits > 0 && !self.prefetch_beside(cpu, at_ps) {
            return;
        }
        let core = self.core(cpu);
        if core.l2.find(line).is_some() || core.l1.find(line).is_some() {
            return;
        }
        let (_, done_ps) = self.llc(at_ps, cpu, line, home, Kind::Read);
        self.cpus[cpu].window[self.outstanding_misses + free] = (done_ps, line);
        self.core(cpu).l2.insert(Entry::new(line, 0, 0));
    }

    /// A fill from memory.
    pub(super) fn memory(&mut self, at_ps: u64, node: usize, line: u64, home: usize) -> (Source, u64) {
        let done_ps = self.fabric.fetch(at_ps, at_ps, node, home, line..line + 1, &mut self.counters);
        let index = node * self.counters.nodes + home;
        self.counters.dram[index] += 1;
        self.counters.dram_latency_ps[index] += done_ps - at_ps;
        let source = if node == home {
            Source::LocalDram
        } else {
            Source::RemoteDram { hops: self.fabric.hops(node, home) as u8 }
        };
        (source, done_ps)
    }

    /// An access to a word on a machine without caches: the CPU waits for it.
    pub(super) fn word(&mut self, cpu: usize, home: usize, local_ps: u64, global_ps: u64) -> Access {
        let state = &mut self.cpus[cpu];
        let node = state.node;
        // The access time is the whole instruction's.
        let at_ps = state.clock - self.timing.instruction;
        let (source, latency_ps) = if node == home {
            (Source::LocalDram, local_ps)
        } else {
            let hops = self.fabric.hops(node, home) as u8;
            let wait_ps = self.fabric.word(at_ps, node, home, &mut self.counters);
            (Source::RemoteDram { hops }, global_ps + wait_ps)
        };
        state.clock = at_ps + latency_ps;
        state.ready = state.clock;
        let index = node * self.counters.nodes + home;
        self.counters.dram[index] += 1;
        self.counters.dram_latency_ps[index] += latency_ps;
        Access { source, latency_ps }
    }
}
