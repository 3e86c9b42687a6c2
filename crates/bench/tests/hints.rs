//! The manager believes a program that says how it uses its memory. It interleaves what the program calls
//! shared before anybody uses it. It does not interleave what the program calls private, though all nodes
//! use it.

mod guests;

use guests::{programs, run};
use nodewise_rig::Guest;
use serde_json::Value;

#[test]
fn the_manager_honours_what_a_program_says() {
    let program = &programs().building_blocks;
    let guest = Guest::uniform(4, 1, 256 << 20).copy(program);
    let script = format!("$NODEWISE run --log log -- '{}' hints 10", program.display());
    let finished = run(guest, &script, &["log"]);
    assert_eq!(finished.status, 0, "{}{}", finished.stdout, finished.stderr);
    let said: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(said["at_once"].as_array().unwrap().len(), 1, "the program itself has moved nothing: {said}");
    let idle: Vec<u64> = said["idle"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(idle.iter().sum::<u64>(), 2048);
    assert!(
        idle.len() == 4 && idle.iter().all(|pages| (410..=614).contains(pages)),
        "a quarter each: {idle:?}"
    );
    let within = |line: &Value, range: &str| {
        let address = |at: &Value| u64::from_str_radix(at.as_str()?.trim_start_matches("0x"), 16).ok();
        let start = address(&line["range"][0]).unwrap();
        (said[range][0].as_u64().unwrap()..said[range][1].as_u64().unwrap()).contains(&start)
    };
    let log: Vec<Value> = finished.lines("log").unwrap();
    let spread: Vec<&Value> = log.iter().filter(|line| line["action"] == "interleave").collect();
    assert!(spread.iter().any(|line| within(line, "idle_range")), "{log:?}");
    assert!(!spread.iter().any(|line| within(line, "used_range")), "{spread:?}");
}
