//! A machine without a program: processes whose memory is touched and taken away by hand, for tests of
//! whoever manages them.

use crate::os::kernel::costs::Costs;
use crate::os::kernel::machine::{Process, SimMachine};
use crate::os::kernel::memory::{PAGE_BYTES, PAGE_SHIFT};
use crate::os::policy::Policy;
use crate::{Role, Space};
use nodewise_engine::{Access, PageNumber, PageRange, Pid, VirtAddr};
use nodewise_hardware::{Preset, Touch};
use nodewise_topology::NodeIndex;

impl SimMachine {
    /// A machine with processes, each with mappings of so many pages, and with one thread on each node that
    /// has CPUs. Pages go where they are touched first; none has been.
    #[must_use]
    pub fn with_processes(preset: &Preset, mappings: &[Vec<u64>]) -> Self {
        let mut space = Space::new();
        for (process, pages) in mappings.iter().enumerate() {
            for (mapping, pages) in pages.iter().enumerate() {
                space.area(format!("mapping {mapping} of {process}"), pages * PAGE_BYTES, Role::Unknown);
            }
        }
        let nodes = preset.nodes_of_cpus();
        let cpus: Vec<usize> =
            (0..nodes.len()).filter(|&cpu| cpu == 0 || nodes[cpu] != nodes[cpu - 1]).collect();
        let areas = space.into_areas();
        let mut machine = Self::new(preset, &areas, &cpus, &Policy::FirstTouch, false, Costs::default());
        let mut ranges = std::mem::take(&mut machine.processes[0].mappings).into_iter();
        machine.processes = (1..)
            .zip(mappings)
            .map(|(pid, pages)| Process::new(Pid(pid), ranges.by_ref().take(pages.len()).collect()))
            .collect();
        machine
    }

    /// A process, by its place when the machine was made.
    #[must_use]
    pub fn pid(&self, process: usize) -> Pid {
        Pid(1 + process as u32)
    }

    /// A mapping of a process that lives, by its place; empty once it is unmapped.
    ///
    /// # Panics
    /// If there is no such process or mapping.
    #[must_use]
    pub fn mapping(&self, pid: Pid, mapping: usize) -> PageRange {
        let process = self.processes.iter().find(|process| process.pid == pid);
        let pages = process.expect("the process lives").mappings[mapping].clone();
        PageRange { start: self.number(pages.start), end: self.number(pages.end) }
    }

    /// An access by the thread on a node.
    ///
    /// # Panics
    /// If no thread is there, or the address is beyond all mappings.
    pub fn touch(&mut self, node: NodeIndex, address: VirtAddr, access: Access) {
        let thread = self.threads.iter().position(|thread| thread.1 == node.get());
        let thread = thread.expect("a thread is on the node");
        let touch = if access == Access::Write { Touch::Write } else { Touch::Read };
        self.access(thread, self.threads[thread].0, touch, address.0);
        assert_eq!(self.failure, None);
    }

    /// Where a page of a process is; none where no page is, or no process.
    #[must_use]
    pub fn home(&self, pid: Pid, page: PageNumber) -> Option<NodeIndex> {
        let page = self.index(page);
        self.process_of(page).filter(|process| process.pid == pid)?;
        self.memory.home(page).map(|home| NodeIndex(home as u8))
    }

    /// A process ends; its memory is free again.
    pub fn end(&mut self, pid: Pid) {
        let (ended, live) = self.processes.drain(..).partition(|process| process.pid == pid);
        self.processes = live;
        let ended: Vec<Process> = ended;
        for pages in ended.into_iter().flat_map(|process| process.mappings) {
            self.take_away(pages);
        }
    }

    /// A process unmaps one of its mappings.
    pub fn unmap(&mut self, pid: Pid, mapping: usize) {
        let Some(process) = self.processes.iter_mut().find(|process| process.pid == pid) else { return };
        let pages = &mut process.mappings[mapping];
        let gone = std::mem::replace(pages, pages.start..pages.start);
        process.is_reported = false;
        self.take_away(gone);
    }

    /// Somebody else takes a node's free memory but for so many pages.
    pub fn fill(&mut self, node: NodeIndex, free_pages: u64) {
        let free = self.memory.free_bytes()[node.get()] >> PAGE_SHIFT;
        self.memory.occupy(node.get(), free.saturating_sub(free_pages));
    }

    fn take_away(&mut self, pages: std::ops::Range<usize>) {
        self.hardware.forget(self.memory.address(pages.start), (pages.len() as u64) << PAGE_SHIFT);
        self.memory.unmap(pages);
        let thread = self.next_thread();
        self.shoot_down(thread);
    }
}
