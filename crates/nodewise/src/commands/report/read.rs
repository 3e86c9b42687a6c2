//! A profile's file, as the verdict wants it.

use super::blocks::{Blocks, Site};
use super::counted::{Counted, Sums};
use super::over_time::Moment;
use super::threads::{Thread, Threads};
use crate::commands::latencies::{Latencies, is_far_somewhere, page_number};
use crate::commands::profile::file::{Head, Line, Name, Tail, VERSION};
use crate::manage::LARGE_BYTES;
use anyhow::{Context as _, anyhow, bail};
use nodewise_engine::recording::Interval;
use nodewise_engine::{
    Access, DataSource, HUGE_PAGE_PAGES, Mapping, MappingKind, PAGE_BYTES, PageNumber, PageRange, PageSize,
    Pid, Sample,
};
use nodewise_linux::first_touch::Touched;
use nodewise_linux::kernel_time::KernelShares;
use nodewise_linux::perf_data;
use nodewise_linux::{Frame, UnseenFiles, Variable};
use nodewise_verdict::profile::{Object, Seen, Use};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// A whole recording.
pub struct Profile {
    /// The program and its arguments; none where that is not known.
    pub command: Option<Vec<String>>,
    /// The process, if it ran already.
    pub pid: Option<u32>,
    pub seconds: f64,
    pub ratios_by: String,
    /// Whether samples are accesses. Hint faults are pages that were in use since the kernel's last scan.
    pub counts_accesses: bool,
    pub seen: Seen,
    /// The time of each use, in nanoseconds of one clock.
    pub times_ns: Vec<u64>,
    /// Code that asked for memory, where that was recorded.
    pub sites: Vec<Site>,
    /// Each interval.
    pub moments: Vec<Moment>,
    /// Threads, those with most accesses first.
    pub threads: Vec<Thread>,
    /// The time that the kernel took, where that was recorded.
    pub kernel: Option<KernelShares>,
    /// Events of the kernel, most of them machine-wide.
    pub events: BTreeMap<String, f64>,
    /// The whole machine's traffic, where it was counted.
    pub counted: Option<Counted>,
    /// Whether perf has recorded it.
    pub is_perfs: bool,
    /// Large files that gave no samples, as hint faults do not tell of them.
    pub unseen_files: Option<UnseenFiles>,
}

impl Profile {
    /// The program, and the process if that ran already.
    pub fn title(&self) -> String {
        let command = self.command.as_ref().map(|words| words.join(" "));
        match (self.pid, command) {
            (Some(pid), Some(command)) => format!("process {pid}: {command}"),
            (Some(pid), None) => format!("process {pid}"),
            (None, command) => command.unwrap_or_else(|| "a process".to_owned()),
        }
    }
}

/// Reads a file of `nodewise profile`, or of `perf record`.
pub fn read(path: &Path) -> anyhow::Result<Profile> {
    let cannot_read = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot_read)?;
    let length = file.metadata().with_context(cannot_read)?.len();
    let mut file = BufReader::new(file);
    // A foreign file may be one long line.
    let begins = file.fill_buf().with_context(cannot_read)?;
    if perf_data::is_perf_data(begins) {
        return super::perf_data::read(path, file, length);
    }
    if !begins.is_empty() && !begins.starts_with(b"{\"head\":") {
        bail!("{}: not a profile; 'nodewise profile' and 'perf mem record' write them", path.display());
    }
    let (mut told, mut tail) = (None, None);
    for (number, line) in file.split(b'\n').enumerate() {
        let at = || format!("{}:{}", path.display(), number + 1);
        let line = line.with_context(at)?;
        let line: Line = serde_json::from_slice(&line)
            .map_err(|error| anyhow!("{}: damaged or cut off: {error}", at()))?;
        match line {
            Line::Head(head) if head.nodewise_profile != VERSION => {
                let version = head.nodewise_profile;
                bail!(
                    "{}: a profile of version {version}, and this nodewise reads version {VERSION}: record it again",
                    path.display()
                );
            }
            Line::Head(found) => told = Some(Told::new(*found)),
            Line::Interval(interval) => {
                let told = told.as_mut().with_context(|| format!("{}: damaged: it has no head", at()))?;
                told.interval(*interval);
            }
            Line::Tail(found) => tail = Some(*found),
        }
    }
    let told = told.with_context(|| format!("{}: not a profile: it is empty", path.display()))?;
    let tail = tail.with_context(|| {
        format!("{}: cut off: its last line is missing, which nodewise writes at the end", path.display())
    })?;
    let Head { nodes, machine, .. } = &told.head;
    let is_of_pairs =
        |of: &Vec<Vec<f64>>| of.len() == nodes.len() && of.iter().all(|row| row.len() == nodes.len());
    anyhow::ensure!(
        is_of_pairs(&machine.ratios) && machine.times.iter().all(|times| is_of_pairs(&times.latencies)),
        "{}:1: damaged: not a figure for each pair of nodes",
        path.display()
    );
    Ok(told.finish(&tail))
}

