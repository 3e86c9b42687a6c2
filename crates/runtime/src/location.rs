//! Where the calling thread runs.

use crate::error::Result;
use nodewise_topology::{CpuId, NodeId, Possible, Topology};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The node the calling thread runs on now. By the time the caller looks at it, the thread may have been
/// moved, unless it is bound.
///
/// One load from the area that the thread shares with the kernel (Linux 6.3 and glibc 2.35, or later); else
/// the C library's or the vDSO's `getcpu` and a table of the CPUs' nodes, which is read from `/sys` once and
/// by [`refresh`]. A system call only where the vDSO has no `getcpu` (Arm before glibc 2.35). Where `/sys`
/// cannot be read either, the answer is node 0.
///
/// Any thread may call it at any time.
#[inline]
#[must_use]
pub fn current_node() -> NodeId {
    match nodewise_sys::rseq_node() {
        Some(node) => NodeId(node),
        None => node_of_current_cpu(),
    }
}

/// The CPU the calling thread runs on now; as [`current_node`]. CPU 0 where the kernel does not tell.
#[inline]
#[must_use]
pub fn current_cpu() -> CpuId {
    match nodewise_sys::rseq_cpu() {
        Some(cpu) => CpuId(cpu),
        None => CpuId(nodewise_sys::sched_getcpu().unwrap_or(0)),
    }
}

/// Reads anew which node each CPU belongs to, after CPUs were plugged in or set online: for
/// [`crate::NodeCounter::on_node`], and for [`current_node`] where the kernel does not tell it. Until then a
/// CPU that was offline from the start is on node 0; one that goes offline keeps its node.
/// [`crate::Allowance`] and all that is made later see the machine as it is then. Running pools keep
/// their workers; those that the kernel had to let run elsewhere, since their CPUs were gone, return to those
/// that are back.
///
/// # Errors
/// [`crate::ErrorKind::Machine`]: `/sys` cannot be read; the table stays as it was.
pub fn refresh() -> Result<()> {
    let topology = Topology::live()?;
    machine().fill(&topology);
    REFRESHES.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

static REFRESHES: AtomicUsize = AtomicUsize::new(0);

/// How often the machine was read anew.
pub(crate) fn refreshes() -> usize {
    REFRESHES.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn node_of_current_cpu() -> NodeId {
    let node = machine().node_of_cpu.get(current_cpu().0 as usize);
    NodeId(node.map_or(0, |node| node.load(Ordering::Relaxed)))
}

/// The parts of a machine that never change while the kernel runs, and the one that does.
pub(crate) struct Machine {
    /// CPUs' numbers are below this.
    pub(crate) cpus: usize,
    /// Nodes' numbers are below this, a power of two, so that an index needs only a mask.
    pub(crate) nodes: usize,
    node_of_cpu: Box<[AtomicU32]>,
}

/// This machine, read when it is first needed.
pub(crate) fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let (mut cpus, mut nodes) = (1, 1);
        if let Ok(possible) = Possible::live() {
            cpus = possible.cpus.last().map_or(1, |cpu| cpu.0 as usize + 1);
            nodes = possible.nodes.last().map_or(1, |node| node.0 as usize + 1).next_power_of_two();
        }
        let machine = Machine { cpus, nodes, node_of_cpu: (0..cpus).map(|_| AtomicU32::new(0)).collect() };
        if let Ok(topology) = Topology::live() {
            machine.fill(&topology);
        }
        machine
    })
}

impl Machine {
    /// The node that a CPU belongs to; 0 where it is not known.
    pub(crate) fn node_of(&self, cpu: usize) -> NodeId {
        NodeId(self.node_of_cpu.get(cpu).map_or(0, |node| node.load(Ordering::Relaxed)))
    }

    fn fill(&self, topology: &Topology) {
        for (cpu, node) in self.node_of_cpu.iter().enumerate() {
            if let Some(index) = topology.node_of_cpu(CpuId(cpu as u32)) {
                node.store(topology.id_of(index).0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::{AffinityMask, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_cpu_that_was_plugged_in_has_its_node_once_it_is_read_anew() {
        let machine = Machine { cpus: 4, nodes: 2, node_of_cpu: (0..4).map(|_| AtomicU32::new(0)).collect() };
        let nodes = |topology| {
            machine.fill(&topology);
            (0..5).map(|cpu| machine.node_of(cpu).0).collect::<Vec<_>>()
        };
        assert_eq!(nodes(Topology::synthetic(1, 2, 1 << 30)), [0; 5]);
        assert_eq!(nodes(Topology::synthetic(2, 2, 1 << 30)), [0, 0, 1, 1, 0]);
    }

    #[test]
    fn a_bound_thread_is_on_its_cpus_node_by_every_way_of_asking() {
        refresh().unwrap();
        for cpu in sched_getaffinity(0).unwrap().iter() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sched_setaffinity(0, &[cpu].into_iter().collect::<AffinityMask>()).unwrap();
                    let node = NodeId(nodewise_sys::getcpu().unwrap().1);
                    assert_eq!(current_cpu(), CpuId(cpu));
                    assert_eq!(current_node(), node);
                    assert_eq!(node_of_current_cpu(), node);
                    assert!((node.0 as usize) < machine().nodes);
                    assert!((cpu as usize) < machine().cpus);
                });
            });
        }
    }
}
