//! The blocks that a program asked for, by the code that asked.

use nodewise_engine::{PAGE_BYTES, PageNumber, PageRange, Pid};
use nodewise_linux::allocations::{Allocated, AllocationReport};
use nodewise_verdict::profile::Allocation;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Blocks at a time that goes forward.
pub struct Blocks<'a> {
    all: &'a [Allocated],
    /// By call chain.
    of_stack: Vec<Option<u32>>,
    pub sites: Vec<Site>,
    /// Time, whether a block begins then, and its number.
    changes: Vec<(u64, bool, usize)>,
    /// Changes that have happened.
    done: usize,
    /// By address, the numbers of those of the allocator, and of those of the kernel.
    now: BTreeMap<Pid, [BTreeMap<u64, usize>; 2]>,
    /// Pages by their first one, with their site. The pages of different sites may overlap, one after the
    /// other.
    pages: BTreeMap<Pid, Vec<(Range<u64>, u32)>>,
}

/// Code that asked for blocks.
pub struct Site {
    /// As many functions as tell it from others.
    pub name: String,
    pub allocated: Allocation,
}

impl<'a> Blocks<'a> {
    /// `by` are the call chains for people.
    pub fn new(found: Option<&'a AllocationReport>, by: &[Vec<String>]) -> Self {
        let (mut sites, mut of_stack) = (Vec::new(), vec![None; by.len()]);
        let mut numbers: HashMap<&[String], usize> = HashMap::new();
        for one in found.iter().flat_map(|found| &found.sites) {
            let Some(by) = by.get(one.stack as usize) else { continue };
            let number = *numbers.entry(by).or_insert_with(|| {
                sites.push(Allocation { by: by.clone(), ..Allocation::default() });
                sites.len() - 1
            });
            let site = &mut sites[number];
            site.blocks = site.blocks.saturating_add(one.blocks);
            site.bytes = site.bytes.saturating_add(one.bytes);
            site.most_bytes = site.most_bytes.saturating_add(one.most_bytes);
            of_stack[one.stack as usize] = Some(number as u32);
        }
        let names: Vec<String> = sites.iter().map(|site| name(&site.by, &sites)).collect();
        let sites = names.into_iter().zip(sites).map(|(name, allocated)| Site { name, allocated });
        let blocks = found.map_or(&[][..], |found| &found.blocks);
        let mut changes = Vec::new();
        for (number, block) in blocks.iter().enumerate() {
            let until_ns = block.until_ns.unwrap_or(u64::MAX);
            if block.from_ns < until_ns {
                changes.extend([(block.from_ns, true, number), (until_ns, false, number)]);
            }
        }
        changes.sort_unstable();
        let sites = sites.collect();
        let mut all = Self {
            all: blocks,
            of_stack,
            sites,
            changes,
            done: 0,
            now: BTreeMap::new(),
            pages: BTreeMap::new(),
        };
        all.gather_pages();
        all
    }

    /// Goes forward to a time.
    pub fn go_to(&mut self, time_ns: u64) {
        while let Some(&(_, begins, number)) = self.changes.get(self.done).filter(|one| one.0 <= time_ns) {
            let block = &self.all[number];
            let now = &mut self.now.entry(block.pid).or_default()[usize::from(block.mapped)];
            if begins {
                now.insert(block.address, number);
            } else if now.get(&block.address) == Some(&number) {
                now.remove(&block.address);
            }
            self.done += 1;
        }
    }

    /// The site of the block at an address now. An allocator's block may lie in one that the kernel gave it.
    pub fn site_at(&self, pid: Pid, address: u64) -> Option<u32> {
        self.now.get(&pid)?.iter().find_map(|now| {
            let (_, &number) = now.range(..=address).next_back()?;
            let block = &self.all[number];
            (address - block.address < block.bytes).then(|| self.site_of(block)).flatten()
        })
    }

    fn site_of(&self, block: &Allocated) -> Option<u32> {
        *self.of_stack.get(block.stack? as usize)?
    }

    fn gather_pages(&mut self) {
        let mut all: Vec<(Pid, u32, Range<u64>)> = Vec::new();
        for block in self.all {
            let Some(site) = self.site_of(block) else { continue };
            let end = block.address.saturating_add(block.bytes).div_ceil(PAGE_BYTES);
            all.push((block.pid, site, block.address / PAGE_BYTES..end));
        }
        all.sort_unstable_by_key(|(pid, site, pages)| (*pid, *site, pages.start));
        for (pid, site, pages) in all {
            let of_process = self.pages.entry(pid).or_default();
            match of_process.last_mut() {
                Some((last, of)) if *of == site && pages.start <= last.end => {
                    last.end = last.end.max(pages.end);
                }
                _ => of_process.push((pages, site)),
            }
        }
        self.pages.values_mut().for_each(|pages| pages.sort_unstable_by_key(|(pages, _)| pages.start));
    }

