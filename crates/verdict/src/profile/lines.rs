//! Cache lines that CPUs of several nodes write: each write takes the line away from the others. No placement
//! of the page helps.

use super::{OWNED, Seen, Use};
use serde::Serialize;
use std::collections::HashMap;

/// A line of 64 bytes has so many words of 8.
const WORDS: usize = 8;
const LINE: u64 = 64;
const PAGE: u64 = 4096;
/// So often, at least, must a line have come from the cache that wrote it.
const LEAST_SAMPLES: u32 = 8;
/// The most lines that are named.
const MOST: usize = 32;

/// A line that came from another node's cache, which had written it, again and again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The name of the memory for people.
    pub memory: String,
    /// The code that touched the memory first, the innermost function first.
    pub touched_by: Vec<String>,
    /// Its first address.
    pub address: u64,
    /// Sampled accesses to it.
    pub samples: usize,
    /// Its share of all accesses, in percent.
    pub accesses_percent: f64,
    /// The nodes that its accesses come from, in percent.
    pub used_from_percent: Vec<f64>,
    /// Whether each of its words has one user, so that they only need lines of their own.
    pub is_falsely_shared: bool,
}

/// The accesses to one line.
#[derive(Default)]
struct Accesses {
    samples: usize,
    weight: f64,
    /// By word, and by node.
    users: [Vec<f64>; WORDS],
}

/// The lines, the most accessed first.
pub(super) fn find(seen: &Seen) -> Vec<Line> {
    let (nodes, line_of) = (seen.nodes.len(), |one: &Use| (one.page, u64::from(one.word) / WORDS as u64));
    let mut taken: HashMap<(u64, u64), u32> = HashMap::new();
    for one in seen.uses.iter().filter(|one| one.is_taken) {
        *taken.entry(line_of(one)).or_default() += 1;
    }
    taken.retain(|_, count| *count >= LEAST_SAMPLES);
    let mut lines: HashMap<(u64, u64), (&Use, Accesses)> = HashMap::new();
    let all: f64 = seen.uses.iter().map(|one| f64::from(one.weight)).sum();
    for one in seen.uses.iter().filter(|one| taken.contains_key(&line_of(one))) {
        let (_, accesses) = lines.entry(line_of(one)).or_insert_with(|| (one, Accesses::default()));
        accesses.samples += 1;
        accesses.weight += f64::from(one.weight);
        let users = &mut accesses.users[one.word as usize % WORDS];
        users.resize(nodes, 0.0);
        if let Some(user) = users.get_mut(usize::from(one.from)) {
            *user += f64::from(one.weight);
        }
    }
    let lines = lines.into_iter().filter_map(|((page, line), (one, accesses))| {
        let object = seen.objects.get(one.object as usize)?;
        let owned: f64 = accesses.users.iter().map(|word| word.iter().copied().fold(0.0, f64::max)).sum();
        let used: Vec<f64> = (0..nodes)
            .map(|node| accesses.users.iter().filter_map(|word| word.get(node)).sum::<f64>())
            .collect();
        let is_falsely_shared = owned >= OWNED * accesses.weight;
        Some(Line {
            memory: object.name.clone(),
            touched_by: object.touched_by.clone(),
            address: (page & ((1 << 40) - 1)) * PAGE + line * LINE,
            samples: accesses.samples,
            accesses_percent: 100.0 * accesses.weight / all,
            used_from_percent: used.iter().map(|one| 100.0 * one / accesses.weight).collect(),
            is_falsely_shared,
        })
    });
    let mut lines: Vec<Line> = lines.collect();
    lines.sort_by(|a, b| b.accesses_percent.total_cmp(&a.accesses_percent).then(a.address.cmp(&b.address)));
    lines.truncate(MOST);
    lines
}
