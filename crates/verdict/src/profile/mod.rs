//! A recorded program: which memory is used from where, who touched it first, and what to change in the
//! program.
//!
//! # How a remedy is found
//!
//! The kernel places a page where it is first touched. So memory that one thread touches and others use lies
//! far from them. What helps depends on whether each part of it has one user or all of it is shared. Two
//! accesses to the same place tell: let `p` be how often they come from the same node. If every place has a
//! main user with a share `q` of its accesses, and the other nodes have the rest evenly, then
//! `p = q² + (1 − q)² / (n − 1)`. That gives `q`, which does not depend on how often a place was sampled. A
//! place is a page. Where hardly any page was sampled twice, neighbouring samples count as one place.

mod lines;

use crate::doctor::Verdict;
use crate::load::{Fitted, Load};
pub use lines::Line;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A gain below this share of time is no finding, in percent.
pub const LEAST_PERCENT: f64 = crate::doctor::LEAST_PERCENT;
/// Fewer samples than this of some memory say nothing.
const LEAST_SAMPLES: usize = 50;
/// So many pairs of accesses to a page tell who uses pages.
const LEAST_PAIRS: f64 = 100.0;
/// Samples in a row that count as one place where pages have too few.
const NEIGHBOURS: usize = 16;
/// The first accesses are those of whoever fills the memory if they are no more than one of so many.
const MOST_FILLING: usize = 4;
/// From this share of a place's accesses on a node is its only user.
const OWNED: f64 = 0.8;
/// From this share of all accesses on a node is the only user of all.
const ALONE: f64 = 0.9;
/// From this share of accesses on that other nodes' caches serve, memory is lines that several nodes write.
const CONTENDED: f64 = 0.5;
/// Up to this share of writes memory is only read.
const READ_ONLY: f64 = 0.02;
/// Memory up to this size may be few lines that all nodes write.
const SMALL_PAGES: u64 = 16;
/// Pages of 4 KiB in a huge one.
const HUGE_PAGE_PAGES: u64 = 512;
/// Words of 8 bytes in a part of a huge page: 64 KiB, as huge pages have few samples.
const PART_WORDS: u32 = 1 << 13;

/// Everything that was recorded.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The nodes' numbers. All other fields count nodes from 0, in this order.
    pub nodes: Vec<u32>,
    /// Whether each node has CPUs and memory: memory that all use is best spread over these.
    pub balanced: Vec<bool>,
    /// The cost of an access from a node (row) to another's memory (column), if a near one costs 1.
    pub ratios: Vec<Vec<f64>>,
    /// The memory.
    pub objects: Vec<Object>,
    /// The sampled accesses, in the order of time.
    pub uses: Vec<Use>,
    /// The time that they took, where that was measured.
    pub load: Option<Load>,
}

/// Memory of one origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Its name for people.
    pub name: String,
    /// The code that touched it first, the innermost function first, where that is known.
    pub touched_by: Vec<String>,
    /// Pages that were seen to be touched first from each node.
    pub touched_pages: Vec<u64>,
    /// The threads that did.
    pub touching_threads: usize,
    /// The code that asked for it, where that is known.
    pub allocated: Option<Allocation>,
}

/// All blocks that some code asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Allocation {
    /// The code, the innermost function first.
    pub by: Vec<String>,
    /// How many there were.
    pub blocks: u64,
    /// Their bytes, one after the other.
    pub bytes: u64,
    /// The most bytes at a time, by process and added up.
    pub most_bytes: u64,
}

/// An access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The number of the object.
    pub object: u32,
    /// Process and page, as one number: neighbours are neighbours in memory.
    pub page: u64,
    /// From which node.
    pub from: u8,
    /// The node that has the page, where that is known.
    pub home: Option<u8>,
    /// Whether another node served it, though nobody knows which. Only where there is no `home`.
    pub is_far: bool,
    /// Whether it wrote, where that is known.
    pub write: Option<bool>,
    /// The number of accesses that it stands for.
    pub weight: u32,
    /// Whether the page is a huge one.
    pub huge: bool,
    /// Which word of 8 bytes within the page.
    pub word: u32,
    /// Whether the line came from another node's cache, which had written it.
    pub is_taken: bool,
    /// The stores to the object since, up to its next use, that a cache served.
    pub stored: u64,
}

