//! `nodewise topo` on captured machines and on this one.

#[path = "../../topology/tests/captures/mod.rs"]
mod captures;

use assert_cmd::Command;
use captures::Capture;
use serde_json::Value;
use std::path::Path;

fn topo(columns: u32, locale: &str, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("nodewise").unwrap();
    command.env_clear().env("COLUMNS", columns.to_string()).env("LANG", locale).arg("topo").args(arguments);
    command
}

fn text(columns: u32, locale: &str, capture: &str) -> String {
    let capture = Capture::unpack(capture);
    let output = topo(columns, locale, &["--from", capture.root().to_str().unwrap()]).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= columns as usize, "wider than {columns}: {line}");
        assert_eq!(line, line.trim_end());
    }
    text
}

fn json(capture: &Path) -> Value {
    let output = topo(80, "C", &["--json", "--from", capture.to_str().unwrap()]).assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// One line for each element of the lists at the top, so that a change shows where it is.
fn one_a_line(machine: &Value) -> String {
    let line = |(key, value): (&String, &Value)| match value {
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let items: Vec<String> = items.iter().map(|item| format!("  {item}")).collect();
            format!("{key}:\n{}", items.join("\n"))
        }
        value => format!("{key}: {value}"),
    };
    machine.as_object().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
}

macro_rules! snapshots {
    ($($name:ident: $columns:literal, $locale:literal, $capture:literal;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(text($columns, $locale, $capture));
        })*
    };
}

snapshots! {
    two_nodes_with_devices: 80, "C.UTF-8", "32em64t-2n8c+dax+nvme+mic+dimms";
    two_nodes_with_devices_in_ascii: 80, "C", "32em64t-2n8c+dax+nvme+mic+dimms";
    sparse_node_numbers: 80, "C.UTF-8", "48amd64-4pa2n6c-sparse";
    packages_in_a_node: 80, "C.UTF-8", "96em64t-4no4pa3ca2co";
    offline_cpus_and_unlike_packages: 80, "C.UTF-8", "16em64t-4s2c2t-offlines";
    offline_node: 80, "C.UTF-8", "offline-cpu0-node0";
    buggy_firmware: 80, "C.UTF-8", "8em64t-2s2ca2c-buggynuma";
    nodes_without_cpus_or_memory: 80, "C.UTF-8", "fakememinitiators-1np2c+1npp+gi";
    nodes_without_cpus_or_memory_wide: 140, "C.UTF-8", "fakememinitiators-1np2c+1npp+gi";
    memory_side_caches: 80, "C.UTF-8", "memorysidecaches";
    sixty_four_nodes: 80, "C.UTF-8", "256ia64-64n2s2c";
    sixty_four_nodes_wide: 140, "C.UTF-8", "256ia64-64n2s2c";
    no_numa: 80, "C.UTF-8", "2arm-2c";
}

#[test]
fn json_with_devices() {
    insta::assert_snapshot!(one_a_line(&json(&Capture::unpack("40intel64-2g2n4c+pcilocality").root())));
}

#[test]
fn json_with_memory_access() {
    insta::assert_snapshot!(one_a_line(&json(&Capture::unpack("fakememinitiators-1np2c+1npp+gi").root())));
}

/// docs/topo-json.md names every field there is.
#[test]
fn every_field_is_documented() {
    fn check(value: &Value, documented: &str) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    assert!(
                        documented.contains(&format!("`{field}`")),
                        "docs/topo-json.md does not name {field}"
                    );
                    check(value, documented);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| check(item, documented)),
            _ => (),
        }
    }
    let documented =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/topo-json.md")).unwrap();
    // Between them these have every kind of thing.
    for capture in ["32em64t-2n8c+dax+nvme+mic+dimms", "fakememinitiators-1np2c+1npp+gi", "memorysidecaches"]
    {
        check(&json(&Capture::unpack(capture).root()), &documented);
    }
    check(&json(Path::new("/")), &documented);
}

