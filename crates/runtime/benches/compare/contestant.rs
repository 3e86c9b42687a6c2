//! C++ libraries, each in a process of its own that takes its turns when told to: no unsafe code here, and
//! nothing to link where they are not installed.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A library as one compiler builds it.
pub struct Contestant {
    pub name: &'static str,
    process: Child,
    pipes: RefCell<Pipes>,
}

struct Pipes {
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// The directory below which nodewise.hpp is installed, for contestants.
fn installed() -> Result<PathBuf, String> {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nodewise");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/install");
    let done = Command::new(script).env("PREFIX", &prefix).output().map_err(|error| error.to_string())?;
    if done.status.success() { Ok(prefix) } else { Err(String::from_utf8_lossy(&done.stderr).into()) }
}

/// Builds the program, unless it was built of the same before.
fn build(program: &Path, compiler: &str, options: &[String]) -> Result<(), String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/compare/contestant.cpp");
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../c/include/nodewise.hpp");
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let made_of = format!("{compiler} {options:?}\n{}{}", text(source), text(header));
    let mut stamp = program.as_os_str().to_owned();
    stamp.push(".source");
    if program.exists() && std::fs::read_to_string(&stamp).is_ok_and(|before| before == made_of) {
        return Ok(());
    }
    // Optimised as far as cargo does.
    let built = Command::new(compiler)
        .args(["-O3", "-std=c++17", source])
        .args(options)
        .arg("-o")
        .arg(program)
        .output()
        .map_err(|error| format!("cannot run {compiler}: {error}"))?;
    if !built.status.success() {
        let said = String::from_utf8_lossy(&built.stderr);
        let error = said.lines().find(|line| line.contains("error")).unwrap_or("the compiler failed");
        return Err(format!(
            "{error} (Debian's packages libtbb-dev, clang and libomp-dev have what it takes)"
        ));
    }
    std::fs::write(stamp, made_of).map_err(|error| error.to_string())
}

impl Contestant {
    /// All that can be had; the others are told of on standard error.
    pub fn all(workers: usize) -> Vec<Self> {
        let mut options: Vec<(&str, &str, Vec<String>)> = Vec::new();
        match installed() {
            Ok(prefix) => {
                let prefix = prefix.display();
                let options_of = || {
                    let library = format!("-L{prefix}/lib");
                    let found = format!("-Wl,-rpath,{prefix}/lib");
                    vec![
                        "-DNODEWISE".into(),
                        format!("-I{prefix}/include"),
                        library,
                        found,
                        "-lnodewise".into(),
                    ]
                };
                options.push(("nodewise.hpp, gcc", "g++", options_of()));
                options.push(("nodewise.hpp, clang", "clang++", options_of()));
            }
            Err(why) => eprintln!("nodewise.hpp is left out: {why}"),
        }
        let strings = |options: [&str; 2]| options.map(String::from).to_vec();
        options.push(("oneTBB, gcc", "g++", strings(["-DONETBB", "-ltbb"])));
        options.push(("oneTBB, clang", "clang++", strings(["-DONETBB", "-ltbb"])));
        options.push(("OpenMP, gcc", "g++", strings(["-DOPENMP", "-fopenmp"])));
        options.push(("OpenMP, clang", "clang++", strings(["-DOPENMP", "-fopenmp"])));
        let start = |(name, compiler, options): (&'static str, &str, Vec<String>)| {
            let started = Self::start(name, compiler, &options, workers);
            started.map_err(|why| eprintln!("{name} is left out: {why}")).ok()
        };
        options.into_iter().filter_map(start).collect()
    }

    /// Builds and starts it; why not, if it cannot be.
    fn start(name: &'static str, compiler: &str, options: &[String], workers: usize) -> Result<Self, String> {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name.replace([' ', ','], "-"));
        build(&program, compiler, options)?;
        let mut process = Command::new(&program)
            .arg(workers.to_string())
            // Or its threads spin through the others' turns.
            .env("OMP_WAIT_POLICY", "passive")
            .env("KMP_BLOCKTIME", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let ask = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Ok(Self { name, process, pipes: RefCell::new(Pipes { ask, answers }) })
    }

    /// The nanoseconds that so many operations of a contest took, all together; none if it does not take part
    /// in it.
    pub fn turn(&self, contest: &str, operations: u64) -> Option<u64> {
        let Pipes { ask, answers } = &mut *self.pipes.borrow_mut();
        writeln!(ask, "{contest}\t{operations}").expect("the contestant's process listens");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("the contestant's process answers");
        let ns: i64 = answer.trim().parse().expect("the contestant's process answers with a number");
        u64::try_from(ns).ok()
    }
}

impl Drop for Contestant {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
