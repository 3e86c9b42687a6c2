//! The live machine does what every machine must do.

mod guests;

use guests::{programs, run};
use nodewise_rig::Guest;

#[test]
fn the_live_machine_conforms() {
    let program = &programs().conformance;
    let guest = Guest::uniform(4, 1, 256 << 20).copy(program);
    let finished = run(guest, &format!("'{}'", program.display()), &[]);
    assert_eq!(finished.status, 0, "{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.stdout, "the live machine conforms\n");
}
