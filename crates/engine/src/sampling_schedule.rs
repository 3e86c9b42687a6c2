//! When to sample eagerly, and when to rest.
//!
//! Samples cost the program time, and where they come from hint faults each is also a chance for the kernel
//! to move the page. So an eager phase ends when there is nothing more to learn, or when it has lasted long
//! enough, and the rest that follows lasts until something has changed: new memory, a process more, or
//! accesses that were local and are no longer.

use crate::SamplingRate;
use serde::{Deserialize, Serialize};

/// How long to be eager, and how long to rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingScheduleSettings {
    /// With fewer pages collocated one by one in an interval there is nothing to learn from samples of each
    /// page (Carrefour module: 10, of any pages moved; ours moves whole regions by what is known
    /// already).
    pub from_moves: u64,
    /// With a larger share of samples in regions that are new or changed there is something to learn. The
    /// same holds for a larger share of memory in huge pages that are not judged yet.
    pub from_unsettled_share: f32,
    /// So many intervals in a row with nothing to learn end an eager phase: samples may come in bursts, once
    /// a pass over the memory.
    pub calm_rounds: u32,
    /// So many intervals end it in any case: what is not settled by then may never be.
    pub eager_rounds: u32,
    /// A rest lasts so many intervals if nothing changes, and longer where all is known and well.
    pub rest_rounds: u32,
    /// Where sampling pauses while at rest, so many intervals of few samples then show whether anything has
    /// changed.
    pub look_rounds: u32,
    /// A local access ratio that fell by so many points is a change.
    pub lost_percent: f64,
    /// Resident memory that grew by so much is a change.
    pub grown_percent: f64,
}

impl Default for SamplingScheduleSettings {
    fn default() -> Self {
        Self {
            from_moves: 10,
            from_unsettled_share: 0.1,
            calm_rounds: 4,
            eager_rounds: 15,
            rest_rounds: 60,
            look_rounds: 10,
            lost_percent: 20.0,
            grown_percent: 25.0,
        }
    }
}

/// The signs of an interval for how eagerly to sample.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a sign of its own")]
pub struct SamplingInputs {
    /// There is something to learn from more samples.
    pub curious: bool,
    /// Something is known to be wrong that samples so far could not mend, and more of them may.
    pub unfinished: bool,
    /// Much memory is huge pages that several nodes use, with too few samples to say how. A huge page gives
    /// so few that only eager sampling ever judges it.
    pub unjudged: bool,
    /// Pages are being interleaved.
    pub interleaving: bool,
    /// Most memory in use has been interleaved: there is little more to learn, and evenness to lose.
    pub interleaved: bool,
    /// So has nearly all memory in use, and most that is resident: hardly any is still to be seen.
    pub nearly_all_interleaved: bool,
    /// Every sample is a chance for the kernel to move the page.
    pub samples_move_pages: bool,
    /// A process is new, or pages are of which nothing is known yet: an eager phase begins anew.
    pub fresh: bool,
    /// Memory of all processes.
    pub resident_pages: u64,
    /// The interval's local access ratio, if it is known.
    pub local_access_percent: Option<f64>,
}

/// Eager, or resting since.
#[derive(Clone, Debug)]
pub struct SamplingSchedule {
    settings: SamplingScheduleSettings,
    calm_rounds: u32,
    eager_rounds: u32,
    blind_rounds: u32,
    /// Whether a change ended a rest, and there may be memory that nobody has seen.
    woken: bool,
    rest: Option<Rest>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    rounds: u32,
    /// Since the ratio was last known.
    blind_rounds: u32,
    /// Since pages were last interleaved, those with samples.
    settling_rounds: u32,
    /// Huge pages were not judged by then, for all the samples that there were.
    unjudged: bool,
    resident_pages: u64,
    local_access_percent: Option<f64>,
}

impl SamplingSchedule {
    pub fn new(settings: &SamplingScheduleSettings) -> Self {
        Self {
            settings: settings.clone(),
            calm_rounds: 0,
            eager_rounds: 0,
            blind_rounds: 0,
            woken: false,
            rest: None,
        }
    }

