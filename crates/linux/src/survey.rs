//! Asking the kernel where pages are.

use crate::bounds;
use crate::kernel::LiveKernel;
use crate::known_homes::KnownHomes;
use crate::mover::Kernel as _;
use crate::process::Processes;
use nodewise_engine::{HUGE_PAGE_PAGES, Mapping, PageNumber, PageRange, Pid};
use nodewise_topology::{NodeId, NodeIndex, Topology};
use std::collections::BTreeMap;

/// Pages in one query: about 0.3 ms.
pub(crate) const QUERY_PAGES: usize = 4096;
/// Pages of processes that ran before we came whose homes are asked for at once, of all such processes
/// together: 1 GiB, about 20 ms.
pub(crate) const SURVEY_PAGES: usize = 1 << 18;

/// Where the pages of processes are before anything is done about them. Opening a sampler may switch the
/// kernel's balancing on, which moves pages at once.
#[derive(Debug, Default)]
pub struct Survey(pub(crate) BTreeMap<Pid, KnownHomes>);

impl Survey {
    /// Looks at the processes that are there.
    #[must_use]
    pub fn of(topology: &Topology, processes: &mut Processes) -> Self {
        processes.update();
        let mut kernel = LiveKernel::default();
        kernel.hear(processes.ending());
        let count = processes.iter().count();
        let with_mappings =
            processes.iter().filter_map(|process| Some((process.pid, process.details.mappings.as_ref()?)));
        let mut known = |pid, mappings: &[Mapping]| {
            ask(&mut kernel, topology, pid, mappings, count, bounds::KNOWN_BYTES / count.max(1)).0
        };
        Self(with_mappings.map(|(pid, mappings)| (pid, known(pid, mappings))).collect())
    }
}

/// Asks where the pages of one of `processes` are that were there before we came. A database may have a
/// thousand of them, each with all of its shared memory mapped. Returns also how many pages were asked about.
pub(crate) fn ask(
    kernel: &mut LiveKernel,
    topology: &Topology,
    pid: Pid,
    mappings: &[Mapping],
    processes: usize,
    bytes: usize,
) -> (KnownHomes, u64) {
    let mut known = KnownHomes::default();
    known.limit(bytes);
    let (pages, partly) = surveyed(mappings, (SURVEY_PAGES / processes.max(1)) as u64);
    let asked = pages.len() as u64;
    let homes = query(kernel, topology, pid, &pages);
    let scan = if partly.is_empty() { None } else { scan_sequence(pid) };
    known.survey(pages.into_iter().zip(homes), partly, scan);
    (known, asked)
}

