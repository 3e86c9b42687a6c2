//! The users of pages, as far as few samples of each tell.

use super::Accessor;
use std::collections::VecDeque;

/// Pairs of samples of the same page, in pages judged together, that are needed to tell.
const MIN_PAIRS: f64 = 16.0;
/// Samples a page from which on pages that are judged together tell all of their users. With fewer, one of
/// them may not have had its turn, and shared pages are taken to have the users of all shared pages of the
/// process.
pub(crate) const MIN_TURNS: f64 = 6.0;
/// With a smaller share of the samples of pages that are judged together, other nodes leave them private.
const MIN_SHARE: f64 = 0.05;
/// A node with such a share of the samples of shared pages is a user of theirs like any other. With a smaller
/// one it is one in part. Threads that sweep over the same pages fault on few that another has just been at,
/// so that one which follows has few samples of many accesses. Another may really have few.
pub(super) const FULL_SHARE: f64 = 0.03;
/// The same of falsely shared huge pages. Each user has parts of its own there, which it uses however seldom
/// it has the first fault of a pass.
pub(super) const FULL_SHARE_OF_PARTS: f64 = 0.005;
/// A node with such a share of the most CPU time works as much. Threads that wait for each other
/// do so on a CPU, too, and each may lose some of its own to others.
const ALIKE: f64 = 2.0 / 3.0;
/// A node that is seen in fewer groups of pages that are judged together has its own few pages there.
const MIN_GROUPS: f64 = 3.0;
/// The users of some pages. Two samples of a page agree so often, and that tells whether the pages are
/// private, one by one, or shared.
pub(super) struct Users {
    pub(super) private: bool,
    /// One node has nearly all samples.
    of_one: bool,
    /// Samples by node.
    pub(super) samples: Vec<f64>,
    /// How many pages they are of.
    pages: f64,
    /// Pairs of samples of the same page, and how many of them are of one node.
    pairs: f64,
    agree: f64,
}

impl Users {
    pub(super) fn of<'a>(pages: impl Iterator<Item = &'a VecDeque<Accessor>>, nodes: usize) -> Option<Self> {
        let (mut samples, mut count, mut pairs, mut agree) = (vec![0.0; nodes], 0.0, 0.0, 0.0);
        for page in pages {
            count += 1.0;
            let counts = counts(page, nodes);
            let total: f64 = counts.iter().sum();
            pairs += total * (total - 1.0) / 2.0;
            agree += counts.iter().map(|count| count * (count - 1.0) / 2.0).sum::<f64>();
            for (sum, count) in samples.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let all: f64 = samples.iter().sum();
        let chance: f64 = samples.iter().map(|count| (count / all).powi(2)).sum();
        // Half way from what chance makes of shared pages to private ones, which always agree.
        let of_one = chance > (1.0 - MIN_SHARE).powi(2);
        let private = agree / pairs > f64::midpoint(chance, 1.0) || of_one;
        (pairs >= MIN_PAIRS).then_some(Self { private, of_one, samples, pages: count, pairs, agree })
    }

    /// Samples a page.
    fn turns(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.pages
    }

    /// Whether one node has nearly all of many samples: whoever follows it has the others.
    pub(super) fn may_be_followed(&self) -> bool {
        self.of_one && !self.are_few()
    }

    /// Whether there are too few samples to tell all of the pages' users.
    pub(super) fn are_few(&self) -> bool {
        self.turns() < MIN_TURNS
    }
}

/// Takes pages that look private for shared ones, if no more do than would by chance, were all shared.
/// One thread has many faults in a row where threads share a CPU. With few samples of each page, some groups
/// of shared pages have all of them from one node.
pub(super) fn acquit(groups: &mut [&mut Users]) {
    let few = groups.iter().filter(|users| users.are_few());
    let (private, shared): (Vec<&&mut Users>, Vec<_>) = few.partition(|users| users.private);
    let sum =
        |groups: &[&&mut Users], of: fn(&Users) -> f64| groups.iter().map(|users| of(users)).sum::<f64>();
    // A page's next sample is of the same node so often, and then all of a group's are.
    let again = sum(&shared, |users| users.agree) / sum(&shared, |users| users.pairs);
    let turns = sum(&private, Users::turns) / private.len() as f64;
    let chance = again.powf(turns - 1.0);
    let expected = shared.len() as f64 * chance / (1.0 - chance);
    // Two standard deviations.
    if (private.len() as f64) <= expected + 2.0 * expected.sqrt() {
        groups.iter_mut().filter(|users| users.are_few()).for_each(|users| users.private = false);
    }
}

/// Nodes whose threads work, and were seen at few pages, but all over the memory, and hardly have any for
/// themselves. Others are ahead of them then, and take the faults.
pub(super) fn followers(groups: &[&Users], cpu_time: &[f64], nodes: usize) -> Vec<bool> {
    let follows = |node: usize| {
        let seen: f64 = groups.iter().map(|users| users.samples[node]).sum();
        let in_groups = groups.iter().filter(|users| users.samples[node] > 0.0).count() as f64;
        let share = |users: &Users| users.samples[node] / users.samples.iter().sum::<f64>();
        cpu_time.get(node).is_some_and(|time| *time >= MIN_SHARE)
            && in_groups >= MIN_GROUPS.max(seen.min(groups.len() as f64) / 2.0)
            && groups.iter().all(|users| share(users) < MIN_SHARE)
    };
    (0..nodes).map(follows).collect()
}

/// Share of each node in the accesses to shared pages. It was seen there, and has such a share of their
/// samples or of those of all shared pages, or follows those who were. Samples say who uses them, and CPU
/// time says how much.
pub(super) fn shares(
    samples: &[f64],
    all_shared: &[f64],
    full_share: f64,
    follow: &[bool],
    cpu_time: &[f64],
) -> Vec<f64> {
    let share = |samples: &[f64], node: usize| samples[node] / samples.iter().sum::<f64>();
    let seen = |node: usize| {
        let share = share(samples, node).max(share(all_shared, node));
        match (follow.get(node), samples[node] > 0.0) {
            (Some(true), _) => 1.0,
            (_, true) => (share / full_share).min(1.0),
            (_, false) => 0.0,
        }
    };
    let seen: Vec<f64> = (0..samples.len()).map(seen).collect();
    let most = cpu_time.iter().copied().fold(0.0, f64::max);
    let work = |time: f64| if time >= ALIKE * most { most } else { time };
    let timed: Vec<f64> = seen.iter().zip(cpu_time).map(|(seen, &time)| seen * work(time)).collect();
    // Users that have no CPU time of late count alike.
    let weights = if timed.iter().sum::<f64>() > 0.0 { timed } else { seen };
    let all: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / all).collect()
}

/// Share of each node in the accesses to a private page.
pub(super) fn own(page: &VecDeque<Accessor>, nodes: usize) -> Vec<f64> {
    counts(page, nodes).into_iter().map(|count| count / page.len() as f64).collect()
}

fn counts(page: &VecDeque<Accessor>, nodes: usize) -> Vec<f64> {
    let mut counts = vec![0.0; nodes];
    for accessor in page {
        counts[usize::from(accessor.node)] += 1.0;
    }
    counts
}
