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

/// `numactl` is our alias and `theirs` is numactl; each check that fails says so in a line.
const ALIAS: &str = r#"
    mkdir -p bin
    printf '#!/bin/sh\nexec %s run "$@"\n' $NODEWISE >bin/numactl
    chmod +x bin/numactl
    theirs=/usr/bin/numactl
    PATH=$PWD/bin:$PATH
    fails() { ! "$@" >/dev/null 2>&1; }
    check() { "$@" || echo "not so: $*"; }

    # What a program finds, shown by both. Where interleaving has come to is no part of the placement; numactl forgets the end of
    # a line under --localalloc, and what it prefers under the others differs from version to version.
    lasting() { sed 's/^preferred node: physcpubind/physcpubind/' |
        grep -v -e '^interleavenode' -e '^preferred' | sed 's/ *$//'; }
    for options in '' '-l' '-m 1-2' '-i 0,3' '-p +2' '-P !0' '-N 3 -m same' '-c 1' '--cpubind=0,2' '-N 0 -N 2' '-C 1 -C 3' \
        '-b' '-b -m 2-3' '-b -i all' '-C !0 -p 3' '-a -N 1' '-N all' '-m 0 --strict'; do
        numactl $options numactl --show 2>/dev/null | lasting >ours
        # Some versions do not know a policy under -b.
        $theirs ${options#-b} $theirs --show 2>/dev/null | lasting >expected
        grep -q physcpubind ours && cmp -s ours expected || { echo "with '$options':"; cat ours expected; }
        # Without a program the options count for what is shown.
        numactl $options -s 2>/dev/null | lasting >ours
        cmp -s ours expected || { echo "with '$options -s':"; cat ours expected; }
    done
    inventory() { "$@" | grep -v free | tr -s ' ' | sed 's/ *$//'; }
    inventory numactl --hardware >ours
    inventory $theirs -H >expected
    cmp ours expected || cat ours expected
    [ "$(numactl -H --cpu-compress | grep 'node 1 cpus')" = 'node 1 cpus: 1-2 (2)' ] || echo 'ranges of CPUs'
    numactl --version | grep -q '[0-9][.][0-9]' || echo version

    # Every CPU can be had, and is the only one then; so is every node.
    for cpu in $($theirs --show | sed -n 's/physcpubind://p'); do
        check [ "$(numactl --physcpubind=$cpu sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)" = $cpu ]
        check [ "$(numactl --physcpubind=$cpu numactl --show | sed -n 's/^physcpubind: //p')" = $cpu ]
    done
    for node in $($theirs --show | sed -n 's/nodebind://p'); do
        check [ "$(numactl --cpunodebind=$node numactl --show | sed -n 's/^nodebind: //p')" = $node ]
        check [ "$(numactl --membind=$node numactl --show | sed -n 's/^membind: //p')" = $node ]
    done

    # A shell that is kept on one CPU: --all reaches beyond, and stands before the lists. A node is reached anyhow.
    check $theirs -C 0 sh -c "! numactl --physcpubind=4 true 2>/dev/null"
    check $theirs -C 0 numactl --all --physcpubind=4 true
    check fails numactl --physcpubind=4 --all true
    check $theirs -C 0 numactl --cpunodebind=3 true
    check $theirs -C 0 numactl --all --cpunodebind=3 true
    check fails numactl --membind=4 true
    check fails numactl -m 0 -i 0 true
    check fails numactl --shm=key --dump

    # Nobody, who may watch nothing, and hears nothing.
    echo 3 >/proc/sys/kernel/perf_event_paranoid
    chmod 755 . bin
    su -s /bin/sh nobody -c "$PWD/bin/numactl -N 3 -m 3 $theirs --show" >ours 2>&1
    $theirs -N 3 -m 3 $theirs --show >expected
    cmp ours expected || cat ours
    echo ===
"#;

/// One guest: managed programs under options of numactl, then numactl's users with an alias.
#[test]
fn placement_is_as_under_numactl_in_a_guest() {
    let node = |cpus| Node { cpus, memory_bytes: 384 << 20 };
    let nodewise = cargo_bin("nodewise");
    let script = "set -e
        for options in '-N 1 -m 2-3' '-C !0 -i +0-1' '-p 2' '-l -N same' '-N 3 -P same'; do
            $NODEWISE run --policy carrefour $options -- numactl --show || echo \"status $?\"
            echo ---
        done
        set +e";
    let script = format!("{script}{ALIAS}");
    let output = Guest::new([node(1), node(2), node(1), node(1)])
        .copy(&nodewise)
        .copy("/usr/bin/numactl")
        .exclusive(true)
        .output(std::process::Command::new("sh").args(["-c", &script]).env("NODEWISE", &nodewise))
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    let shown: Vec<&str> = stdout.split("---\n").collect();
    let [bound, interleaved, preferred, refused, many, alias] = shown[..] else { panic!("{stdout}{stderr}") };
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
    assert_eq!(alias, "===\n", "{stderr}");
}
