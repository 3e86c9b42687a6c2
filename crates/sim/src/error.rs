//! Why something could not be simulated.

use std::fmt;

/// An error, with a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<nodewise_hardware::Error>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is nothing of that name, or the text is not what it should be.
    Unknown,
    /// The file of a machine cannot be read.
    Unreadable,
    /// The text of a machine is not TOML or JSON, or lacks fields, or has others.
    Malformed,
    /// No machine is as that one is described.
    Impossible,
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
        Self { kind, message: message.into(), source: None }
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

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// The text says that it is about the machine; the source says what is wrong with it.
impl From<nodewise_hardware::Error> for Error {
    fn from(error: nodewise_hardware::Error) -> Self {
        use nodewise_hardware::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Unreadable => ErrorKind::Unreadable,
            Kind::Malformed => ErrorKind::Malformed,
            Kind::Impossible => ErrorKind::Impossible,
            _ => ErrorKind::Unknown,
        };
        Self { kind, message: "the machine".to_owned(), source: Some(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_hardware::Preset;
    use std::error::Error as _;

    #[test]
    fn an_error_of_the_hardware_keeps_its_kind_and_is_the_source() {
        let text = Preset::text("dahu-2n").unwrap();
        let refused = [
            (Preset::named("cray").unwrap_err(), ErrorKind::Unknown),
            (Preset::load("/nowhere.toml").unwrap_err(), ErrorKind::Unreadable),
            (Preset::parse("name = 3", "mine").unwrap_err(), ErrorKind::Malformed),
            (
                Preset::parse(&text.replace("cores = 16", "cores = 0"), "mine").unwrap_err(),
                ErrorKind::Impossible,
            ),
        ];
        for (error, kind) in refused {
            let text = error.to_string();
            let error = Error::from(error).of("here");
            assert_eq!((error.kind(), error.to_string()), (kind, "here: the machine".to_owned()));
            assert_eq!(error.source().unwrap().to_string(), text);
        }
    }
}