/// The change to make in the program, or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Have each thread touch first what it uses.
    TouchInParallel,
    /// Run the threads where the memory is, or touch it where they run.
    BindThreads,
    /// Have it in small pages, so that each part can lie with its user.
    Split,
    /// Give each node a copy.
    Replicate,
    /// Give each thread its own.
    Privatise,
    /// Spread the pages over the nodes.
    Interleave,
}

/// Everything that is known of some memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name for people.
    pub memory: String,
    /// The code that asked for it; none where that is not known.
    pub allocated: Option<Allocation>,
    /// The code that touched it first, the innermost function first; empty where that was not seen.
    pub touched_by: Vec<String>,
    /// Pages that were seen to be touched first, by node.
    pub touched_pages: Vec<u64>,
    /// The threads that did.
    pub touching_threads: usize,
    /// Sampled accesses.
    pub samples: usize,
    /// Its share of all accesses, in percent.
    pub accesses_percent: f64,
    /// The nodes that its accesses come from, in percent.
    pub used_from_percent: Vec<f64>,
    /// The nodes that they go to, in percent. The rest to 100 goes to other nodes, nobody knows which.
    pub lies_on_percent: Vec<f64>,
    /// Accesses to another node's memory, in percent.
    pub far_percent: f64,
    /// Writes, in percent, once a second node used it; none where the sampler cannot tell.
    pub write_percent: Option<f64>,
    /// The share of a place's accesses that its main user has, in percent; none where samples are too few.
    pub main_user_percent: Option<f64>,
    /// The same of a part of a huge page; none where few pages are huge.
    pub part_user_percent: Option<f64>,
    /// Accesses to lines that another node's cache had and had written, in percent.
    pub taken_percent: f64,
    /// The change to make; none where none would save 5 % of the time.
    pub remedy: Option<Remedy>,
    /// The share of its CPUs' time that it saves, in percent; none where that cannot be told.
    pub gain_percent: Option<f64>,
    /// The same of the slowest node's CPUs, for which all others may wait. None where the gain is a bound.
    pub slowest_gain_percent: Option<f64>,
    /// Whether the gain is that of a program that does nothing but wait for memory, since no latencies were
    /// measured.
    pub gain_is_bound: bool,
}

impl Row {
    /// Whether it is lines that several nodes write.
    #[must_use]
    pub fn is_contended(&self) -> bool {
        self.taken_percent >= 100.0 * CONTENDED
    }

    /// The larger gain, in percent.
    #[must_use]
    pub fn best_gain_percent(&self) -> f64 {
        self.gain_percent.unwrap_or(0.0).max(self.slowest_gain_percent.unwrap_or(0.0))
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// Accesses to another node's memory, in percent of those to memory. Lines that come from another
    /// node's cache, which had written them, are none of these.
    pub far_percent: Option<f64>,
    /// Accesses from each node (row) to each node's memory (column), in percent of all to memory.
    pub traffic_percent: Vec<Vec<f64>>,
    /// Accesses to another node's memory, nobody knows which, in percent of all.
    pub unknown_far_percent: f64,
    /// Samples that do not tell where the memory is, in percent of all samples by weight. They are in no
    /// other figure of memory's place.
    pub unknown_home_percent: f64,
    /// The most that memory with too few samples might save, in percent of the time.
    pub unjudged_gain_percent: f64,
    /// By share of accesses, the most used memory first.
    pub rows: Vec<Row>,
    /// Lines that several nodes write, the most accessed first.
    pub lines: Vec<Line>,
}

impl Findings {
    /// Whether a change helps. Without one, memory with too few samples may still hide one.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.rows.iter().any(|row| row.remedy.is_some()) {
            Verdict::Hurt
        } else if self.far_percent.is_none() || self.unjudged_gain_percent >= LEAST_PERCENT {
            Verdict::Unknown
        } else {
            Verdict::Healthy
        }
    }

    /// The rows with a remedy, those that save most first.
    #[must_use]
    pub fn to_change(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.remedy.is_some()).collect();
        rows.sort_by(|a, b| b.best_gain_percent().total_cmp(&a.best_gain_percent()));
        rows
    }
}

/// The accesses to some memory, or to all.
struct Traffic {
    /// By node of the CPU, and by node of the memory.
    matrix: Vec<Vec<f64>>,
    /// By node of the CPU, to others' memory that is nobody knows where.
    elsewhere: Vec<f64>,
    /// By node of the CPU, to lines that other nodes' caches had written. Memory does not serve these.
    taken: Vec<f64>,
    /// Accesses to memory, without those that were taken.
    all: f64,
    samples: f64,
}

