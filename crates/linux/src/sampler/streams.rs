//! One stream for each CPU or thread, as these come and go.

use super::files::pages;
use crate::{Error, ErrorKind};
use nodewise_sys::page_bytes;
use nodewise_sys::perf::{Attr, Event, ReadFormat, Ring, Target};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the smallest ring worth having.
pub(super) const LEAST_BYTES: usize = 32 << 10;

/// Streams by the number of their CPU or thread.
pub(super) struct Streams<S> {
    open: BTreeMap<u32, S>,
    /// CPUs or threads whose events the kernel refused, or for which there was no room.
    refused: BTreeSet<u32>,
}

/// Opens an event on a CPU that counts what its ring has no room for, where the kernel does: Linux 6.0.
pub(super) fn open_counting_losses(attr: &Attr, cpu: u32) -> nodewise_sys::Result<Event> {
    let mut counting = *attr;
    counting.read_format |= ReadFormat::LOST;
    match Event::open(&counting, Target::Cpu(cpu), None) {
        Err(error) if error.kind() == nodewise_sys::ErrorKind::Invalid => {
            Event::open(attr, Target::Cpu(cpu), None)
        }
        opened => opened,
    }
}

/// How many records the ring had no room for until now. It tells of them itself only when there is room again
/// and something to write.
pub(super) fn lost(event: &Event, ring: &Ring) -> u64 {
    let counted = event.read().map_or(0, |count| count.lost);
    counted.max(ring.losses().lost)
}

/// Changes since the last call.
pub(super) struct Changes<S> {
    pub(super) closed: Vec<S>,
    /// CPUs or threads that are there and that were refused for the first time.
    pub(super) refused: usize,
}

impl<S> Streams<S> {
    pub(super) const fn none() -> Self {
        Self { open: BTreeMap::new(), refused: BTreeSet::new() }
    }

    /// A stream for each of the CPUs that the PMU belongs to and that are online: one of them at least.
    pub(super) fn open_all(
        cpus: impl Iterator<Item = u32>,
        mut open: impl FnMut(u32) -> Result<S, Refused>,
    ) -> Result<Self, Refused> {
        let mut streams = Self::none();
        let mut absent = None;
        for cpu in cpus {
            match open(cpu) {
                Ok(stream) => drop(streams.open.insert(cpu, stream)),
                Err(refused) if refused.is_absent() => absent = Some(refused),
                Err(refused) => return Err(refused),
            }
        }
        match absent {
            Some(refused) if streams.open.is_empty() => Err(refused),
            _ => Ok(streams),
        }
    }

    /// Closes streams that are no longer of use, so that following opens them anew.
    pub(super) fn close_unless(&mut self, mut is_of_use: impl FnMut(&mut S) -> bool) {
        self.open.retain(|_, stream| is_of_use(stream));
    }

    /// Closes streams whose CPU or thread is no longer among `present`, and opens those that are missing, as
    /// long as there are fewer than `room`.
    pub(super) fn follow(
        &mut self,
        present: &BTreeSet<u32>,
        room: usize,
        mut open: impl FnMut(u32) -> Result<S, Refused>,
    ) -> Changes<S> {
        let gone: Vec<u32> = self.open.keys().copied().filter(|key| !present.contains(key)).collect();
        let closed: Vec<S> = gone.iter().filter_map(|key| self.open.remove(key)).collect();
        // A refused event may be granted when others have given room back, and else would only cost a try
        // each time.
        let known = std::mem::take(&mut self.refused);
        let mut newly_refused = 0;
        for &key in present {
            if self.open.contains_key(&key) {
                continue;
            }
            if closed.is_empty() && known.contains(&key) {
                self.refused.insert(key);
                continue;
            }
            match (self.open.len() < room).then(|| open(key)) {
                Some(Ok(stream)) => drop(self.open.insert(key, stream)),
                Some(Err(refused)) if refused.is_absent() => {}
                _ => {
                    self.refused.insert(key);
                    newly_refused += usize::from(!known.contains(&key));
                }
            }
        }
        Changes { closed, refused: newly_refused }
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &S> {
        self.open.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.open.values_mut()
    }
}

/// An event or ring that the kernel refused.
#[derive(Debug)]
pub(super) struct Refused {
    /// The class of the kernel's own error.
    pub(super) kind: nodewise_sys::ErrorKind,
    pub(super) error: Error,
}

impl Refused {
    /// Whether there is no such thread any more, or the PMU has nothing on that CPU, or the CPU is offline.
    pub(super) const fn is_absent(&self) -> bool {
        use nodewise_sys::ErrorKind::{NoSuchDevice, NoSuchProcess, NotFound};
        matches!(self.kind, NoSuchDevice | NoSuchProcess | NotFound)
    }

