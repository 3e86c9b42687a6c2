//! The memory that a program shares: events, as they come. The program may write anything there.

use super::layout::{self, HEADER_WORDS, MOST_FRAMES, MOST_TEXT, MOST_WINDOW, RECORD_WORDS, RECORDS};
use crate::unwind::Registers;
use crate::{Error, ErrorKind};
use nodewise_engine::{Pid, Tid};
use nodewise_sys::SharedFile;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A process that takes longer to write a record has been ended meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// An event of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub pid: Pid,
    pub tid: Tid,
    pub time_ns: u64,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A program begins: the part of its mappings' text at this place.
    Mappings { place: u64, text: Vec<u8> },
    /// A process begins.
    Forked { parent: Pid },
    /// A block was given, by the allocator or the kernel.
    Block { address: u64, bytes: u64, mapped: bool, caller: Caller },
    /// A block was given back to the allocator. It may be one that is not known.
    Freed { address: u64 },
    /// Memory was given back to the kernel.
    Unmapped { address: u64, bytes: u64 },
}

/// The caller of the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The stack pointer is 0 where it is not known.
    pub at: [u64; 3],
    /// By address: what frames have there.
    pub frames: Vec<(u64, [u64; 2])>,
    /// The top of the stack, from the stack pointer on.
    pub window: Vec<u64>,
}

impl Caller {
    pub const fn registers(&self) -> Registers {
        let [code, stack, frame] = self.at;
        Registers { code, stack, frame }
    }

    /// A word of the stack, if it is known.
    pub fn load(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.at[1]);
        let in_window = (offset / 8) as usize;
        if offset % 8 == 0 && in_window < self.window.len() {
            return Some(self.window[in_window]);
        }
        let frame = self.frames.iter().find(|(at, _)| address.wrapping_sub(*at) < 16);
        frame
            .filter(|(at, _)| (address - at) % 8 == 0)
            .map(|(at, words)| words[((address - at) / 8) as usize])
    }
}

pub(super) struct Ring {
    shared: SharedFile,
    /// Records that were taken. The program's word for it does not count.
    taken: u64,
    /// The time since which the next one is being written.
    waiting: Option<Instant>,
    /// Records that nobody has finished.
    torn: u64,
}

impl Ring {
    pub fn new(least_bytes: u64) -> Result<Self, Error> {
        let shared = SharedFile::new(c"nodewise-allocations", layout::BYTES).map_err(|error| {
            Error::with_source(ErrorKind::Unsupported, "cannot share memory with the program", error)
        })?;
        let words = shared.as_atomics();
        // So that the kernel need not find pages for it while the program runs.
        words.iter().step_by(512).for_each(|word| word.store(0, Ordering::Relaxed));
        words[layout::MAGIC].store(layout::VERSION, Ordering::Relaxed);
        words[layout::LEAST_BYTES].store(least_bytes, Ordering::Release);
        Ok(Self { shared, taken: 0, waiting: None, torn: 0 })
    }

    /// Its path, with the numbers of its device and file: `/proc/12/fd/3:1:456`. A program may still look
    /// there when this process has ended, and another one has its number.
    pub fn place(&self) -> String {
        let path = self.shared.path();
        let file = std::fs::metadata(&path).map(|file| (file.dev(), file.ino()));
        let (device, file) = file.unwrap_or_default();
        format!("{path}:{device}:{file}")
    }

    /// Takes all that are whole, once around the ring at most.
    pub fn take(&mut self, mut each: impl FnMut(Told)) {
        for _ in 0..RECORDS {
            match self.next(&mut each) {
                true => {}
                false if self.is_torn() => self.skip(),
                false => return,
            }
        }
    }

    /// Takes what is left once the program has ended. Others of its processes may still write.
    pub fn take_rest(&mut self, mut each: impl FnMut(Told)) {
        let left = self.head().wrapping_sub(self.taken).min(RECORDS as u64);
        for _ in 0..left {
            if !self.next(&mut each) {
                self.skip();
            }
        }
    }

    pub fn lost(&self) -> u64 {
        self.shared.as_atomics()[layout::LOST].load(Ordering::Relaxed).saturating_add(self.torn)
    }

    fn head(&self) -> u64 {
        self.shared.as_atomics()[layout::HEAD].load(Ordering::Relaxed)
    }

    /// Whether whoever writes the next record will not finish it.
    fn is_torn(&mut self) -> bool {
        if self.head() == self.taken {
            self.waiting = None;
            return false;
        }
        self.waiting.get_or_insert_with(Instant::now).elapsed() > PATIENCE
    }

    fn skip(&mut self) {
        self.torn += 1;
        self.give_back();
    }

    fn give_back(&mut self) {
        self.taken += 1;
        self.waiting = None;
        self.shared.as_atomics()[layout::TAIL].store(self.taken, Ordering::Release);
    }

