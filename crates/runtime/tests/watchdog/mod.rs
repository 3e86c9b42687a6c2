//! Ends a test program that hangs, since a hang is what the tests look for.

use std::sync::Once;
use std::time::Duration;

/// How long the tests of one program may take together; some hundred times what they need.
const LIMIT: Duration = Duration::from_secs(300);

/// Aborts the process in five minutes. The first call counts.
pub fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(LIMIT);
            eprintln!("a test has hung: aborting");
            std::process::abort();
        });
    });
}
