//! A process that is watched more closely: by `nodewise attach --dry-run`, whose decision log is read.
//!
//! It is a process of its own, so that the kernel's settings are put back however top ends.

use super::figures::{bytes, shares};
use crate::output::shown;
use anyhow::Context as _;
use nodewise_engine::{PAGE_BYTES, Pid};
use nodewise_linux::census::NodeUse;
use rustix::process::{Pid as ProcessId, Signal, kill_process};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Decisions that are kept.
const DECISIONS: usize = 100;

/// The watcher, which ends with this.
pub struct Watch {
    child: Child,
    lines: Receiver<Value>,
    errors: Receiver<Value>,
    pub seen: Seen,
}

/// The watcher's words so far.
#[derive(Default)]
pub struct Seen {
    sampler: String,
    /// The last line on how memory is placed.
    placement: Option<Value>,
    /// The moves that would be made, the last decision first.
    pub decisions: VecDeque<String>,
    last_error: Option<String>,
    pub has_ended: bool,
}

impl Watch {
    pub fn start(pid: Pid) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(["attach", "--dry-run", "--quiet", "--end-with-parent", "--log", "/dev/stdout"])
            .arg(pid.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start nodewise attach")?;
        let log = child.stdout.take().context("no standard output")?;
        let errors = child.stderr.take().context("no standard error")?;
        let lines = follow(log, |line| serde_json::from_str(line).ok());
        let errors = follow(errors, |line| Some(line.into()));
        Ok(Self { child, lines, errors, seen: Seen::default() })
    }

    /// Takes in what was told since.
    pub fn update(&mut self) {
        while let Ok(line) = self.errors.try_recv() {
            self.seen.last_error = line.as_str().map(str::to_owned);
        }
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.seen.add(&line),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.seen.has_ended = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended. It puts settings back before it ends.
        let _ = kill_process(ProcessId::from_child(&self.child), Signal::INT);
        let _ = self.child.wait();
    }
}

/// The lines of a pipe, each read as soon as it is there.
fn follow(
    from: impl Read + Send + 'static,
    read: impl Fn(&str) -> Option<Value> + Send + 'static,
) -> Receiver<Value> {
    let (line, lines) = channel();
    std::thread::spawn(move || {
        for text in BufReader::new(from).lines().map_while(Result::ok) {
            if read(&text).is_some_and(|value| line.send(value).is_err()) {
                return;
            }
        }
    });
    lines
}

impl Seen {
    pub fn add(&mut self, line: &Value) {
        match line["event"].as_str() {
            Some("start") => {
                self.sampler = line["sampler"].as_str().unwrap_or_default().replace(['_', '-'], " ");
            }
            Some("placement") => self.placement = Some(line.clone()),
            Some("decision") => {
                self.decisions.push_front(decision(line));
                self.decisions.truncate(DECISIONS);
            }
            _ => {}
        }
    }

    /// How the memory in use is placed, in lines.
    pub fn placement(&self, nodes: &[NodeUse]) -> Vec<String> {
        if self.has_ended {
            let why = self.last_error.as_deref().unwrap_or("the process has ended");
            return vec![format!("no longer watched: {}", shown(why))];
        }
        let Some(placement) = &self.placement else {
            let sampler = if self.sampler.is_empty() { "-" } else { &self.sampler };
            return vec![format!("watched by {sampler}; nothing seen yet")];
        };
        let number = |name: &str| placement[name].as_f64();
        let told = match (number("local_access_percent"), placement["unknown"].as_str()) {
            (Some(local), _) => {
                let imbalance = number("controller_imbalance_percent");
                let imbalance =
                    imbalance.map(|percent| format!(", imbalance {percent:.0} %")).unwrap_or_default();
                format!("{local:.0} % of accesses near{imbalance}")
            }
            (None, Some(why)) => why.to_owned(),
            (None, None) => "not known yet".to_owned(),
        };
        let used = number("bytes").map(|used| format!(", of {} in use", bytes(used))).unwrap_or_default();
        let served: Option<Vec<f64>> =
            placement["served_by"].as_array().map(|shares| shares.iter().filter_map(Value::as_f64).collect());
        let samples = placement["samples"].as_u64().unwrap_or(0);
        vec![
            format!("{told}{used}"),
            format!("served by {}   {samples} seen by {}", shares(served.as_deref(), nodes), self.sampler),
        ]
    }
}

/// A decision in a line.
fn decision(line: &Value) -> String {
    let nodes = |name: &str| {
        let nodes = line[name].as_array().into_iter().flatten().map(Value::to_string);
        nodes.collect::<Vec<_>>().join(",")
    };
    let text = |value: &Value| shown(value.as_str().unwrap_or_default());
    let size = bytes(line["pages"].as_u64().unwrap_or(0) as f64 * PAGE_BYTES as f64);
    let (from, to) = (nodes("from"), nodes("to"));
    let way = match (from.is_empty(), to.is_empty()) {
        (_, true) => String::new(),
        (true, false) => format!(" to {to}"),
        (false, false) => format!(" {from} to {to}"),
    };
    let (action, address) = (text(&line["action"]).replace('_', " "), text(&line["range"][0]));
    format!("{action} {size} at {address}{way}: {}", text(&line["reason"]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_log_is_told_in_lines() {
        let node = |node: u32| {
            let unknown = json!({"node": node, "cpus": 1, "busy_percent": null, "total_bytes": null,
                                 "free_bytes": null, "allocated_from_afar_bytes_per_s": null});
            serde_json::from_value(unknown).unwrap()
        };
        let nodes: Vec<NodeUse> = vec![node(0), node(2)];
        let mut seen = Seen::default();
        assert_eq!(seen.placement(&nodes), ["watched by -; nothing seen yet"]);
        seen.add(&json!({"event": "start", "sampler": "hint-faults"}));
        assert_eq!(seen.placement(&nodes), ["watched by hint faults; nothing seen yet"]);
        seen.add(
            &json!({"event": "placement", "samples": 70, "local_access_percent": 25.2, "bytes": 64 << 20,
                         "controller_imbalance_percent": 199.6, "served_by": [0.03, 0.97], "unknown": null}),
        );
        assert_eq!(
            seen.placement(&nodes),
            [
                "25 % of accesses near, imbalance 200 %, of 64 MiB in use",
                "served by 2:97 0:3   70 seen by hint faults"
            ]
        );
        seen.add(&json!({"event": "placement", "samples": 7, "local_access_percent": null, "bytes": null,
                         "controller_imbalance_percent": null, "served_by": null, "unknown": "only 7 samples"}));
        assert_eq!(seen.placement(&nodes), ["only 7 samples", "served by -   7 seen by hint faults"]);
        seen.add(
            &json!({"event": "decision", "range": ["0x7f00", "0x8f00"], "pages": 4096, "action": "collocate",
                         "from": [0, 2], "to": [1], "reason": "only node 1 uses it"}),
        );
        seen.add(
            &json!({"event": "decision", "range": ["0x1000", "0x2000"], "pages": 512, "action": "split",
                         "from": [], "to": [], "reason": "its parts are used by different nodes"}),
        );
        assert_eq!(
            seen.decisions,
            [
                "split 2.0 MiB at 0x1000: its parts are used by different nodes",
                "collocate 16 MiB at 0x7f00 0,2 to 1: only node 1 uses it",
            ]
        );
        (seen.has_ended, seen.last_error) = (true, Some("nodewise: no\u{1b}".to_owned()));
        assert_eq!(seen.placement(&nodes), ["no longer watched: nodewise: no\\u001b"]);
    }
}
