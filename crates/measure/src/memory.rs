//! Memory that is on the nodes where it should be.

use crate::error::{Error, ErrorKind};
use crate::slice::Slice;
use nodewise_sys::{Advice, MbindFlags, OwnedMemory, Policy, page_bytes};
use std::fs;

/// Bound memory, all of it there.
#[derive(Debug)]
pub struct Memory {
    memory: OwnedMemory,
    /// Size of the pages that most of it has.
    pub page_bytes: u64,
}

impl Memory {
    /// So many bytes under a policy, in huge pages of this size if the kernel gives them, or in small ones.
    pub fn new(
        bytes: usize,
        policy: Option<&Policy>,
        huge_page_bytes: Option<u64>,
        place: &str,
    ) -> Result<Self, Error> {
        let cannot = |doing: &str| format!("cannot {doing} {} MiB {place}", bytes >> 20);
        let align = huge_page_bytes.map_or(page_bytes(), |huge| huge as usize);
        let mut memory =
            OwnedMemory::new(bytes, align).map_err(|error| Error::call(&cannot("map"), error))?;
        let whole = 0..memory.len_bytes();
        if let Some(policy) = policy {
            memory
                .bind(whole.clone(), policy, MbindFlags::FuturePages)
                .map_err(|error| Error::call(&cannot("bind"), error))?;
        }
        let advice = if huge_page_bytes.is_some() { Advice::HugePage } else { Advice::NoHugePage };
        // A kernel without huge pages refuses both. The size of the pages is told in the end.
        let _ = memory.advise(whole, advice);
        // Zeros would do, but pages of zeros may be merged or compressed below a virtual machine.
        for page in memory.as_mut_bytes().chunks_mut(page_bytes()) {
            page[0] = 1;
        }
        let huge = huge_page_bytes.filter(|_| huge_bytes(&memory) > bytes as u64 / 2);
        Ok(Self { page_bytes: huge.unwrap_or(page_bytes() as u64), memory })
    }

    /// All of it, to work on.
    pub fn slice(&mut self) -> Slice<'_> {
        Slice::new(self.memory.as_mut_bytes())
    }

    /// Bytes within which a chase stays for a while: all, or with small pages as much as a TLB knows.
    pub fn window_bytes(&self) -> usize {
        /// Pages that the second level of any TLB of the last ten years knows.
        const TLB_PAGES: usize = 512;
        if self.page_bytes > page_bytes() as u64 { self.memory.len_bytes() } else { TLB_PAGES * page_bytes() }
    }
}

/// Bytes in huge pages, by `AnonHugePages` in `/proc/self/smaps`.
fn huge_bytes(memory: &OwnedMemory) -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mine = memory.page_address(0)..memory.page_address(0) + memory.len_bytes() as u64;
    let (mut inside, mut kib) = (false, 0);
    for line in smaps.lines() {
        if let Some(count) = line.strip_prefix("AnonHugePages:") {
            let count = count.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            kib += if inside { count } else { 0 };
        } else if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text| u64::from_str_radix(text, 16).ok();
            if let (Some(start), Some(end)) = (number(start), number(end)) {
                inside = start < mine.end && mine.start < end;
            }
        }
    }
    kib << 10
}

/// The share of free memory that a measurement takes at most. The kernel ends a program that is bound to a
/// node and takes more than the node has.
const MOST_OF_FREE: (u64, u64) = (3, 4);

/// Whether a node has room for so many buffers of so many bytes.
pub fn check_free(node: u32, bytes: u64, buffers: u64, free_bytes: Option<u64>) -> Result<(), Error> {
    let Some(free) = free_bytes else { return Ok(()) };
    let most = free / MOST_OF_FREE.1 * MOST_OF_FREE.0 / buffers;
    if bytes <= most {
        return Ok(());
    }
    let needs = bytes.saturating_mul(buffers).div_ceil(1 << 20);
    let (free, most) = (free >> 20, most >> 20);
    let advice = if most == 0 { String::new() } else { format!("; --mebibytes {most} would fit") };
    Err(Error::new(
        ErrorKind::Memory,
        format!(
            "node {node} has {free} MiB free for this process, too little to measure with {needs} MiB{advice}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_node_does_not_have_is_refused_with_what_would_fit() {
        assert!(check_free(0, 768 << 20, 1, Some(1 << 30)).is_ok());
        assert!(check_free(0, 1 << 40, 1, None).is_ok());
        let error = check_free(3, 769 << 20, 1, Some(1 << 30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert_eq!(
            error.to_string(),
            "node 3 has 1024 MiB free for this process, too little to measure with 769 MiB; --mebibytes 768 would fit"
        );
        // It fits, too.
        let error = check_free(3, 500 << 20, 2, Some(1 << 30)).unwrap_err().to_string();
        assert!(error.ends_with("to measure with 1000 MiB; --mebibytes 384 would fit"), "{error}");
        assert!(check_free(3, 384 << 20, 2, Some(1 << 30)).is_ok());
        assert!(!check_free(3, 1 << 20, 1, Some(1 << 20)).unwrap_err().to_string().contains("--mebibytes"));
    }

    #[test]
    fn memory_is_there_in_pages_of_a_known_size() {
        let mut memory = Memory::new(8 << 20, None, Some(2 << 20), "here").unwrap();
        assert_eq!(memory.slice().lines(), (8 << 20) / 64);
        assert!([page_bytes() as u64, 2 << 20].contains(&memory.page_bytes));
        let small = Memory::new(1 << 20, None, None, "here").unwrap();
        assert_eq!((small.page_bytes, small.window_bytes()), (page_bytes() as u64, 512 * page_bytes()));
    }
}
