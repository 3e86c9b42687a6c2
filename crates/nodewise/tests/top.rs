//! `nodewise top` in a terminal, in pipes, and against what is true.

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A program that is busy on 64 MiB, and ends with this.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        let program = "$s = 'x' x (1 << 26); $n += ord(substr($s, int(rand(1 << 26)), 1)) while 1";
        Self(Command::new("perl").args(["-e", program]).spawn().unwrap())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const BASH: &str = "PS1='prompt> ' bash --norc --noprofile";

/// A terminal of 80 times 24 characters with a shell in it.
struct Tmux(String);

impl Tmux {
    fn start(name: &str) -> Self {
        let tmux = Self(format!("nodewise-{name}-{}", std::process::id()));
        tmux.command(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", BASH]);
        tmux
    }

    fn command(&self, words: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &self.0]).args(words).env("LANG", "C.UTF-8");
        let output = tmux.output().expect("tmux is there, by make setup");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn press(&self, keys: &[&str]) {
        self.command(&[&["send-keys"], keys].concat());
    }

    fn screen(&self) -> String {
        self.command(&["capture-pane", "-p"])
    }

    /// Waits until the screen is as it is to be.
    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let screen = self.screen();
            if is(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "no {what}:\n{screen}");
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).output();
    }
}

fn top(tmux: &Tmux, options: &str) {
    tmux.press(&[&format!("{} top --interval 0.5 {options}", cargo_bin("nodewise").display()), "Enter"]);
}

