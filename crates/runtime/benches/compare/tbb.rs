//! oneTBB, in a process of its own that takes its turns when told to: no unsafe code here, and nothing to link where it is not installed.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Tbb {
    process: Child,
    pipes: RefCell<Pipes>,
}

struct Pipes {
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Tbb {
    /// Builds and starts it; why not, if it cannot be.
    pub fn start(workers: usize) -> Result<Self, String> {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/compare/tbb.cpp");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tbb");
        // Optimised as far as cargo does.
        let built = Command::new("c++")
            .args(["-O3", "-std=c++17", source, "-o"])
            .arg(&program)
            .arg("-ltbb")
            .output()
            .map_err(|error| format!("cannot run c++: {error}"))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            let error = said.lines().find(|line| line.contains("error")).unwrap_or("c++ failed");
            return Err(format!("{error} (Debian's package libtbb-dev has it)"));
        }
        let mut process = Command::new(&program)
            .arg(workers.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let ask = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Ok(Self { process, pipes: RefCell::new(Pipes { ask, answers }) })
    }

    /// The nanoseconds that so many operations of a contest took, all together; none if it does not take part in it.
    pub fn turn(&self, contest: &str, operations: u64) -> Option<u64> {
        let Pipes { ask, answers } = &mut *self.pipes.borrow_mut();
        writeln!(ask, "{contest}\t{operations}").expect("oneTBB's process listens");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("oneTBB's process answers");
        let ns: i64 = answer.trim().parse().expect("oneTBB's process answers with a number");
        u64::try_from(ns).ok()
    }
}

impl Drop for Tbb {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
