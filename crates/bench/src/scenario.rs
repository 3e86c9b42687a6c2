//! Runs a shell script where the nodes are (in a guest, or on this very machine) and brings its files back.

use crate::report::Placement;
use anyhow::{Context as _, bail};
use nodewise_rig::{ErrorKind, Guest, Streams};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The programs that scenarios run, as built by cargo.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The command line, `nodewise`.
    pub nodewise: PathBuf,
    /// The program with a known pattern.
    pub workload: PathBuf,
    /// The program that ends, forks, executes and unmaps.
    pub churn: PathBuf,
    /// The program that holds the live machine to what every machine must do.
    pub conformance: PathBuf,
    /// The program that uses the runtime library.
    pub building_blocks: PathBuf,
    /// The program that tells by how much the host stretches a guest's CPU time.
    pub slowdown: PathBuf,
}

impl Programs {
    /// Builds them optimised, as users have them: emulated guests are slow enough.
    pub fn build() -> anyhow::Result<Self> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("no workspace")?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args([
                "build",
                "--profile",
                "guest",
                "--package",
                "nodewise",
                "--package",
                "nodewise-bench",
                "--bins",
            ])
            .args(["--message-format", "json-render-diagnostics"])
            .current_dir(workspace)
            .output()
            .context("cannot run cargo")?;
        if !built.status.success() {
            bail!("cargo build failed:\n{}", String::from_utf8_lossy(&built.stderr));
        }
        let find = |name: &str| {
            let messages = String::from_utf8_lossy(&built.stdout);
            let found =
                messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            let of_target = found.filter(|message| message["target"]["name"] == name);
            let executable =
                of_target.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
            executable.with_context(|| format!("cargo built no program {name}"))
        };
        Ok(Self {
            nodewise: find("nodewise")?,
            workload: find("workload")?,
            churn: find("churn")?,
            conformance: find("conformance")?,
            building_blocks: find("building-blocks")?,
            slowdown: find("slowdown")?,
        })
    }
}

/// The results that a script left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: u8,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The files asked for, by name; those that are not there are left out.
    pub files: BTreeMap<String, String>,
}

impl Finished {
    /// A file that must be there.
    pub fn file(&self, name: &str) -> anyhow::Result<&str> {
        self.files
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("the script left no file {name}: {self:?}"))
    }

    /// A file of one JSON value.
    pub fn json(&self, name: &str) -> anyhow::Result<serde_json::Value> {
        serde_json::from_str(self.file(name)?).with_context(|| format!("{name} is not JSON"))
    }

    /// A file of one JSON value a line. A last line without its end is left out: the writer was killed.
    pub fn lines<T: serde::de::DeserializeOwned>(&self, name: &str) -> anyhow::Result<Vec<T>> {
        let text = self.file(name)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("{name}: not JSON: {line}")))
            .collect()
    }

    /// The workload's reports.
    pub fn placements(&self, name: &str) -> anyhow::Result<Vec<Placement>> {
        self.lines(name)
    }
}

/// Where scripts run.
pub enum Place {
    /// In a guest booted for each script. Boxed, since it is the larger.
    Guest(Box<Guest>),
    /// Here.
    Host,
}

impl Place {
    /// A guest that no other guest disturbs, for five minutes at most. It has the programs that a script
    /// names.
    #[must_use]
    pub fn guest(guest: Guest) -> Self {
        Self::guest_for(Duration::from_secs(300), guest)
    }

    /// The same with another time limit.
    #[must_use]
    pub fn guest_for(limit: Duration, guest: Guest) -> Self {
        Self::Guest(Box::new(guest.exclusive(true).time_limit(limit)))
    }

    /// The same guest, which other guests may disturb: for scripts whose results no host can change, however
    /// busy it is.
    #[must_use]
    pub fn beside_others(self) -> Self {
        match self {
            Self::Guest(guest) => Self::Guest(Box::new(guest.exclusive(false))),
            Self::Host => Self::Host,
        }
    }

    /// Runs `script` with `sh` in a fresh directory, `$NODEWISE`, `$WORKLOAD` and `$CHURN` naming the
    /// programs, and brings back the files that are named relative to it.
    pub fn run(&self, programs: &Programs, script: &str, files: &[&str]) -> anyhow::Result<Finished> {
        const MARK: &str = "=====8<=====";
        let show = |file| format!("[ -f '{file}' ] && {{ printf '{MARK}{file}\\n'; cat '{file}'; }}\n");
        let whole = format!(
            "NODEWISE='{}'; WORKLOAD='{}'; CHURN='{}'; cd \"$(mktemp -d)\" || exit 99\n(\n{script}\n)\nstatus=$?\n{}\
             printf '{MARK}\\n'; exit $status\n",
            programs.nodewise.display(),
            programs.workload.display(),
            programs.churn.display(),
            files.iter().map(show).collect::<String>()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &whole]);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = match self {
            Self::Guest(guest) => {
                // Each takes time to unpack.
                let named = [
                    ("$NODEWISE", &programs.nodewise),
                    ("$WORKLOAD", &programs.workload),
                    ("$CHURN", &programs.churn),
                ];
                let named = named.into_iter().filter(|(name, _)| script.contains(name));
                let guest = named.fold((**guest).clone(), |guest, (_, program)| guest.copy(program));
                let mut status = guest.run(&command, Streams::new(&mut stdout, &mut stderr));
                if status.as_ref().is_err_and(|error| error.kind() == ErrorKind::Emulation) {
                    eprintln!("once more: {}", status.unwrap_err());
                    stdout.clear();
                    stderr.clear();
                    status = guest.run(&command, Streams::new(&mut stdout, &mut stderr));
                }
                // The last words of one that hangs tell where it does.
                status.with_context(|| {
                    let [stdout, stderr] = [&stdout, &stderr].map(|said| String::from_utf8_lossy(said));
                    format!("the guest failed after this output:\n{stdout}\n{stderr}")
                })?
            }
            Self::Host => {
                let output = command.output().context("cannot run sh")?;
                (stdout, stderr) = (output.stdout, output.stderr);
                output.status.code().unwrap_or(1) as u8
            }
        };
        let text = String::from_utf8_lossy(&stdout).into_owned();
        let mut parts = text.split(MARK);
        let stdout = parts.next().unwrap_or_default().to_owned();
        let files = parts
            .filter_map(|part| part.split_once('\n'))
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, content)| (name.to_owned(), content.to_owned()))
            .collect();
        Ok(Finished { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned(), files })
    }
}