#[test]
fn keys_go_through_processes_and_the_terminal_is_left_as_it_was() {
    let (busy, tmux) = (Busy::start(), Tmux::start("keys"));
    let pid = busy.0.id();
    top(&tmux, "--sort cpu");
    let is_drawn = |screen: &str| screen.contains(&format!("{pid} perl")) && screen.contains("q quit");
    let screen = tmux.until("process", is_drawn);
    assert!(screen.starts_with("nodewise top"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    tmux.press(&["m"]);
    tmux.until("order by memory", |screen| screen.contains("by memory"));
    // A smaller terminal, and back.
    tmux.command(&["resize-window", "-x", "60", "-y", "10"]);
    tmux.until("small screen", |screen| screen.lines().last().is_some_and(|line| line.contains("enter")));
    tmux.command(&["resize-window", "-x", "80", "-y", "24"]);
    tmux.press(&["q"]);
    let screen = tmux.until("prompt", |screen| screen.trim_end().ends_with("prompt>"));
    assert!(!screen.contains("q quit"), "{screen}");
    tmux.press(&["stty -a | grep -o -w -e icanon -e -icanon", "Enter"]);
    tmux.until("line discipline", |screen| screen.lines().any(|line| line == "icanon"));
}

#[test]
fn one_process_has_threads_and_mappings_until_it_ends() {
    let (busy, tmux) = (Busy::start(), Tmux::start("one"));
    let pid = busy.0.id();
    top(&tmux, &format!("-p {pid}"));
    let has_thread =
        |screen: &str| screen.lines().any(|line| line.trim_start().starts_with(&pid.to_string()));
    tmux.until("mappings", |screen| screen.contains("(anonymous)") && has_thread(screen));
    tmux.press(&["w"]);
    tmux.until("watcher", |screen| screen.contains("watched"));
    drop(busy);
    tmux.until("end", |screen| screen.contains(&format!("process {pid} has ended")));
    tmux.press(&["Escape"]);
    tmux.until("processes", |screen| screen.contains("program"));
    tmux.press(&["C-c"]);
    tmux.until("prompt", |screen| screen.trim_end().ends_with("prompt>"));
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let tmux = Tmux::start("signal");
    top(&tmux, "");
    tmux.until("screen", |screen| screen.contains("q quit"));
    let status = Command::new("kill").args(["-TERM", &child(&tmux)]).status().unwrap();
    assert!(status.success());
    let screen = tmux.until("prompt", |screen| screen.trim_end().ends_with("prompt>"));
    assert!(!screen.contains("q quit"), "{screen}");
}

/// The shell's only child.
fn child(tmux: &Tmux) -> String {
    let shell = tmux.command(&["display-message", "-p", "#{pane_pid}"]);
    let found = Command::new("pgrep").args(["-P", shell.trim()]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

/// Waits until a process has ended, whether or not it is waited for.
#[track_caller]
fn ends(pid: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    while lives() {
        if Instant::now() > end {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
            panic!("top survives");
        }
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_end_of_its_terminal_ends_it() {
    let tmux = Tmux::start("hangup");
    top(&tmux, "");
    tmux.until("screen", |screen| screen.contains("q quit"));
    let pid = child(&tmux);
    tmux.command(&["kill-server"]);
    ends(&pid);
}

#[test]
fn ctrl_z_suspends_it_and_a_job_in_the_background_can_be_ended() {
    let tmux = Tmux::start("jobs");
    let prompt = |screen: &str| screen.trim_end().ends_with("prompt>");
    top(&tmux, "");
    tmux.until("screen", |screen| screen.contains("q quit"));
    let pid = child(&tmux);
    tmux.press(&["C-z"]);
    let screen = tmux.until("prompt", prompt);
    assert!(screen.contains("Stopped") && !screen.contains("q quit"), "{screen}");
    tmux.press(&["fg", "Enter"]);
    tmux.until("screen again", |screen| screen.starts_with("nodewise top") && screen.contains("q quit"));
    tmux.press(&["C-z"]);
    tmux.until("prompt again", |screen| screen.matches("Stopped").count() == 2 && prompt(screen));
    tmux.press(&["clear; bg; sleep 0.5; kill %1; wait; stty -a | grep -o -w -e icanon -e -icanon", "Enter"]);
    tmux.until("line discipline", |screen| screen.lines().any(|line| line == "icanon"));
    ends(&pid);
    // One that never had the terminal.
    top(&tmux, "& clear");
    tmux.until("prompt alone", |screen| screen.trim_end() == "prompt>");
    let pid = child(&tmux);
    tmux.press(&["sleep 0.5; kill %1", "Enter"]);
    ends(&pid);
}

/// The kernel cuts a program's name after 15 bytes.
#[test]
fn a_name_that_ends_lines_forges_no_row() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("q\n  1 fake");
    std::fs::copy(String::from_utf8(which("perl")).unwrap().trim_end(), &program).unwrap();
    let _busy = Busy(Command::new(&program).args(["-e", "1 while 1"]).spawn().unwrap());
    let text = String::from_utf8(run(&["-i", "0.5"]).stdout).unwrap();
    assert!(text.contains("q\\u000a "), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("  1 fake")), "{text}");
}

fn which(program: &str) -> Vec<u8> {
    Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().stdout
}

fn run(args: &[&str]) -> std::process::Output {
    Command::new(cargo_bin("nodewise")).arg("top").args(args).output().unwrap()
}

/// CPU time and memory are those that `ps` shows.
#[test]
fn lines_of_json_agree_with_ps() {
    let busy = Busy::start();
    let pid = busy.0.id();
    sleep(Duration::from_millis(500));
    let output = run(&["--json", "-n", "2", "-i", "1", "-p", &pid.to_string()]);
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let ps = Command::new("ps").args(["-o", "rss=,comm=", "-p", &pid.to_string()]).output().unwrap();
    let ps = String::from_utf8(ps.stdout).unwrap();
    let (rss, name) = ps.trim().split_once(' ').unwrap();
    for line in &lines {
        let processes = line["processes"].as_array().unwrap();
        let own = processes.iter().find(|process| process["pid"] == pid).expect("it is there");
        let resident = own["resident_bytes"].as_f64().unwrap() / 1024.0;
        assert!((resident / rss.parse::<f64>().unwrap() - 1.0).abs() < 0.1, "{resident} KiB, not {rss}");
        assert_eq!(own["program"], name.trim());
        let cpu = own["cpu_percent"].as_f64().unwrap();
        assert!(cpu > 1.0 && cpu < 110.0, "{cpu}");
        let regions = line["regions"].as_array().unwrap().iter();
        let sum: f64 = regions.map(|region| region["resident_bytes"].as_f64().unwrap()).sum();
        assert!((sum / 1024.0 / resident - 1.0).abs() < 0.1, "{sum} bytes in mappings of {resident} KiB");
    }
}

#[test]
fn without_a_terminal_it_looks_once_and_says_no_more_than_fits() {
    let output = run(&["-i", "0.2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("balancing "), "{text}");
    assert_eq!(text.matches("program").count(), 1, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80) && !text.contains('\x1b'), "{text}");
    let lines = String::from_utf8(run(&["--json", "-i", "0.2"]).stdout).unwrap();
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_it() {
    let mut top = Command::new(cargo_bin("nodewise"));
    let mut top =
        top.args(["top", "--json", "-i", "0.1", "-n", "1000"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(top.stdout.take());
    let end = Instant::now() + Duration::from_secs(30);
    while top.try_wait().unwrap().is_none() && Instant::now() < end {
        sleep(Duration::from_millis(50));
    }
    let ended = top.try_wait().unwrap();
    let _ = top.kill();
    let _ = top.wait();
    assert!(ended.expect("it goes on without a reader").success());
}

#[test]
fn what_cannot_be_shown_is_one_clear_error() {
    let output = run(&["-p", "4194300"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "nodewise: there is no process 4194300\n");
    assert_eq!(run(&["--interval", "0"]).status.code(), Some(2));
}
