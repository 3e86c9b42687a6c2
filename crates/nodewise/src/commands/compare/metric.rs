//! The figure by which runs are compared, and the output that it is found in.

use anyhow::{Context as _, bail};
use regex::Regex;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Where the figure comes from.
#[derive(Clone)]
pub enum Metric {
    /// The time from start to end.
    Seconds,
    /// The last number that this finds in the program's output: its first group, or all of it.
    Pattern(Regex),
    /// The last number that this command for `sh` prints. The program's output is its input.
    Command(OsString),
}

/// The bytes of a line that are looked at, and the bytes of output that are kept for an error.
const LINE_MOST: u64 = 1 << 16;

/// The part of a run's output that is kept.
#[derive(Default)]
pub struct Output {
    /// The last line that says anything.
    pub last_line: String,
    /// The last number that the pattern found.
    pub number: Option<f64>,
}

impl Metric {
    /// Its name in tables.
    pub fn name(&self) -> String {
        match self {
            Self::Seconds => "seconds".to_owned(),
            Self::Pattern(pattern) => pattern.to_string(),
            Self::Command(command) => command.to_string_lossy().into_owned(),
        }
    }

    /// Reads output to its end. It goes to `kept`, too, for a command.
    pub fn read(&self, from: impl Read, output: &Arc<Mutex<Output>>, kept: Option<&std::fs::File>) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut from).take(LINE_MOST).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            // A disk that is full shows in the number that is missing.
            let _ = kept.map(|mut kept| kept.write_all(&line));
            let text = String::from_utf8_lossy(&line);
            let found = if let Self::Pattern(pattern) = self {
                number(pattern, text.trim_end_matches(['\r', '\n']))
            } else {
                None
            };
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            output.number = found.or(output.number);
            if !text.trim().is_empty() {
                text.trim().clone_into(&mut output.last_line);
            }
        }
    }

    /// The figure of a run that ended well.
    pub fn value(&self, seconds: f64, output: &Output, kept: Option<std::fs::File>) -> anyhow::Result<f64> {
        let value = match self {
            Self::Seconds => seconds,
            Self::Pattern(pattern) => match output.number {
                Some(number) => number,
                None => {
                    bail!("--metric: no line of the program's output has a number that '{pattern}' finds")
                }
            },
            Self::Command(command) => {
                let mut kept = kept.context("the program's output was not kept")?;
                kept.rewind().context("cannot read the program's output again")?;
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(command).stdin(Stdio::from(kept)).stderr(Stdio::inherit());
                let output = shell.output().context("--metric-command: cannot run sh")?;
                let text = String::from_utf8_lossy(&output.stdout);
                if !output.status.success() {
                    bail!("--metric-command: it failed ({})", output.status);
                }
                let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
                numbers.next_back().context("--metric-command: it printed no number")?
            }
        };
        if !(value.is_finite() && value > 0.0) {
            bail!("the metric is {value}: only numbers above 0 can be compared");
        }
        Ok(value)
    }
}

/// The last number in a line that the pattern finds. Digits may be grouped by commas.
fn number(pattern: &Regex, line: &str) -> Option<f64> {
    let found = pattern.captures_iter(line).filter_map(|groups| groups.get(1).or_else(|| groups.get(0)));
    found.filter_map(|text| text.as_str().trim().replace(',', "").parse().ok()).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metric: &Metric, text: &str) -> Result<f64, String> {
        let output = Arc::new(Mutex::new(Output::default()));
        let kept = tempfile::tempfile().unwrap();
        metric.read(text.as_bytes(), &output, Some(&kept));
        let output = output.lock().unwrap();
        metric.value(7.5, &output, Some(kept)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_number_counts() {
        let pattern = |text| Metric::Pattern(Regex::new(text).unwrap());
        let text = "warming up: 3 MB/s\nrate: 1,234.5 MB/s\nbye\n";
        assert_eq!(value(&pattern(r"([\d.,]+) MB/s"), text), Ok(1234.5));
        assert_eq!(value(&pattern(r"^\d+$"), "12\n13\n"), Ok(13.0), "without a group");
        assert_eq!(value(&Metric::Command("grep rate | tr -d , | cut -d' ' -f2".into()), text), Ok(1234.5));
        assert_eq!(value(&Metric::Seconds, text), Ok(7.5));
    }

    #[test]
    fn output_without_a_number_is_an_error() {
        let none = value(&Metric::Pattern(Regex::new("rate: (.*)").unwrap()), "rate: fast\n").unwrap_err();
        assert!(none.contains("has a number that 'rate: (.*)' finds"), "{none}");
        let nothing = value(&Metric::Command("cat >/dev/null".into()), "1\n").unwrap_err();
        assert!(nothing.contains("printed no number"), "{nothing}");
        assert!(value(&Metric::Command("exit 3".into()), "1\n").unwrap_err().contains("exit status: 3"));
        assert!(
            value(&Metric::Pattern(Regex::new(r"-?\d").unwrap()), "-1\n").unwrap_err().contains("above 0")
        );
    }
}
