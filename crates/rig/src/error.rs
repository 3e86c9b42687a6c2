//! Why a guest could not be prepared or run.

use std::fmt;
use std::io;
use std::path::Path;

/// An error in preparing or running a guest.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// The kinds of [`Error`], for choosing an exit code or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The guest asked for is not possible: nodes, CPUs, memory or distances.
    Shape,
    /// QEMU, a kernel or busybox is missing; the message says what installs it.
    NotInstalled,
    /// The guest's memory is more than this machine has free.
    NotEnoughMemory,
    /// The program to run in the guest was not found.
    ProgramNotFound,
    /// The program to run in the guest, or one to copy, cannot be executed: no permission, no library.
    ProgramNotExecutable,
    /// A file to copy is not there or cannot be read.
    Unreadable,
    /// The guest did not boot, panicked, or went away; the message ends in the console's last lines.
    Guest,
    /// QEMU ran code that the guest's kernel had replaced; the same guest works when it is run again.
    Emulation,
    /// The time limit was reached.
    TimeLimit,
    /// The caller's stop flag was raised.
    Stopped,
    /// The caller's standard output or error takes no more.
    Output,
    /// A file or process operation of this machine failed.
    System,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// An error about a file: `action` is a verb phrase, as in "read" or "create".
    pub(crate) fn file(kind: ErrorKind, action: &str, path: &Path, source: io::Error) -> Self {
        Self { kind, message: format!("cannot {action} {}", path.display()), source: Some(source) }
    }

    pub(crate) fn system(action: &str, source: io::Error) -> Self {
        Self { kind: ErrorKind::System, message: format!("cannot {action}"), source: Some(source) }
    }

    pub(crate) fn output(source: io::Error) -> Self {
        Self {
            kind: ErrorKind::Output,
            message: "cannot write the program's output".into(),
            source: Some(source),
        }
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
