//! The blocks of one process.

use super::Allocated;
use super::library;
use super::ring::Caller;
use crate::NamedMapping;
use crate::unwind::{Registers, Unwinder};
use nodewise_engine::{Pid, Tid};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Callers of a call chain.
const CALLERS: usize = 16;
/// Text of mappings that is kept until its end has come.
const MOST_TEXT: usize = 1 << 20;
/// Mappings are read again after this time, if there is code that is in none of them.
const READ_AGAIN_NS: u64 = 100_000_000;

/// A block by the address of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub bytes: u64,
    pub from_ns: u64,
    pub tid: Tid,
    pub stack: Option<u32>,
    /// Whether a sample has hit it.
    pub is_hit: bool,
    /// Whether it is a parent's, or the rest of one.
    pub is_copy: bool,
}

/// A block that was given back.
#[derive(Clone, Copy, Debug)]
struct Past {
    address: u64,
    until_ns: u64,
    mapped: bool,
    block: Block,
}

/// A mapping of code.
#[derive(Clone, Debug)]
struct Code {
    range: Range<u64>,
    /// The first byte's in the file.
    offset: u64,
    /// The file's number.
    file: u32,
}

/// A place in code: the file's number and the byte in it, or else no number and the address.
pub(super) type Place = (Option<u32>, u64);

#[derive(Default)]
pub(super) struct Process {
    /// By address; those of the allocator, and those of the kernel. The former may lie in the latter.
    now: [BTreeMap<u64, Block>; 2],
    past: Vec<Past>,
    /// In address order.
    code: Vec<Code>,
    text: Vec<u8>,
    read_ns: u64,
}

impl Process {
    /// Another part of the text of `/proc/PID/maps`.
    pub fn add_text(&mut self, text: &[u8]) {
        if self.text.len() < MOST_TEXT {
            self.text.extend_from_slice(text);
        }
    }

    /// All blocks that are kept.
    pub fn count(&self) -> usize {
        self.past.len() + self.now.iter().map(BTreeMap::len).sum::<usize>()
    }

    pub fn add(&mut self, mapped: bool, address: u64, block: Block) -> Vec<Block> {
        // Whatever else was there has gone without a word.
        let gone = self.cut(mapped, address, block.bytes, block.from_ns);
        self.now[usize::from(mapped)].insert(address, block);
        gone
    }

    pub fn free(&mut self, address: u64, time_ns: u64) -> Vec<Block> {
        let gone = self.now[0].remove(&address);
        self.past.extend(gone.map(|block| Past { address, until_ns: time_ns, mapped: false, block }));
        gone.into_iter().collect()
    }

    pub fn unmap(&mut self, address: u64, bytes: u64, time_ns: u64) -> Vec<Block> {
        self.cut(true, address, bytes, time_ns)
    }

    /// Ends blocks of a range. The rest of one that was cut goes on as a block of its own.
    fn cut(&mut self, mapped: bool, address: u64, bytes: u64, time_ns: u64) -> Vec<Block> {
        let blocks = &mut self.now[usize::from(mapped)];
        let end = address.saturating_add(bytes);
        let before = blocks.range(..address).next_back().map(|(&start, _)| start);
        let starts = blocks.range(before.unwrap_or(address)..end).map(|(&start, block)| (start, *block));
        let hit: Vec<(u64, Block)> = starts.filter(|(start, block)| start + block.bytes > address).collect();
        for &(start, block) in &hit {
            blocks.remove(&start);
            for (from, to) in [(start, address), (end, start + block.bytes)] {
                if from < to {
                    blocks.insert(from, Block { bytes: to - from, is_copy: true, ..block });
                }
            }
            let (from, to) = (start.max(address), end.min(start + block.bytes));
            let block = Block { bytes: to - from, ..block };
            self.past.push(Past { address: from, until_ns: time_ns, mapped, block });
        }
        hit.into_iter().map(|(_, block)| block).collect()
    }

    /// Ends all blocks, and forgets the program.
    pub fn end(&mut self, time_ns: u64) -> Vec<Block> {
        let mut gone = Vec::new();
        for (blocks, mapped) in self.now.iter_mut().zip([false, true]) {
            for (address, block) in std::mem::take(blocks) {
                gone.push(block);
                self.past.push(Past { address, until_ns: time_ns, mapped, block });
            }
        }
        gone
    }

    /// The state of a child.
    pub fn forked(&self, time_ns: u64) -> Self {
        let copy = |(&address, block): (&u64, &Block)| {
            (address, Block { from_ns: time_ns, is_hit: false, is_copy: true, ..*block })
        };
        Self {
            now: self.now.each_ref().map(|blocks| blocks.iter().map(copy).collect()),
            code: self.code.clone(),
            text: self.text.clone(),
            ..Self::default()
        }
    }

    /// Becomes such a child; what it was before stays known.
    pub fn take_over(&mut self, child: Self) {
        self.now = child.now;
        self.code = child.code;
        self.text = child.text;
    }

