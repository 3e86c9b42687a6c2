//! The container of `perf.data`: its head, its sections, and its records one by one.
//!
//! As `tools/perf/util/header.c` and `tools/perf/Documentation/perf.data-file-format.txt` of Linux 6.12 have
//! it. A file has sections at offsets. The output of `perf record -o -` has the same things as records, one
//! after the other.

use crate::{Error, ErrorKind};
use nodewise_sys::perf::{Attr, AttrFlags, BranchType, ReadFormat, SampleFormat, SampleType, Stamp};
use ruzstd::decoding::StreamingDecoder;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

const MAGIC: &[u8; 8] = b"PERFILE2";
/// The same of a machine of the other byte order.
const SWAPPED: &[u8; 8] = b"2ELIFREP";
/// `struct perf_pipe_file_header`, and the first words of `struct perf_file_header`.
const PIPE_HEAD_BYTES: u64 = 16;
/// `struct perf_file_header`
const HEAD_BYTES: u64 = 104;
/// Offset and size of a section.
const SECTION_BYTES: usize = 16;
/// `PERF_ATTR_SIZE_VER0`
const ATTR_BYTES: usize = 64;
/// Bytes of a feature that is read, at most; those of a machine with 1000 CPUs and 32 TiB take some 40 000.
const FEATURE_BYTES: u64 = 16 << 20;
/// Bytes of the list of events, and of their numbers, at most.
const EVENTS_BYTES: u64 = 16 << 20;
/// Bytes that a compressed recording may unpack to.
const UNPACKED_BYTES: u64 = 1 << 36;

/// `HEADER_*`: what `perf record` tells of the machine.
pub(super) mod feature {
    pub const ARCH: u32 = 6;
    pub const CMDLINE: u32 = 11;
    pub const NUMA_TOPOLOGY: u32 = 14;
    pub const MEM_TOPOLOGY: u32 = 22;
    pub const READ: [u32; 4] = [ARCH, CMDLINE, NUMA_TOPOLOGY, MEM_TOPOLOGY];
    /// As many bits are in the head.
    pub const ALL: u32 = 256;
}

/// `PERF_RECORD_*` of `perf` itself (`tools/lib/perf/include/perf/event.h`).
mod kind {
    /// The first of them.
    pub const USER_BEGIN: u32 = HEADER_ATTR;
    pub const HEADER_ATTR: u32 = 64;
    pub const TRACING_DATA: u32 = 66;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED_2: u32 = 83;
}

/// Whether a file that begins so is a `perf.data`.
#[must_use]
pub fn is_perf_data(begins: &[u8]) -> bool {
    begins.starts_with(MAGIC) || begins.starts_with(SWAPPED)
}

/// An event that was recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub attr: Attr,
    pub format: SampleFormat,
}

/// Everything that is known beside the records.
#[derive(Default)]
pub(super) struct Head {
    pub events: Vec<Event>,
    by_id: HashMap<u64, usize>,
    features: BTreeMap<u32, Vec<u8>>,
    /// Whether some samples are in AUX data, as those of Arm SPE and Intel PT are.
    pub has_aux: bool,
}

impl Head {
    /// A feature that `perf` has told; none where it has not.
    pub fn feature(&self, number: u32) -> Option<&[u8]> {
        self.features.get(&number).map(Vec::as_slice)
    }

    /// The event of a record; none where the record does not tell.
    fn event(&self, record: &[u8]) -> Option<&Event> {
        let first = self.events.first()?;
        if self.events.len() == 1 {
            return Some(first);
        }
        let id = Stamp::of(record, &first.format).ok()?.id;
        // Records that perf made up itself have the number 0, and a format as any other.
        let known = id.and_then(|id| self.by_id.get(&id)).and_then(|&number| self.events.get(number));
        known.or_else(|| (kind_of(record) != SAMPLE).then_some(first))
    }
}

/// `PERF_RECORD_SAMPLE`
const SAMPLE: u32 = 9;

