//! LLCs and the directory: who has a line, who may write it, and how it gets from one to another.

use super::miss::Kind;
use super::{Hardware, Source, core::Cpu};
use crate::cache::{DIRTY, Entry, WRITABLE};
use crate::directory::Holders;
use crate::llc::{CoreSet, Llc, ManyCores};

/// Sets of cores, by which a machine keeps its LLCs.
trait Cores: CoreSet {
    fn llcs(hardware: &mut Hardware) -> &mut [Llc<Self>];
}

impl Cores for u32 {
    #[inline]
    fn llcs(hardware: &mut Hardware) -> &mut [Llc<Self>] {
        &mut hardware.llcs_of_few
    }
}

impl Cores for ManyCores {
    fn llcs(hardware: &mut Hardware) -> &mut [Llc<Self>] {
        &mut hardware.llcs_of_many
    }
}

impl Hardware {
    /// Looks a line up in the core's LLC. Returns when the data is there.
    #[inline]
    pub(super) fn llc(
        &mut self,
        at_ps: u64,
        cpu: usize,
        line: u64,
        home: usize,
        kind: Kind,
    ) -> (Source, u64) {
        if self.llcs_of_many.is_empty() {
            self.look_up::<u32>(at_ps, cpu, line, home, kind)
        } else {
            self.look_up::<ManyCores>(at_ps, cpu, line, home, kind)
        }
    }

    fn look_up<S: Cores>(
        &mut self,
        at_ps: u64,
        cpu: usize,
        line: u64,
        home: usize,
        kind: Kind,
    ) -> (Source, u64) {
        let Cpu { node, llc, .. } = self.cpus[cpu];
        let own = S::only((cpu >> self.thread_bits) - self.first_core[llc]);
        let llc_ps = at_ps + self.timing.llc;
        let holders = self.directory.get(line);
        // The directory is exact, and asking it is cheaper than searching a set for nothing.
        let held = if holders.has(llc) { S::llcs(self)[llc].touch(line) } else { None };
        if let Some((entry, sharers)) = held {
            let before = *entry;
            match kind {
                Kind::Read => entry.clear(WRITABLE),
                Kind::Write => entry.set(WRITABLE | DIRTY),
            }
            let others = sharers.without(own);
            *sharers = match kind {
                Kind::Read => sharers.with(own),
                Kind::Write => own,
            };
            let mut done_ps = llc_ps;
            if !others.is_empty() && (kind == Kind::Write || before.has(WRITABLE)) {
                done_ps += self.timing.snoop;
            }
            match kind {
                Kind::Read => {
                    if before.has(WRITABLE) {
                        self.downgrade(llc, line, others);
                    }
                }
                Kind::Write => {
                    self.take_from_cores(llc, line, others);
                    if !before.has(DIRTY) {
                        done_ps += self.take_from_others::<S>(llc, line);
                        self.directory.set(line, Holders::only(llc).modified());
                    }
                }
            }
            return (Source::Llc, done_ps);
        }
        self.counters.llc_misses[node] += 1;
        let state = match kind {
            Kind::Read => 0,
            Kind::Write => WRITABLE | DIRTY,
        };
        // The victim's entries are seldom in the host's caches, and come while the queues are asked.
        let victim = S::llcs(self)[llc].insert(Entry::new(line, home, state), own);
        if let Some((victim, sharers)) = victim {
            self.directory.load_ahead(victim.line());
            for core in self.sharing(llc, sharers) {
                self.cores[core].l2.load_ahead(victim.line());
            }
        }
        self.fabric.probe(at_ps, &mut self.counters);
        let (source, mut done_ps) = match holders.modifier() {
            Some(owner) => self.other_llc::<S>(at_ps, llc, owner, line, kind),
            None => self.memory(at_ps, node, line, home),
        };
        match kind {
            Kind::Read => self.directory.set(line, holders.with(llc)),
            Kind::Write => {
                if holders.modifier().is_none() && !holders.is_empty() {
                    done_ps = done_ps.max(llc_ps + self.take_from_others::<S>(llc, line));
                }
                self.directory.set(line, Holders::only(llc).modified());
            }
        }
        if let Some((victim, sharers)) = victim {
            self.directory.update(victim.line(), |holders| holders.without(llc));
            self.drop_from_cores(llc, victim.line(), sharers);
            if victim.has(DIRTY) {
                self.write_back(at_ps, at_ps, node, victim.line(), victim.home());
            }
        }
        (source, done_ps)
    }

