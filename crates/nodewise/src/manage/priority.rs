//! The priority of the thread that manages.

use rustix::process::{getpriority_process, setpriority_process};

/// Half of the way to the highest. Programs with real-time policies go before it all the same.
const NICENESS: i32 = -10;

/// Lets the calling thread go before most others, until dropped.
///
/// Among hundreds of busy threads it would have a hundredth of a CPU, and its rings overflow until its turn
/// comes. It takes no more time for that, only sooner. A niceness that somebody else has set stays, and so
/// does the usual one without `CAP_SYS_NICE`.
pub struct First {
    goes: bool,
}

impl First {
    pub fn go() -> Self {
        // A program that it started before has its own.
        let is_usual = getpriority_process(None) == Ok(0);
        Self { goes: is_usual && setpriority_process(None, NICENESS).is_ok() }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if self.goes {
            let _ = setpriority_process(None, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_usual_niceness_is_changed_and_only_for_a_while() {
        std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            let first = First::go();
            let meanwhile = getpriority_process(None).unwrap();
            assert_eq!(meanwhile, if first.goes { NICENESS } else { before });
            drop(first);
            assert_eq!(getpriority_process(None), Ok(before));
            // Anybody may have a higher one.
            let other = before.max(5);
            setpriority_process(None, other).unwrap();
            let _first = First::go();
            assert_eq!(getpriority_process(None), Ok(other));
        })
        .join()
        .unwrap();
    }
}
