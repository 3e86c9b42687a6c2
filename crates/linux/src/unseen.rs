//! Memory of which hint faults do not tell: files that a program has mapped to be read only, and huge pages
//! by reservation. A model's weights and an index are such files. The kernel never takes these mappings away
//! (`task_numa_work`, `kernel/sched/fair.c`, Linux 6.12).

use crate::bounds::MAPS_TIME;
use crate::ending::Until;
use crate::kernel::LiveKernel;
use crate::maps::SharedMapping;
use crate::process::{OnePercent, Processes};
use crate::survey::query;
use nodewise_engine::{PAGE_BYTES, PageNumber, PageRange, Pid, imbalance_percent};
use nodewise_topology::{Node, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Files that managed processes have mapped to be read only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnseenFiles {
    /// Their pages in memory that the processes have mapped, in bytes, as a sample of them tells.
    pub bytes: u64,
    /// The share of each node in that.
    pub shares: Vec<NodeShare>,
    /// Whether they lie unevenly on the nodes: their imbalance is above 35 % (CACM 2015).
    pub are_uneven: bool,
}

/// The share of a node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeShare {
    /// The node's number.
    pub node: u32,
    /// Its share in percent.
    pub percent: f64,
}

impl UnseenFiles {
    /// The node that has most of them.
    #[must_use]
    pub fn most(&self) -> Option<NodeShare> {
        self.shares.iter().copied().max_by(|a, b| a.percent.total_cmp(&b.percent))
    }
}

/// A file's device and inode.
type File = (u64, u64);

/// Files that are looked at, the largest; smaller ones than this, in pages, are not.
const MOST_FILES: usize = 256;
const LEAST_PAGES: u64 = 512;
/// Pages that are asked about in a look, and of each file at least.
const PROBES: u64 = 4096;
const PROBES_EACH: u64 = 16;
/// From this imbalance on files lie unevenly.
const UNEVEN_PERCENT: f64 = 35.0;
/// A file is being read in while there is so much more of it in memory than a look before.
const GROWS: f64 = 1.005;
/// The least time between two looks, of which each takes a hundredth of it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The knowledge of such files.
#[derive(Debug, Default)]
pub(crate) struct Unseen {
    due: OnePercent,
    files: Option<UnseenFiles>,
    huge_bytes: u64,
    /// Pages in memory at the last look.
    pages: BTreeMap<File, f64>,
    /// The files that lay unevenly once they had been read in.
    uneven: BTreeSet<(Pid, File)>,
}

impl Unseen {
    /// The files, as they were looked at last.
    pub(crate) const fn files(&self) -> Option<&UnseenFiles> {
        self.files.as_ref()
    }

    /// Huge pages by reservation, as they were looked at last: those of the process with most, as several may
    /// share them.
    pub(crate) const fn huge_bytes(&self) -> u64 {
        self.huge_bytes
    }

    /// Where a process has mapped files that lay unevenly over the nodes, in address order.
    pub(crate) fn uneven(&self, processes: &Processes, pid: Pid) -> Vec<PageRange> {
        let files = processes.get(pid).map_or(&[][..], |process| &process.details.files);
        let uneven = files.iter().filter(|file| self.uneven.contains(&(pid, file.object)));
        uneven.map(|file| file.range).collect()
    }