fn kind_of(record: &[u8]) -> u32 {
    half(record, 0)
}

/// Words of what may be too short; 0 where they are missing.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |half| u32::from_le_bytes(*half))
}

/// Bytes of a file.
#[derive(Clone, Copy)]
struct Section {
    offset: u64,
    bytes: u64,
}

impl Section {
    fn at(bytes: &[u8], at: usize) -> Self {
        Self { offset: word(bytes, at), bytes: word(bytes, at + 8) }
    }
}

/// Takes the records of the kernel: each with its event, and the head as far as it is known by then.
pub(super) type Each<'a> = &'a mut dyn FnMut(&Head, &Event, &[u8]) -> Result<(), Error>;

/// Reads all of a recording. `length` is that of the file.
///
/// # Errors
/// It cannot be read, is cut off or damaged, or is of another architecture.
pub(super) fn read(
    path: &Path,
    mut from: impl Read + Seek,
    length: u64,
    each: Each<'_>,
) -> Result<Head, Error> {
    let mut file = File { path, head: Head::default(), packed: Vec::new(), each };
    let mut begins = [0; PIPE_HEAD_BYTES as usize];
    file.fill(&mut from, &mut begins)?;
    if begins.starts_with(SWAPPED) {
        return Err(file.fails("recorded on a big-endian machine; this nodewise reads those of its own"));
    }
    if !begins.starts_with(MAGIC) {
        return Err(file.fails("not a perf.data"));
    }
    if word(&begins, 8) == PIPE_HEAD_BYTES {
        file.records(&mut from, None)?;
    } else {
        let mut rest = [0; (HEAD_BYTES - PIPE_HEAD_BYTES) as usize];
        file.fill(&mut from, &mut rest)?;
        let data = file.sections(&mut from, length, &[&begins[..], &rest].concat())?;
        file.seek(&mut from, data.offset)?;
        file.records(&mut from, Some(data.bytes))?;
    }
    file.unpack()?;
    Ok(file.head)
}

struct File<'a> {
    path: &'a Path,
    head: Head,
    /// The content of compressed records: one stream of Zstandard, which `perf` never ends.
    packed: Vec<u8>,
    each: Each<'a>,
}

