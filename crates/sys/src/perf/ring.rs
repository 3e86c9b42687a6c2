//! Reading the ring that an event writes its records to.

use super::area::{AUX_OFFSET_WORD, AUX_SIZE_WORD, AUX_WORDS, Area, Block, DATA_WORDS};
use super::record::{Header, Record, Stamp};
use super::{Event, SampleFormat};
use crate::error::{Error, Result};
use crate::page_bytes;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The data that did not get through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Records and samples that the kernel or the hardware says it dropped.
    pub lost: u64,
    /// Times that the kernel switched the event off for sampling too much.
    pub throttled: u64,
    /// Records that were not what they claimed to be.
    pub malformed: u64,
    /// AUX data with gaps, times.
    pub aux_gaps: u64,
}

impl std::ops::AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.lost = self.lost.saturating_add(other.lost);
        self.throttled = self.throttled.saturating_add(other.throttled);
        self.malformed = self.malformed.saturating_add(other.malformed);
        self.aux_gaps = self.aux_gaps.saturating_add(other.aux_gaps);
    }
}

/// The reader of an event's ring.
///
/// The kernel does not overwrite what was not read: a full ring loses new records and says how many.
pub struct Ring {
    control: Arc<Block>,
    data: Area,
    aux: Option<Area>,
    tail: u64,
    format: SampleFormat,
    losses: Losses,
    /// The record being read, in one piece.
    record: Vec<u8>,
}

impl Ring {
    /// Maps the ring of an event that was opened with a sample format, with `data_pages` (a power of two).
    ///
    /// # Errors
    /// `EPERM` more than `perf_event_mlock_kb` allows; `ENOMEM`; `EINVAL` not a power of two, or the event is
    /// of a task on any CPU and inherited.
    pub fn map(event: &Event, format: SampleFormat, data_pages: usize) -> Result<Self> {
        let page = page_bytes();
        let length = data_pages.checked_add(1).and_then(|pages| pages.checked_mul(page));
        let length =
            length.filter(|_| data_pages.is_power_of_two()).ok_or(Error::new("mmap", libc::EINVAL))?;
        let block = Arc::new(Block::map(event.as_fd(), 0, length)?);
        Ok(Self::over(block, page, data_pages * page, format))
    }

    fn over(block: Arc<Block>, start: usize, bytes: usize, format: SampleFormat) -> Self {
        let data = Area::new(Arc::clone(&block), DATA_WORDS, Arc::clone(&block), start, bytes);
        Self {
            control: block,
            tail: data.tail(),
            data,
            aux: None,
            format,
            losses: Losses::default(),
            record: vec![0; usize::from(u16::MAX)],
        }
    }

    /// Maps an AUX area of `pages` (a power of two) for PMUs that write there, Arm SPE's for one. `event` is
    /// the one the ring was mapped from.
    ///
    /// # Errors
    /// As [`Ring::map`]; `EOPNOTSUPP` a PMU without.
    pub fn map_aux(&mut self, event: &Event, pages: usize) -> Result<()> {
        let page = page_bytes();
        let bytes = pages.checked_mul(page).filter(|_| pages.is_power_of_two());
        let bytes = bytes.ok_or(Error::new("mmap", libc::EINVAL))?;
        let offset = (page + self.data.bytes()) as u64;
        // perf_mmap in kernel/events/core.c takes place and size from here.
        self.control.word(AUX_OFFSET_WORD).store(offset, std::sync::atomic::Ordering::Relaxed);
        self.control.word(AUX_SIZE_WORD).store(bytes as u64, std::sync::atomic::Ordering::Relaxed);
        let block = Arc::new(Block::map(event.as_fd(), offset, bytes)?);
        self.aux = Some(Area::new(Arc::clone(&self.control), AUX_WORDS, block, 0, bytes));
        Ok(())
    }

