//! A round as it is written to logs.

mod toy;

use nodewise_engine::Access;
use toy::{Toy, engine, part, run};

#[test]
fn a_round_as_json() {
    let pattern = |page, _| Some((part(page, 4096, 2), Access::Write));
    let mut toy = Toy::new(2, 4096, Box::new(pattern)).hardware(1000);
    let mut engine = engine(&toy);
    let mut rounds = run(&mut engine, &mut toy, 6);
    let acted = rounds.iter().position(|round| !round.decisions.is_empty()).expect("something to do");
    let mut round = rounds.remove(acted);
    // The memory of the engine is the allocator's business too.
    round.footprint.heap_bytes = 0;
    insta::assert_json_snapshot!(round);
}