/// Everything that was told so far.
pub struct Told {
    head: Head,
    balanced: Vec<bool>,
    began_ns: Option<u64>,
    samples: Vec<Short>,
    moments: Vec<Moment>,
    latencies: Latencies,
    threads: Threads,
    sums: Sums,
    mappings: BTreeMap<Pid, Vec<Mapping>>,
    /// Whether samples are accesses, and not hint faults.
    pub are_accesses: bool,
    /// Whether perf has recorded it.
    pub is_perfs: bool,
    /// The program of each process, where that is known.
    pub programs: BTreeMap<Pid, String>,
}

impl Told {
    pub fn new(head: Head) -> Self {
        Self {
            began_ns: None,
            samples: Vec::new(),
            moments: Vec::new(),
            latencies: Latencies::new(head.nodes.len()),
            threads: Threads::new(head.nodes.len()),
            sums: Sums::new(head.nodes.len()),
            mappings: BTreeMap::new(),
            are_accesses: false,
            is_perfs: false,
            programs: BTreeMap::new(),
            balanced: head.balanced(),
            head,
        }
    }

    pub fn interval(&mut self, Interval { seen, .. }: Interval) {
        self.latencies.take_in(&seen);
        self.threads.take_in(&seen);
        self.sums.take_in(&seen);
        let began = seen.end_ns.saturating_sub(seen.duration_ns);
        let began = *self.began_ns.get_or_insert(began);
        self.moments.push(Moment::of(&seen, began, &self.balanced));
        for process in seen.processes {
            if let Some(now) = process.mappings {
                self.mappings.insert(process.pid, now);
            }
        }
        // Hint faults tell nothing of where the data came from. A PMU may tell it of loads only.
        self.are_accesses |= seen.samples.iter().any(|sample| sample.source != DataSource::Unknown);
        self.samples.extend(seen.samples.iter().filter(|sample| tells(sample)).map(Short::of));
    }

    pub fn finish(self, tail: &Tail) -> Profile {
        let Self {
            head, balanced, mut samples, moments, latencies, threads, sums, mappings, programs, ..
        } = self;
        samples.sort_by_key(|sample| sample.time_ns);
        let counts_accesses = self.are_accesses || samples.is_empty();
        let mut memory = Memory::new(&mappings, tail, head.nodes.len());
        memory.is_told = counts_accesses;
        if programs.values().collect::<BTreeSet<_>>().len() > 1 {
            memory.programs = programs;
        }
        let (objects, uses, sites) = memory.take_in(&samples);
        let load = latencies.load(&head.machine, tail.cpus);
        Profile {
            moments,
            threads: threads.finish(&tail.threads),
            kernel: tail.kernel.clone(),
            events: tail.events.clone(),
            counted: sums.finish(head.nodes.len()),
            is_perfs: self.is_perfs,
            unseen_files: tail.unseen_files.clone().filter(|files| files.bytes >= LARGE_BYTES),
            sites,
            times_ns: samples
                .iter()
                .filter(|sample| !sample.is_stored())
                .map(|sample| sample.time_ns)
                .collect(),
            counts_accesses,
            command: head.command,
            pid: head.pid,
            seconds: tail.seconds,
            ratios_by: head.ratios_by,
            seen: Seen { nodes: head.nodes, balanced, ratios: head.machine.ratios, objects, uses, load },
        }
    }
}

