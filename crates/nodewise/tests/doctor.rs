//! `nodewise doctor` on whatever machine this is, and in a guest where everything must work.

use assert_cmd::cargo::cargo_bin;
use std::process::Command;

fn checks(json: &[u8]) -> (serde_json::Value, Vec<(String, String, String)>) {
    let report: serde_json::Value = serde_json::from_slice(json).unwrap();
    let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap().to_owned();
    let checks = report["checks"].as_array().unwrap().iter();
    let checks =
        checks.map(|check| (text(check, "name"), text(check, "status"), text(check, "found"))).collect();
    (report, checks)
}

#[test]
fn this_machine_gets_a_page() {
    let doctor = |arguments: &[&str]| {
        Command::new(cargo_bin("nodewise")).arg("doctor").args(arguments).output().unwrap()
    };
    let json = doctor(&["--json"]);
    let (report, checks) = checks(&json.stdout);
    let manageable = report["manageable"].as_bool().unwrap();
    assert_eq!(json.status.code(), Some(i32::from(!manageable)));
    let moving = checks.iter().find(|(name, ..)| name == "moving pages").unwrap();
    // The patient was met, whatever may be done to it.
    assert!(!moving.2.contains("did not start well"), "{moving:?}");

    let page = doctor(&[]);
    assert_eq!(page.status.code(), json.status.code());
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.starts_with("Linux "), "{page}");
    assert!(!page.contains('\x1b'), "colours are for terminals");
    for (name, ..) in checks {
        assert!(page.contains(&name), "{name} is not on the page:\n{page}");
    }
}

#[test]
fn in_a_guest_of_two_nodes_everything_but_a_pmu_works() {
    let output = Command::new(cargo_bin("nodewise"))
        .args(["rig", "--nodes", "2", "--"])
        .arg(cargo_bin("nodewise"))
        .args(["doctor", "--json"])
        .env("NODEWISE_RIG_EXCLUSIVE", "1")
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{message}\n{}", String::from_utf8_lossy(&output.stdout));
    let (report, checks) = checks(&output.stdout);
    assert_eq!(report["nodes"], 2);
    assert_eq!(report["sampler"], "hint-faults");
    for name in
        ["nodes", "NUMA balancing", "hint faults", "page-fault event", "moving pages", "splitting huge pages"]
    {
        let (_, status, found) = checks.iter().find(|(check, ..)| check == name).unwrap();
        assert_eq!(status, "works", "{name}: {found}");
    }
    let (_, _, moved) = checks.iter().find(|(check, ..)| check == "moving pages").unwrap();
    assert!(moved.starts_with("moved a page of another process from node"), "{moved}");
}