#[test]
fn json_of_this_machine_holds_what_scripts_rely_on() {
    let machine = json(Path::new("/"));
    let node = &machine["nodes"][0];
    assert!(node["id"].is_u64() && node["memory_total_bytes"].as_u64().unwrap() > 0, "{node}");
    assert_eq!(node["distances"].as_array().unwrap().len(), machine["nodes"].as_array().unwrap().len());
    assert!(node["cpus"].as_array().unwrap().iter().all(Value::is_u64));
    for device in machine["devices"].as_array().unwrap() {
        assert!(
            device["name"].is_string() && (device["node"].is_u64() || device["node"].is_null()),
            "{device}"
        );
    }
}

/// Node sizes, CPUs and distances, as `numactl -H` prints them.
fn check_against_numactl(machine: &Value, text: &str, numactl: &str) {
    // Its versions pad differently.
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    let numactl: String = numactl.lines().map(words).collect();
    for node in machine["nodes"].as_array().unwrap() {
        let id = node["id"].as_u64().unwrap();
        let cpus = node["cpus"].as_array().unwrap().iter().map(|cpu| format!(" {cpu}"));
        assert!(
            numactl.contains(&format!("node {id} cpus:{}\n", cpus.collect::<Vec<_>>().concat())),
            "{numactl}"
        );
        let mebibytes = node["memory_total_bytes"].as_u64().unwrap() >> 20;
        assert!(numactl.contains(&format!("node {id} size: {mebibytes} MB\n")), "{numactl}");
        let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{id}  "))).unwrap();
        assert!(row.contains(&format!(" {mebibytes} ")), "{text}");
        let distances = node["distances"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap());
        let distances: Vec<String> = distances.map(|distance| distance.to_string()).collect();
        assert!(numactl.contains(&format!("\n{id}: {}\n", distances.join(" "))), "{numactl}");
    }
}

#[test]
fn the_numbers_are_those_of_numactl() {
    let numactl = std::process::Command::new("numactl").arg("-H").output();
    let numactl =
        numactl.unwrap_or_else(|error| panic!("numactl: {error}; `apt-get install numactl` brings it"));
    let text = String::from_utf8(topo(80, "C", &[]).assert().success().get_output().stdout.clone()).unwrap();
    check_against_numactl(&json(Path::new("/")), &text, &String::from_utf8(numactl.stdout).unwrap());
}

/// A live machine with several nodes, one of them without CPUs, whose settings we know.
#[test]
fn a_guest_is_what_it_was_made_to_be() {
    let node = |cpus, mebibytes: u64| nodewise_rig::Node { cpus, memory_bytes: mebibytes << 20 };
    let nodewise = assert_cmd::cargo::cargo_bin("nodewise");
    let script = "echo 2 >/proc/sys/vm/nr_hugepages
        echo 3 >/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages
        echo 0 >/sys/devices/system/cpu/cpu2/online
        echo always >/sys/kernel/mm/transparent_hugepage/enabled
        echo defer >/sys/kernel/mm/transparent_hugepage/defrag
        echo 1 >/proc/sys/kernel/numa_balancing
        $NODEWISE topo --json && echo --- && $NODEWISE topo && echo --- && numactl -H &&
        echo --- && taskset -c 1 $NODEWISE topo";
    let output = nodewise_rig::Guest::new([node(2, 512), node(2, 256), node(1, 256), node(0, 128)])
        .distances(
            nodewise_rig::Distances::parse("10,20,30,17;20,10,30,28;30,30,10,30;17,28,30,10", 4).unwrap(),
        )
        .copy(&nodewise)
        .copy("/usr/bin/numactl")
        .copy("/usr/bin/taskset")
        .exclusive(true)
        .output(std::process::Command::new("sh").args(["-c", script]).env("NODEWISE", &nodewise))
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status, 0, "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let [machine, text, numactl, confined] = stdout.split("---\n").collect::<Vec<_>>()[..] else {
        panic!("{stdout}")
    };
    assert!(
        confined.ends_with("\n\nthis process may use CPUs 1 and memory of nodes 0-3 only\n"),
        "{confined}"
    );
    assert!(!text.contains("this process"), "{text}");
    let machine: Value = serde_json::from_str(machine).unwrap();
    check_against_numactl(&machine, text, numactl);
    let nodes = &machine["nodes"];
    let cpus: Vec<String> = (0..4).map(|node| nodes[node]["cpus"].to_string()).collect();
    assert_eq!(cpus, ["[0,1]", "[3]", "[4]", "[]"]);
    assert_eq!(machine["offline_cpus"].to_string(), "[2]");
    assert_eq!(nodes[0]["distances"].to_string(), "[10,20,30,17]");
    let pool = &nodes[1]["huge_pages"][0];
    assert_eq!((pool["page_bytes"].as_u64(), pool["total"].as_u64()), (Some(2 << 20), Some(3)));
    assert_eq!(machine["transparent_huge_pages"]["enabled"], "always");
    assert_eq!(machine["transparent_huge_pages"]["defrag"], "defer");
    assert_eq!(machine["numa_balancing"]["normal"], true);
    assert!(text.contains("no CPUs, near node 0 "), "{text}");
    assert!(text.contains("CPUs not online: 2\n"), "{text}");
}