    /// Looks for such memory, and where pages of the files lie. Takes no more than 1 % of the time.
    pub(crate) fn look(&mut self, kernel: &mut LiveKernel, topology: &Topology, processes: &Processes) {
        self.uneven.retain(|&(pid, _)| processes.contains(pid));
        if !self.due.is_due() {
            return;
        }
        let begin = Instant::now();
        let until = Until { at: begin + MAPS_TIME, ending: processes.ending().clone() };
        let found = largest(processes);
        let all: u64 = found.iter().map(|(_, _, pages)| pages).sum();
        let balanced: Vec<bool> = topology.nodes().iter().map(Node::is_balanced).collect();
        let (mut by_node, mut pages) = (vec![0.0; topology.node_count()], BTreeMap::new());
        for (pid, file, mapped) in found {
            if until.is_over() {
                break;
            }
            let ranges = || ranges(processes, pid, file);
            let probes = probes(ranges(), mapped, (PROBES * mapped / all.max(1)).max(PROBES_EACH));
            let stands_for = mapped as f64 / probes.len().max(1) as f64;
            let mut of_file = vec![0.0; by_node.len()];
            for home in query(kernel, topology, pid, &probes).into_iter().flatten() {
                of_file[home.get()] += stands_for;
            }
            let resident: f64 = of_file.iter().sum();
            let before = self.pages.get(&file).copied();
            let is_read_in = before.is_some_and(|before| resident <= before * GROWS);
            if is_read_in && are_uneven(&of_file, &balanced) {
                self.uneven.insert((pid, file));
            }
            pages.insert(file, resident);
            by_node.iter_mut().zip(&of_file).for_each(|(sum, of_file)| *sum += of_file);
        }
        let resident: f64 = by_node.iter().sum();
        // One that is ending has no memory: what was seen before counts.
        if resident > 0.0 {
            let nodes = topology.nodes().iter().zip(&by_node);
            let share = |(node, pages): (&Node, &f64)| NodeShare {
                node: node.id.0,
                percent: 100.0 * pages / resident,
            };
            self.files = Some(UnseenFiles {
                bytes: (resident * PAGE_BYTES as f64) as u64,
                shares: nodes.map(share).collect(),
                are_uneven: are_uneven(&by_node, &balanced),
            });
        }
        self.pages = pages;
        let in_time = processes.iter().take_while(|_| !until.is_over());
        let huge_bytes = in_time.filter_map(|process| huge_bytes(process.pid)).max();
        self.huge_bytes = huge_bytes.unwrap_or(0).max(self.huge_bytes);
        self.due.took(begin.elapsed().max(LOOK_EVERY / 100));
    }
}

/// Huge pages by reservation that a process has mapped and touched (`proc_pid_status(5)`).
fn huge_bytes(pid: Pid) -> Option<u64> {
    huge_bytes_by(&std::fs::read(format!("/proc/{pid}/status")).ok()?)
}

fn huge_bytes_by(status: &[u8]) -> Option<u64> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"HugetlbPages:"))?;
    let kib = std::str::from_utf8(line).ok()?.trim().strip_suffix(" kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn are_uneven(pages: &[f64], balanced: &[bool]) -> bool {
    imbalance_percent(pages, balanced).is_some_and(|by| by > UNEVEN_PERCENT)
}

/// The largest files, each with the process that has most of it mapped, and how many pages that is.
fn largest(processes: &Processes) -> Vec<(Pid, File, u64)> {
    let mut most: BTreeMap<File, (u64, Pid)> = BTreeMap::new();
    for process in processes.iter() {
        let mut mapped: BTreeMap<File, u64> = BTreeMap::new();
        for SharedMapping { object, range, .. } in &*process.details.files {
            *mapped.entry(*object).or_default() += range.pages();
        }
        for (file, pages) in mapped {
            let most = most.entry(file).or_insert((0, process.pid));
            if pages > most.0 {
                *most = (pages, process.pid);
            }
        }
    }
    let files = most.into_iter().map(|(file, (pages, pid))| (pid, file, pages));
    let mut files: Vec<_> = files.filter(|&(_, _, pages)| pages >= LEAST_PAGES).collect();
    files.sort_by_key(|&(_, _, pages)| std::cmp::Reverse(pages));
    files.truncate(MOST_FILES);
    files
}

/// Where a process has mapped a file.
fn ranges(processes: &Processes, pid: Pid, file: File) -> impl Iterator<Item = PageRange> {
    let files = processes.get(pid).map_or(&[][..], |process| &process.details.files);
    files.iter().filter(move |mapping| mapping.object == file).map(|mapping| mapping.range)
}

