//! The decisions that a program's hints, or the user, ask for without any evidence.

use super::interleave::reason;
use super::{ProcessView, View};
use crate::decision::BAND_END;
use crate::hint::Hint;
use crate::region::Evidence;
use crate::{Action, Decision, Interleaving, PageRange, Pid};

/// Pages of a process that are interleaved at a program's word in one interval: 1 GiB. Most of a range may be
/// memory that was never touched, and looking for the pages takes the machine's time.
const AT_ONCE_PAGES: u64 = 1 << 18;

/// Decisions of each kind in an interval at programs' word, of all processes together. Each program may say
/// something else each time.
const AT_ONCE: usize = 1024;

/// The same of each process, one range at least.
fn at_once(view: &View<'_>) -> usize {
    AT_ONCE / view.processes.len().max(1)
}

/// Interleaves what the program says is written by many, and what the user wants interleaved. The next part
/// of it follows in each interval, evenly over `targets`.
pub fn interleave_at_once(
    view: &View<'_>,
    process: ProcessView<'_>,
    targets: &[bool],
    out: &mut Vec<Decision>,
) {
    // First what was put off before.
    if out.iter().any(|decision| decision.pid == process.pid) || !targets.contains(&true) {
        return;
    }
    let weights: Vec<u32> = targets.iter().map(|&target| u32::from(target)).collect();
    let mut left = AT_ONCE_PAGES;
    let most = out.len() + at_once(view);
    let hinted = process.hints.ranges(Hint::WriteShared);
    let hinted = hinted.map(|range| (range, "the program says that many write it"));
    let asked =
        process.to_interleave.iter().map(|&range| (range, "it is to be interleaved, whoever uses it"));
    let parts = hinted.chain(asked).flat_map(|(range, rule)| {
        process.history.interleave_progress(range).into_iter().map(move |part| (part, rule))
    });
    for ((range, _), rule) in parts.filter(|((_, progress), _)| progress.is_none()) {
        let range = PageRange::new(range.start.0, range.end.0.min(range.start.0 + left));
        for from in view.topology.node_indices() {
            let interleaving =
                Interleaving { from, band: (0, BAND_END), weights: weights.clone(), seed: view.seed };
            out.push(decision(view, process.pid, range, Action::Interleave(interleaving), rule));
        }
        left -= range.pages();
        if left == 0 || out.len() >= most {
            break;
        }
    }
}

/// Reports what the program says is only read.
pub fn replicate_at_once(view: &View<'_>, process: ProcessView<'_>, out: &mut Vec<Decision>) {
    let ranges = process.hints.ranges(Hint::ReadShared);
    let parts = ranges.flat_map(|range| process.history.replicatable(range));
    for part in parts.take(at_once(view).max(1)) {
        let rule = "the program says that many read it and hardly anybody writes";
        out.push(decision(view, process.pid, part, Action::Replicate, rule));
    }
}

fn decision(view: &View<'_>, pid: Pid, range: PageRange, action: Action, rule: &str) -> Decision {
    let evidence = Evidence::new(view.topology.node_count());
    Decision { pid, range, action, reason: reason(rule.into(), view, &evidence) }
}
