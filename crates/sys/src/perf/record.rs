//! The records of a ring.

use super::sample::Cursor;
use super::{CpuMode, Identity, Sample, SampleFormat, SampleType};
use std::fmt;

/// A record from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record<'a> {
    /// `PERF_RECORD_SAMPLE`
    Sample(Sample<'a>),
    /// `PERF_RECORD_LOST`: the ring was full, so many records are gone.
    Lost {
        /// The event.
        id: u64,
        /// Records lost.
        records: u64,
    },
    /// `PERF_RECORD_LOST_SAMPLES`: the hardware dropped so many.
    LostSamples {
        /// Samples lost.
        samples: u64,
    },
    /// `PERF_RECORD_THROTTLE`: more samples than the kernel allows; the event is off until the next tick.
    Throttle {
        /// When.
        time_ns: u64,
        /// The event.
        id: u64,
    },
    /// `PERF_RECORD_UNTHROTTLE`: it is on again.
    Unthrottle {
        /// When.
        time_ns: u64,
        /// The event.
        id: u64,
    },
    /// `PERF_RECORD_FORK`: a thread or process was started.
    Fork(TaskChange),
    /// `PERF_RECORD_EXIT`: a thread or process ended.
    Exit(TaskChange),
    /// `PERF_RECORD_COMM`: a name.
    Comm {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// Whether an exec set it, with [`AttrFlags::COMM_EXEC`](super::AttrFlags::COMM_EXEC).
        exec: bool,
        /// The name, as bytes.
        name: &'a [u8],
    },
    /// `PERF_RECORD_MMAP` or `PERF_RECORD_MMAP2`: a mapping of code, with
    /// [`AttrFlags::MMAP`](super::AttrFlags::MMAP), or another, with
    /// [`AttrFlags::MMAP_DATA`](super::AttrFlags::MMAP_DATA).
    Mmap {
        /// Process.
        pid: i32,
        /// Thread.
        tid: i32,
        /// Whether it is none of code (`PERF_RECORD_MISC_MMAP_DATA`).
        is_data: bool,
        /// The first byte.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The first of them in the file.
        offset: u64,
        /// The file's name, as bytes.
        name: &'a [u8],
    },
    /// `PERF_RECORD_AUX`: so much of the AUX area was written.
    Aux {
        /// Where, counted from the start of time.
        offset: u64,
        /// How much.
        bytes: u64,
        /// The flags of the data.
        flags: AuxFlags,
        /// Whose it is: with an event of a task, all of it is that thread's on one CPU.
        identity: Identity,
    },
    /// `PERF_RECORD_SWITCH` or `PERF_RECORD_SWITCH_CPU_WIDE`: a thread came to a CPU, or left it.
    Switch {
        /// Whether it left (`PERF_RECORD_MISC_SWITCH_OUT`).
        is_out: bool,
        /// The thread, and when.
        identity: Identity,
    },
    /// Another kind.
    Other {
        /// `PERF_RECORD_*`
        kind: u32,
    },
}

/// Body of a fork or an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskChange {
    /// Process.
    pub pid: i32,
    /// Parent process.
    pub parent_pid: i32,
    /// Thread.
    pub tid: i32,
    /// Parent thread.
    pub parent_tid: i32,
    /// When.
    pub time_ns: u64,
}

/// `PERF_AUX_FLAG_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuxFlags(pub u64);

impl AuxFlags {
    /// The AUX area was full, or the hardware collided with itself, or gaps are in the data: something was
    /// lost.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        const TRUNCATED: u64 = 1;
        const PARTIAL: u64 = 4;
        const COLLISION: u64 = 8;
        self.0 & (TRUNCATED | PARTIAL | COLLISION) != 0
    }
}

/// Bytes that are no record: too short for what they claim to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("perf record shorter than what it claims to hold")
    }
}

impl std::error::Error for Malformed {}

/// `struct perf_event_header`
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: u32,
    misc: u16,
    /// The bytes of the whole record, this header included.
    pub(super) bytes: u16,
}

impl Header {
    pub(super) const BYTES: usize = 8;

    pub(super) fn parse(bytes: [u8; Self::BYTES]) -> Self {
        let word = u64::from_ne_bytes(bytes);
        // Little-endian by field, whatever the machine: first kind, then misc, then size.
        if cfg!(target_endian = "little") {
            Self { kind: word as u32, misc: (word >> 32) as u16, bytes: (word >> 48) as u16 }
        } else {
            Self { kind: (word >> 32) as u32, misc: (word >> 16) as u16, bytes: word as u16 }
        }
    }
}

/// `PERF_RECORD_*`
pub(super) mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
}

