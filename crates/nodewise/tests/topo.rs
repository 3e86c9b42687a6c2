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

/// Node sizes, CPUs and distances of this machine, as `numactl -H` prints them.
#[test]
fn the_numbers_are_those_of_numactl() {
    let numactl = std::process::Command::new("numactl").arg("-H").output();
    let numactl =
        numactl.unwrap_or_else(|error| panic!("numactl: {error}; `apt-get install numactl` brings it"));
    let theirs = String::from_utf8(numactl.stdout).unwrap();
    let machine = json(Path::new("/"));
    let text = String::from_utf8(topo(80, "C", &[]).assert().success().get_output().stdout.clone()).unwrap();
    for node in machine["nodes"].as_array().unwrap() {
        let id = node["id"].as_u64().unwrap();
        let cpus: Vec<String> = node["cpus"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert!(theirs.contains(&format!("node {id} cpus: {}\n", cpus.join(" "))), "{theirs}");
        let mebibytes = node["memory_total_bytes"].as_u64().unwrap() >> 20;
        assert!(theirs.contains(&format!("node {id} size: {mebibytes} MB\n")), "{theirs}");
        let row = text.lines().find(|line| line.trim_start().starts_with(&format!("{id}  "))).unwrap();
        assert!(row.contains(&format!(" {mebibytes} ")), "{text}");
        let distances = node["distances"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap());
        let distances: Vec<String> = distances.map(|distance| format!("{distance:>3}")).collect();
        assert!(theirs.contains(&format!("{id:>3}: {} \n", distances.join(" "))), "{theirs}");
    }
}

#[test]
fn a_missing_directory_is_a_clear_error() {
    let error = topo(80, "C", &["--from", "/no/such/machine"]).assert().code(1);
    let error = String::from_utf8(error.get_output().stderr.clone()).unwrap();
    assert_eq!(error, "nodewise: /no/such/machine: there is no such directory\n");
}

#[test]
fn a_malformed_tree_is_a_clear_error() {
    let capture = Capture::unpack("16amd64-8n2c");
    let file = capture.root().join("sys/devices/system/node/node2/distance");
    std::fs::write(&file, "20 20 10 twenty\n").unwrap();
    let error = topo(80, "C", &["--from", capture.root().to_str().unwrap()]).assert().code(1);
    let error = String::from_utf8(error.get_output().stderr.clone()).unwrap();
    assert_eq!(
        error,
        format!("nodewise: {}:1: expected distances like '10 20', found 'twenty'\n", file.display())
    );
}

#[test]
fn colours_are_for_terminals() {
    let plain = topo(80, "C", &[]).assert().success();
    assert!(!plain.get_output().stdout.contains(&0x1b));
    let forced = topo(80, "C", &[]).env("CLICOLOR_FORCE", "1").assert().success();
    assert!(forced.get_output().stdout.contains(&0x1b));
}