/// How many times the kernel's balancing has gone through a process's memory, where it says so
/// (`proc_sched_show_task`, `kernel/sched/debug.c`).
pub(crate) fn scan_sequence(pid: Pid) -> Option<u64> {
    let text = String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/sched")).ok()?).into_owned();
    let line = text.lines().find(|line| line.starts_with("mm->numa_scan_seq"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The pages of a process whose homes are asked for when we come, `most` of them. Mappings share evenly what
/// there is for them. A mapping with more pages than its share has whole blocks of 2 MiB picked, evenly
/// spread. Returns these mappings, too, and how many pages each picked one stands for.
fn surveyed(mappings: &[Mapping], most: u64) -> (Vec<PageNumber>, Vec<(PageRange, f64)>) {
    let mut sizes: Vec<u64> = mappings.iter().map(|mapping| mapping.range.pages()).collect();
    sizes.sort_unstable();
    let (mut left, mut share) = (most, u64::MAX);
    for (at, &size) in sizes.iter().enumerate() {
        share = left / (sizes.len() - at) as u64;
        if size > share {
            break;
        }
        (left, share) = (left - size, u64::MAX);
    }
    let (mut pages, mut partly) = (Vec::new(), Vec::new());
    for range in mappings.iter().map(|mapping| mapping.range) {
        let PageRange { start, end } = range;
        if end.0 - start.0 <= share {
            pages.extend((start.0..end.0).map(PageNumber));
            continue;
        }
        let (first, blocks) = (start.huge().0, (end.0 - start.huge().0).div_ceil(HUGE_PAGE_PAGES));
        let (picked, before) = (share / HUGE_PAGE_PAGES, pages.len());
        for i in 0..picked {
            let block =
                first + (u128::from(blocks) * u128::from(i) / u128::from(picked)) as u64 * HUGE_PAGE_PAGES;
            pages.extend((block.max(start.0)..(block + HUGE_PAGE_PAGES).min(end.0)).map(PageNumber));
        }
        partly.push((range, range.pages() as f64 / (pages.len() - before).max(1) as f64));
    }
    (pages, partly)
}

/// The nodes of pages. None: not present, or the process is gone, which the next update will notice. Pages of
/// shared memory that this process does not have are asked for where they were seen.
pub(crate) fn query(
    kernel: &mut LiveKernel,
    topology: &Topology,
    pid: Pid,
    pages: &[PageNumber],
) -> Vec<Option<NodeIndex>> {
    let addresses: Vec<u64> = pages.iter().map(|page| page.address().0).collect();
    let mut homes = vec![-1; addresses.len()];
    for (addresses, homes) in addresses.chunks(QUERY_PAGES).zip(homes.chunks_mut(QUERY_PAGES)) {
        if kernel.is_ending() || kernel.query(pid.0, addresses, homes).is_err() {
            homes.fill(-1);
        }
    }
    let absent = || pages.iter().enumerate().filter(|&(index, _)| homes[index] < 0);
    let mut elsewhere: BTreeMap<Pid, Vec<(usize, u64)>> = BTreeMap::new();
    for (index, &page) in absent() {
        if let Some((other, there)) = kernel.last_seen((pid, page)) {
            elsewhere.entry(other).or_default().push((index, there.address().0));
        }
    }
    for (other, places) in elsewhere {
        let (indices, addresses): (Vec<usize>, Vec<u64>) = places.into_iter().unzip();
        let mut found = vec![-1; addresses.len()];
        if !kernel.is_ending() && kernel.query(other.0, &addresses, &mut found).is_ok() {
            indices.into_iter().zip(found).for_each(|(index, home)| homes[index] = home);
        }
    }
    homes.iter().map(|&home| topology.index_of(NodeId(u32::try_from(home).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;
    use nodewise_engine::MappingKind;

    #[test]
    fn a_survey_ends_when_managing_is_to_end() {
        let survey = |ending: &Ending| {
            let own = Processes::new(&[Pid(std::process::id())], false, false).unwrap();
            Survey::of(&Topology::live().unwrap(), &mut own.hearing(ending)).0.len()
        };
        let ending = Ending::default();
        assert_eq!(survey(&ending), 1);
        let asked = ending.times_asked();
        assert!(asked > 0, "it shows that it does not hang");
        ending.set();
        assert_eq!(survey(&ending), 0);
    }

    #[test]
    fn a_survey_is_even() {
        let mapping = |start, end| Mapping {
            range: PageRange::new(start, end),
            writable: true,
            kind: MappingKind::Anonymous,
        };
        let small = [mapping(3, 10), mapping(100, 1000)];
        assert_eq!(surveyed(&small, 907).1, []);
        assert_eq!(surveyed(&small, 907).0.len(), 907);
        // A reserve of terabytes takes no more than its share.
        let huge = [mapping(3, 10), mapping(1 << 20, 1 << 32), mapping(1 << 33, (1 << 33) + 20_000)];
        let (pages, partly) = surveyed(&huge, 16_384);
        assert!((16_384 * 9 / 10..=16_384).contains(&pages.len()), "{}", pages.len());
        assert_eq!([partly[0].0, partly[1].0], [huge[1].range, huge[2].range]);
        assert!(pages.is_sorted());
        let within = |range: PageRange| pages.iter().filter(|&&page| range.contains(page)).count();
        let halves = (within(PageRange::new(1 << 20, 1 << 31)), within(PageRange::new(1 << 31, 1 << 32)));
        assert!(halves.0.abs_diff(halves.1) <= 512, "{halves:?}");
        for (range, each) in partly {
            assert_eq!((within(range) as f64 * each).round() as u64, range.pages());
        }
        assert_eq!(within(huge[0].range), 7);
    }
}
