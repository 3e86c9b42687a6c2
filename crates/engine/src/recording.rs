//! A recording of all that an engine was given, decided and was told, so that it can be played again: here,
//! elsewhere, later.
//!
//! A [`Recorder`] lies around a machine. A [`Replay`] is a machine that lives the recorded intervals again
//! and does not do anything: it answers as the first machine did, as long as the engine decides as it did
//! then.

use crate::{Action, Decision, Engine, Machine, Observation, Outcome, SamplingRate};
use nodewise_topology::Topology;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One interval; a line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The machine's observation.
    pub seen: Observation,
    /// The decisions of the engine; empty if there were none.
    pub decisions: Vec<Decision>,
    /// The outcome of each decision.
    pub outcomes: Vec<Outcome>,
    /// The sampling rate that the machine was told, if any.
    pub sampling: Option<SamplingRate>,
}

/// A machine that remembers all it says and is told.
pub struct Recorder<M> {
    machine: M,
    intervals: Vec<Interval>,
}

impl<M: Machine> Recorder<M> {
    /// Records a machine from now on.
    pub const fn new(machine: M) -> Self {
        Self { machine, intervals: Vec::new() }
    }

    /// The machine.
    pub const fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The recorded intervals.
    #[must_use]
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }
}

impl<M: Machine> Machine for Recorder<M> {
    type Error = M::Error;

    fn topology(&self) -> &Topology {
        self.machine.topology()
    }

    fn observe(&mut self) -> Result<Observation, M::Error> {
        let seen = self.machine.observe()?;
        let interval =
            Interval { seen: seen.clone(), decisions: Vec::new(), outcomes: Vec::new(), sampling: None };
        self.intervals.push(interval);
        Ok(seen)
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, M::Error> {
        let outcomes = self.machine.apply(decisions)?;
        if let Some(interval) = self.intervals.last_mut() {
            interval.decisions.extend_from_slice(decisions);
            interval.outcomes.extend_from_slice(&outcomes);
        }
        Ok(outcomes)
    }

    fn replicates(&self) -> bool {
        self.machine.replicates()
    }

    fn splits(&self) -> bool {
        self.machine.splits()
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), M::Error> {
        self.machine.set_sampling(rate)?;
        if let Some(interval) = self.intervals.last_mut() {
            interval.sampling = Some(rate);
        }
        Ok(())
    }
}

/// Lets an engine live through recorded intervals. Returns them as they came out: the same, to the last bit,
/// if the engine decides as the recorded one did.
pub fn play(
    engine: &mut Engine,
    topology: Topology,
    intervals: Vec<Interval>,
) -> Result<Vec<Interval>, Departure> {
    let rounds = intervals.len();
    let mut machine = Recorder::new(Replay::new(topology, intervals));
    for _ in 0..rounds {
        engine.step(&mut machine)?;
    }
    Ok(machine.intervals)
}

/// Recorded intervals as a machine.
pub struct Replay {
    topology: Topology,
    intervals: Vec<Interval>,
    /// Intervals begun.
    begun: usize,
    replicates: bool,
    splits: bool,
}

/// How an engine departs from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The interval, from 0.
    pub interval: usize,
    /// The engine's action in place of the recorded one.
    pub what: String,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interval {} of the recording: {}", self.interval, self.what)
    }
}

impl std::error::Error for Departure {}

impl Replay {
    /// A machine of this topology that lives through these intervals. It makes copies unless one of its
    /// outcomes says that the machine did not.
    #[must_use]
    pub fn new(topology: Topology, intervals: Vec<Interval>) -> Self {
        let acted =
            || intervals.iter().flat_map(|interval| interval.decisions.iter().zip(&interval.outcomes));
        let replicates =
            !acted().any(|(decision, outcome)| decision.action == Action::Replicate && outcome.only_reported);
        let splits = acted().any(|(decision, _)| decision.action.resizes());
        Self { topology, intervals, begun: 0, replicates, splits }
    }

    fn now(&self) -> Result<&Interval, Departure> {
        self.begun
            .checked_sub(1)
            .and_then(|now| self.intervals.get(now))
            .ok_or_else(|| self.departs("it has not begun".to_owned()))
    }

    fn departs(&self, what: String) -> Departure {
        Departure { interval: self.begun.saturating_sub(1), what }
    }
}

impl Machine for Replay {
    type Error = Departure;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Observation, Departure> {
        let Some(interval) = self.intervals.get(self.begun) else {
            return Err(self.departs("there is none after it".to_owned()));
        };
        self.begun += 1;
        Ok(interval.seen.clone())
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Departure> {
        let interval = self.now()?;
        if decisions == interval.decisions {
            return Ok(interval.outcomes.clone());
        }
        let differs = decisions.iter().zip(&interval.decisions).position(|(now, then)| now != then);
        let what = match differs {
            Some(at) => format!("decision {at} is {:?}, was {:?}", decisions[at], interval.decisions[at]),
            None => format!("{} decisions, were {}", decisions.len(), interval.decisions.len()),
        };
        Err(self.departs(what))
    }

    fn replicates(&self) -> bool {
        self.replicates
    }

    fn splits(&self) -> bool {
        self.splits
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Departure> {
        let then = self.now()?.sampling;
        if then == Some(rate) {
            return Ok(());
        }
        Err(self.departs(format!("sampling is to be {rate:?}, was {then:?}")))
    }
}