impl Traffic {
    fn none(nodes: usize) -> Self {
        let (matrix, none) = (vec![vec![0.0; nodes]; nodes], vec![0.0; nodes]);
        Self { matrix, elsewhere: none.clone(), taken: none, all: 0.0, samples: 0.0 }
    }

    fn of<'a>(uses: impl Iterator<Item = &'a Use>, nodes: usize) -> Self {
        let mut traffic = Self::none(nodes);
        for one in uses {
            let (from, weight) = (usize::from(one.from), f64::from(one.weight));
            match one.home.map(usize::from) {
                _ if one.is_taken => {
                    traffic.taken.get_mut(from).into_iter().for_each(|taken| *taken += weight);
                    continue;
                }
                Some(home) if home.max(from) < nodes => traffic.matrix[from][home] += weight,
                None if one.is_far && from < nodes => traffic.elsewhere[from] += weight,
                _ => continue,
            }
            traffic.all += weight;
            traffic.samples += 1.0;
        }
        traffic
    }

    /// Accesses of a node to memory.
    fn from(&self, node: usize) -> f64 {
        self.matrix[node].iter().sum::<f64>() + self.elsewhere[node]
    }

    /// All accesses of a node.
    fn used_from(&self, node: usize) -> f64 {
        self.from(node) + self.taken[node]
    }

    /// All accesses of all nodes, those to lines that were taken included.
    fn used(&self) -> f64 {
        self.all + self.taken.iter().sum::<f64>()
    }

    fn to(&self, node: usize) -> f64 {
        self.matrix.iter().map(|row| row[node]).sum()
    }

    fn share(&self, part: f64) -> f64 {
        if self.all > 0.0 { part / self.all } else { 0.0 }
    }

    fn near(&self) -> f64 {
        (0..self.matrix.len()).map(|node| self.matrix[node][node]).sum()
    }

    fn far(&self) -> f64 {
        (self.all - self.near()).max(0.0)
    }

    /// The time of all accesses, one by one, if a near one takes 1.
    fn time(&self, ratios: &[Vec<f64>]) -> f64 {
        let pairs = self.matrix.iter().zip(ratios);
        let known =
            pairs.flat_map(|(row, ratios)| row.iter().zip(ratios).map(|(count, ratio)| count * ratio));
        let others = (self.matrix.len() - 1).max(1) as f64;
        let elsewhere = self.elsewhere.iter().zip(&self.taken).zip(ratios).enumerate();
        let elsewhere = elsewhere.map(|(from, ((count, taken), ratios))| {
            let mean = (ratios.iter().sum::<f64>() - ratios[from]) / others;
            (count + taken) * mean
        });
        known.sum::<f64>() + elsewhere.sum::<f64>()
    }

    /// Accesses that the busiest memory serves.
    fn busiest(&self) -> f64 {
        (0..self.matrix.len()).map(|node| self.to(node)).fold(0.0, f64::max)
    }

    /// All of this without a part of it, and with something else instead.
    fn replaced(&self, part: &Self, by: &Self) -> Self {
        let nodes = 0..self.matrix.len();
        let cell =
            |from: usize, to: usize| self.matrix[from][to] - part.matrix[from][to] + by.matrix[from][to];
        let matrix = nodes.clone().map(|from| nodes.clone().map(|to| cell(from, to)).collect()).collect();
        let elsewhere =
            nodes.map(|from| self.elsewhere[from] - part.elsewhere[from] + by.elsewhere[from]).collect();
        let taken = (0..self.taken.len()).map(|from| self.taken[from] - part.taken[from] + by.taken[from]);
        Self { matrix, elsewhere, taken: taken.collect(), ..*self }
    }

    /// The same without lines that were taken: each thread finds its own in its cache.
    fn without_taken(&self) -> Self {
        let taken = vec![0.0; self.taken.len()];
        Self { matrix: self.matrix.clone(), elsewhere: self.elsewhere.clone(), taken, ..*self }
    }

    /// The same accesses, of which each node finds this share near and the rest evenly elsewhere. Near is
    /// also the next node to one without memory.
    fn with_near(&self, share: f64, seen: &Seen) -> Self {
        let nodes = self.matrix.len();
        let balanced = || (0..nodes).filter(|&to| seen.balanced[to]);
        let others = balanced().count().saturating_sub(1);
        let row = |from: usize| {
            let (all, ratios) = (self.from(from), &seen.ratios[from]);
            let near = balanced()
                .min_by(|&a, &b| (a != from).cmp(&(b != from)).then(ratios[a].total_cmp(&ratios[b])));
            let to = |to: usize| match near {
                Some(near) if to == near => all * if others > 0 { share } else { 1.0 },
                Some(_) if seen.balanced[to] => all * (1.0 - share) / others as f64,
                _ => 0.0,
            };
            (0..nodes).map(to).collect()
        };
        let matrix = (0..nodes).map(row).collect();
        Self { matrix, elsewhere: vec![0.0; nodes], taken: self.taken.clone(), ..*self }
    }
}

