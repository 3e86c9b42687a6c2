//! Answers for a manager that hangs, as one does whose call waits for a lock that a managed program does not
//! give back.

use crate::commands::exit;
use crate::output::note;
use crate::signals;
use anyhow::Context as _;
use nodewise_linux::Ending;
use nodewise_linux::settings::SharedSettings;
use signal_hook::iterator::Signals;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Puts the kernel's settings back when managing hangs, and ends the process when it is to end and does not.
/// Clones watch together.
#[derive(Clone, Default)]
pub struct Watchdog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    patience: Patience,
    ending: Ending,
}

#[derive(Default)]
struct State {
    /// The last sign of life; none before managing begins and after it has ended.
    beat: Option<Instant>,
    /// Since when the process is to end, and with which exit code.
    end: Option<(Instant, u8)>,
    /// Whether managing was found to hang, and cannot go on.
    barked: bool,
    /// Whether settings have been put back since.
    restored: bool,
}

struct Patience {
    /// So long may managing give no sign of life while it is blocked, and so much may it compute meanwhile.
    hung: Duration,
    /// So long where the process is to end.
    hung_at_end: Duration,
    /// And so long until it ends all the same: closing the events of a thousand CPUs takes a while.
    end: Duration,
    /// How soon settings that somebody is just changing are tried again.
    again: Duration,
    /// By so much does only a process oversleep that was stopped meanwhile, or a machine too busy to judge
    /// by.
    stopped: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            hung: Duration::from_secs(10),
            hung_at_end: Duration::from_millis(500),
            end: Duration::from_secs(60),
            again: Duration::from_millis(100),
            stopped: Duration::from_secs(1),
        }
    }
}

impl Watchdog {
    /// Watches the calling thread for as long as what this returns is there.
    pub fn watch(&self, settings: SharedSettings) -> Watched {
        self.beat();
        let watchdog = self.clone();
        let managing = Managing::of_this_thread();
        let thread = std::thread::spawn(move || watchdog.run(&settings, &managing));
        Watched { watchdog: self.clone(), thread: Some(thread) }
    }

    /// A sign of life. False if settings were to be put back because there was none for too long, and
    /// managing cannot go on.
    pub fn beat(&self) -> bool {
        let mut state = self.state();
        state.beat = Some(Instant::now());
        !state.barked || state.end.is_some()
    }

    /// Managing has ended.
    fn done(&self) {
        self.state().beat = None;
        self.0.changed.notify_all();
    }

    /// The process is to end, with this exit code if it does not by itself.
    pub fn end_wanted(&self, code: u8) {
        self.0.ending.set();
        self.state().end.get_or_insert((Instant::now(), code));
        self.0.changed.notify_all();
    }