    /// A fill from another LLC, which has modified the line.
    fn other_llc<S: Cores>(
        &mut self,
        at_ps: u64,
        llc: usize,
        owner: usize,
        line: u64,
        kind: Kind,
    ) -> (Source, u64) {
        let (node, there) = (self.node_of_llc[llc], self.node_of_llc[owner]);
        let asked_ps = if node == there {
            at_ps + self.way_ps(llc, owner)
        } else {
            self.counters.remote_llc[node] += 1;
            self.fabric.send(at_ps, at_ps, node, there, 1, &mut self.counters)
        };
        let mut found_ps = asked_ps + self.timing.llc;
        let held = S::llcs(self)[owner].find(line);
        if held.is_some_and(|(entry, sharers)| entry.has(WRITABLE) && !sharers.is_empty()) {
            found_ps += self.timing.snoop;
        }
        match kind {
            Kind::Write => self.take_from_llc::<S>(owner, line),
            Kind::Read => {
                if let Some((entry, sharers)) = S::llcs(self)[owner].find(line) {
                    let home = entry.home();
                    entry.clear(DIRTY | WRITABLE);
                    self.downgrade(owner, line, sharers);
                    self.write_back(at_ps, found_ps, there, line, home);
                }
            }
        }
        if node == there {
            return (Source::Llc, found_ps + self.way_ps(owner, llc) + self.timing.llc);
        }
        let there_ps = self.fabric.carry(at_ps, found_ps, there, node, 1, &mut self.counters);
        (Source::RemoteLlc, there_ps + self.timing.llc)
    }

    /// How long a message without data takes from one LLC to another.
    fn way_ps(&self, from: usize, to: usize) -> u64 {
        let (from, to) = (self.node_of_llc[from], self.node_of_llc[to]);
        if from == to { self.fabric.idle_ps(from) / 2 } else { self.fabric.way_ps(from, to) }
    }

    /// Sends a modified line home. Nobody waits for it.
    fn write_back(&mut self, now_ps: u64, at_ps: u64, node: usize, line: u64, home: usize) {
        self.counters.writebacks[node * self.counters.nodes + home] += 1;
        self.fabric.store(now_ps, at_ps, node, home, line..line + 1, &mut self.counters);
    }

    /// Takes a line away from all other LLCs. Returns how long until the farthest has answered.
    fn take_from_others<S: Cores>(&mut self, llc: usize, line: u64) -> u64 {
        let mut farthest_ps = 0;
        for other in self.directory.get(line).without(llc).llcs() {
            farthest_ps = farthest_ps.max(self.way_ps(llc, other) + self.way_ps(other, llc));
            self.take_from_llc::<S>(other, line);
        }
        farthest_ps
    }

    /// Takes a line out of all caches.
    pub(super) fn take_from_all(&mut self, line: u64) {
        for llc in self.directory.get(line).llcs() {
            if self.llcs_of_many.is_empty() {
                self.take_from_llc::<u32>(llc, line);
            } else {
                self.take_from_llc::<ManyCores>(llc, line);
            }
        }
    }

    /// Takes a line out of an LLC and all caches under it.
    fn take_from_llc<S: Cores>(&mut self, llc: usize, line: u64) {
        if let Some(sharers) = S::llcs(self)[llc].remove(line) {
            self.take_from_cores(llc, line, sharers);
        }
        self.directory.update(line, |holders| holders.without(llc));
    }

    fn take_from_cores<S: Cores>(&mut self, llc: usize, line: u64, sharers: S) {
        for core in self.sharing(llc, sharers) {
            self.cores[core].losses = self.cores[core].losses.wrapping_add(1);
        }
        self.drop_from_cores(llc, line, sharers);
    }

    fn drop_from_cores<S: Cores>(&mut self, llc: usize, line: u64, sharers: S) {
        for core in self.sharing(llc, sharers) {
            self.cores[core].l1.remove(line);
            self.cores[core].l2.remove(line);
        }
    }

    /// Whoever may write the line has to ask again.
    fn downgrade<S: Cores>(&mut self, llc: usize, line: u64, sharers: S) {
        for core in self.sharing(llc, sharers) {
            let core = &mut self.cores[core];
            core.losses = core.losses.wrapping_add(1);
            for tags in [&mut core.l1, &mut core.l2] {
                if let Some(entry) = tags.find(line) {
                    entry.clear(WRITABLE);
                }
            }
        }
    }

    #[inline]
    fn sharing<S: Cores>(&self, llc: usize, sharers: S) -> impl Iterator<Item = usize> + use<S> {
        let first = self.first_core[llc];
        CoreSet::iter(sharers).map(move |core| first + core)
    }
}