/// The answer for a recording.
#[must_use]
pub fn find(seen: &Seen) -> Findings {
    let nodes = seen.nodes.len();
    let all = Traffic::of(seen.uses.iter(), nodes);
    let fitted = seen.load.as_ref().and_then(Load::fitted);
    let mut by_object: BTreeMap<u32, Vec<&Use>> = BTreeMap::new();
    for one in &seen.uses {
        by_object.entry(one.object).or_default().push(one);
    }
    let mut unjudged = BTreeSet::new();
    let rows = by_object.into_iter().filter_map(|(number, uses)| {
        let object = seen.objects.get(number as usize)?;
        let row = row(seen, fitted.as_ref(), &all, object, uses);
        if row.main_user_percent.is_none() && !row.is_contended() {
            unjudged.insert(number);
        }
        Some(row)
    });
    let mut rows: Vec<Row> = rows.collect();
    let unjudged = Traffic::of(seen.uses.iter().filter(|one| unjudged.contains(&one.object)), nodes);
    let all_near = all.replaced(&unjudged, &unjudged.with_near(1.0, seen));
    let unjudged_gain = match &fitted {
        Some(fitted) => fitted.saves(&all_near.matrix).most(),
        None => bound(seen, &all, &all_near, Remedy::BindThreads),
    };
    rows.sort_by(|a, b| b.accesses_percent.total_cmp(&a.accesses_percent));
    let far_percent = (all.used() > 0.0).then(|| 100.0 * all.share(all.far()));
    let percent = |count: &f64| 100.0 * all.share(*count);
    let traffic_percent = all.matrix.iter().map(|row| row.iter().map(percent).collect()).collect();
    let sampled: f64 = seen.uses.iter().map(|one| f64::from(one.weight)).sum();
    Findings {
        far_percent,
        traffic_percent,
        unknown_far_percent: percent(&all.elsewhere.iter().sum()),
        unknown_home_percent: 100.0 * (sampled - all.used()) / sampled.max(1.0),
        unjudged_gain_percent: if unjudged.all > 0.0 { unjudged_gain.max(0.0) } else { 0.0 },
        rows,
        lines: lines::find(seen),
    }
}

/// By how many points the share of near accesses would be larger if each page lay with the node that uses it
/// most, in percent. None where samples are too few.
///
/// A page's most frequent user has at least the share of its pairs of accesses that come from one node. So
/// this is no more than there is, whatever mixture of private and shared memory the program has.
#[must_use]
pub fn collocation_adds_percent(mut uses: Vec<Use>, nodes: usize) -> Option<f64> {
    uses.retain(|one| !one.is_taken && one.home.is_some());
    if uses.len() < LEAST_SAMPLES || nodes < 2 {
        return None;
    }
    let all = Traffic::of(uses.iter(), nodes);
    uses.sort_by_key(|one| one.page);
    let (same, pairs) = pairs_of_places(&uses.iter().collect::<Vec<_>>(), nodes);
    Some(100.0 * (same / pairs.max(1.0) - all.share(all.near())).max(0.0))
}