    /// For each range of a process, in address order: the pages that sites have there, at any time, and the
    /// pages that none has.
    pub fn shares(&self, pid: Pid, ranges: &[PageRange]) -> Vec<(Vec<(u32, u64)>, u64)> {
        let mut coming = self.pages.get(&pid).into_iter().flatten().peekable();
        let mut active: Vec<&(Range<u64>, u32)> = Vec::new();
        let mut shares = Vec::with_capacity(ranges.len());
        for &PageRange { start: PageNumber(start), end: PageNumber(end) } in ranges {
            active.retain(|(pages, _)| pages.end > start);
            while let Some(one) = coming.next_if(|(pages, _)| pages.start < end) {
                active.extend(Some(one).filter(|(pages, _)| pages.end > start));
            }
            let (mut of_sites, mut covered, mut none) = (Vec::new(), start, 0);
            for (pages, site) in active.iter().filter(|(pages, _)| pages.start < end) {
                let (from, to) = (pages.start.max(start), pages.end.min(end));
                of_sites.push((*site, to.saturating_sub(from)));
                none += from.saturating_sub(covered);
                covered = covered.max(to);
            }
            shares.push((of_sites, none + end.saturating_sub(covered)));
        }
        shares
    }
}

/// As many functions of a chain as tell it from all others.
fn name(by: &[String], all: &[Allocation]) -> String {
    let is_told_by =
        |shown: usize| all.iter().all(|other| other.by == by || !other.by.starts_with(&by[..shown]));
    let shown = (1..by.len()).find(|&shown| is_told_by(shown)).unwrap_or(by.len());
    format!("site: {}", by[..shown].join(", called by "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::Tid;
    use nodewise_linux::allocations::Site as Sum;

    fn block(address: u64, bytes: u64, time_ns: Range<u64>, stack: u32, mapped: bool) -> Allocated {
        let until_ns = Some(time_ns.end).filter(|&end| end != u64::MAX);
        let (pid, tid) = (Pid(1), Tid(1));
        Allocated { pid, tid, address, bytes, from_ns: time_ns.start, until_ns, stack: Some(stack), mapped }
    }

    fn report(blocks: Vec<Allocated>, stacks: u32) -> AllocationReport {
        let sum = |stack| Sum { stack, blocks: 1, bytes: 4096, most_bytes: 4096 };
        AllocationReport { blocks, sites: (0..stacks).map(sum).collect(), ..AllocationReport::default() }
    }

    fn chains(chains: &[&[&str]]) -> Vec<Vec<String>> {
        chains.iter().map(|chain| chain.iter().map(ToString::to_string).collect()).collect()
    }

    #[test]
    fn a_block_counts_while_it_is_there() {
        let found = report(
            vec![
                block(0x10000, 0x1000, 10..20, 0, false),
                block(0x10000, 0x2000, 30..u64::MAX, 1, false),
                // A race: the next was asked for before the last was given back.
                block(0x20000, 0x1000, 10..25, 0, false),
                block(0x20000, 0x1000, 22..u64::MAX, 1, false),
                block(0x0, 0x100_0000, 0..u64::MAX, 2, true),
                block(0x40000, 0x1000, 40..40, 0, false),
            ],
            3,
        );
        let mut blocks = Blocks::new(Some(&found), &chains(&[&["a"], &["b"], &["pool"]]));
        let mut site = |time, address| {
            blocks.go_to(time);
            blocks.site_at(Pid(1), address)
        };
        assert_eq!(site(9, 0x10000), Some(2));
        assert_eq!(site(10, 0x10fff), Some(0));
        assert_eq!(site(15, 0x11000), Some(2));
        assert_eq!(site(20, 0x10000), Some(2));
        assert_eq!(site(26, 0x20000), Some(1));
        assert_eq!(site(30, 0x11000), Some(1));
        assert_eq!(site(50, 0x40000), Some(2));
        assert_eq!(site(50, 0x100_0000), None);
        assert_eq!(blocks.site_at(Pid(2), 0x10000), None);
    }

    #[test]
    fn a_name_has_as_many_functions_as_it_needs() {
        let by = chains(&[&["helper", "one", "main"], &["helper", "two", "main"], &["two", "main"], &[]]);
        let found = report(Vec::new(), 4);
        let names: Vec<String> =
            Blocks::new(Some(&found), &by).sites.into_iter().map(|one| one.name).collect();
        assert_eq!(
            names[..3],
            ["site: helper, called by one", "site: helper, called by two", "site: two"].map(String::from)
        );
        // The same chain in two processes.
        let by = chains(&[&["helper", "one"], &["helper", "one"]]);
        let blocks = Blocks::new(Some(&found), &by);
        let sites: Vec<_> = blocks.sites.iter().map(|one| (one.name.as_str(), one.allocated.bytes)).collect();
        assert_eq!(sites, [("site: helper", 8192)]);
    }

    #[test]
    fn pages_count_for_each_site_that_had_them() {
        let pages = |start: u64, end: u64| (start * PAGE_BYTES, (end - start) * PAGE_BYTES);
        let of = |(address, bytes), stack| block(address, bytes, 1..u64::MAX, stack, false);
        let found = report(
            vec![of(pages(10, 14), 0), of(pages(12, 20), 0), of(pages(13, 15), 1), of(pages(30, 31), 1)],
            2,
        );
        let blocks = Blocks::new(Some(&found), &chains(&[&["a"], &["b"]]));
        let ranges = [PageRange::new(5, 11), PageRange::new(11, 40), PageRange::new(40, 41)];
        assert_eq!(
            blocks.shares(Pid(1), &ranges),
            [(vec![(0, 1)], 5), (vec![(0, 9), (1, 2), (1, 1)], 19), (vec![], 1)]
        );
        assert_eq!(blocks.shares(Pid(2), &ranges[2..]), [(vec![], 1)]);
    }
}