    /// Takes the next record, if it is whole. One that makes no sense is no event.
    fn next(&mut self, each: &mut impl FnMut(Told)) -> bool {
        let first = HEADER_WORDS + self.taken as usize % RECORDS * RECORD_WORDS;
        let words = &self.shared.as_atomics()[first..first + RECORD_WORDS];
        if words[layout::TURN].load(Ordering::Acquire) != self.taken + 1 {
            return false;
        }
        let told = decode(|at| words[at].load(Ordering::Relaxed));
        self.give_back();
        told.into_iter().for_each(each);
        true
    }
}

fn decode(word: impl Fn(usize) -> u64) -> Option<Told> {
    let (address, bytes, who) = (word(layout::ADDRESS), word(layout::LENGTH), word(layout::WHO));
    let event = match word(layout::KIND) {
        layout::MAPPINGS => {
            let text = (0..(bytes as usize).min(MOST_TEXT).div_ceil(8)).map(|i| word(layout::TEXT + i));
            let mut text: Vec<u8> = text.flat_map(u64::to_ne_bytes).collect();
            text.truncate(bytes as usize);
            Event::Mappings { place: address, text }
        }
        layout::FORKED => Event::Forked { parent: Pid(address as u32) },
        kind @ (layout::ALLOCATED | layout::MAPPED) => {
            // An end past the last address is none.
            address.checked_add(bytes)?;
            Event::Block { address, bytes, mapped: kind == layout::MAPPED, caller: caller(&word) }
        }
        layout::FREED => Event::Freed { address },
        layout::UNMAPPED => Event::Unmapped { address, bytes },
        _ => return None,
    };
    Some(Told { pid: Pid((who >> 32) as u32), tid: Tid(who as u32), time_ns: word(layout::TIME), event })
}

fn caller(word: &impl Fn(usize) -> u64) -> Caller {
    let counts = word(layout::COUNTS);
    let frames = (counts as u32 as usize).min(MOST_FRAMES);
    let words = ((counts >> 32) as usize).min(MOST_WINDOW);
    let mut at = word(layout::FRAMES);
    let frame = |i: usize| {
        let pair = [word(layout::FRAMES + 1 + 2 * i), word(layout::FRAMES + 2 + 2 * i)];
        (std::mem::replace(&mut at, pair[0]), pair)
    };
    let frames = (0..frames).map(frame).collect();
    Caller {
        at: [word(layout::RETURN), word(layout::STACK), word(layout::FRAMES)],
        frames,
        window: (0..words).map(|i| word(layout::WINDOW + i)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_is_known_where_it_was_told() {
        let caller = Caller {
            at: [1, 1000, 2000],
            frames: vec![(2000, [3000, 11]), (3000, [0, 12])],
            window: vec![5, 6],
        };
        let expected = [
            (1000, Some(5)),
            (1008, Some(6)),
            (1016, None),
            (1004, None),
            (992, None),
            (2000, Some(3000)),
            (2008, Some(11)),
            (2004, None),
            (3008, Some(12)),
            (3016, None),
        ];
        for (address, word) in expected {
            assert_eq!(caller.load(address), word, "{address}");
        }
    }

    #[test]
    fn whatever_a_program_writes_is_taken_or_left() {
        let mut ring = Ring::new(4096).unwrap();
        let write = |ring: &Ring, number: u64, record: &[u64]| {
            let words = ring.shared.as_atomics();
            let first = HEADER_WORDS + number as usize % RECORDS * RECORD_WORDS;
            for (word, value) in words[first + 1..].iter().zip(record) {
                word.store(*value, Ordering::Relaxed);
            }
            words[first].store(number + 1, Ordering::Relaxed);
        };
        let records: [&[u64]; 5] = [
            &[1, layout::ALLOCATED, 7 << 32 | 8, 4096, 100, 3, 1000, u64::MAX, 2000],
            &[2, layout::ALLOCATED, 7 << 32 | 8, u64::MAX, 100],
            &[3, 99, u64::MAX],
            &[4, layout::MAPPINGS, 7 << 32 | 8, 0, u64::MAX],
            &[5, layout::FREED, 7 << 32 | 8, 4096],
        ];
        for (record, number) in records.iter().zip(0..) {
            write(&ring, number, record);
        }
        let mut told = Vec::new();
        ring.take(|one| told.push((one.time_ns, one.event)));
        let times: Vec<u64> = told.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [1, 4, 5]);
        let Event::Block { caller, .. } = &told[0].1 else { panic!("{told:?}") };
        assert_eq!((caller.frames.len(), caller.window.len()), (MOST_FRAMES, MOST_WINDOW));
        let Event::Mappings { text, .. } = &told[1].1 else { panic!("{told:?}") };
        assert_eq!(text.len(), MOST_TEXT);
        // One that was begun and is never finished, and one behind it.
        ring.shared.as_atomics()[layout::HEAD].store(7, Ordering::Relaxed);
        write(&ring, 6, records[4]);
        ring.take(|_| panic!("the one before is not whole"));
        told.clear();
        ring.take_rest(|one| told.push((one.time_ns, one.event)));
        assert_eq!((told.len(), ring.lost()), (1, 1));
    }
}
