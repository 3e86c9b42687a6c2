//! State that a process has to itself.

use std::sync::OnceLock;

/// A value that a child of fork has anew, with locks of its own. Another thread may hold the parent's at the
/// fork. The child lacks that thread, so they would stay held for ever.
pub(crate) struct PerProcess<T> {
    first: OnceLock<OfProcess<T>>,
}

struct OfProcess<T> {
    process: u32,
    value: T,
    /// The value of the child that this process is by now.
    of_child: OnceLock<Box<Self>>,
}

impl<T: Default> OfProcess<T> {
    fn new(process: u32) -> Self {
        Self { process, value: T::default(), of_child: OnceLock::new() }
    }
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// This process's, made now if need be.
    pub(crate) fn own(&self) -> &T {
        let process = std::process::id();
        let mut own = self.first.get_or_init(|| OfProcess::new(process));
        while own.process != process {
            own = own.of_child.get_or_init(|| Box::new(OfProcess::new(process)));
        }
        &own.value
    }

    pub(crate) fn own_if_any(&self) -> Option<&T> {
        let process = std::process::id();
        let mut own = self.first.get()?;
        while own.process != process {
            own = own.of_child.get()?;
        }
        Some(&own.value)
    }
}