    /// Has the process end when a signal asks for that. The receiver hears of it, too.
    pub fn end_on_signals(&self) -> anyhow::Result<Receiver<()>> {
        let (ended, end) = channel();
        let mut signals = Signals::new(signals::ending()).context("cannot watch signals")?;
        let watchdog = self.clone();
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                watchdog.end_wanted(exit::FAILURE);
                // The receiver is gone only when main is about to return.
                let _ = ended.send(());
            }
        });
        Ok(end)
    }

    /// Whether the process is to end.
    pub fn ending(&self) -> Ending {
        self.0.ending.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, settings: &SharedSettings, managing: &Managing) {
        let patience = &self.0.patience;
        let mut asked = 0;
        // By a signal, a frozen cgroup or a debugger: then managing could give no sign of life, either.
        let mut was_stopped = false;
        // The last beat, with the thread's CPU time then and at the last look.
        let (mut beaten, mut cpu_at_beat, mut cpu_at_look) = (None, Duration::ZERO, Duration::ZERO);
        let mut state = self.state();
        while let Some(beat) = state.beat {
            // A step may take long where the machine is busy, and asks all the while whether to end.
            let is_asked = self.0.ending.times_asked();
            let was_asked = std::mem::replace(&mut asked, is_asked) != is_asked;
            let mut beat = if was_asked || was_stopped { Instant::now() } else { beat };
            let cpu = managing.cpu_time();
            if beaten != Some(beat) {
                cpu_at_beat = cpu;
            } else if cpu_at_look < cpu && cpu < cpu_at_beat + patience.hung && state.end.is_none() {
                // It computes, however little of a CPU it gets.
                beat = Instant::now();
            }
            (beaten, cpu_at_look) = (Some(beat), cpu);
            state.beat = Some(beat);
            let bark = match state.end {
                // From the time at which it was to end, not from a beat long before.
                Some((since, _)) => (beat + patience.hung_at_end).max(since + patience.hung_at_end),
                None => beat + patience.hung,
            };
            let end = state.end.map(|(since, code)| (bark.max(since + patience.end), code));
            let now = Instant::now();
            state.barked |= bark <= now;
            if let Some((_, code)) = end.filter(|(at, _)| *at <= now) {
                note("managing still hangs; nodewise ends, without a summary");
                std::process::exit(code.into());
            }
            if state.barked && !state.restored {
                let ends = state.end.is_some();
                drop(state);
                let restored = settings.try_restore();
                if let Some(restored) = &restored {
                    say(ends, restored.as_ref().err());
                }
                state = self.state();
                state.restored = restored.is_some();
                // It may have ended meanwhile, when nobody waited to hear of it.
                if state.beat.is_none() {
                    return;
                }
            }
            let next = match (state.barked, state.restored) {
                (false, _) => Some(bark.min(now + patience.hung / 2)),
                (true, false) => Some(now + patience.again),
                (true, true) => end.map(|(at, _)| at),
            };
            let time = next.map_or(patience.hung, |at| at.saturating_duration_since(now));
            let time = time.max(Duration::from_millis(10));
            state = self.0.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
            was_stopped = now.elapsed() > time + patience.stopped;
        }
    }
}

/// Managing, as the watchdog sees it. It ends with this, and so does the watchdog's hold on the settings: the
/// last that has one puts them back.
pub struct Watched {
    watchdog: Watchdog,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// As [`Watchdog::beat`].
    pub fn beat(&self) -> bool {
        self.watchdog.beat()
    }

    /// Managing has ended, and only its results are left.
    pub fn done(&self) {
        self.watchdog.done();
    }

