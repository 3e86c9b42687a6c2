//! numactl's options of `nodewise run`, from the command line to the program.

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use nodewise_rig::{Guest, Node};

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let outcome = Command::cargo_bin("nodewise").unwrap().arg("run").args(arguments).output().unwrap();
    assert_eq!(outcome.stdout, b"", "the program must not run");
    (outcome.status.code(), String::from_utf8(outcome.stderr).unwrap())
}

#[test]
fn wrong_lists_are_refused_before_anything_runs() {
    let run = |options: &[&str]| refused(&[options, &["--", "echo", "ran"]].concat());
    let (code, error) = run(&["-m", "0,70"]);
    assert_eq!(code, Some(2));
    assert!(
        error.starts_with("nodewise: --membind: '70' in node list '0,70': 70 is not allowed, only 0"),
        "{error}"
    );
    let (code, error) = run(&["-N", "netdev:no-such-device"]);
    let expected = "nodewise: --cpunodebind: node list 'netdev:no-such-device': there is no network device no-such-device\n";
    assert_eq!((code, error.as_str()), (Some(2), expected));
    let (code, error) = run(&["-l", "-i", "0"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("'--localalloc' cannot be used with '--interleave <NODES>'"), "{error}");
}

#[test]
fn a_managed_program_has_its_placement_in_a_guest() {
    let node = |cpus| Node { cpus, memory_bytes: 384 << 20 };
    let nodewise = cargo_bin("nodewise");
    let script = "set -e
        for options in '-N 1 -m 2-3' '-C !0 -i +0-1' '-p 2' '-l -N same' '-N 3 -P same'; do
            $NODEWISE run $options -- numactl --show || echo \"status $?\"
            echo ---
        done";
    let output = Guest::new([node(1), node(2), node(1), node(1)])
        .copy(&nodewise)
        .copy("/usr/bin/numactl")
        .exclusive(true)
        .output(std::process::Command::new("sh").args(["-c", script]).env("NODEWISE", &nodewise))
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    let shown: Vec<&str> = stdout.split("---\n").collect();
    let [bound, interleaved, preferred, refused, many, ""] = shown[..] else { panic!("{stdout}{stderr}") };
    let says = |text: &str, lines: &[&str]| {
        for line in lines {
            assert!(text.lines().any(|other| other.trim_end() == *line), "no '{line}' in {text}{stderr}");
        }
    };
    says(bound, &["policy: bind", "physcpubind: 1 2", "membind: 2 3"]);
    says(interleaved, &["policy: interleave", "physcpubind: 1 2 3 4", "interleavemask: 0 1"]);
    says(preferred, &["policy: preferred", "preferred node: 2", "physcpubind: 0 1 2 3 4"]);
    assert_eq!(refused, "status 2\n", "{stderr}");
    says(many, &["policy: preferred-many", "physcpubind: 4", "preferred: 3"]);
}