    /// Hands every record written so far to `each`, oldest first, and gives their room back. Returns how many
    /// bytes of the ring that was.
    pub fn read(&mut self, mut each: impl FnMut(Record<'_>)) -> u64 {
        self.read_stamped(|record, _| each(record))
    }

    /// As [`Ring::read`], with the part that all records have alike.
    pub fn read_stamped(&mut self, mut each: impl FnMut(Record<'_>, Stamp)) -> u64 {
        self.read_bytes(|bytes, format, losses| {
            match Record::parse(bytes, format).and_then(|record| Ok((record, Stamp::of(bytes, format)?))) {
                Ok((record, stamp)) => {
                    losses.note(&record);
                    each(record, stamp);
                }
                Err(_) => losses.malformed += 1,
            }
        })
    }

    /// As [`Ring::read`], but hands over the bytes of the records, headers included, and does not look for
    /// what they say was lost.
    pub fn read_raw(&mut self, mut each: impl FnMut(&[u8])) -> u64 {
        self.read_bytes(|bytes, _, _| each(bytes))
    }

    fn read_bytes(&mut self, mut each: impl FnMut(&[u8], &SampleFormat, &mut Losses)) -> u64 {
        let begin = self.tail;
        let head = self.data.head();
        while self.tail != head {
            let Some(length) = self.copy_record(head) else {
                // No telling where the next record starts: give up what is there.
                self.losses.malformed += 1;
                self.tail = head;
                break;
            };
            each(&self.record[..length], &self.format, &mut self.losses);
            self.tail += length as u64;
            self.data.publish_tail(self.tail);
        }
        self.data.publish_tail(self.tail);
        head.wrapping_sub(begin)
    }

    /// Copies the record at the tail to `self.record`. `None` when there is not a whole one before `head`.
    fn copy_record(&mut self, head: u64) -> Option<usize> {
        let available = head.checked_sub(self.tail).filter(|&bytes| bytes <= self.data.bytes() as u64)?;
        let mut header = [0; Header::BYTES];
        if available < header.len() as u64 {
            return None;
        }
        // SAFETY: at most `available` bytes, which lie between the published tail and the loaded head.
        unsafe { self.data.copy_out(self.tail, &mut header) };
        let length = usize::from(Header::parse(header).bytes);
        if length < Header::BYTES || length as u64 > available {
            return None;
        }
        // SAFETY: as above, `length` is at most `available`.
        unsafe { self.data.copy_out(self.tail, &mut self.record[..length]) };
        Some(length)
    }

    /// Appends what was written to the AUX area so far to `into`, and gives its room back. Returns how many
    /// bytes that was: none without an AUX area.
    ///
    /// The kernel switches an event off whose AUX area is full. The caller switches it on again after
    /// reading.
    pub fn read_aux(&mut self, into: &mut Vec<u8>) -> u64 {
        let Some(aux) = &self.aux else { return 0 };
        let (head, tail) = (aux.head(), aux.tail());
        let available = head.checked_sub(tail).filter(|&bytes| bytes <= aux.bytes() as u64);
        if let Some(available) = available {
            let before = into.len();
            into.resize(before + available as usize, 0);
            // SAFETY: exactly the bytes between the published tail and the loaded head.
            unsafe { aux.copy_out(tail, &mut into[before..]) };
        } else {
            self.losses.aux_gaps += 1;
        }
        aux.publish_tail(head);
        available.unwrap_or(0)
    }

    /// The losses since the ring was mapped.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.losses
    }

    /// Size of the ring.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("bytes", &self.bytes())
            .field("losses", &self.losses)
            .finish_non_exhaustive()
    }
}

impl Losses {
    fn note(&mut self, record: &Record<'_>) {
        match record {
            Record::Lost { records: lost, .. } | Record::LostSamples { samples: lost } => {
                self.lost = self.lost.saturating_add(*lost);
            }
            Record::Throttle { .. } => self.throttled += 1,
            Record::Aux { flags, .. } if flags.is_lossy() => self.aux_gaps += 1,
            _ => {}
        }
    }
}

/// The writing end of [`ring_in_memory`]: does what the kernel would.
pub struct RingWriter {
    data: Area,
    aux: Area,
    head: u64,
    aux_head: u64,
}

/// A ring of `data_bytes` (a power of two, at least 8) in ordinary memory, and an AUX area of the same size.
/// For tests: of this crate's reader, and of whatever makes sense of the records.
///
/// # Panics
/// When `data_bytes` is not such a size.
#[must_use]
pub fn ring_in_memory(data_bytes: usize, format: SampleFormat) -> (RingWriter, Ring) {
    assert!(data_bytes.is_power_of_two() && data_bytes >= 8, "a ring of {data_bytes} bytes");
    let control_bytes = (AUX_SIZE_WORD + 1) * 8;
    let block = Arc::new(Block::heap(control_bytes + data_bytes));
    let aux_block = Arc::new(Block::heap(data_bytes));
    let aux = Area::new(Arc::clone(&block), AUX_WORDS, aux_block, 0, data_bytes);
    let mut ring = Ring::over(block, control_bytes, data_bytes, format);
    ring.aux = Some(aux.clone());
    (RingWriter { data: ring.data.clone(), aux, head: 0, aux_head: 0 }, ring)
}

impl RingWriter {
    /// Appends a record's bytes, header included, and publishes them; false, and nothing written, when there
    /// is no room.
    pub fn write(&mut self, record: &[u8]) -> bool {
        append(&self.data, &mut self.head, record)
    }

    /// The same for the AUX area.
    pub fn write_aux(&mut self, bytes: &[u8]) -> bool {
        append(&self.aux, &mut self.aux_head, bytes)
    }

    /// Starts both counts at `position` instead of 0, before anything was written or read.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, position: u64, ring: &mut Ring) {
        (self.head, self.aux_head, ring.tail) = (position, position, position);
        for area in [&self.data, &self.aux] {
            area.publish_head(position);
            area.publish_tail(position);
        }
    }

    /// Publishes a head that was never written up to, as a broken kernel would. Single-threaded tests only.
    #[cfg(test)]
    pub(super) fn publish(&mut self, head: u64) {
        self.head = head;
        self.data.publish_head(head);
    }
}

fn append(area: &Area, head: &mut u64, bytes: &[u8]) -> bool {
    let used = head.wrapping_sub(area.tail());
    let room = (area.bytes() as u64).saturating_sub(used);
    if bytes.len() as u64 > room {
        return false;
    }
    // SAFETY: `room` bytes past the published head lie within one ring's length of the loaded tail; `&mut` on
    // the writer's side makes it the only one.
    unsafe { area.copy_in(*head, bytes) };
    *head += bytes.len() as u64;
    area.publish_head(*head);
    true
}