    /// As [`Watchdog::ending`].
    pub fn ending(&self) -> Ending {
        self.watchdog.ending()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.done();
        // A panic of the thread has been printed by itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread that manages, as the kernel accounts for it.
struct Managing {
    schedstat: Option<File>,
}

impl Managing {
    /// Opened by the thread itself, whose file it stays.
    fn of_this_thread() -> Self {
        Self { schedstat: File::open("/proc/thread-self/schedstat").ok() }
    }

    /// The CPU time that the thread has used; zero, and always the same, if the kernel does not tell it.
    fn cpu_time(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        // Its first word is the time in nanoseconds (Documentation/scheduler/sched-stats.rst).
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
        Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
    }
}

fn say(ends: bool, error: Option<&nodewise_linux::Error>) {
    match (ends, error) {
        (_, Some(error)) => note(format_args!("managing has hung, in a call that does not return; {error}")),
        (false, None) => {
            note("managing has hung, in a call that does not return; kernel settings are put back");
        }
        (true, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_linux::settings::{Place, Settings};
    use signal_hook::consts::{SIGCONT, SIGSTOP, SIGTERM};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A setting that was changed from 1 to 2, and a watchdog with this patience.
    struct Changed {
        setting: PathBuf,
        settings: SharedSettings,
        watched: Watched,
        _directory: tempfile::TempDir,
    }

    /// A setting in this directory that was changed from 1 to 2.
    fn change(directory: &Path) -> (PathBuf, SharedSettings) {
        let setting = directory.join("setting");
        std::fs::write(&setting, "1").unwrap();
        let settings = Settings::open(Place::new(directory.join("journal"), directory, [setting.clone()]));
        let settings = SharedSettings::from(settings);
        settings.set(&setting, "2").unwrap();
        (setting, settings)
    }

    impl Changed {
        /// A thread is watched that computes nothing, unlike the test's, which looks all the while.
        fn watched(patience: Patience) -> Self {
            Self::by(patience, |watch| std::thread::scope(|scope| scope.spawn(watch).join().unwrap()))
        }

        fn by(patience: Patience, thread: impl Fn(&(dyn Fn() -> Watched + Sync)) -> Watched) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (setting, settings) = change(directory.path());
            let watchdog = Watchdog(Arc::new(Shared { patience, ..Shared::default() }));
            let watched = thread(&|| watchdog.watch(settings.clone()));
            Self { setting, settings, watched, _directory: directory }
        }

        fn now(&self) -> String {
            std::fs::read_to_string(&self.setting).unwrap()
        }

        fn wait_until_back(&self) {
            let begin = Instant::now();
            while self.now() != "1" {
                assert!(begin.elapsed() < Duration::from_secs(60), "it is never put back");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    const HUNG: &str = "NODEWISE_TEST_HUNG";
    const WORKS: &str = "NODEWISE_TEST_WORKS";

    /// The other half of the next test: a manager that reads a pipe into which nobody writes. The pipe stands
    /// for all that a managed program can have the kernel wait for.
    #[test]
    fn a_manager_that_reads_for_ever() {
        let Some(directory) = std::env::var_os(HUNG).map(PathBuf::from) else { return };
        let watchdog = Watchdog::default();
        let _end = watchdog.end_on_signals().unwrap();
        let (_, settings) = change(&directory);
        let _watched = watchdog.watch(settings);
        std::fs::write(directory.join("ready"), "").unwrap();
        std::fs::read(directory.join("pipe")).unwrap();
    }

    #[test]
    fn sigterm_is_answered_within_a_second_whatever_is_read() {
        let once = || {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
            let test = "manage::watchdog::tests::a_manager_that_reads_for_ever";
            let mut manager = Command::new(std::env::current_exe().unwrap());
            let mut manager =
                manager.args([test, "--exact", "--nocapture"]).env(HUNG, directory.path()).spawn().unwrap();
            let wait = |until: &dyn Fn() -> bool| {
                let begin = Instant::now();
                while !until() {
                    assert!(begin.elapsed() < Duration::from_secs(60), "in vain");
                    std::thread::sleep(Duration::from_millis(5));
                }
                begin.elapsed()
            };
            let is = |value: &str| std::fs::read_to_string(at("setting")).is_ok_and(|now| now == value);
            wait(&|| at("ready").exists());
            assert!(is("2"));
            nodewise_sys::kill(manager.id() as i32, SIGTERM).unwrap();
            let took = wait(&|| is("1"));
            assert!(manager.try_wait().unwrap().is_none(), "it still reads");
            manager.kill().unwrap();
            manager.wait().unwrap();
            took
        };
        // The quickest of three: a busy host delays any of them.
        let took = (0..3).map(|_| once()).min().unwrap();
        assert!(took < Duration::from_secs(1), "{took:?}");
    }

    const NEVER: Duration = Duration::from_secs(3600);

    fn patience() -> Patience {
        let soon = Duration::from_millis(20);
        Patience { hung: NEVER, hung_at_end: NEVER, end: NEVER, again: soon, stopped: NEVER }
    }

    #[test]
    fn settings_are_put_back_when_managing_hangs() {
        let soon = Duration::from_millis(50);
        let changed = Changed::watched(Patience { hung: soon, ..patience() });
        changed.wait_until_back();
        while changed.watched.beat() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The other half of the next test: a manager that works on, and could be stopped.
    #[test]
    fn a_manager_that_works_for_ever() {
        let Some(directory) = std::env::var_os(WORKS).map(PathBuf::from) else { return };
        let (_, settings) = change(&directory);
        let patience =
            Patience { hung: Duration::from_secs(2), stopped: Duration::from_millis(500), ..patience() };
        let watchdog = Watchdog(Arc::new(Shared { patience, ..Shared::default() }));
        let watched = watchdog.watch(settings);
        std::fs::write(directory.join("ready"), "").unwrap();
        while watched.beat() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn who_was_stopped_for_long_does_not_hang() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let test = "manage::watchdog::tests::a_manager_that_works_for_ever";
        let mut manager = Command::new(std::env::current_exe().unwrap());
        let mut manager =
            manager.args([test, "--exact", "--nocapture"]).env(WORKS, directory.path()).spawn().unwrap();
        while !at("ready").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Whether the watchdog wakes up first then is chance, and is most likely the one time or the other.
        for _ in 0..3 {
            nodewise_sys::kill(manager.id() as i32, SIGSTOP).unwrap();
            std::thread::sleep(Duration::from_millis(3500));
            nodewise_sys::kill(manager.id() as i32, SIGCONT).unwrap();
            std::thread::sleep(Duration::from_millis(500));
        }
        let (now, ended) = (std::fs::read_to_string(at("setting")).unwrap(), manager.try_wait().unwrap());
        manager.kill().unwrap();
        manager.wait().unwrap();
        assert_eq!((now.as_str(), ended), ("2", None));
    }

    #[test]
    fn who_asks_whether_to_end_does_not_hang() {
        let changed = Changed::watched(Patience { hung: Duration::from_millis(200), ..patience() });
        let ending = changed.watched.ending();
        let begin = Instant::now();
        let mut last = begin;
        while begin.elapsed() < Duration::from_secs(1) {
            // Where the test itself was held up, that says nothing.
            if last.elapsed() > Duration::from_millis(80) {
                return;
            }
            last = Instant::now();
            assert!(!ending.is_set());
            assert_eq!(changed.now(), "2");
            std::thread::sleep(Duration::from_millis(10));
        }
        changed.wait_until_back();
    }

    #[test]
    fn settings_are_put_back_when_managing_is_to_end_and_does_not() {
        let changed = Changed::watched(Patience { hung_at_end: Duration::from_millis(50), ..patience() });
        assert!(changed.watched.beat() && !changed.watched.ending().is_set(), "it lives");
        assert_eq!(changed.now(), "2");
        changed.watched.watchdog.end_wanted(1);
        assert!(changed.watched.ending().is_set());
        changed.wait_until_back();
        assert!(changed.watched.beat(), "it ends anyway");
    }

    /// In the very moment in which settings are put back, so that the watchdog does not hear of it.
    #[test]
    fn managing_that_ends_while_settings_are_put_back_ends_the_watchdog() {
        for _ in 0..50 {
            let changed = Changed::watched(Patience { hung_at_end: Duration::from_millis(1), ..patience() });
            changed.watched.watchdog.end_wanted(1);
            while changed.now() != "1" {}
            let (done, ended) = channel();
            std::thread::spawn(move || {
                drop(changed);
                done.send(()).unwrap();
            });
            ended.recv_timeout(Duration::from_secs(60)).expect("it does not end");
        }
    }

    #[test]
    fn settings_that_are_just_being_changed_are_put_back_later() {
        let changed = Changed::watched(Patience { hung: Duration::from_millis(50), ..patience() });
        changed.settings.hold(|| {
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(changed.now(), "2");
            assert!(!changed.watched.beat(), "it has hung");
        });
        changed.wait_until_back();
    }

    #[test]
    fn settings_are_put_back_when_managing_ends_before_it_has_begun() {
        let Changed { setting, settings, watched, _directory } = Changed::watched(patience());
        drop(settings);
        drop(watched);
        assert_eq!(std::fs::read_to_string(setting).unwrap(), "1");
    }

    /// Computes for so long of its own CPU time, and gives no sign of life.
    fn compute(changed: &Changed, time: Duration) {
        let managing = Managing::of_this_thread();
        let end = managing.cpu_time() + time;
        while managing.cpu_time() < end && changed.now() == "2" {}
    }

    #[test]
    fn who_computes_does_not_hang_until_it_has_computed_for_too_long() {
        let hung = Duration::from_millis(300);
        let changed = Changed::by(Patience { hung, ..patience() }, |watch| watch());
        // On the CPU for a small part of the time, as on a busy machine, and longer than patience is.
        let begin = Instant::now();
        while begin.elapsed() < 3 * hung {
            let turn = Instant::now();
            compute(&changed, Duration::from_millis(2));
            // Where the test itself was held up, that says nothing.
            if turn.elapsed() > hung / 4 {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(changed.now() == "2" && changed.watched.beat(), "it was computing");
        compute(&changed, 20 * hung);
        changed.wait_until_back();
    }
}