/// So many of the `all` pages of ranges, one of each stretch of the same length.
fn probes(ranges: impl Iterator<Item = PageRange>, all: u64, count: u64) -> Vec<PageNumber> {
    let count = count.min(all);
    // Layouts of a program have periods of their own, so the place within a stretch varies.
    let place = |index: u64| {
        let (begin, end) = (all * index / count, all * (index + 1) / count);
        begin + (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % (end - begin)
    };
    let mut places = (0..count).map(place).peekable();
    let (mut probes, mut before) = (Vec::with_capacity(count as usize), 0);
    for range in ranges {
        while let Some(at) = places.next_if(|&at| at < before + range.pages()) {
            probes.push(PageNumber(range.start.0 + at - before));
        }
        before += range.pages();
    }
    probes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    #[test]
    fn one_page_of_each_stretch_is_asked_about() {
        let ranges = || [(100, 110), (200, 290)].into_iter().map(|(start, end)| PageRange::new(start, end));
        let all = |count| probes(ranges(), 100, count);
        let every: Vec<u64> = (100..110).chain(200..290).collect();
        assert_eq!(all(1000).iter().map(|page| page.0).collect::<Vec<_>>(), every);
        let few = all(10);
        assert!(few.len() == 10 && few[0].0 < 110);
        let stretches = few[1..].iter().map(|page| (page.0 - 200) / 10);
        assert!(stretches.eq(0..9), "{few:?}");
    }

    #[test]
    fn huge_pages_by_reservation_are_read_from_the_status() {
        let status = b"Name:\tcaf\xe9\nVmRSS:\t    3000 kB\nHugetlbPages:\t   18432 kB\nThreads:\t1\n";
        assert_eq!(huge_bytes_by(status), Some(18 << 20));
        assert_eq!(huge_bytes_by(b"Name:\tkthreadd\n"), None);
        assert_eq!(huge_bytes(Pid(std::process::id())), Some(0));
    }

    /// Maps a file and reads its first half.
    const READER: &str = r#"
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <unistd.h>
        int main(int count, char **words) {
            int file = open(words[1], O_RDONLY);
            off_t bytes = lseek(file, 0, SEEK_END);
            volatile char *memory = mmap(0, bytes, PROT_READ, MAP_PRIVATE, file, 0);
            for (off_t at = 0; at < bytes / 2; at += 4096) memory[at];
            write(1, ".", 1);
            return pause();
        }"#;

    #[test]
    fn pages_in_memory_of_a_file_that_is_only_read_are_counted() {
        const HALF: usize = 8 << 20;
        let directory = tempfile::tempdir().unwrap();
        let [source, program, file] = ["reader.c", "reader", "file"].map(|name| directory.path().join(name));
        std::fs::write(&source, READER).unwrap();
        std::fs::write(&file, vec![7; 2 * HALF]).unwrap();
        let compiled = Command::new("cc").arg("-w").arg(&source).arg("-o").arg(&program).status().unwrap();
        assert!(compiled.success());
        let mut child = Command::new(&program).arg(&file).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = Pid(child.id());
        let mut processes = Processes::new(&[pid], true, true).unwrap();
        processes.update();
        let topology = Topology::live().unwrap();
        let mut unseen = Unseen::default();
        unseen.look(&mut LiveKernel::default(), &topology, &processes);
        let files = unseen.files().unwrap().clone();
        child.kill().unwrap();
        child.wait().unwrap();
        // The fault of a page maps up to 16 around it.
        assert!(files.bytes.abs_diff(HALF as u64) <= HALF as u64 / 50, "{files:?}");
        assert!(files.most().unwrap().percent > 0.0, "{files:?}");
        processes.update();
        unseen.due = OnePercent::default();
        unseen.look(&mut LiveKernel::default(), &topology, &processes);
        assert_eq!(unseen.files(), Some(&files), "it has ended");
    }
}
