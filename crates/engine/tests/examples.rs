//! Each example does what it says.

#[path = "../examples/own_machine.rs"]
mod own_machine;

#[test]
fn an_own_machine_gets_its_pages_moved() {
    own_machine::main();
}
