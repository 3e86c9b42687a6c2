//! How far to interleave pages, and where to: the article's rule with predicted loads.
//!
//! The article moves a page with a probability equal to its home's share of the load, to a node chosen with
//! weight (1 − share), by loads measured a second ago, for the pages it happened to sample. We decide for all
//! pages of many regions at once; with the loads of a second ago that would overshoot. So the rule is applied
//! to one small part of the pages after another, each seeing the loads the parts before it leave behind. Only
//! the outcome counts: a node either gives or receives, never both, so that no page goes over a third node
//! and none is exchanged for another.

/// Where the pages of one home should go.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    /// Share of the home's movable load that leaves.
    pub fraction: f64,
    /// Relative weight of each target node.
    pub weights: Vec<f64>,
}

/// Whether a page that takes so much load along evens out a difference: not one that is hardly larger.
pub fn evens_out(difference: f64, load: f64) -> bool {
    difference > 1.5 * load
}

impl Leaving {
    /// The same of pages that each take so much load along, without the targets for which that evens out
    /// nothing. None if nothing then leaves this home.
    pub fn in_pages_of(mut self, load: f64, loads: &[f64], home: usize) -> Option<Self> {
        for (weight, &to) in self.weights.iter_mut().zip(loads) {
            if !evens_out(loads[home] - to, load) {
                *weight = 0.0;
            }
        }
        self.weights.iter().any(|&weight| weight > 0.0).then_some(self)
    }
}

/// Predicts for each home what should leave it. `loads`: accesses served by node; `movable`: the part of them
/// that goes to pages we may interleave; `targets`: nodes that may receive pages.
pub fn plan(loads: &[f64], movable: &[f64], targets: &[bool]) -> Vec<Leaving> {
    const STEPS: u32 = 128;
    let nodes = loads.len();
    let mut now = loads.to_vec();
    let total: f64 = now.iter().sum();
    if total > 0.0 {
        for _ in 0..STEPS {
            let share: Vec<f64> = now.iter().map(|load| (load / total).clamp(0.0, 1.0)).collect();
            let weights: Vec<f64> = share
                .iter()
                .zip(targets)
                .map(|(share, &target)| if target { 1.0 - share } else { 0.0 })
                .collect();
            let all: f64 = weights.iter().sum();
            if all <= 0.0 {
                break;
            }
            for home in 0..nodes {
                // A node that is no target should hold nothing of this; its share says how soon that matters.
                let leaves = movable[home] / f64::from(STEPS) * share[home];
                // Never to a node that carries more: such moves would only be undone by others.
                for to in 0..nodes {
                    if now[to] >= now[home] {
                        continue;
                    }
                    let part = leaves * weights[to] / all;
                    now[home] -= part;
                    now[to] += part;
                }
            }
        }
    }
    let weights: Vec<f64> = now.iter().zip(loads).map(|(now, before)| (now - before).max(0.0)).collect();
    let leaving = |home: usize| {
        let leaves = (loads[home] - now[home]).max(0.0);
        let fraction = if movable[home] > 0.0 { (leaves / movable[home]).min(1.0) } else { 0.0 };
        Leaving { fraction, weights: weights.clone() }
    };
    (0..nodes).map(leaving).collect()
}

#[cfg(test)]
mod tests {
    use super::plan;

    #[test]
    fn repeated_plans_even_out_and_never_overshoot() {
        for nodes in 2..=16 {
            let mut loads = vec![0.0; nodes];
            loads[0] = 1000.0;
            for _ in 0..30 {
                let moves = plan(&loads, &loads, &vec![true; nodes]);
                let before = loads.clone();
                for (home, leaving) in moves.iter().enumerate() {
                    let sum: f64 = leaving.weights.iter().sum();
                    for (to, weight) in leaving.weights.iter().enumerate().filter(|_| sum > 0.0) {
                        let part = before[home] * leaving.fraction * weight / sum;
                        loads[home] -= part;
                        loads[to] += part;
                    }
                }
                // Steps are small, not infinitely so.
                assert!(loads[0] >= 1000.0 / nodes as f64 - 2.0, "{nodes} nodes: {loads:?}");
            }
            let even = 1000.0 / nodes as f64;
            assert!(loads.iter().all(|load| (load - even).abs() < 0.02 * 1000.0), "{nodes} nodes: {loads:?}");
        }
    }

    #[test]
    fn even_loads_stay_and_full_nodes_receive_nothing() {
        assert!(plan(&[5.0; 4], &[5.0; 4], &[true; 4]).iter().all(|leaving| leaving.fraction < 1e-9));
        let moves = plan(&[9.0, 0.0, 0.0], &[9.0, 0.0, 0.0], &[true, false, true]);
        assert!(moves[0].fraction > 0.3 && moves[0].weights[1] == 0.0, "{moves:?}");
    }

    #[test]
    fn a_page_too_many_stays() {
        let leaving = |loads: &[f64], home: usize| {
            plan(loads, loads, &vec![true; loads.len()])[home].clone().in_pages_of(1.0, loads, home)
        };
        for home in 0..4 {
            assert_eq!(leaving(&[2.0, 1.0, 1.0, 1.0], home), None);
        }
        let to = leaving(&[3.0, 2.0, 2.0, 1.0], 0).unwrap().weights;
        assert!(to[..3] == [0.0; 3] && to[3] > 0.0, "{to:?}");
        assert_eq!(leaving(&[3.0, 2.0, 2.0, 1.0], 1), None);
    }
}
