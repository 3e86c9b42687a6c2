//! The ported examples compute what the plain ones do, and README.md shows what porting them took.

#![allow(dead_code, reason = "the examples' main")]

use std::path::Path;
use std::process::Command;

#[path = "../examples/kv_cache/nodewise.rs"]
mod kv_cache_nodewise;
#[path = "../examples/kv_cache/plain.rs"]
mod kv_cache_plain;
#[path = "../examples/stream/nodewise.rs"]
mod stream_nodewise;
#[path = "../examples/stream/plain.rs"]
mod stream_plain;

#[test]
fn stream_computes_the_same() {
    let [a, b, c] = stream_plain::run(100_000);
    assert!(a > c && c > b && b > 0.0, "{a} {b} {c}");
    let same = stream_nodewise::run(100_000).unwrap();
    assert_eq!(same.map(f64::to_bits), [a, b, c].map(f64::to_bits));
}

#[test]
fn the_cache_answers_the_same() {
    let (hits, sum) = kv_cache_plain::run(3000);
    assert!((25_000..30_000).contains(&hits) && sum > 0, "{hits} {sum}");
    assert_eq!(kv_cache_nodewise::run(3000).unwrap(), (hits, sum));
}

#[test]
fn the_diffs_that_are_shown_are_the_real_ones() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let shown = std::fs::read_to_string(examples.join("README.md")).unwrap();
    for name in ["stream", "kv_cache"] {
        let diff = Command::new("diff")
            .args(["-U1", "--label", "plain.rs", "--label", "nodewise.rs", "plain.rs", "nodewise.rs"])
            .current_dir(examples.join(name))
            .output()
            .unwrap();
        let diff = String::from_utf8(diff.stdout).unwrap();
        assert!(
            shown.contains(&format!("```diff\n{diff}```\n")),
            "README.md should show for {name}:\n{diff}"
        );
    }
}

#[test]
fn what_the_documentation_shows_works() -> nodewise_runtime::Result<()> {
    // As shown:
    let pool = nodewise_runtime::NodePool::new()?;
    let mut samples = nodewise_runtime::NodeVec::<f64>::new(1 << 24, nodewise_runtime::Layout::Blocked)?;
    samples.for_each_block(&pool, |block, values| {
        // On a worker of block.node, whose memory this is.
        for (i, value) in block.elements.zip(values) {
            *value = (i as f64).sqrt();
        }
    });
    // So far.
    assert!((samples[1 << 20] - 1024.0).abs() < 1e-9);
    let between = |text: &str, begin: &str, end: &str| {
        text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap().0.to_owned()
    };
    let here = between(include_str!("examples.rs"), "    // As shown:\n", "    // So far.\n");
    let shown = between(include_str!("../../../docs/building-blocks.md"), "```rust\n", "```");
    assert!(here.lines().map(|line| line.strip_prefix("    ").unwrap()).eq(shown.lines()), "{shown}");
    Ok(())
}