/// Whether a sample is of memory, or of a line in another node's cache, or shows that memory is written.
fn tells(sample: &Sample) -> bool {
    sample.source.is_of_memory() || sample.source == DataSource::TAKEN || sample.is_cached_store()
}

/// A sample in few bytes: a recording may have many.
struct Short {
    time_ns: u64,
    pid: Pid,
    page: PageNumber,
    address: u64,
    from: u8,
    home: Option<u8>,
    is_far: bool,
    write: Option<bool>,
    huge: bool,
    weight: u32,
    /// The word within the page, which may be a huge one.
    word: u32,
    source: DataSource,
}

impl Short {
    fn of(sample: &Sample) -> Self {
        let pages = if sample.page_size == PageSize::Huge { HUGE_PAGE_PAGES } else { 1 };
        let page_bytes = pages * PAGE_BYTES;
        Self {
            time_ns: sample.time_ns,
            pid: sample.pid,
            page: sample.address.page(),
            address: sample.address.0,
            from: sample.accessor.0,
            home: sample.home.map(|home| home.0),
            is_far: is_far_somewhere(sample),
            write: match sample.access {
                Access::Read => Some(false),
                Access::Write => Some(true),
                Access::Unknown => None,
            },
            huge: sample.page_size == PageSize::Huge,
            weight: sample.weight,
            word: (sample.address.0 % page_bytes / 8) as u32,
            source: sample.source,
        }
    }

    /// Whether it only shows that memory is written.
    fn is_stored(&self) -> bool {
        self.source == DataSource::LocalCache
    }
}

/// The memory of a program by its origin.
struct Memory<'a> {
    mappings: &'a BTreeMap<Pid, Vec<Mapping>>,
    /// Whether accesses themselves told where their pages were. Hint faults may have moved them.
    is_told: bool,
    /// The programs by which memory is told apart; none where all of it is of one.
    programs: BTreeMap<Pid, String>,
    names: BTreeMap<Pid, Vec<&'a Name>>,
    /// In the order of addresses, without overlap.
    variables: BTreeMap<Pid, Vec<&'a Variable>>,
    /// In the order of addresses.
    touched: BTreeMap<Pid, Vec<&'a Touched>>,
    /// Each call chain for people.
    sites: Vec<Vec<String>>,
    blocks: Blocks<'a>,
    nodes: usize,
    /// By name and by the function that touched it first: there may be many ways to it.
    numbers: HashMap<(String, Option<String>), u32>,
    objects: Vec<Object>,
}

impl<'a> Memory<'a> {
    fn new(mappings: &'a BTreeMap<Pid, Vec<Mapping>>, tail: &'a Tail, nodes: usize) -> Self {
        let mut names: BTreeMap<Pid, Vec<&Name>> = BTreeMap::new();
        for name in &tail.names {
            names.entry(name.pid).or_default().push(name);
        }
        let mut variables: BTreeMap<Pid, Vec<&Variable>> = BTreeMap::new();
        for variable in &tail.variables {
            variables.entry(variable.pid).or_default().push(variable);
        }
        let mut touched: BTreeMap<Pid, Vec<&Touched>> = BTreeMap::new();
        for one in &tail.first_touch.touched {
            touched.entry(one.pid).or_default().push(one);
        }
        for names in names.values_mut() {
            names.sort_by_key(|name| name.range);
        }
        for variables in variables.values_mut() {
            variables.sort_by_key(|variable| variable.range.start);
        }
        for touched in touched.values_mut() {
            touched.sort_by_key(|one| one.range);
        }
        let sites = tail.first_touch.stacks.iter().map(|stack| site(stack)).collect();
        let found = tail.allocations.as_ref();
        let asked: Vec<_> =
            found.iter().flat_map(|found| &found.stacks).map(|stack| asking_site(stack)).collect();
        let blocks = Blocks::new(found, &asked);
        let (programs, numbers, objects) = (BTreeMap::new(), HashMap::new(), Vec::new());
        Self {
            mappings,
            is_told: false,
            programs,
            names,
            variables,
            touched,
            sites,
            blocks,
            nodes,
            numbers,
            objects,
        }
    }