    /// The rate after an interval.
    pub fn next(&mut self, inputs: &SamplingInputs) -> SamplingRate {
        if let Some(rest) = &mut self.rest {
            let changed = rest.is_changed(inputs, &self.settings);
            let SamplingScheduleSettings { rest_rounds, look_rounds, .. } = self.settings;
            let wants_to_look = inputs.curious || inputs.unfinished || rest.blind_rounds >= rest_rounds;
            let left_alone = inputs.samples_move_pages && inputs.interleaved && !inputs.unfinished;
            let over = rest.rounds >= rest_rounds + if left_alone { look_rounds } else { 0 };
            let rested = over && wants_to_look && !inputs.interleaving;
            let unjudged = inputs.unjudged && (over || !rest.unjudged);
            if !changed && !rested && !unjudged {
                let paused = inputs.samples_move_pages && inputs.interleaving
                    || left_alone && rest.rounds < rest_rounds;
                if left_alone && over {
                    rest.rounds = 0;
                }
                return if paused { SamplingRate::Paused } else { SamplingRate::Cheap };
            }
            *self = Self { woken: true, ..Self::new(&self.settings) };
        }
        if inputs.fresh {
            self.eager_rounds = 0;
        }
        // An interval without samples tells nothing: those that the kernel was asked for are still to come,
        // or the program sleeps. But not for ever, where they never tell where memory lies.
        self.blind_rounds = if inputs.local_access_percent.is_some() { 0 } else { self.blind_rounds + 1 };
        if (1..self.settings.rest_rounds).contains(&self.blind_rounds) {
            return SamplingRate::Accurate;
        }
        self.calm_rounds = if inputs.curious { 0 } else { self.calm_rounds + 1 };
        self.eager_rounds += 1;
        // Further samples would only have the kernel undo it.
        let SamplingScheduleSettings { calm_rounds, eager_rounds, rest_rounds, .. } = self.settings;
        let undoes = inputs.samples_move_pages
            && (!self.woken || self.eager_rounds > calm_rounds)
            && inputs.interleaving
            && inputs.nearly_all_interleaved
            && !(inputs.curious || inputs.fresh);
        let done = undoes || self.calm_rounds >= calm_rounds || self.eager_rounds >= eager_rounds;
        if !done || (inputs.unjudged && self.eager_rounds < rest_rounds) {
            return SamplingRate::Accurate;
        }
        self.rest = Some(Rest {
            rounds: 0,
            blind_rounds: 0,
            settling_rounds: 0,
            unjudged: inputs.unjudged,
            resident_pages: inputs.resident_pages,
            local_access_percent: inputs.local_access_percent,
        });
        if undoes { SamplingRate::Paused } else { SamplingRate::Cheap }
    }
}

impl Rest {
    /// Pages that were just interleaved are expected to be remote. So long a ratio may fall that was low
    /// already. Any may where nearly all memory was interleaved: most of its users may be on one node.
    const SETTLING_ROUNDS: u32 = 10;
    const LOW_PERCENT: f64 = 80.0;

