//! Memory policies: where new pages of a thread or a range go.

use crate::Mapping;
use crate::error::{Error, Result, check};
use std::fmt;
use std::ops::{BitOr, Range};

/// One more than the greatest node number a [`NodeMask`] holds; the greatest `CONFIG_NODES_SHIFT` is 10.
pub const NODES_MAX: u32 = 1024;

const WORDS: usize = NODES_MAX as usize / 64;

/// The kernel reads one bit less than it is told (`get_nodes` in `mm/mempolicy.c` starts with `--maxnode`).
const MAXNODE_ARGUMENT: libc::c_ulong = NODES_MAX as libc::c_ulong + 1;

// Not in the libc crate, from include/uapi/linux/mempolicy.h.
const MPOL_PREFERRED_MANY: i32 = 5;
const MPOL_WEIGHTED_INTERLEAVE: i32 = 6;
const MPOL_F_NODE: i32 = 1;
const MPOL_F_ADDR: i32 = 2;
const MPOL_F_MEMS_ALLOWED: i32 = 4;
pub(crate) const MPOL_MF_STRICT: i32 = 1;
pub(crate) const MPOL_MF_MOVE: i32 = 2;
pub(crate) const MPOL_MF_MOVE_ALL: i32 = 4;
const MPOL_MODE_FLAGS: i32 =
    libc::MPOL_F_STATIC_NODES | libc::MPOL_F_RELATIVE_NODES | libc::MPOL_F_NUMA_BALANCING;

/// A set of nodes, by the kernel's numbers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NodeMask([u64; WORDS]);

impl NodeMask {
    /// No node.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Adds a node; false, and nothing added, when the number is not below [`NODES_MAX`].
    pub fn insert(&mut self, node: u32) -> bool {
        match self.0.get_mut(node as usize / 64) {
            Some(word) => *word |= 1 << (node % 64),
            None => return false,
        }
        true
    }

    /// Whether the node is in the set.
    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.0.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// The nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..NODES_MAX).filter(|&node| self.contains(node))
    }

    /// Whether there is no node in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }
}

impl FromIterator<u32> for NodeMask {
    /// # Panics
    /// When a node is not below [`NODES_MAX`].
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let mut mask = Self::EMPTY;
        for node in nodes {
            assert!(mask.insert(node), "node {node} is not below {NODES_MAX}");
        }
        mask
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// `MPOL_*`: what a policy does with its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum PolicyMode {
    /// The process's policy, or for a process the system's: the node of the CPU that touches first.
    Default = libc::MPOL_DEFAULT,
    /// One node, others when it is full.
    Preferred = libc::MPOL_PREFERRED,
    /// These nodes and no other.
    Bind = libc::MPOL_BIND,
    /// Page by page round these nodes.
    Interleave = libc::MPOL_INTERLEAVE,
    /// The node of the CPU that touches first, and no NUMA balancing of the pages.
    Local = libc::MPOL_LOCAL,
    /// These nodes, others when they are full. Linux 5.15.
    PreferredMany = MPOL_PREFERRED_MANY,
    /// Page by page round these nodes, by the weights in `/sys/kernel/mm/mempolicy/weighted_interleave`.
    /// Linux 6.9.
    WeightedInterleave = MPOL_WEIGHTED_INTERLEAVE,
}

impl PolicyMode {
    const ALL: [Self; 7] = [
        Self::Default,
        Self::Preferred,
        Self::Bind,
        Self::Interleave,
        Self::Local,
        Self::PreferredMany,
        Self::WeightedInterleave,
    ];
}

/// `MPOL_F_*` flags of a policy, combined with `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyFlags(i32);

impl PolicyFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// `MPOL_F_STATIC_NODES`: node numbers stay what they are when the cpuset changes.
    pub const STATIC_NODES: Self = Self(libc::MPOL_F_STATIC_NODES);
    /// `MPOL_F_RELATIVE_NODES`: node numbers count within the cpuset's nodes.
    pub const RELATIVE_NODES: Self = Self(libc::MPOL_F_RELATIVE_NODES);
    /// `MPOL_F_NUMA_BALANCING`: the balancing scanner marks these pages too. With `Bind` since Linux 5.12,
    /// with `PreferredMany` since 6.10.
    pub const NUMA_BALANCING: Self = Self(libc::MPOL_F_NUMA_BALANCING);

    /// Whether all of `other`'s flags are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for PolicyFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A memory policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The mode, which says what the policy does with its nodes.
    pub mode: PolicyMode,
    /// Its flags.
    pub flags: PolicyFlags,
    /// Its nodes; empty for `Default` and `Local`.
    pub nodes: NodeMask,
}

impl Policy {
    /// The system's own policy.
    pub const DEFAULT: Self = Self::new(PolicyMode::Default, NodeMask::EMPTY);
    /// First touch without NUMA balancing.
    pub const LOCAL: Self = Self::new(PolicyMode::Local, NodeMask::EMPTY);

    /// A policy without flags.
    #[must_use]
    pub const fn new(mode: PolicyMode, nodes: NodeMask) -> Self {
        Self { mode, flags: PolicyFlags::NONE, nodes }
    }