/// `uses` in the order of time.
fn row(seen: &Seen, fitted: Option<&Fitted>, all: &Traffic, object: &Object, mut uses: Vec<&Use>) -> Row {
    let nodes = seen.nodes.len();
    let mut filled = once_filled(&uses).to_vec();
    let write_share = write_share(&filled);
    filled.retain(|one| !one.is_taken);
    let after_filling = Traffic::of(filled.iter().copied(), nodes);
    let alone = (0..nodes).any(|node| after_filling.share(after_filling.from(node)) >= ALONE);
    filled.sort_by_key(|one| one.page);
    let main_user = main_user(&filled, nodes);
    let part_user = part_user(&mut filled, nodes);
    uses.sort_by_key(|one| one.page);
    let uses = &uses[..];
    let own = Traffic::of(uses.iter().copied(), nodes);
    let of_pages = uses.chunk_by(|a, b| a.page == b.page);
    let pages = of_pages.map(|uses| if uses[0].huge { HUGE_PAGE_PAGES } else { 1 }).sum();
    let taken = own.taken.iter().sum::<f64>() / own.used().max(1.0);
    let contended = taken >= CONTENDED && uses.len() >= LEAST_SAMPLES;
    let change = if contended {
        Some((Remedy::Privatise, own.without_taken()))
    } else {
        change(seen, &own, &Users { main_user, part_user, alone, write_share, pages })
    };
    let change = change.map(|(remedy, after)| {
        let replaced = all.replaced(&own, &after);
        match fitted {
            Some(fitted) if contended => {
                // A thread with a line to itself finds it in its cache.
                let gone: Vec<f64> =
                    own.taken.iter().zip(&all.taken).map(|(own, all)| own / all.max(1.0)).collect();
                let saved = fitted.saves_without_taken(&gone);
                (remedy, saved.of_cpus, Some(saved.of_slowest))
            }
            Some(fitted) => {
                let saved = fitted.saves(&replaced.matrix);
                // Few samples of what is spread evenly are uneven.
                let most = match remedy {
                    Remedy::Interleave => by_queue(all, &replaced),
                    _ => f64::INFINITY,
                };
                (remedy, saved.of_cpus.min(most), Some(saved.of_slowest.min(most)))
            }
            None => (remedy, bound(seen, all, &replaced, remedy), None),
        }
    });
    let change = change.filter(|(_, gain, slowest)| gain.max(slowest.unwrap_or(0.0)) >= LEAST_PERCENT);
    Row {
        memory: object.name.clone(),
        allocated: object.allocated.clone(),
        touched_by: object.touched_by.clone(),
        touched_pages: object.touched_pages.clone(),
        touching_threads: object.touching_threads,
        samples: uses.len(),
        accesses_percent: 100.0 * own.used() / all.used().max(1.0),
        used_from_percent: (0..nodes).map(|node| 100.0 * own.used_from(node) / own.used().max(1.0)).collect(),
        lies_on_percent: (0..nodes).map(|node| 100.0 * own.share(own.to(node))).collect(),
        far_percent: 100.0 * own.share(own.far()),
        write_percent: write_share.map(|share| 100.0 * share),
        main_user_percent: main_user.map(|share| 100.0 * share),
        part_user_percent: part_user.map(|share| 100.0 * share),
        taken_percent: 100.0 * taken,
        remedy: change.map(|(remedy, ..)| remedy),
        gain_percent: change.map(|(_, gain, _)| gain),
        slowest_gain_percent: change.and_then(|(.., slowest)| slowest),
        gain_is_bound: change.is_some() && fitted.is_none(),
    }
}