impl<'a> Record<'a> {
    /// Takes a whole record apart, header first. Bytes past what the kind needs are ignored, as newer kernels
    /// and [`AttrFlags::SAMPLE_ID_ALL`](super::AttrFlags::SAMPLE_ID_ALL) append.
    ///
    /// # Errors
    /// [`Malformed`]: too short for what it claims to hold.
    pub fn parse(bytes: &'a [u8], format: &SampleFormat) -> Result<Self, Malformed> {
        const MISC_COMM_EXEC: u16 = 1 << 13;
        const MISC_MMAP_DATA: u16 = 1 << 13;
        const MISC_SWITCH_OUT: u16 = 1 << 13;
        /// The other thread's numbers.
        const CPU_WIDE_BYTES: u64 = 8;
        /// Device and inode of the file, or its build id; protection, flags.
        const MMAP2_BYTES: u64 = 24 + 8;
        let (header, body) = bytes.split_first_chunk::<{ Header::BYTES }>().ok_or(Malformed)?;
        let header = Header::parse(*header);
        let body_bytes = usize::from(header.bytes).checked_sub(Header::BYTES).ok_or(Malformed)?;
        let body = body.get(..body_bytes).ok_or(Malformed)?;
        let mut from = Cursor(body);
        Ok(match header.kind {
            kind::SAMPLE => {
                let sample = Sample::parse(body, format)?;
                Self::Sample(Sample { cpu_mode: CpuMode::of(header.misc), ..sample })
            }
            kind::LOST => Self::Lost { id: from.u64()?, records: from.u64()? },
            kind::LOST_SAMPLES => Self::LostSamples { samples: from.u64()? },
            kind::THROTTLE => Self::Throttle { time_ns: from.u64()?, id: from.u64()? },
            kind::UNTHROTTLE => Self::Unthrottle { time_ns: from.u64()?, id: from.u64()? },
            kind::FORK => Self::Fork(TaskChange::parse(&mut from)?),
            kind::EXIT => Self::Exit(TaskChange::parse(&mut from)?),
            kind::COMM => {
                let (pid, tid) = (from.u32()? as i32, from.u32()? as i32);
                Self::Comm { pid, tid, exec: header.misc & MISC_COMM_EXEC != 0, name: from.text() }
            }
            kind::MMAP | kind::MMAP2 => Self::Mmap {
                pid: from.u32()? as i32,
                tid: from.u32()? as i32,
                is_data: header.misc & MISC_MMAP_DATA != 0,
                address: from.u64()?,
                bytes: from.u64()?,
                offset: from.u64()?,
                name: {
                    from.bytes(if header.kind == kind::MMAP2 { MMAP2_BYTES } else { 0 })?;
                    from.text()
                },
            },
            kind::AUX => Self::Aux {
                offset: from.u64()?,
                bytes: from.u64()?,
                flags: AuxFlags(from.u64()?),
                identity: Identity::parse(&mut from, format)?,
            },
            kind::SWITCH | kind::SWITCH_CPU_WIDE => Self::Switch {
                is_out: header.misc & MISC_SWITCH_OUT != 0,
                identity: {
                    from.bytes(if header.kind == kind::SWITCH_CPU_WIDE { CPU_WIDE_BYTES } else { 0 })?;
                    Identity::parse(&mut from, format)?
                },
            },
            kind => Self::Other { kind },
        })
    }
}

/// The part of a record that all kinds have alike, told without the rest of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stamp {
    /// The event's number, of [`SampleType::IDENTIFIER`] or [`SampleType::ID`].
    pub id: Option<u64>,
    /// The time, by the event's clock.
    pub time_ns: Option<u64>,
}

impl Stamp {
    /// The stamp of a whole record, header first. A sample has it in front, and any other record at its end
    /// (`perf_output_sample` and `__perf_event__output_id_sample` in `kernel/events/core.c`).
    ///
    /// # Errors
    /// [`Malformed`]: too short for what it claims to hold.
    pub fn of(record: &[u8], format: &SampleFormat) -> Result<Self, Malformed> {
        let (header, body) = record.split_first_chunk::<{ Header::BYTES }>().ok_or(Malformed)?;
        let has = |part| format.sample_type.contains(part);
        let is_sample = Header::parse(*header).kind == kind::SAMPLE;
        let (parts, from): (&[SampleType], _) = if is_sample {
            (&SAMPLE_BEGINS, body)
        } else if format.sample_id_all {
            let bytes = 8 * RECORD_ENDS.into_iter().filter(|&part| has(part)).count();
            (&RECORD_ENDS, &body[body.len().checked_sub(bytes).ok_or(Malformed)?..])
        } else {
            (&[], body)
        };
        let mut from = Cursor(from);
        let mut stamp = Self::default();
        for &part in parts.iter().filter(|&&part| has(part)) {
            let word = from.u64()?;
            match part {
                SampleType::TIME => stamp.time_ns = Some(word),
                SampleType::ID | SampleType::IDENTIFIER => stamp.id = Some(word),
                _ => {}
            }
        }
        Ok(stamp)
    }
}

/// A sample's first words.
const SAMPLE_BEGINS: [SampleType; 6] = [
    SampleType::IDENTIFIER,
    SampleType::IP,
    SampleType::TID,
    SampleType::TIME,
    SampleType::ADDR,
    SampleType::ID,
];
/// Other records' last words.
const RECORD_ENDS: [SampleType; 6] = [
    SampleType::TID,
    SampleType::TIME,
    SampleType::ID,
    SampleType::STREAM_ID,
    SampleType::CPU,
    SampleType::IDENTIFIER,
];

impl TaskChange {
    fn parse(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            pid: from.u32()? as i32,
            parent_pid: from.u32()? as i32,
            tid: from.u32()? as i32,
            parent_tid: from.u32()? as i32,
            time_ns: from.u64()?,
        })
    }
}