    /// The same with these flags.
    #[must_use]
    pub const fn with_flags(mut self, flags: PolicyFlags) -> Self {
        self.flags = flags;
        self
    }

    fn raw_mode(&self) -> i32 {
        self.mode as i32 | self.flags.0
    }

    fn from_raw(call: &'static str, raw: i32, nodes: NodeMask) -> Result<Self> {
        let mode = PolicyMode::ALL.into_iter().find(|&mode| mode as i32 == raw & !MPOL_MODE_FLAGS);
        // A mode newer than this list.
        let mode = mode.ok_or(Error::new(call, libc::EOPNOTSUPP))?;
        Ok(Self { mode, flags: PolicyFlags(raw & MPOL_MODE_FLAGS), nodes })
    }
}

/// `long set_mempolicy(int mode, const unsigned long *nodemask, unsigned long maxnode)`
///
/// Sets the policy of the calling *thread*; children and `exec` inherit it.
///
/// # Errors
/// `EINVAL` this kernel lacks the mode or flag, or no node is left of the mask; `EPERM` a container's seccomp
/// filter; `ENOSYS` a kernel without NUMA.
///
/// # References
/// [`set_mempolicy(2)`](https://man7.org/linux/man-pages/man2/set_mempolicy.2.html)
pub fn set_mempolicy(policy: &Policy) -> Result<()> {
    let (nodes, maxnode) = mask_arguments(&policy.nodes);
    // SAFETY: `nodes` is null or points to as many bits as the kernel reads.
    let returned = unsafe { libc::syscall(libc::SYS_set_mempolicy, policy.raw_mode(), nodes, maxnode) };
    check("set_mempolicy", returned).map(|_| ())
}

/// `long get_mempolicy(int *mode, unsigned long *nodemask, unsigned long maxnode, void *addr, unsigned long
/// flags)`
///
/// The calling thread's policy.
///
/// # Errors
/// `EPERM` a container's seccomp filter; `ENOSYS` a kernel without NUMA; `EOPNOTSUPP` a mode unknown here.
///
/// # References
/// [`get_mempolicy(2)`](https://man7.org/linux/man-pages/man2/get_mempolicy.2.html)
pub fn get_mempolicy() -> Result<Policy> {
    let (mode, nodes) = raw_get_mempolicy(0, 0)?;
    Policy::from_raw("get_mempolicy", mode, nodes)
}

/// `get_mempolicy` with `MPOL_F_ADDR`: the policy of the range that `address` of this process lies in.
///
/// # Errors
/// As [`get_mempolicy`], and `EFAULT` nothing is mapped there.
pub fn get_mempolicy_at(address: u64) -> Result<Policy> {
    let (mode, nodes) = raw_get_mempolicy(address, MPOL_F_ADDR)?;
    Policy::from_raw("get_mempolicy", mode, nodes)
}

/// `get_mempolicy` with `MPOL_F_NODE`: the node that this thread's interleaving comes to next.
///
/// # Errors
/// As [`get_mempolicy`], and `EINVAL` the policy does not interleave.
pub fn next_interleave_node() -> Result<i32> {
    raw_get_mempolicy(0, MPOL_F_NODE).map(|(node, _)| node)
}

/// `get_mempolicy` with `MPOL_F_NODE | MPOL_F_ADDR`: the node that holds the page at `address` of this
/// process. Brings the page in when it is absent; [`query_pages`](crate::query_pages) does not.
///
/// # Errors
/// As [`get_mempolicy_at`].
pub fn node_of_address(address: u64) -> Result<i32> {
    raw_get_mempolicy(address, MPOL_F_NODE | MPOL_F_ADDR).map(|(node, _)| node)
}

/// `get_mempolicy` with `MPOL_F_MEMS_ALLOWED`: the nodes this thread's cpuset lets it use.
///
/// # Errors
/// As [`get_mempolicy`].
pub fn mems_allowed() -> Result<NodeMask> {
    raw_get_mempolicy(0, MPOL_F_MEMS_ALLOWED).map(|(_, nodes)| nodes)
}

fn raw_get_mempolicy(address: u64, flags: i32) -> Result<(i32, NodeMask)> {
    let mut mode = 0_i32;
    let mut nodes = NodeMask::EMPTY;
    // SAFETY: the kernel writes one int to `mode` and NODES_MAX bits to the mask (copy_nodes_to_user in
    // mm/mempolicy.c also drops one from the count); it reads no memory at `address`.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes.0.as_mut_ptr(),
            MAXNODE_ARGUMENT,
            address,
            flags,
        )
    };
    check("get_mempolicy", returned)?;
    Ok((mode, nodes))
}

/// The treatment that [`mbind`] gives to pages that are already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MbindFlags {
    /// Leaves them.
    #[default]
    FuturePages,
    /// `MPOL_MF_MOVE`: moves them if only this process maps them.
    Move,
    /// `MPOL_MF_MOVE | MPOL_MF_STRICT`: `EIO` if some could not be moved.
    MoveStrict,
}

