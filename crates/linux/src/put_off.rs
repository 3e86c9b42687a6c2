//! How far decisions were carried out that had to be put off. Looking where pages are takes time, some 200 ns
//! for each. If it began anew each time, 15 GiB would take all the time that there is for moving.

use nodewise_engine::{Action, Decision, PageNumber, PageRange, Pid};

/// The decisions that were put off lately.
#[derive(Debug, Default)]
pub(crate) struct PutOff(Vec<Begun>);

/// One that was begun. Up to `next`, its pages have had their turn.
#[derive(Debug)]
struct Begun {
    pid: Pid,
    start: PageNumber,
    next: PageNumber,
    action: Action,
    /// Intervals since.
    age: u32,
}

impl Begun {
    fn is_of(&self, decision: &Decision) -> bool {
        let is_there = (self.start..self.next).contains(&decision.range.start);
        self.pid == decision.pid && is_there && self.action == decision.action
    }
}

/// A decision that is not repeated in so many intervals begins anew.
const FORGOTTEN: u32 = 4;
/// Decisions that are remembered. There is one for each range, and most ranges are done in an interval.
const MOST: usize = 1 << 12;

impl PutOff {
    /// Another interval begins.
    pub(crate) fn next_interval(&mut self) {
        self.0.iter_mut().for_each(|begun| begun.age += 1);
        self.0.retain(|begun| begun.age < FORGOTTEN);
    }

    /// The range of each decision that is still to be looked at. Decisions about one range are looked at
    /// together, from where the first of them is to go on.
    pub(crate) fn left(&self, decisions: &[Decision]) -> Vec<PageRange> {
        let together = decisions.chunk_by(|a, b| (a.pid, a.range) == (b.pid, b.range));
        let left = together.flat_map(|decisions| {
            let next = decisions.iter().map(|decision| self.next(decision)).min();
            let range = decisions[0].range;
            let left = PageRange { start: next.unwrap_or(range.start), end: range.end };
            std::iter::repeat_n(left, decisions.len())
        });
        left.collect()
    }

    /// Where a decision goes on. Its range may begin or end elsewhere than before.
    fn next(&self, decision: &Decision) -> PageNumber {
        let begun = self.0.iter().find(|begun| begun.is_of(decision));
        begun.map_or(decision.range.start, |begun| begun.next.min(decision.range.end))
    }

    /// Notes that a decision was carried out up to this page, or all of it.
    pub(crate) fn note(&mut self, decision: &Decision, next: Option<PageNumber>) {
        let (pid, range) = (decision.pid, decision.range);
        let before = self.0.iter().filter(|begun| begun.is_of(decision)).map(|begun| begun.start).min();
        let start = before.map_or(range.start, |before| before.min(range.start));
        self.0.retain(|begun| !begun.is_of(decision));
        let next = next.filter(|next| *next > range.start && self.0.len() < MOST);
        if let (Some(next), Action::Collocate { .. } | Action::Interleave(_)) = (next, &decision.action) {
            self.0.push(Begun { pid, start, next, action: decision.action.clone(), age: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_engine::{Interleaving, Reason};
    use nodewise_topology::NodeIndex;

    fn decision(start: u64, end: u64, action: Action) -> Decision {
        Decision { pid: Pid(7), range: PageRange::new(start, end), action, reason: Reason::default() }
    }

    fn collocate(start: u64, end: u64, to: u8) -> Decision {
        decision(start, end, Action::Collocate { to: NodeIndex(to) })
    }

    fn starts(put_off: &PutOff, decisions: &[Decision]) -> Vec<u64> {
        put_off.left(decisions).iter().map(|range| range.start.0).collect()
    }

    #[test]
    fn a_decision_goes_on_where_it_broke_off() {
        let mut put_off = PutOff::default();
        put_off.note(&collocate(100, 900, 1), Some(PageNumber(300)));
        // Its range may change, and another decision begins at its beginning.
        let others = [collocate(100, 900, 2), collocate(300, 900, 1), collocate(99, 900, 1)];
        assert_eq!(starts(&put_off, &others), [100, 300, 99]);
        let again = [collocate(100, 900, 1), collocate(200, 950, 1), collocate(150, 250, 1)];
        assert_eq!(starts(&put_off, &again), [300, 300, 250]);
        put_off.note(&collocate(100, 900, 1), Some(PageNumber(700)));
        assert_eq!(starts(&put_off, &again[..1]), [700]);
        put_off.note(&collocate(100, 900, 1), None);
        assert_eq!(starts(&put_off, &again[..1]), [100], "it is done, and what comes is new");
        put_off.note(&collocate(100, 900, 1), Some(PageNumber(100)));
        assert!(put_off.0.is_empty(), "nothing was looked at");
    }

    #[test]
    fn decisions_about_one_range_go_on_together() {
        let from = |node| {
            let interleaving =
                Interleaving { from: NodeIndex(node), band: (0, 9), weights: vec![1; 4], seed: 1 };
            decision(100, 900, Action::Interleave(interleaving))
        };
        let mut put_off = PutOff::default();
        put_off.note(&from(0), Some(PageNumber(500)));
        put_off.note(&from(1), Some(PageNumber(400)));
        assert_eq!(starts(&put_off, &[from(0), from(1), collocate(0, 50, 1)]), [400, 400, 0]);
        assert_eq!(starts(&put_off, &[from(0), from(2)]), [100, 100], "the other has seen none of it");
        for _ in 0..FORGOTTEN {
            put_off.next_interval();
        }
        assert_eq!(starts(&put_off, &[from(0)]), [100], "pages may have gone elsewhere since");
    }
}