    fn take_in(mut self, samples: &[Short]) -> (Vec<Object>, Vec<Use>, Vec<Site>) {
        let mut uses: Vec<Use> = Vec::with_capacity(samples.len());
        // By object.
        let mut last: Vec<Option<usize>> = Vec::new();
        for sample in samples {
            let page = if sample.huge { sample.page.huge() } else { sample.page };
            // As if each page lay where it was first touched or seen. The kernel's balancing may move pages
            // meanwhile, and does by the very faults that are the samples.
            let touched = || self.toucher(sample.pid, sample.page).map(|touched| touched.node.0);
            let home = if self.is_told { sample.home } else { touched().or(sample.home) };
            self.blocks.go_to(sample.time_ns);
            let object = self.number(sample);
            last.resize(self.objects.len(), None);
            let last = &mut last[object as usize];
            if sample.is_stored() {
                if let Some(last) = *last {
                    uses[last].stored += u64::from(sample.weight);
                }
                continue;
            }
            *last = Some(uses.len());
            uses.push(Use {
                object,
                page: page_number(sample.pid, page),
                from: sample.from,
                home,
                is_far: sample.is_far,
                write: sample.write,
                weight: if sample.huge && !self.is_told { HUGE_PAGE_PAGES as u32 } else { sample.weight },
                huge: sample.huge,
                word: sample.word,
                is_taken: sample.source == DataSource::TAKEN,
                stored: 0,
            });
        }
        let huge = samples.iter().filter(|sample| sample.huge).map(|sample| (sample.pid, sample.page.huge()));
        self.count_touches(&huge.collect());
        (self.objects, uses, self.blocks.sites)
    }

    fn number(&mut self, sample: &Short) -> u32 {
        let (pid, page) = (sample.pid, sample.page);
        let asked = self.blocks.site_at(pid, sample.address).map(|site| &self.blocks.sites[site as usize]);
        let name = asked.map_or_else(|| self.name(pid, sample.address), |site| site.name.clone());
        let allocated = asked.map(|site| &site.allocated);
        let site = self.toucher(pid, page).and_then(|touched| self.site_of(touched)).unwrap_or_default();
        let (objects, nodes) = (&mut self.objects, self.nodes);
        *self.numbers.entry((name.clone(), site.first().cloned())).or_insert_with(|| {
            objects.push(Object {
                name,
                touched_by: site,
                touched_pages: vec![0; nodes],
                touching_threads: 0,
                allocated: allocated.cloned(),
            });
            objects.len() as u32 - 1
        })
    }

    fn site_of(&self, touched: &Touched) -> Option<Vec<String>> {
        self.sites.get(touched.stack? as usize).cloned()
    }

    /// The first touch of a huge page brings all of it.
    fn count_touches(&mut self, huge: &HashSet<(Pid, PageNumber)>) {
        let mut threads: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (pid, touched) in std::mem::take(&mut self.touched) {
            let brought = |one: &&Touched| {
                let first = one.range.start.huge();
                let is_huge = one.range.pages() == 1 && huge.contains(&(pid, first));
                let huge = || PageRange { start: first, end: PageNumber(first.0 + HUGE_PAGE_PAGES) };
                if is_huge { huge() } else { one.range }
            };
            let ranges: Vec<PageRange> = touched.iter().map(brought).collect();
            let shares = self.blocks.shares(pid, &ranges);
            for ((one, range), (of_sites, rest)) in touched.into_iter().zip(ranges).zip(shares) {
                let by = self.site_of(one).unwrap_or_default().into_iter().next();
                let of_sites = of_sites
                    .into_iter()
                    .map(|(site, pages)| (self.blocks.sites[site as usize].name.clone(), pages));
                let of_variables = self.shares(pid, range);
                let rest = of_variables.iter().fold(rest, |rest, &(_, pages)| rest.saturating_sub(pages));
                let mapping = || self.of_program(pid, self.name_of_mapping(pid, one.range.start));
                let of_none = (rest > 0).then(|| (mapping(), rest));
                for (name, pages) in of_sites.chain(of_variables).chain(of_none) {
                    let Some(&number) = self.numbers.get(&(name, by.clone())) else { continue };
                    threads.entry(number).or_default().insert(one.tid.0);
                    let counts = &mut self.objects[number as usize].touched_pages;
                    if let Some(count) = counts.get_mut(usize::from(one.node.0)) {
                        *count = count.saturating_add(pages);
                    }
                }
            }
        }
        for (number, threads) in threads {
            self.objects[number as usize].touching_threads = threads.len();
        }
    }