/// `long mbind(void *addr, unsigned long len, int mode, const unsigned long *nodemask, unsigned long maxnode,
/// unsigned flags)`
///
/// Sets the policy of `bytes` (page-aligned) of a mapping of this process.
///
/// # Errors
/// `EINVAL` unaligned, outside of the mapping, or a mode this kernel lacks; `EIO` [`MbindFlags::MoveStrict`];
/// `ENOMEM` too many mappings; `EPERM` a container's seccomp filter.
///
/// # References
/// [`mbind(2)`](https://man7.org/linux/man-pages/man2/mbind.2.html)
pub fn mbind(mapping: &Mapping, bytes: Range<usize>, policy: &Policy, flags: MbindFlags) -> Result<()> {
    let (address, length) = mapping.part("mbind", bytes)?;
    mbind_at(address..address + length as u64, policy, flags)
}

/// The same for any range of this process: a policy changes no contents, whoever's they are.
///
/// # Errors
/// As [`mbind`], and `EFAULT` part of the range is not mapped.
pub fn mbind_at(addresses: Range<u64>, policy: &Policy, flags: MbindFlags) -> Result<()> {
    let length = addresses.end.checked_sub(addresses.start).ok_or(Error::new("mbind", libc::EINVAL))?;
    let flags = match flags {
        MbindFlags::FuturePages => 0,
        MbindFlags::Move => MPOL_MF_MOVE,
        MbindFlags::MoveStrict => MPOL_MF_MOVE | MPOL_MF_STRICT,
    };
    let (nodes, maxnode) = mask_arguments(&policy.nodes);
    // SAFETY: `nodes` is null or points to as many bits as the kernel reads; a policy changes no contents.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            addresses.start,
            length,
            policy.raw_mode(),
            nodes,
            maxnode,
            libc::c_long::from(flags),
        )
    };
    check("mbind", returned).map(|_| ())
}

/// The mask as the kernel takes it: modes without nodes want a null pointer.
fn mask_arguments(nodes: &NodeMask) -> (*const u64, libc::c_ulong) {
    if nodes.is_empty() { (std::ptr::null(), 0) } else { (nodes.0.as_ptr(), MAXNODE_ARGUMENT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, MappingOptions, page_bytes};
    use proptest::prelude::*;

    /// Policies belong to a thread, so each test that sets one does it on a thread of its own.
    fn on_a_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(body).join().unwrap())
    }

    fn first_allowed_node() -> u32 {
        mems_allowed().unwrap().iter().next().unwrap()
    }

    #[test]
    fn a_thread_gets_the_policy_it_set() {
        let nodes: NodeMask = [first_allowed_node()].into_iter().collect();
        for policy in [
            Policy::DEFAULT,
            Policy::LOCAL,
            Policy::new(PolicyMode::Bind, nodes),
            Policy::new(PolicyMode::Bind, nodes).with_flags(PolicyFlags::NUMA_BALANCING),
            Policy::new(PolicyMode::Interleave, nodes).with_flags(PolicyFlags::STATIC_NODES),
            Policy::new(PolicyMode::Preferred, nodes),
        ] {
            let got = on_a_thread(|| {
                set_mempolicy(&policy).unwrap();
                get_mempolicy().unwrap()
            });
            assert_eq!(got, policy);
        }
    }

    #[test]
    fn a_range_gets_the_policy_it_was_bound_to() {
        let mapping = Mapping::new(4 * page_bytes(), MappingOptions::default()).unwrap();
        let nodes: NodeMask = [first_allowed_node()].into_iter().collect();
        let policy = Policy::new(PolicyMode::Bind, nodes);
        mbind(&mapping, page_bytes()..3 * page_bytes(), &policy, MbindFlags::Move).unwrap();
        assert_eq!(get_mempolicy_at(mapping.page_address(1)).unwrap(), policy);
        assert_eq!(get_mempolicy_at(mapping.page_address(3)).unwrap().mode, PolicyMode::Default);
        assert!(nodes.contains(node_of_address(mapping.page_address(2)).unwrap() as u32));
    }

    #[test]
    fn refuses_what_is_not_there() {
        let mapping = Mapping::new(page_bytes(), MappingOptions::default()).unwrap();
        let past = mbind(&mapping, 0..2 * page_bytes(), &Policy::LOCAL, MbindFlags::FuturePages).unwrap_err();
        assert_eq!(past.kind(), ErrorKind::Invalid);
        let nowhere = Policy::new(PolicyMode::Bind, [1023].into_iter().collect());
        assert_eq!(on_a_thread(|| set_mempolicy(&nowhere)).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(get_mempolicy_at(0).unwrap_err().kind(), ErrorKind::BadAddress);
    }

    proptest! {
        #[test]
        fn a_mask_holds_exactly_what_was_put_in(nodes in proptest::collection::btree_set(0..NODES_MAX, 0..40)) {
            let mask: NodeMask = nodes.iter().copied().collect();
            prop_assert_eq!(mask.iter().collect::<Vec<_>>(), nodes.into_iter().collect::<Vec<_>>());
            prop_assert!(!mask.contains(NODES_MAX));
            let mut mask = mask;
            prop_assert!(!mask.insert(NODES_MAX));
        }
    }
}