    /// Ends what is no longer mapped, and all if this is another program, without the library.
    pub fn retain(&mut self, mappings: &[NamedMapping], now_ns: u64) -> Vec<Block> {
        if !mappings.iter().any(library::is_mapped) {
            return self.end(now_ns);
        }
        let is_mapped = |address: u64, block: &Block| {
            let next = mappings.partition_point(|mapping| mapping.range.end <= address);
            let end = address + block.bytes;
            // It may be younger than the mappings.
            block.from_ns >= now_ns || mappings.get(next).is_some_and(|mapping| mapping.range.start < end)
        };
        let mut gone = Vec::new();
        for (blocks, mapped) in self.now.iter_mut().zip([false, true]) {
            blocks.retain(|&address, block| {
                let is_there = is_mapped(address, block);
                if !is_there {
                    gone.push(*block);
                    self.past.push(Past { address, until_ns: now_ns, mapped, block: *block });
                }
                is_there
            });
        }
        gone
    }

    /// Marks the blocks that samples hit: address and time of each, in that order.
    pub fn hit(&mut self, samples: &[(u64, u64)]) {
        let is_hit = |address: u64, block: &Block, until_ns: u64| {
            let first = samples.partition_point(|sample| sample.0 < address);
            let inside = samples[first..].iter().take_while(|sample| sample.0 - address < block.bytes);
            inside.clone().any(|sample| (block.from_ns..until_ns).contains(&sample.1))
        };
        for blocks in &mut self.now {
            for (&address, block) in blocks.iter_mut().filter(|(_, block)| !block.is_hit) {
                block.is_hit = is_hit(address, block, u64::MAX);
            }
        }
        for past in self.past.iter_mut().filter(|past| !past.block.is_hit) {
            past.block.is_hit = is_hit(past.address, &past.block, past.until_ns);
        }
    }

    /// Forgets what was given back before and was not hit.
    pub fn forget(&mut self, before_ns: u64) {
        self.past.retain(|past| past.block.is_hit || past.until_ns >= before_ns);
    }

    pub fn report(&self, pid: Pid) -> Vec<Allocated> {
        let report = |address: u64, block: &Block, until_ns: Option<u64>, mapped: bool| Allocated {
            pid,
            tid: block.tid,
            address,
            bytes: block.bytes,
            from_ns: block.from_ns,
            until_ns,
            stack: block.stack,
            mapped,
        };
        let past = self.past.iter().map(|p| report(p.address, &p.block, Some(p.until_ns), p.mapped));
        let mut blocks: Vec<Allocated> = past.collect();
        for (now, mapped) in self.now.iter().zip([false, true]) {
            blocks.extend(now.iter().map(|(&address, block)| report(address, block, None, mapped)));
        }
        blocks
    }

    /// The places of the calls, the innermost first.
    pub fn chain(&mut self, pid: Pid, caller: &Caller, unwinder: &mut Unwinder, time_ns: u64) -> Vec<Place> {
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.set_code(text.split(|&byte| byte == b'\n').filter_map(NamedMapping::parse), unwinder);
        }
        let (mut at, mut chain) = (caller.registers(), Vec::new());
        loop {
            // An address is that to return to, behind the call.
            let place = self.place(pid, at.code.wrapping_sub(1), unwinder, time_ns);
            chain.push(place);
            let rule = place.0.filter(|_| at.stack != 0).and_then(|file| unwinder.rule(file, place.1));
            let next = match rule {
                Some(rule) => rule.caller(at, |address| caller.load(address)),
                None => by_frame_pointer(at, caller),
            };
            match next.filter(|next| next.code != 0 && next.stack > at.stack && chain.len() <= CALLERS) {
                Some(next) => at = next,
                None => return chain,
            }
        }
    }

    /// The place at an address, after another look if there is new code.
    fn place(&mut self, pid: Pid, code: u64, unwinder: &mut Unwinder, time_ns: u64) -> Place {
        let is_due = self.read_ns == 0 || time_ns >= self.read_ns.saturating_add(READ_AGAIN_NS);
        if is_due && self.known_place(code).is_none() {
            self.read_ns = time_ns.max(1);
            if let Some(mappings) = NamedMapping::all_of(pid) {
                self.set_code(mappings.into_iter(), unwinder);
            }
        }
        self.known_place(code).unwrap_or((None, code))
    }

    fn known_place(&self, code: u64) -> Option<Place> {
        let next = self.code.partition_point(|one| one.range.start <= code);
        let one = self.code[next.checked_sub(1)?..].first().filter(|one| code < one.range.end)?;
        Some((Some(one.file), code - one.range.start + one.offset))
    }

    fn set_code(&mut self, mappings: impl Iterator<Item = NamedMapping>, unwinder: &mut Unwinder) {
        let code = mappings.filter(|mapping| mapping.is_code && !mapping.name.is_empty());
        let code = code.map(|NamedMapping { range, offset, name, .. }| Code {
            range,
            offset,
            file: unwinder.file(Path::new(&name)),
        });
        self.code = code.collect();
        self.code.sort_by_key(|one| one.range.start);
    }
}

fn by_frame_pointer(at: Registers, caller: &Caller) -> Option<Registers> {
    let frame = caller.load(at.frame)?;
    Some(Registers { code: caller.load(at.frame.wrapping_add(8))?, stack: at.frame.wrapping_add(16), frame })
}