    /// The first touch of a page; for a huge page, the touch of any part of it.
    fn toucher(&self, pid: Pid, page: PageNumber) -> Option<&'a Touched> {
        let touched = self.touched.get(&pid)?;
        let next = touched.partition_point(|one| one.range.start <= page);
        let before = next.checked_sub(1).map(|before| touched[before]);
        let (start, end) = (page.huge().0, page.huge().0 + HUGE_PAGE_PAGES);
        let before = before.filter(|one| one.range.end.0 > start);
        before.or_else(|| touched.get(next).copied().filter(|one| one.range.start.0 < end))
    }

    fn name(&self, pid: Pid, address: u64) -> String {
        let variables = self.variables.get(&pid).map_or(&[][..], Vec::as_slice);
        let next = variables.partition_point(|variable| variable.range.end <= address);
        match variables.get(next).filter(|variable| variable.range.start <= address) {
            Some(variable) => self.of_program(pid, variable_name(variable)),
            None => self.of_program(pid, self.name_of_mapping(pid, PageNumber(address / PAGE_BYTES))),
        }
    }

    fn of_program(&self, pid: Pid, name: String) -> String {
        match self.programs.get(&pid) {
            Some(program) => format!("{name} of {program}"),
            None => name,
        }
    }

    /// How many of these pages begin in each variable.
    fn shares(&self, pid: Pid, pages: PageRange) -> Vec<(String, u64)> {
        let (start, end) = (address_of(pages.start), address_of(pages.end));
        let variables = self.variables.get(&pid).map_or(&[][..], Vec::as_slice);
        let first = variables.partition_point(|variable| variable.range.end <= start);
        let here = variables[first..].iter().take_while(|variable| variable.range.start < end);
        here.map(|variable| {
            let begin = |address: u64| address.max(start).min(end).div_ceil(PAGE_BYTES);
            let pages = begin(variable.range.end).saturating_sub(begin(variable.range.start));
            (self.of_program(pid, variable_name(variable)), pages)
        })
        .collect()
    }

    fn name_of_mapping(&self, pid: Pid, page: PageNumber) -> String {
        let named = self.names.get(&pid).and_then(|names| {
            let next = names.partition_point(|name| name.range.start <= page);
            names.get(next.checked_sub(1)?).filter(|name| page < name.range.end)
        });
        if let Some(name) = named {
            return name.text.clone();
        }
        let kind = self.mappings.get(&pid).and_then(|mappings| {
            let next = mappings.partition_point(|mapping| mapping.range.end <= page);
            mappings.get(next).filter(|mapping| mapping.range.start <= page).map(|mapping| mapping.kind)
        });
        match kind {
            Some(MappingKind::Shared) => "shared memory",
            Some(MappingKind::File) => "a file",
            Some(MappingKind::Anonymous) | None => "anonymous memory",
        }
        .to_owned()
    }
}

/// A damaged file may name any page.
fn address_of(page: PageNumber) -> u64 {
    page.0.saturating_mul(PAGE_BYTES)
}

fn variable_name(variable: &Variable) -> String {
    let name = variable.name.as_deref().unwrap_or("static memory");
    let module = variable.module.file_name().unwrap_or_default().to_string_lossy();
    format!("{name} ({module})")
}