/// The accesses after memory was filled: from where a second node comes. A node that only fills it for others
/// is none of its users. A part that is more than filling counts.
fn once_filled<'a>(uses: &'a [&'a Use]) -> &'a [&'a Use] {
    let filling = uses.iter().position(|one| one.from != uses[0].from).unwrap_or(0);
    &uses[if filling * MOST_FILLING > uses.len() { 0 } else { filling }..]
}

/// The share of accesses that write; none where that is not known. A thread that loads a word, computes and
/// stores it reads memory only. Its store finds the line in the cache.
fn write_share(uses: &[&Use]) -> Option<f64> {
    // A line that was taken had been written.
    let writes = |one: &Use| if one.is_taken { Some(true) } else { one.write };
    let known = || uses.iter().filter_map(|one| Some((writes(one)?, f64::from(one.weight))));
    let stored: u64 = uses.iter().map(|one| one.stored).sum();
    let written: f64 =
        known().filter(|(write, _)| *write).map(|(_, weight)| weight).sum::<f64>() + stored as f64;
    let of: f64 = known().map(|(_, weight)| weight).sum::<f64>() + stored as f64;
    // An empty sum is -0.
    (of > 0.0).then(|| written.abs() / of)
}

/// The share of its accesses that a place's main user has; none where samples are too few.
fn main_user(uses: &[&Use], nodes: usize) -> Option<f64> {
    if uses.len() < LEAST_SAMPLES || nodes < 2 {
        return None;
    }
    Some(share_of_main_user(pairs_of_places(uses, nodes), nodes))
}

/// The same of a part of a huge page; none, too, where few pages are huge.
fn part_user(uses: &mut [&Use], nodes: usize) -> Option<f64> {
    let huge = uses.iter().filter(|one| one.huge).count();
    if uses.len() < LEAST_SAMPLES || nodes < 2 || 2 * huge < uses.len() {
        return None;
    }
    let part = |one: &Use| (one.page, one.word / PART_WORDS);
    uses.sort_by_key(|one| part(one));
    let (same, all) = pairs(uses.chunk_by(|a, b| part(a) == part(b)), nodes);
    (all >= LEAST_PAIRS).then(|| share_of_main_user((same, all), nodes))
}

fn share_of_main_user((same, pairs): (f64, f64), nodes: usize) -> f64 {
    let p = (same / pairs).max(1.0 / nodes as f64);
    let n = nodes as f64;
    (1.0 + (1.0 - n * (1.0 - (n - 1.0) * p)).max(0.0).sqrt()) / n
}

/// Pairs of accesses to the same page, or to neighbours if hardly any page has two; see [`pairs`]. `uses` in
/// the order of pages.
fn pairs_of_places(uses: &[&Use], nodes: usize) -> (f64, f64) {
    let (same, all) = pairs(uses.chunk_by(|a, b| a.page == b.page), nodes);
    if all < LEAST_PAIRS { pairs(uses.chunks(NEIGHBOURS), nodes) } else { (same, all) }
}

/// Pairs of accesses to the same place, how many of them come from the same node, and how many there are. A
/// place counts by its accesses, and not by their square.
fn pairs<'a>(places: impl Iterator<Item = &'a [&'a Use]>, nodes: usize) -> (f64, f64) {
    let (mut same, mut all) = (0.0, 0.0);
    for place in places.filter(|place| place.len() > 1) {
        let mut counts = vec![0.0; nodes];
        for one in place {
            if let Some(count) = counts.get_mut(usize::from(one.from)) {
                *count += 1.0;
            }
        }
        let each = place.len() as f64;
        same += counts.iter().map(|count| count * (count - 1.0)).sum::<f64>() / (each - 1.0);
        all += each;
    }
    (same, all)
}

/// How memory is used.
struct Users {
    main_user: Option<f64>,
    part_user: Option<f64>,
    /// One node alone uses it.
    alone: bool,
    write_share: Option<f64>,
    pages: u64,
}

/// The change to make, and the accesses to this memory after it.
fn change(seen: &Seen, own: &Traffic, users: &Users) -> Option<(Remedy, Traffic)> {
    let main_user = users.main_user.filter(|_| own.all > 0.0)?;
    let near = own.with_near(main_user, seen);
    let spread_over = seen.balanced.iter().filter(|&&is| is).count().max(1);
    Some(if main_user >= OWNED && users.alone {
        (Remedy::BindThreads, near)
    } else if main_user >= OWNED {
        (Remedy::TouchInParallel, near)
    } else if let Some(part_user) = users.part_user.filter(|&share| share >= OWNED) {
        (Remedy::Split, own.with_near(part_user, seen))
    } else if users.write_share.is_some_and(|share| share <= READ_ONLY) {
        (Remedy::Replicate, own.with_near(1.0, seen))
    } else if users.pages <= SMALL_PAGES && users.write_share.is_some_and(|share| share > READ_ONLY) {
        (Remedy::Privatise, own.with_near(1.0, seen))
    } else {
        (Remedy::Interleave, own.with_near(1.0 / spread_over as f64, seen))
    })
}

/// The share of time that a change saves if the program does nothing but wait for memory: for its way, or in
/// the queue at the busiest node.
fn bound(seen: &Seen, all: &Traffic, replaced: &Traffic, remedy: Remedy) -> f64 {
    let by_way = match remedy {
        // Nothing comes nearer on the whole.
        Remedy::Interleave => 0.0,
        _ => saved(all.time(&seen.ratios), replaced.time(&seen.ratios)),
    };
    by_queue(all, replaced).max(by_way)
}

/// The part of it that is spent in the queue at the busiest node.
fn by_queue(all: &Traffic, replaced: &Traffic) -> f64 {
    // One node always has more of few samples than others: two standard deviations are left out.
    let share = all.share(all.busiest());
    let at_least = share - 2.0 * (share * (1.0 - share) / all.samples).sqrt();
    saved(at_least, all.share(replaced.busiest()))
}

fn saved(before: f64, after: f64) -> f64 {
    if before > 0.0 { 100.0 * (1.0 - after / before) } else { 0.0 }
}

#[cfg(test)]
mod tests;
