//! `nodewise sim` as a person or a script uses it.

mod simulated;

use assert_cmd::Command;
use serde_json::Value;
use simulated::{RUN, json, sim};
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

#[test]
fn the_list_names_what_can_be_run() {
    let (code, text, _) = sim(&["list"]);
    assert_eq!(code, Some(0));
    for name in ["opteron-8385-4n", "streamcluster", "carrefour", "pikus"] {
        assert!(text.contains(name), "{text}");
    }
    let list: Value = serde_json::from_str(&sim(&["list", "--json"]).1).unwrap();
    for part in ["machines", "workloads", "policies", "studies"] {
        assert!(list[part].as_array().is_some_and(|entries| !entries.is_empty()), "{part}");
    }
}

/// A CPU that this process may run on.
fn first_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
    allowed.split(['-', ',']).next().unwrap().to_owned()
}

#[test]
fn the_same_command_prints_the_same_bytes() {
    let arguments = [&RUN[..], &["--policy", "first-touch,interleave,carrefour", "--json"]].concat();
    let first = sim(&arguments);
    assert_eq!(first.0, Some(0), "{}", first.2);
    assert_eq!(first, sim(&arguments));
    let nodewise = assert_cmd::cargo::cargo_bin("nodewise");
    let mut on_one_cpu = Command::new("taskset");
    on_one_cpu.args(["--cpu-list", &first_cpu()]).arg(nodewise).arg("sim").args(&arguments);
    assert_eq!(String::from_utf8(on_one_cpu.output().unwrap().stdout).unwrap(), first.1);
    let printed: Value = serde_json::from_str(&first.1).unwrap();
    assert_eq!(printed["threads"], 16);
    let policies: Vec<_> = printed["runs"].as_array().unwrap().iter().map(|run| &run["policy"]).collect();
    assert_eq!(policies, ["first-touch", "interleave", "carrefour"]);
    assert!(printed["runs"][0]["run_time_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_table_has_a_column_for_each_policy() {
    let (code, text, error) =
        sim(&[&RUN[..], &["--policy", "first-touch,bind:1", "--threads", "2"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let header = text.lines().next().unwrap();
    assert!(header.contains("first-touch") && header.ends_with("bind:1"), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("speed-up over the first")), "{text}");
    assert!(
        !text.lines().any(|line| line.ends_with(" -")),
        "nothing is said of tasks, as it has none: {text}"
    );
}

#[test]
fn the_plot_is_a_picture_with_every_policy_and_is_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("traffic.svg");
    let plot = ["--policy", "first-touch,ace,oracle", "--plot", file.to_str().unwrap()];
    let (code, _, error) = sim(&[&RUN[..], &plot].concat());
    assert_eq!(code, Some(0), "{error}");
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(["first-touch", "ace", "oracle"].iter().all(|policy| svg.contains(&format!(">{policy}</text>"))));
    assert_eq!(svg.matches("<circle").count(), 3 * 4);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    // A run that fails leaves what was there.
    let failing = ["--policy", "bind:4", "--plot", file.to_str().unwrap()];
    assert_eq!(sim(&[&RUN[..], &failing].concat()).0, Some(2));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), svg);
}

#[test]
fn an_interrupted_run_ends_at_once_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // Whoever started the tests in a shell's background has interrupts ignored.
    let mut run = std::process::Command::new("env")
        .arg("--default-signal=INT")
        .arg(assert_cmd::cargo::cargo_bin("nodewise"))
        .args(["sim", "run", "--machine", "opteron-8385-4n", "--workload", "streamcluster"])
        .args(["--scale", "1", "--plot", "traffic.svg"])
        .current_dir(directory.path())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let interrupt = ["-INT", &run.id().to_string()];
    assert!(std::process::Command::new("kill").args(interrupt).status().unwrap().success());
    assert_eq!(run.wait().unwrap().signal(), Some(2));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The text on the terminal, by script(1), up to `mark`; then Ctrl-C is typed.
fn on_a_terminal_until(mark: &str, arguments: &str) -> String {
    let nodewise = assert_cmd::cargo::cargo_bin("nodewise");
    let command = format!(
        "stty rows 33 cols 99; exec env --default-signal=INT {} sim {arguments} >/dev/null",
        nodewise.display()
    );
    let mut script = std::process::Command::new("script")
        .args(["-q", "-e", "-c", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let (mut seen, mut some) = (String::new(), [0; 4096]);
    while !seen.contains(mark) {
        let read = screen.read(&mut some).unwrap();
        assert_ne!(read, 0, "{mark} does not come: {seen}");
        seen += &String::from_utf8_lossy(&some[..read]);
    }
    keys.write_all(b"\x03").unwrap();
    // Or it could not write the rest, and would not see the key.
    screen.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(128 + 2));
    seen
}

#[test]
fn what_is_done_once_weighs_less_the_more_often_the_program_goes_over_its_data() {
    let kernel_s = |passes: &str| {
        let run = ["run", "--machine", "dahu-2n", "--workload", "intel-micro", "--scale", "0.0001", "--json"];
        let (code, text, error) = sim(&[&run[..], &["--passes", passes]].concat());
        assert_eq!(code, Some(0), "{error}");
        let printed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(printed["passes"], passes.parse::<f64>().unwrap());
        printed["runs"][0]["kernel_s"].as_f64().unwrap()
    };
    // A microsecond for each page's first touch: 160 GiB are 41.9 million.
    let once = kernel_s("1");
    assert!((0.0041..0.0043).contains(&once), "{once}");
    assert!((kernel_s("50") * 50.0 / once - 1.0).abs() < 0.01);
    for passes in ["0", "-1", "nan", "1e9"] {
        let (code, _, error) = sim(&["run", "--machine", "dahu-2n", "--workload", "cg", "--passes", passes]);
        assert_eq!(code, Some(2), "{passes}: {error}");
    }
}

#[test]
fn a_run_says_all_that_is_needed_to_run_it_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    let preset = concat!(env!("CARGO_MANIFEST_DIR"), "/../hardware/presets/opteron-6272-8n.toml");
    std::fs::write(
        &file,
        std::fs::read_to_string(preset).unwrap().replace("\"opteron-6272-8n\"", "\"mine\""),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let odd = ["--threads", "24", "--pin", "sockorder", "--seed", "7", "--scale", "0.002", "--passes", "30"];
    let run =
        ["run", "--machine", file, "--workload", "cg", "--policy", "interleave,autonuma", "--huge-pages"];
    let printed = json(&[&run[..], &odd].concat());
    std::fs::remove_file(file).unwrap();
    let again = directory.path().join("again.json");
    std::fs::write(&again, printed["preset"].to_string()).unwrap();
    // Only what was printed.
    let text = |field: &str| match &printed[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let policies: Vec<_> =
        printed["runs"].as_array().unwrap().iter().map(|run| run["policy"].as_str().unwrap()).collect();
    let values: Vec<String> =
        ["workload", "threads", "pin", "seed", "scale", "passes"].map(text).into_iter().collect();
    let mut arguments = vec!["run", "--machine-from", again.to_str().unwrap()];
    for (name, value) in
        ["--workload", "--threads", "--pin", "--seed", "--scale", "--passes"].iter().zip(&values)
    {
        arguments.extend([name, value.as_str()]);
    }
    let huge_pages = format!("--huge-pages={}", printed["huge_pages"]);
    let policies = policies.join(",");
    arguments.extend([huge_pages.as_str(), "--policy", &policies]);
    assert_eq!(json(&arguments), printed);
    assert_eq!(printed["version"], env!("CARGO_PKG_VERSION"));
    let known = json(&[&RUN[..], &["--threads", "2"]].concat());
    assert_eq!((&known["machine"], known.get("preset")), (&Value::from("opteron-8385-4n"), None));
}

#[test]
fn huge_pages_shrink_with_the_problem_and_few_pages_are_told() {
    let run = ["run", "--machine", "opteron-6272-8n", "--workload", "ua", "--huge-pages", "--scale"];
    let pages = |scale: &str, base: u64| {
        let printed = json(&[&run[..], &[scale]].concat());
        assert_eq!(printed["huge_page_pages"], base);
        printed["runs"][0]["placeable_pages"].as_u64().unwrap()
    };
    // As many at either scale, but for the last of each area. There were 4 of 2 MiB.
    let (few, more) = (pages("0.03125", 16), pages("0.0625", 32));
    assert!(few > 40 && few.abs_diff(more) * 10 < more, "{few} and {more}");
    let (code, _, error) = sim(&[&run[..], &["0.03125"]].concat());
    assert_eq!(code, Some(0));
    assert!(error.starts_with(&format!("nodewise: 64 threads share {few} pages")), "{error}");
}

#[test]
fn a_row_of_a_study_is_run_again_by_name() {
    let run = ["run", "--as", "carrefour", "--workload", "is", "--policy", "first-touch,interleave"];
    let printed = json(&run);
    assert_eq!((&printed["as"], &printed["machine"]), (&"carrefour".into(), &"opteron-8385-4n".into()));
    let time_s = |run: usize| printed["runs"][run]["run_time_s"].as_f64().unwrap();
    let gain = 100.0 * (time_s(0) / time_s(1) - 1.0);
    // The row "is: gain of interleave over first touch" is 14 % (docs/fidelity.md), and 9 to 24 % with the
    // settings of a run without the study's.
    assert!((13.0..16.0).contains(&gain), "{gain}");
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = sim(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(message), "{error}");
    };
    refused(&["run", "--as", "pikus", "--workload", "cg"], "nodewise: --as pikus: no study with runs of");
    refused(
        &["run", "--as", "carrefour", "--workload", "llm"],
        "nodewise: --as: carrefour has no program llm",
    );
    refused(&[&run[..], &["--scale", "0.1"]].concat(), "cannot be used with");
}

#[test]
fn a_policy_that_cannot_be_is_refused_before_anything_is_run() {
    // At this scale a run takes minutes.
    let run = ["run", "--machine", "dahu-2n", "--workload", "streamcluster", "--scale", "1"];
    let (code, text, error) = sim(&[&run[..], &["--policy", "first-touch,bind:9"]].concat());
    assert_eq!((code, text.as_str()), (Some(2), ""));
    assert!(error.contains("bind:9: dahu-2n has no memory on node 9"), "{error}");
}

#[test]
fn a_long_command_shows_on_a_terminal_how_far_it_has_come() {
    // Each would take minutes.
    let run = "run --machine opteron-8385-4n --workload streamcluster --scale 1";
    for arguments in [run, "reproduce page-split", "matrix --scale 1"] {
        let seen = on_a_terminal_until(" %  ", arguments);
        assert!(seen.contains('░') && !seen.contains('\n'), "{seen:?}");
    }
}

/// The rows of what `nodewise sim reproduce --json` printed of one study, each as documented; and whether all
/// hold.
fn rows(study: &Value) -> (Vec<&Value>, bool) {
    assert!(study["study"].is_string());
    let rows: Vec<&Value> = study["rows"].as_array().unwrap().iter().collect();
    assert!(!rows.is_empty());
    for row in &rows {
        assert_eq!(row.as_object().unwrap().len(), 7, "{row}");
        let kind = row["kind"].as_str().unwrap();
        assert!(["predicted", "sign", "implied", "calibrated"].contains(&kind), "{row}");
        // A bound predicts no figure.
        assert!(kind != "predicted" || row["tolerance"].is_number(), "{row}");
        assert!(row["what"].is_string() && row["unit"].is_string(), "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap();
        let (published, simulated) = (figure("published"), figure("simulated"));
        let holds = match &row["tolerance"] {
            Value::String(tolerance) if tolerance == "at least" => simulated >= published,
            Value::String(tolerance) if tolerance == "at most" => simulated <= published,
            Value::String(tolerance) if tolerance == "more than" => simulated > published,
            Value::String(tolerance) if tolerance == "less than" => simulated < published,
            tolerance => (simulated - published).abs() <= tolerance.as_f64().unwrap(),
        };
        assert_eq!(row["holds"], holds, "{row}");
    }
    let all = rows.iter().all(|row| row["holds"] == true);
    (rows, all)
}

#[test]
fn a_study_is_printed_row_by_row_and_fails_if_one_does_not_hold() {
    let (code, text, error) = sim(&["reproduce", "loaded-latency", "--json"]);
    let study: Value = serde_json::from_str(&text).unwrap();
    let (rows, all_hold) = rows(&study);
    assert_eq!(study["study"], "loaded-latency");
    assert_eq!(code, Some(i32::from(!all_hold)), "{error}");
    // It takes longer than two seconds, and this is no terminal.
    assert_eq!(error, "");
    assert!(rows.iter().any(|row| row["tolerance"].is_number()), "{text}");
    let machine = "2 x Cascade Lake: ";
    let calibrated: Vec<_> = rows
        .iter()
        .filter(|row| row["kind"] == "calibrated")
        .filter_map(|row| row["what"].as_str()?.strip_prefix(machine))
        .collect();
    assert_eq!(
        calibrated,
        [
            "latency at 2 GB/s of 226",
            "latency at 226 GB/s of 226",
            "bandwidth when all cores read without pauses"
        ]
    );
}

/// Rows that do not hold, and why: docs/fidelity.md.
const NOT_HOLDING: [&str; 6] = [
    "facerec: gain of AutoNUMA over first touch is small",
    "pca: gain of AutoNUMA over first touch is small",
    "two nodes of 159 GB/s: latency at 158.6 GB/s of 159.2",
    "xeon-5120-4s: bandwidth lost when the threads of a node write memory of another",
    "dahu-2n: bandwidth lost when the threads of a node write memory of another",
    "xeon-snc: bandwidth lost when the threads of a node write memory of another",
];

#[test]
#[ignore = "minutes even in an optimised build, in which `make test` runs it"]
fn all_rows_hold_but_those_that_the_documentation_names() {
    let (code, text, error) = sim(&["reproduce", "all", "--json"]);
    let studies: Value = serde_json::from_str(&text).unwrap();
    let studies: Vec<_> = studies.as_array().unwrap().iter().map(rows).collect();
    let failing = studies.iter().flat_map(|(rows, _)| rows).filter(|row| row["holds"] == false);
    let failing: Vec<_> = failing.map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(failing, NOT_HOLDING, "{error}");
    assert_eq!(code, Some(i32::from(!failing.is_empty())));
}

/// The command of docs/simulator.md, and the beginning of what it prints, as the page has it.
fn documented() -> (Vec<String>, String) {
    let page =
        std::fs::read_to_string(DOCS.to_owned() + "/simulator.md").unwrap().replace("\\\n        ", "");
    let command = page.lines().find(|line| line.ends_with(" --plot traffic.svg")).unwrap();
    let words = command.split_whitespace().skip(2).map(str::to_owned).collect();
    let table = page.lines().skip_while(|line| !line.trim().starts_with("first-touch "));
    let table = table.map_while(|line| line.strip_prefix("    ")).map(|line| line.to_owned() + "\n");
    (words, table.collect())
}

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

/// The row, the policy and the figure of each cell.
fn cells(table: &str) -> Vec<(&str, &str, &str)> {
    let mut lines = table.lines();
    let policies: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let row = |line| {
        let mut parts = str::split(line, "  ").map(str::trim).filter(|part| !part.is_empty());
        let name = parts.next().unwrap();
        policies.iter().zip(parts).map(move |(&policy, cell)| (name, policy, cell)).collect::<Vec<_>>()
    };
    lines.flat_map(row).collect()
}

#[test]
fn two_columns_of_the_documentation_are_what_the_command_prints() {
    let (words, table) = documented();
    let all = words.iter().position(|word| word == "--policy").unwrap() + 1;
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words[all] = "first-touch,carrefour";
    words.truncate(words.len() - 2);
    let (_, text, error) = sim(&words);
    let printed = cells(&text);
    let shown = cells(&table).into_iter().filter(|(_, policy, _)| words[all].contains(policy));
    let wrong: Vec<_> = shown.filter(|cell| !printed.contains(cell)).collect();
    assert!(wrong.is_empty() && !printed.is_empty(), "{error}{wrong:?}: now it prints\n{text}");
}

#[test]
#[ignore = "minutes even in an optimised build, in which `make test` runs it"]
fn the_documentation_has_all_that_the_command_prints_and_draws() {
    let (mut words, table) = documented();
    let directory = tempfile::tempdir().unwrap();
    let picture = directory.path().join("traffic.svg");
    *words.last_mut().unwrap() = picture.to_str().unwrap().to_owned();
    let (_, text, error) = sim(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!table.is_empty() && text.starts_with(&table), "{error}now it prints\n{text}");
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let shown = read(&(DOCS.to_owned() + "/streamcluster.svg"));
    assert!(read(picture.to_str().unwrap()) == shown, "docs/streamcluster.svg is not what it draws");
}

#[test]
fn what_there_is_not_is_named_with_what_there_is() {
    let refused = |arguments: &[&str], message: &str| {
        let (code, text, error) = sim(arguments);
        assert_eq!((code, text.as_str()), (Some(2), ""), "{error}");
        assert!(error.starts_with(message), "{error}");
    };
    refused(
        &["run", "--machine", "cray", "--workload", "streamcluster"],
        "nodewise: --machine: cray: no such machine; there are ace-7, ",
    );
    refused(
        &["run", "--machine", "dahu-2n", "--workload", "x"],
        "nodewise: --workload: no such program: x; there are ",
    );
    refused(
        &[&RUN[..], &["--policy", "magic"]].concat(),
        "nodewise: --policy: no such policy: magic; there are ",
    );
    refused(
        &[&RUN[..], &["--policy", "bind:4"]].concat(),
        "nodewise: bind:4: opteron-8385-4n has no memory on node 4",
    );
    refused(
        &[&RUN[..], &["--threads", "17"]].concat(),
        "nodewise: --threads 17: opteron-8385-4n has 16 CPUs",
    );
    refused(&["reproduce", "nobody"], "nodewise: no such study: nobody; there are ");
}

#[test]
fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
    let meant = |arguments: &[&str]| {
        let (code, _, error) = sim(arguments);
        assert_eq!(code, Some(2), "{error}");
        error.split_once(". Did you mean ").map(|(_, name)| name.trim_end().to_owned())
    };
    let run = |machine, workload, policy| {
        meant(&["run", "--machine", machine, "--workload", workload, "--policy", policy])
    };
    let said = |name: &str| Some(format!("{name}?"));
    assert_eq!(run("opteron-8385", "cg", "ace"), said("opteron-8385-4n"));
    assert_eq!(run("dahu-2n", "streamcluser", "ace"), said("streamcluster"));
    assert_eq!(run("dahu-2n", "cg", "carefour"), said("carrefour"));
    assert_eq!(run("dahu-2n", "cg", "bnd:1"), said("bind:N"));
    assert_eq!(run("dahu-2n", "CG", "ace"), said("cg"));
    assert_eq!(meant(&[&RUN[..], &["--pin", "sock"]].concat()), said("sockorder"));
    assert_eq!(meant(&["reproduce", "carefour"]), said("carrefour"));
    // Its argument is wrong, and the message says so.
    assert_eq!(run("dahu-2n", "cg", "bind:x"), None);
    assert_eq!(run("dahu-2n", "cg", "magic"), None);
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_anything_is_run() {
    let plot = ["--scale", "1", "--plot", "/no/such/directory/traffic.svg"];
    let (code, text, error) = sim(&[&RUN[..5], &plot].concat());
    assert_eq!((code, text.as_str()), (Some(1), ""));
    let reason = "No such file or directory (os error 2)";
    assert_eq!(error, format!("nodewise: cannot write /no/such/directory/traffic.svg: {reason}\n"));
}