    fn is_changed(&mut self, inputs: &SamplingInputs, settings: &SamplingScheduleSettings) -> bool {
        self.rounds += 1;
        let now = inputs.local_access_percent;
        self.blind_rounds = if now.is_some() { 0 } else { self.blind_rounds + 1 };
        self.settling_rounds =
            if inputs.interleaving { 0 } else { self.settling_rounds + u32::from(now.is_some()) };
        let grown = inputs.resident_pages as f64
            > self.resident_pages as f64 * (1.0 + settings.grown_percent / 100.0);
        // Whoever did nothing so far may begin with anything.
        let before = self.local_access_percent.unwrap_or(100.0);
        let may_fall = before < Self::LOW_PERCENT || inputs.nearly_all_interleaved;
        if self.settling_rounds <= Self::SETTLING_ROUNDS && may_fall {
            self.local_access_percent = Some(now.map_or(before, |now| now.min(before)));
            return inputs.fresh || grown;
        }
        let lost = now.is_some_and(|now| now < Self::LOW_PERCENT && now < before - settings.lost_percent);
        inputs.fresh || lost || grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: SamplingInputs = SamplingInputs {
        curious: false,
        unfinished: false,
        unjudged: false,
        interleaving: false,
        interleaved: false,
        nearly_all_interleaved: false,
        samples_move_pages: false,
        fresh: false,
        resident_pages: 1000,
        local_access_percent: Some(95.0),
    };
    const CURIOUS: SamplingInputs = SamplingInputs { curious: true, ..CALM };

    fn rates(inputs: &[SamplingInputs]) -> String {
        let mut eagerness = SamplingSchedule::new(&SamplingScheduleSettings::default());
        let letter = |rate| match rate {
            SamplingRate::Accurate => 'a',
            SamplingRate::Cheap => 'c',
            SamplingRate::Paused => 'p',
        };
        inputs.iter().map(|inputs| letter(eagerness.next(inputs))).collect()
    }

    #[test]
    fn some_calm_intervals_end_an_eager_phase() {
        assert_eq!(rates(&[CURIOUS, CALM, CALM, CURIOUS, CALM, CALM, CALM, CALM, CALM]), "aaaaaaacc");
    }

    #[test]
    fn an_eager_phase_waits_for_samples() {
        let blind = SamplingInputs { local_access_percent: None, ..CALM };
        assert_eq!(
            rates(&[&[CALM; 2][..], &[blind; 20], &[CALM; 3]].concat()),
            format!("{}cc", "a".repeat(23))
        );
        assert_eq!(rates(&[blind; 70]).find('c'), Some(62), "samples that never tell a home");
    }

    #[test]
    fn what_never_settles_is_left_to_rest_for_a_pass() {
        let expected = format!("{0}{1}{0}c", "a".repeat(14), "c".repeat(60));
        assert_eq!(rates(&[CURIOUS; 14 + 60 + 15]), expected);
    }

    #[test]
    fn what_disturbs_is_paused_while_pages_are_spread_at_rest() {
        let spread = SamplingInputs { interleaving: true, ..CALM };
        assert_eq!(rates(&[CALM, CALM, CALM, CALM, spread, CALM]), "aaaccc");
        let spread = SamplingInputs { samples_move_pages: true, ..spread };
        assert_eq!(rates(&[spread, spread, spread, spread, spread, spread, CALM]), "aaacppc");
        // The most of it: there is nothing more to learn.
        let seen = SamplingInputs { interleaved: true, ..spread };
        let most = SamplingInputs { nearly_all_interleaved: true, ..seen };
        assert_eq!(rates(&[CALM, most, most, spread, CALM]), "apppc");
        assert_eq!(rates(&[CALM, seen, seen, most]), "aaap", "there may be more to see");
        let curious = SamplingInputs { curious: true, ..most };
        assert_eq!(rates(&[curious, curious, most]), "aap");
        let unjudged = SamplingInputs { unjudged: true, ..most };
        assert_eq!(rates(&[unjudged, unjudged, most]), "aap");
    }

    #[test]
    fn memory_that_comes_while_pages_are_spread_is_seen() {
        let spread = SamplingInputs {
            interleaving: true,
            interleaved: true,
            nearly_all_interleaved: true,
            samples_move_pages: true,
            local_access_percent: Some(25.0),
            ..CALM
        };
        let grown = SamplingInputs { resident_pages: 10_000, ..spread };
        assert_eq!(rates(&[spread, spread, grown, grown, grown, grown, grown]), "ppaaacp");
        let seen_no_more = SamplingInputs { interleaving: false, local_access_percent: None, ..grown };
        assert_eq!(rates(&[spread, spread, seen_no_more, seen_no_more]), "ppaa");
    }

    #[test]
    fn huge_pages_that_nobody_can_judge_let_sampling_rest() {
        let unjudged = SamplingInputs { unjudged: true, ..CALM };
        let expected = format!("{0}{1}{0}c", "a".repeat(59), "c".repeat(60));
        assert_eq!(rates(&[unjudged; 59 + 60 + 60]), expected);
    }

    #[test]
    fn spread_memory_is_looked_at_now_and_then() {
        let spread = SamplingInputs { samples_move_pages: true, interleaved: true, ..CALM };
        let paused = SamplingInputs { local_access_percent: None, ..spread };
        let inputs = |last| [&[spread; 4][..], &[paused; 60], &[spread; 9], &[last; 3]].concat();
        let looks = format!("aaac{}{}", "p".repeat(59), "c".repeat(10));
        assert_eq!(rates(&inputs(spread)), looks.clone() + "cpp");
        let uneven = SamplingInputs { unfinished: true, ..spread };
        assert_eq!(rates(&inputs(uneven)), looks + "aaa");
        assert_eq!(rates(&[uneven; 6]), "aaaccc");
    }

    #[test]
    fn what_is_wrong_is_looked_at_again_after_a_rest() {
        let expected = format!("{}{}a", "a".repeat(3), "c".repeat(60));
        assert_eq!(rates(&[SamplingInputs { unfinished: true, ..CALM }; 64]), expected);
    }

    #[test]
    fn a_rest_lasts_while_samples_tell_now_and_then_that_all_is_well() {
        let blind = SamplingInputs { local_access_percent: None, ..CALM };
        let rested = |inputs: &[SamplingInputs]| rates(&[&[CALM; 4][..], inputs].concat()).rfind('c');
        // Cheap samples come in portions, with nothing between them.
        let portions = [&[blind; 20][..], &[CALM]].concat().repeat(30);
        assert_eq!(rested(&portions), Some(3 + portions.len()));
        assert_eq!(rested(&[&portions[..], &[blind; 100]].concat()), Some(3 + portions.len() + 59));
        assert_eq!(rested(&[blind; 100]), Some(3 + 59));
    }

    #[test]
    fn a_change_ends_a_rest() {
        let resting = [CALM; 4];
        let with = |last: SamplingInputs| rates(&[&resting[..], &[CURIOUS, last]].concat());
        assert_eq!(with(CALM), "aaaccc");
        assert_eq!(with(SamplingInputs { local_access_percent: Some(60.0), ..CALM }), "aaacca");
        assert_eq!(with(SamplingInputs { resident_pages: 1300, ..CALM }), "aaacca");
        assert_eq!(with(SamplingInputs { fresh: true, ..CALM }), "aaacca");
        assert_eq!(with(SamplingInputs { unjudged: true, ..CALM }), "aaacca");
    }

    #[test]
    fn a_ratio_that_falls_while_pages_are_spread_is_no_change() {
        let spread = SamplingInputs { local_access_percent: Some(60.0), ..CALM };
        let after = SamplingInputs { local_access_percent: Some(25.0), ..CALM };
        assert_eq!(rates(&[&[spread; 4][..], &[after; 12]].concat()), "aaaccccccccccccc");
        let half_way = SamplingInputs { interleaving: true, local_access_percent: Some(50.0), ..CALM };
        let slowly = [&[spread; 4][..], &[half_way; 70], &[after; 12]].concat();
        assert_eq!(rates(&slowly), format!("aaa{}", "c".repeat(83)));
        // Three threads of four were near, and nearly all of their memory is interleaved.
        let near = SamplingInputs { samples_move_pages: true, local_access_percent: Some(90.0), ..CALM };
        let spread =
            SamplingInputs { interleaving: true, interleaved: true, nearly_all_interleaved: true, ..near };
        let after = SamplingInputs { local_access_percent: Some(55.0), ..spread };
        assert_eq!(rates(&[near, spread, after, after]), "appp");
        let a_part = SamplingInputs { nearly_all_interleaved: false, ..after };
        assert_eq!(rates(&[near, spread, a_part]), "apa");
    }
}