impl File<'_> {
    fn fails(&self, what: &str) -> Error {
        Error::new(ErrorKind::File, format!("{}: {what}", self.path.display()))
    }

    fn is_cut_off(&self) -> Error {
        self.fails("cut off: 'perf record' was not ended properly, or not all of it was copied")
    }

    fn fill(&self, from: &mut impl Read, into: &mut [u8]) -> Result<(), Error> {
        from.read_exact(into).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.is_cut_off(),
            _ => Error::file(self.path, "read", error),
        })
    }

    fn seek(&self, from: &mut impl Seek, offset: u64) -> Result<(), Error> {
        from.seek(SeekFrom::Start(offset)).map_err(|error| Error::file(self.path, "read", error))?;
        Ok(())
    }

    /// Reads a section that may have so many bytes.
    fn section(
        &self,
        from: &mut (impl Read + Seek),
        length: u64,
        section: Section,
        most: u64,
    ) -> Result<Vec<u8>, Error> {
        self.require_within(length, section)?;
        if section.bytes > most {
            return Err(self.fails("damaged: a section is too long"));
        }
        let mut bytes = vec![0; section.bytes as usize];
        self.seek(from, section.offset)?;
        self.fill(from, &mut bytes)?;
        Ok(bytes)
    }

    fn require_within(&self, length: u64, section: Section) -> Result<(), Error> {
        let end = section.offset.checked_add(section.bytes);
        if end.is_some_and(|end| end <= length) { Ok(()) } else { Err(self.is_cut_off()) }
    }

    /// Takes in the events and the features. Returns where the records are.
    fn sections(
        &mut self,
        from: &mut (impl Read + Seek),
        length: u64,
        head: &[u8],
    ) -> Result<Section, Error> {
        let each_bytes = word(head, 16) as usize;
        let (events, data) = (Section::at(head, 24), Section::at(head, 40));
        // perf writes the size when it ends.
        if data.bytes == 0 {
            return Err(self.is_cut_off());
        }
        self.require_within(length, data)?;
        if !(ATTR_BYTES + SECTION_BYTES..=1 << 16).contains(&each_bytes) {
            return Err(self.fails("damaged: its events have no size that there is"));
        }
        let events = self.section(from, length, events, EVENTS_BYTES)?;
        let mut room = EVENTS_BYTES;
        for event in events.chunks_exact(each_bytes) {
            let (attr, ids) = event.split_at(each_bytes - SECTION_BYTES);
            let ids = self.section(from, length, Section::at(ids, 0), room)?;
            room -= ids.len() as u64;
            self.event(attr, &ids)?;
        }
        let all: Vec<u32> = (0..feature::ALL)
            .filter(|bit| word(head, 72 + *bit as usize / 64 * 8) >> (bit % 64) & 1 == 1)
            .collect();
        let table = Section { offset: data.offset + data.bytes, bytes: (all.len() * SECTION_BYTES) as u64 };
        let table = self.section(from, length, table, FEATURE_BYTES)?;
        for (number, section) in all.into_iter().zip(table.chunks_exact(SECTION_BYTES)) {
            let section = Section::at(section, 0);
            self.require_within(length, section)?;
            if feature::READ.contains(&number) {
                let bytes = self.section(from, length, section, FEATURE_BYTES)?;
                self.feature(number, bytes)?;
            }
        }
        Ok(data)
    }

    fn event(&mut self, attr: &[u8], ids: &[u8]) -> Result<(), Error> {
        if attr.len() < ATTR_BYTES {
            return Err(self.fails("damaged: an event is too short"));
        }
        let attr = self::attr(attr);
        let number = self.head.events.len();
        let event = Event { attr, format: SampleFormat::from(&attr) };
        // perf marks records with the event's number, in one place, as soon as two events differ.
        if self.head.events.first().is_some_and(|first| !may_be_beside(first, &event)) {
            return Err(self.fails("damaged: its records do not tell of which event they are"));
        }
        self.head.events.push(event);
        self.head.by_id.extend(ids.chunks_exact(8).map(|id| (word(id, 0), number)));
        Ok(())
    }

    fn feature(&mut self, number: u32, bytes: Vec<u8>) -> Result<(), Error> {
        if number == feature::ARCH {
            let text = Parts(&bytes).text().unwrap_or_default();
            if text != std::env::consts::ARCH {
                return Err(self.fails(&format!(
                    "recorded on {}; this nodewise reads recordings of its own architecture, {}",
                    text.escape_default(),
                    std::env::consts::ARCH
                )));
            }
        }
        self.head.features.insert(number, bytes);
        Ok(())
    }

    /// Takes in the records of so many bytes, or up to the end.
    fn records(&mut self, from: &mut impl Read, mut left: Option<u64>) -> Result<(), Error> {
        const HEADER: usize = 8;
        let mut record = Vec::new();
        while left != Some(0) {
            record.resize(HEADER, 0);
            if left.is_none() && !self.has_more(from, &mut record[..1])? {
                break;
            }
            let begun = usize::from(left.is_none());
            self.fill(from, &mut record[begun..])?;
            let bytes = word(&record, 0) >> 48;
            if bytes < HEADER as u64 {
                return Err(self.fails("damaged: a record is shorter than its header"));
            }
            record.resize(bytes as usize, 0);
            self.fill(from, &mut record[HEADER..])?;
            let behind = self.record(&record)?;
            if behind > 0 {
                let skipped = std::io::copy(&mut from.by_ref().take(behind), &mut std::io::sink());
                if skipped.map_err(|error| Error::file(self.path, "read", error))? < behind {
                    return Err(self.is_cut_off());
                }
            }
            if let Some(left) = &mut left {
                let all = bytes.checked_add(behind);
                let after = all.and_then(|all| left.checked_sub(all));
                *left = after.ok_or_else(|| self.fails("damaged: its last record is longer than it"))?;
            }
        }
        Ok(())
    }

    fn has_more(&self, from: &mut impl Read, first: &mut [u8]) -> Result<bool, Error> {
        loop {
            match from.read(first) {
                Ok(bytes) => return Ok(bytes > 0),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::file(self.path, "read", error)),
            }
        }
    }

    /// Takes in a whole record. Returns how many bytes after it belong to it.
    fn record(&mut self, record: &[u8]) -> Result<u64, Error> {
        let body = &record[8..];
        match kind_of(record) {
            kind::HEADER_ATTR => {
                let bytes = (half(body, 4) as usize).max(ATTR_BYTES);
                let (attr, ids) = body.split_at_checked(bytes).unwrap_or((&[], &[]));
                self.event(attr, ids)?;
            }
            kind::HEADER_FEATURE => {
                let number = word(body, 0) as u32;
                if feature::READ.contains(&number) {
                    self.feature(number, body.get(8..).unwrap_or_default().to_vec())?;
                }
            }
            kind::TRACING_DATA => return Ok(u64::from(half(body, 0)).next_multiple_of(8)),
            kind::AUXTRACE_INFO => self.head.has_aux = true,
            kind::AUXTRACE => return Ok(word(body, 0)),
            kind::COMPRESSED => self.packed.extend(body),
            kind::COMPRESSED_2 => {
                let (bytes, rest) = (word(body, 0), body.get(8..).unwrap_or_default());
                let packed = usize::try_from(bytes).ok().and_then(|bytes| rest.get(..bytes));
                let packed = packed.ok_or_else(|| self.fails("damaged: a compressed record is too short"))?;
                self.packed.extend(packed);
            }
            kind if kind >= kind::USER_BEGIN => {}
            _ => match self.head.event(record) {
                Some(event) => (self.each)(&self.head, event, record)?,
                None => return Err(self.fails("damaged: a record is of no event that it has")),
            },
        }
        Ok(0)
    }

    /// Takes in the records that were compressed.
    fn unpack(&mut self) -> Result<(), Error> {
        /// The last block of a stream: nothing, as it is. And a checksum, which perf does not ask for.
        const END: &[u8] = &[1, 0, 0, 0, 0, 0, 0];
        let packed = std::mem::take(&mut self.packed);
        if packed.is_empty() {
            return Ok(());
        }
        let decoder = StreamingDecoder::new(packed.chain(END));
        let decoder = decoder.map_err(|_| self.fails("damaged: its records are no stream of Zstandard"))?;
        self.records(&mut BufReader::new(decoder.take(UNPACKED_BYTES)), None)
    }
}

/// `struct perf_event_attr`, of whatever version: the fields that say how its records are made.
fn attr(bytes: &[u8]) -> Attr {
    let mut attr = Attr::new(half(bytes, 0), word(bytes, 8));
    attr.sample_type = SampleType(word(bytes, 24));
    attr.read_format = ReadFormat(word(bytes, 32));
    attr.flags = AttrFlags(word(bytes, 40));
    attr.branch_sample_type = BranchType(word(bytes, 72));
    attr.sample_regs_user = word(bytes, 80);
    attr.sample_regs_intr = word(bytes, 96);
    attr
}

/// Whether records of two events tell of which one they are.
fn may_be_beside(one: &Event, other: &Event) -> bool {
    let has = |part| one.format.sample_type.contains(part) && other.format.sample_type.contains(part);
    let is_alike = one.format.sample_type == other.format.sample_type && has(SampleType::ID);
    one.format.sample_id_all == other.format.sample_id_all && (has(SampleType::IDENTIFIER) || is_alike)
}

/// The parts of a feature, from the front.
pub(super) struct Parts<'a>(pub &'a [u8]);

impl Parts<'_> {
    pub fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    /// `do_write_string`: its length, and the bytes up to the first that is zero.
    pub fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let text = text.split(|&byte| byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}