#[test]
fn a_missing_directory_is_a_clear_error() {
    let error = topo(80, "C", &["--from", "/no/such/machine"]).assert().code(1);
    let error = String::from_utf8(error.get_output().stderr.clone()).unwrap();
    assert_eq!(error, "nodewise: /no/such/machine: there is no such directory\n");
}

/// A fact that a file should have told is unknown, in words, in the drawing and in JSON; the rest is as ever.
#[test]
fn what_cannot_be_read_is_unknown_and_said_to_be() {
    let capture = Capture::unpack("16amd64-8n2c");
    let root = capture.root();
    let node = root.join("sys/devices/system/node");
    std::fs::write(node.join("node2/distance"), "20 20 10 twenty\n").unwrap();
    std::fs::remove_file(node.join("node3/meminfo")).unwrap();
    let output = topo(1000, "C", &["--from", root.to_str().unwrap()]).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let distance = "node2/distance:1: expected distances like '10 20', found 'twenty'; taken for 10 and 20\n";
    assert!(text.contains(distance), "{text}");
    assert!(
        text.contains("node3/meminfo: is not there, but every machine has it; unknown therefore\n"),
        "{text}"
    );
    assert!(text.contains("8 nodes, ") && text.contains(", memory unknown\n"), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["3", "unknown", "unknown", "6-7"]), "{text}");
    let machine = json(&root);
    assert!(
        machine["nodes"][3]["memory_total_bytes"].is_null() && machine["uncounted_memory_bytes"].is_null()
    );
    assert!(machine["nodes"][2]["memory_total_bytes"].is_u64(), "{machine}");
    assert_eq!(machine["warnings"].as_array().unwrap().len(), 2);
}

/// A virtual machine that grew: its node counts a third of the memory.
#[test]
fn memory_that_no_node_counts_is_told_and_added_to_the_whole() {
    let capture = Capture::unpack("fakememinitiators-1np2c+1npp+gi");
    let root = capture.root();
    let before = json(&root);
    let nodes = before["nodes"].as_array().unwrap();
    let counted: u64 = nodes.iter().map(|node| node["memory_total_bytes"].as_u64().unwrap()).sum();
    assert_eq!(before["uncounted_memory_bytes"], 0);
    std::fs::write(root.join("proc/meminfo"), format!("MemTotal: {} kB\n", 3 * counted >> 10)).unwrap();
    let grown = json(&root);
    assert_eq!(grown["uncounted_memory_bytes"], 2 * counted);
    assert_eq!(grown["nodes"], before["nodes"]);
    let output = topo(1000, "C", &["--from", root.to_str().unwrap()]).assert().success();
    let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(text.contains("warning: the nodes' MemTotal add up to "), "{text}");
    assert!(text.contains(&format!(", {:.1} TiB\n", (3 * counted) as f64 / (1_u64 << 40) as f64)), "{text}");
}

