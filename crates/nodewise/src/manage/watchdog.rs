//! Answers for a manager that hangs, as one does whose call waits for a lock that a managed program does not
//! give back.

use crate::output::note;
use nodewise_linux::settings::SharedSettings;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Puts the kernel's settings back when managing hangs, and ends the process when it is to end and does not.
/// Clones watch together.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// The last sign of life; none before managing begins and after it has ended.
    beat: Option<Instant>,
    /// Since when the process is to end, and with which exit code.
    end: Option<(Instant, u8)>,
    /// Whether settings have been put back.
    barked: bool,
}

/// So long may managing give no sign of life.
const HUNG: Duration = Duration::from_secs(10);
/// So long where the process is to end.
const HUNG_AT_END: Duration = Duration::from_secs(1);
/// And so long until it ends all the same: closing the events of a thousand CPUs takes a while.
const END: Duration = Duration::from_secs(60);

impl Watchdog {
    /// Begins to watch.
    pub fn watch(&self, settings: SharedSettings) {
        self.beat();
        let watchdog = self.clone();
        std::thread::spawn(move || watchdog.run(&settings));
    }

    /// A sign of life. False if settings were put back because there was none for too long, and managing
    /// cannot go on.
    pub fn beat(&self) -> bool {
        let mut state = self.state();
        state.beat = Some(Instant::now());
        !state.barked || state.end.is_some()
    }

    /// Managing has ended.
    pub fn done(&self) {
        self.state().beat = None;
        self.0.1.notify_all();
    }

    /// The process is to end, with this exit code if it does not by itself.
    pub fn end_wanted(&self, code: u8) {
        self.state().end.get_or_insert((Instant::now(), code));
        self.0.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, settings: &SharedSettings) {
        let mut state = self.state();
        while let Some(beat) = state.beat {
            let bark = match state.end {
                Some(_) => beat + HUNG_AT_END,
                None => beat + HUNG,
            };
            // From the time at which it was to end, not from a beat long before.
            let bark = state.end.map_or(bark, |(since, _)| bark.max(since + HUNG_AT_END));
            let end = state.end.map(|(since, code)| (bark.max(since + END), code));
            let now = Instant::now();
            if !state.barked && bark <= now {
                state.barked = true;
                let ends = state.end.is_some();
                drop(state);
                let restored = settings.try_restore();
                if !ends {
                    note("managing has hung, in a call that does not return; kernel settings are put back");
                }
                if let Err(error) = restored {
                    note(format_args!("{:#}", anyhow::Error::from(error)));
                }
                state = self.state();
                continue;
            }
            if let Some((_, code)) = end.filter(|(at, _)| *at <= now) {
                note("managing still hangs; nodewise ends, without a summary");
                std::process::exit(code.into());
            }
            let next = if state.barked { end.map(|(at, _)| at) } else { Some(bark) };
            let time =
                next.map_or(HUNG, |at| at.saturating_duration_since(now)).max(Duration::from_millis(10));
            state = self.0.1.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_linux::settings::{Place, Settings};

    #[test]
    fn settings_are_put_back_when_managing_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let setting = directory.path().join("setting");
        std::fs::write(&setting, "1").unwrap();
        let settings =
            Settings::open(Place::new(directory.path().join("journal"), directory.path(), [setting.clone()]));
        let settings = SharedSettings::from(settings);
        settings.set(&setting, "2").unwrap();
        let watchdog = Watchdog::default();
        watchdog.watch(settings.clone());
        assert!(watchdog.beat(), "it lives");
        assert_eq!(std::fs::read_to_string(&setting).unwrap(), "2");
        watchdog.end_wanted(1);
        while std::fs::read_to_string(&setting).unwrap() == "2" {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(std::fs::read_to_string(&setting).unwrap(), "1");
        watchdog.done();
    }
}
