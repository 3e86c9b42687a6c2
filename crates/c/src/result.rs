//! The results of functions, and the message for the thread.

use nodewise_runtime::{Error, ErrorKind};
use std::any::Any;
use std::cell::RefCell;
use std::error::Error as _;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// `nodewise_result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Ok = 0,
    InvalidArgument = 1,
    Machine = 2,
    NoWorkers = 3,
    Thread = 4,
    Layout = 5,
    Memory = 6,
    NodeFull = 7,
    Device = 8,
    Range = 9,
    Hints = 10,
    Busy = 11,
    CallbackFailed = 12,
    Panic = 13,
    Other = 14,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// For where the runtime knows no other way for a failure to come back. Without the panic hook: it is
    /// nobody's bug.
    pub(crate) fn throw(self) -> ! {
        resume_unwind(Box::new(self))
    }

    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        if let Some(status) = payload.downcast_ref::<Status>() {
            return status.failure();
        }
        if let Some(failure) = payload.downcast_ref::<Self>() {
            return failure.clone();
        }
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Self::new(Code::Panic, text.unwrap_or("a panic without a message"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::Machine => Code::Machine,
            ErrorKind::NoWorkers => Code::NoWorkers,
            ErrorKind::Thread => Code::Thread,
            ErrorKind::Layout => Code::Layout,
            ErrorKind::Memory => Code::Memory,
            ErrorKind::NodeFull => Code::NodeFull,
            ErrorKind::Device => Code::Device,
            ErrorKind::Range => Code::Range,
            ErrorKind::Hints => Code::Hints,
            ErrorKind::InUse => Code::Busy,
            _ => Code::Other,
        };
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self { code, message }
    }
}

/// A result of a callback that was not 0. It is thrown where the runtime knows no other way for a failure to
/// come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    /// Without the panic hook: it is nobody's bug.
    pub(crate) fn throw(self) -> ! {
        resume_unwind(Box::new(self))
    }

    pub(crate) fn failure(self) -> Failure {
        Failure::new(Code::CallbackFailed, format!("a callback returned {}", self.0))
    }

    /// As an outcome.
    pub(crate) fn checked(self) -> Outcome {
        if self.0 == 0 { Ok(()) } else { Err(self.failure()) }
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs the body of a function. Neither an error nor a panic goes further than here: both leave their message
/// for the thread.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Outcome) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::Ok,
        Ok(Err(failure)) => tell(&failure),
        Err(payload) => {
            let failure = Failure::of_panic(&*payload);
            // A payload may panic when it is dropped, and that panic's in turn.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(payload);
            }
            tell(&failure)
        }
    }
}

#[cold]
fn tell(failure: &Failure) -> Code {
    let text = failure.message.replace('\0', "?");
    // A thread at its end has no message any more.
    let _ = MESSAGE.try_with(|message| *message.borrow_mut() = CString::new(text).unwrap_or_default());
    failure.code
}

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: a string of this thread's, until its next failure.
        let message = unsafe { CStr::from_ptr(nodewise_error_message()) };
        message.to_str().unwrap().to_owned()
    }

    #[test]
    fn nothing_leaves_but_a_code_and_a_message() {
        assert_eq!(message(), "");
        assert_eq!(guarded(|| Err(Failure::invalid("a\0b"))), Code::InvalidArgument);
        assert_eq!(message(), "a?b");
        assert_eq!(guarded(|| panic!("number {}", 3)), Code::Panic);
        assert_eq!(message(), "number 3");
        assert_eq!(guarded(|| Status(7).throw()), Code::CallbackFailed);
        assert_eq!(message(), "a callback returned 7");
        assert_eq!(guarded(|| Ok(())), Code::Ok);
        assert_eq!(message(), "a callback returned 7", "success leaves it alone");
        std::thread::spawn(|| assert_eq!(message(), "")).join().unwrap();
    }
}
