//! `nodewise sim matrix` as a person or a script uses it.

use assert_cmd::Command;
use serde_json::Value;

fn matrix(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::cargo_bin("nodewise").unwrap();
    let output = command.args(["sim", "matrix"]).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn cells(arguments: &[&str]) -> Vec<Value> {
    let (code, text, error) = matrix(&[arguments, &["--json"]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    serde_json::from_str(&text).unwrap()
}

const SMALL: [&str; 6] =
    ["--machine", "opteron-8385-4n,ace-7", "--workload", "streamcluster,pca,mg", "--scale", "0.001"];

#[test]
fn each_cell_is_a_run_beside_the_one_under_first_touch() {
    let cells = cells(&SMALL);
    let text = |cell: &Value, field: &str| cell[field].as_str().unwrap().to_owned();
    let of = |machine: &str, workload: &str, policy: &str| {
        let found = |cell: &&Value| {
            (text(cell, "machine"), text(cell, "workload"), text(cell, "policy"))
                == (machine.to_owned(), workload.to_owned(), policy.to_owned())
        };
        cells.iter().find(found)
    };
    for cell in &cells {
        assert_eq!(cell.as_object().unwrap().len(), 6, "{cell}");
        assert!(cell["relative_time"].as_f64().unwrap() > 0.0, "{cell}");
        assert!((0.0..=100.0).contains(&cell["local_access_percent"].as_f64().unwrap()), "{cell}");
        assert_eq!(cell["huge_pages"], false);
        if cell["policy"] == "first-touch" {
            assert_eq!(cell["relative_time"], 1.0);
        }
        // No policy is ahead of the one that has seen them all.
        let oracle = of(&text(cell, "machine"), &text(cell, "workload"), "oracle").unwrap();
        assert!(oracle["relative_time"].as_f64() <= cell["relative_time"].as_f64(), "{cell} {oracle}");
    }
    // Every policy but those that name a node, and one is not for the machine without caches.
    assert_eq!(cells.len(), 3 * (10 + 9));
    assert!(of("ace-7", "mg", "carrefour").is_none() && of("ace-7", "mg", "ace").is_some());
    // One node's controller is the bottleneck.
    let interleaved = of("opteron-8385-4n", "streamcluster", "interleave").unwrap();
    assert!(interleaved["relative_time"].as_f64() < Some(0.8), "{interleaved}");
}

#[test]
fn a_cell_says_what_a_run_of_its_own_says_and_always_the_same() {
    let one = ["--machine", "dahu-2n", "--workload", "pca", "--scale", "0.001", "--policy", "interleave"];
    let cell = &cells(&one)[..];
    assert_eq!(cell, &cells(&one)[..]);
    let run = ["sim", "run", "--machine", "dahu-2n", "--workload", "pca", "--scale", "0.001", "--json"];
    let mut command = Command::cargo_bin("nodewise").unwrap();
    let output = command.args(run).args(["--policy", "first-touch,interleave"]).output().unwrap();
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let time_s = |run: usize| printed["runs"][run]["run_time_s"].as_f64().unwrap();
    assert_eq!(cell[0]["relative_time"].as_f64(), Some(time_s(1) / time_s(0)));
    assert_eq!(cell[0]["local_access_percent"], printed["runs"][1]["local_access_percent"]);
}

#[test]
fn the_table_ends_in_geometric_means() {
    let (code, text, error) = matrix(&[&SMALL[..], &["--policy", "interleave,carrefour"]].concat());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let column = |place: usize| -> Vec<f64> {
        text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(place)?.parse().ok()).collect()
    };
    let interleave = &column(2)[..6];
    let mean = (interleave.iter().map(|time| time.ln()).sum::<f64>() / 6.0).exp();
    let line = text.lines().find(|line| line.trim_start().starts_with("geometric mean")).unwrap();
    let printed: f64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((printed - mean).abs() < 0.002, "{text}");
    assert!(text.lines().any(|line| line.contains("ace-7") && line.trim_end().ends_with('-')), "{text}");
}

#[test]
fn huge_pages_are_said_and_what_is_not_run_with_them_is_left_out() {
    let cells = cells(&["--machine", "dahu-2n", "--workload", "cg", "--scale", "0.004", "--huge-pages"]);
    assert_eq!(cells.len(), 9);
    assert!(cells.iter().all(|cell| cell["huge_pages"] == true && cell["policy"] != "ace"));
}

#[test]
fn too_small_a_scale_is_warned_of() {
    let one = ["--machine", "dahu-2n", "--workload", "cg", "--policy", "interleave", "--scale", "0.001"];
    let (code, _, error) = matrix(&one);
    let warning = "nodewise: cg on dahu-2n: 32 threads share 16 pages: placement means little";
    assert!(code == Some(0) && error.starts_with(warning), "{error}");
}

#[test]
fn what_there_is_not_is_refused_before_anything_is_run() {
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = matrix(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with(message), "{error}");
    };
    refused(&["--machine", "cray"], "nodewise: --machine: cray: no such machine; there are ace-7, ");
    refused(&["--workload", "x"], "nodewise: --workload: no such program: x; there are ");
    refused(&["--policy", "magic"], "nodewise: --policy: no such policy: magic; there are ");
    refused(&["--scale", "0"], "nodewise: --scale 0: not above 0 and up to 1");
    refused(&["--passes", "0"], "nodewise: --passes 0: not from 1 to a million");
    refused(&["--huge-pages", "--policy", "ace"], "nodewise: ace: it keeps copies of base pages");
    refused(
        &["--machine", "dahu-2n,xeon-snc", "--policy", "bind:9"],
        "nodewise: bind:9: dahu-2n has no memory on node 9",
    );
}
