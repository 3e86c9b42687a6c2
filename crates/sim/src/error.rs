//! Why something could not be simulated.

use std::fmt;

/// An error, with a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is nothing of that name, or the text is not what it should be.
    Unknown,
    /// Machine, program, policy and options do not go together.
    Unsuitable,
    /// The machine has less memory than the program touches.
    OutOfMemory,
    /// The program found its own result wrong, or touches memory that is not its own: it or the simulator has
    /// a bug.
    WrongResult,
    /// The program did not end in the longest time that can be simulated.
    Endless,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    pub(crate) fn unsuitable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsuitable, message)
    }

    pub(crate) fn wrong_result(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::WrongResult, message)
    }

    /// The same error, its text beginning with what it happened to.
    #[must_use]
    pub fn of(self, what: impl fmt::Display) -> Self {
        Self { message: format!("{what}: {}", self.message), ..self }
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

impl std::error::Error for Error {}

impl From<nodewise_hardware::Error> for Error {
    fn from(error: nodewise_hardware::Error) -> Self {
        Self::unknown(error.to_string())
    }
}