#[test]
fn a_machine_whose_files_may_not_be_read_has_its_own_exit_code() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let everybody = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let capture = Capture::unpack("16amd64-8n2c");
    let root = capture.root();
    let file = root.join("sys/devices/system/node/node2/distance");
    let cpus = root.join("sys/devices/system/cpu");
    everybody(&file, 0o000);
    // Root may read anything, so it runs a copy as a user that may not (nobody's number is 65534 everywhere).
    let dir = tempfile::tempdir().unwrap();
    let nodewise = dir.path().join("nodewise");
    // By cp: what this process has open to write, a child that another test forks has open as well, and
    // nobody can run it then.
    let own = assert_cmd::cargo::cargo_bin("nodewise");
    assert!(std::process::Command::new("cp").args([&own, &nodewise]).status().unwrap().success());
    let mut command = std::process::Command::new(&nodewise);
    command.env("COLUMNS", "1000").args(["topo", "--from"]).arg(&root);
    if std::fs::read(&file).is_ok() {
        everybody(dir.path(), 0o755);
        everybody(root.parent().unwrap(), 0o755);
        command.uid(65534).gid(65534);
    }
    let refused =
        |path: &Path| format!("{}: cannot be read: Permission denied (os error 13)", path.display());
    let outcome = command.output().unwrap();
    let text = String::from_utf8(outcome.stdout).unwrap();
    assert_eq!(outcome.status.code(), Some(0));
    assert!(text.contains(&format!("warning: {}; taken for 10 and 20\n", refused(&file))), "{text}");
    // Without any CPU there is no machine.
    everybody(&cpus, 0o000);
    let outcome = command.output().unwrap();
    everybody(&cpus, 0o755);
    let error = format!("nodewise: {}\n", refused(&cpus));
    assert_eq!((outcome.status.code(), String::from_utf8(outcome.stderr).unwrap()), (Some(77), error));
}

/// Names in a tree are shown and not obeyed; a device of this name is drawn, and a file in that
/// directory malformed.
#[test]
fn names_of_a_tree_do_not_command_the_terminal() {
    let capture = Capture::unpack("32em64t-2n8c+dax+nvme+mic+dimms");
    let root = capture.root();
    let name = "eth0\x1b]0;PWNED\x07\x1b[31m";
    let device = root.join("sys/devices/pci0000:00/0000:00:19.0/net").join(name);
    std::fs::create_dir_all(&device).unwrap();
    std::fs::create_dir_all(root.join("sys/class/net")).unwrap();
    let below = format!("../../devices/pci0000:00/0000:00:19.0/net/{name}");
    std::os::unix::fs::symlink(below, root.join("sys/class/net").join(name)).unwrap();
    for arguments in [&["--json"][..], &[]] {
        let mut command = topo(100, "C.UTF-8", &["--from", root.to_str().unwrap()]);
        let output = command.args(arguments).env("CLICOLOR_FORCE", "1").assert().success();
        let text = String::from_utf8(output.get_output().stdout.clone()).unwrap();
        assert!(text.contains("eth0\\u001b]0;PWNED\\u0007"), "{text}");
        assert!(!text.contains("\x1b]") && !text.contains("\x1b[31m"), "{text}");
    }
    let mut command = topo(100, "C", &["--from", "/nowhere\x1b]0;PWNED\x07"]);
    let output = command.env("CLICOLOR_FORCE", "1").assert().failure();
    let error = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(error.contains("/nowhere\\u001b]0;PWNED\\u0007"), "{error}");
}

#[test]
fn colours_are_for_terminals() {
    let plain = topo(80, "C", &[]).assert().success();
    assert!(!plain.get_output().stdout.contains(&0x1b));
    let forced = topo(80, "C", &[]).env("CLICOLOR_FORCE", "1").assert().success();
    assert!(forced.get_output().stdout.contains(&0x1b));
}