/// Libraries whose functions touch memory for others.
const FOR_OTHERS: [&str; 6] = ["libc.so", "libc-", "libstdc++", "libgcc_s", "ld-linux", "libpthread"];
/// Libraries whose functions ask for memory for others, beside these.
const ALLOCATORS: [&str; 3] = ["libjemalloc", "libtcmalloc", "libmimalloc"];
/// Functions that do so and that may be a part of a program without their source: C++'s and Rust's own.
const ASKING_FOR_OTHERS: [&str; 12] = [
    "operator new",
    "std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "<alloc::",
    "<core::",
    "<std::",
    "__rust",
    "__rdl_",
    "hashbrown::",
    "<hashbrown::",
];
/// The sources of such functions that become part of a program: Rust's and C++'s own.
const SOURCES_FOR_OTHERS: [&str; 2] = ["/rustc/", "/usr/include/c++/"];
/// Functions of a call chain that are shown.
const SHOWN: usize = 3;

/// The call chain of a touch for people, from the innermost function of the program's own.
fn site(stack: &[Frame]) -> Vec<String> {
    shown(stack, touches_for_others)
}

/// The same of a request for memory.
fn asking_site(stack: &[Frame]) -> Vec<String> {
    shown(stack, |frame| {
        let function = frame.function.as_deref().unwrap_or_default();
        touches_for_others(frame)
            || is_of(frame, &ALLOCATORS)
            || ASKING_FOR_OTHERS.iter().any(|name| function.starts_with(name))
    })
}

fn is_of(frame: &Frame, libraries: &[&str]) -> bool {
    let module = frame.module.file_name().unwrap_or_default().to_string_lossy();
    libraries.iter().any(|library| module.starts_with(library))
}

fn touches_for_others(frame: &Frame) -> bool {
    let source = frame.file.as_deref().unwrap_or_default();
    SOURCES_FOR_OTHERS.iter().any(|directory| source.starts_with(directory)) || is_of(frame, &FOR_OTHERS)
}

fn shown(stack: &[Frame], is_for_others: impl Fn(&Frame) -> bool) -> Vec<String> {
    // A frame pointer that is none leads nowhere.
    let leads = stack.iter().skip(1).take_while(|frame| !frame.module.as_os_str().is_empty()).count();
    let stack = &stack[..stack.len().min(1 + leads)];
    let helpers = stack.iter().take_while(|frame| is_for_others(frame)).count();
    let own = if helpers == stack.len() { 0 } else { helpers };
    stack.iter().skip(own).take(SHOWN).map(place).collect()
}

fn place(frame: &Frame) -> String {
    let file = |path: &str| Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned();
    match (&frame.function, &frame.file, frame.line) {
        (Some(function), Some(path), Some(line)) => format!("{function} ({}:{line})", file(path)),
        (Some(function), ..) => format!("{function} ({})", file(&frame.module.to_string_lossy())),
        (None, ..) if frame.module.as_os_str().is_empty() => format!("{:#x}", frame.offset),
        (None, ..) => format!("{}+{:#x}", file(&frame.module.to_string_lossy()), frame.offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(module: &str, function: &str, file: &str) -> Frame {
        let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let line = known(file).map(|_| 7);
        Frame { module: module.into(), offset: 16, function: known(function), file: known(file), line }
    }

    #[test]
    fn the_programs_own_function_is_named() {
        let main = frame("/bin/solver", "main", "/src/solver.c");
        let fill = frame("/bin/solver", "fill", "");
        let memset = frame("/lib/libc.so.6", "", "");
        let inlined = frame("/bin/solver", "write", "/rustc/abc/library/core/src/ptr/mod.rs");
        let nowhere = Frame::nowhere(0x4403_0000_0000);
        for (stack, expected) in [
            (vec![memset.clone(), fill.clone(), main.clone()], vec!["fill (solver)", "main (solver.c:7)"]),
            (vec![inlined, main.clone()], vec!["main (solver.c:7)"]),
            // Without frame pointers, whatever is taken for one leads anywhere.
            (vec![memset.clone(), nowhere.clone(), main.clone()], vec!["libc.so.6+0x10"]),
            (vec![fill, nowhere.clone()], vec!["fill (solver)"]),
            (vec![memset], vec!["libc.so.6+0x10"]),
            // Code that was made at run time.
            (vec![nowhere, main], vec!["0x440300000000", "main (solver.c:7)"]),
            (vec![], vec![]),
        ] {
            assert_eq!(site(&stack), expected, "{stack:?}");
        }
    }
}
