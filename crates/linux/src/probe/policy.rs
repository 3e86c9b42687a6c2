//! Which memory policies the kernel takes: set on a thread that ends at once.

use super::Outcome;
use nodewise_sys::{
    ErrorKind, NodeMask, Policy, PolicyFlags, PolicyMode, get_mempolicy, mems_allowed, set_mempolicy,
};

pub(super) fn any() -> Outcome {
    attempt(&Policy::LOCAL, "")
}

pub(super) fn preferred_many() -> Outcome {
    attempt(&on_allowed(PolicyMode::PreferredMany), "5.15")
}

pub(super) fn bind_balancing() -> Outcome {
    attempt(&on_allowed(PolicyMode::Bind).with_flags(PolicyFlags::NUMA_BALANCING), "5.12")
}

pub(super) fn preferred_many_balancing() -> Outcome {
    attempt(&on_allowed(PolicyMode::PreferredMany).with_flags(PolicyFlags::NUMA_BALANCING), "6.10")
}

pub(super) fn weighted_interleave() -> Outcome {
    attempt(&on_allowed(PolicyMode::WeightedInterleave), "6.9")
}

fn on_allowed(mode: PolicyMode) -> Policy {
    // Without the call that asks, the kernel's answer to the call that sets is what is reported.
    let nodes = mems_allowed().unwrap_or_else(|_| [0].into_iter().collect::<NodeMask>());
    Policy::new(mode, nodes)
}

/// Sets the policy on a thread of its own, and sees whether it then has it.
fn attempt(policy: &Policy, since: &str) -> Outcome {
    let set = || set_mempolicy(policy).and_then(|()| get_mempolicy());
    let done = std::thread::scope(|scope| scope.spawn(set).join());
    match done {
        Ok(Ok(got)) if got == *policy => Outcome::Works("set and read back".to_owned()),
        Ok(Ok(got)) => Outcome::Lacking(format!("set, but the kernel made {:?} of it", got.mode)),
        Ok(Err(e)) if e.kind() == ErrorKind::Invalid && !since.is_empty() => {
            Outcome::Lacking(format!("not known to this kernel; in Linux since {since}"))
        }
        Ok(Err(e)) => Outcome::failed(e),
        Err(_) => Outcome::Untried("the thread that tried died".to_owned()),
    }
}