    /// The rings of others leave no room for one more.
    pub(super) fn for_want_of_room() -> Self {
        let error = Error::new(ErrorKind::Unsupported, "there are more threads than there is room for");
        Self { kind: nodewise_sys::ErrorKind::OutOfMemory, error }
    }

    /// Whether there is too little memory, or memory that may be locked.
    pub(super) const fn is_for_want_of_memory(&self) -> bool {
        matches!(self.kind, nodewise_sys::ErrorKind::OutOfMemory)
    }

    /// Whether a user with more rights, or who asks for less, would not be refused.
    pub(super) const fn is_for_want_of_rights(&self) -> bool {
        use nodewise_sys::ErrorKind::{NotPermitted, OutOfMemory};
        matches!(self.kind, NotPermitted | OutOfMemory)
    }
}

/// Maps so many bytes, or half as many, and so on. A user without privileges may lock `perf_event_mlock_kb`
/// for each CPU, and the user's other programs may have taken some of it.
pub(super) fn largest_granted<T>(
    bytes: usize,
    mut map: impl FnMut(usize) -> nodewise_sys::Result<T>,
) -> Result<T, Refused> {
    use nodewise_sys::ErrorKind::{NotPermitted, OutOfMemory};
    let mut count = pages(bytes, page_bytes());
    loop {
        match map(count) {
            Ok(mapped) => return Ok(mapped),
            Err(e)
                if matches!(e.kind(), NotPermitted | OutOfMemory)
                    && count > pages(LEAST_BYTES, page_bytes()) =>
            {
                count /= 2;
            }
            Err(e) => return Err(ring_refused(count, e)),
        }
    }
}

fn ring_refused(pages: usize, error: nodewise_sys::Error) -> Refused {
    let (kind, what_to_do) = match error.kind() {
        nodewise_sys::ErrorKind::NotPermitted => {
            (ErrorKind::NotPermitted, "; raise kernel.perf_event_mlock_kb or run with CAP_IPC_LOCK")
        }
        _ => (ErrorKind::Unsupported, ""),
    };
    let message = format!("cannot map a ring of {pages} pages{what_to_do}");
    Refused { kind: error.kind(), error: Error::with_source(kind, message, error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::ErrorKind as Errno;

    fn refused(kind: Errno) -> Refused {
        Refused { kind, error: Error::new(ErrorKind::Unsupported, "refused") }
    }

    #[test]
    fn efficiency_cores_and_cpus_gone_offline_are_passed_over() {
        let open = |cpu: u32| match cpu {
            0 | 4 => Err(refused(Errno::NotFound)),
            5 => Err(refused(Errno::NoSuchDevice)),
            _ => Ok(cpu),
        };
        let streams = Streams::open_all(0..6, open).unwrap();
        assert_eq!(streams.iter().copied().collect::<Vec<_>>(), [1, 2, 3]);
        // But not where it is all of them, nor for another reason.
        assert_eq!(Streams::open_all(4..6, open).err().unwrap().kind, Errno::NoSuchDevice);
        let denied = |cpu: u32| if cpu == 2 { Err(refused(Errno::NotPermitted)) } else { Ok(cpu) };
        assert_eq!(Streams::open_all(0..6, denied).err().unwrap().kind, Errno::NotPermitted);
    }

    #[test]
    fn cpus_are_followed() {
        let mut streams = Streams::open_all(0..4, Ok).unwrap();
        let changes = streams.follow(&[0, 1, 2, 5].into(), 16, Ok);
        assert_eq!((changes.closed, changes.refused), (vec![3], 0));
        assert_eq!(streams.iter().copied().collect::<Vec<_>>(), [0, 1, 2, 5]);
    }

    #[test]
    fn a_thread_is_refused_once_and_tried_again_when_others_end() {
        let mut streams = Streams::none();
        let mut tries = 0;
        let mut follow = |present: &[u32]| {
            let changes = streams.follow(&present.iter().copied().collect(), 16, |tid| {
                tries += 1;
                match tid {
                    7 => Err(refused(Errno::OutOfMemory)),
                    9 => Err(refused(Errno::NoSuchProcess)),
                    tid => Ok(tid),
                }
            });
            (changes.refused, std::mem::take(&mut tries))
        };
        assert_eq!(follow(&[6, 7, 8]), (1, 3));
        assert_eq!(follow(&[6, 7, 8]), (0, 0));
        // Thread 6 has ended.
        assert_eq!(follow(&[7, 8]), (0, 1));
        // One that ended before it was opened has lost nothing.
        assert_eq!(follow(&[7, 8, 9]), (0, 1));
        assert_eq!(streams.iter().copied().collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn no_more_are_opened_than_there_is_room_for() {
        let mut streams = Streams::none();
        assert_eq!(streams.follow(&(0..10).collect(), 4, Ok).refused, 6);
        assert_eq!(streams.len(), 4);
    }
}
