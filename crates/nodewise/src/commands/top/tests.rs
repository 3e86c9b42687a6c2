use super::figures;
use super::screen;
use super::state::{Sort, State};
use nodewise_engine::Pid;
use nodewise_linux::census::{Overview, RegionUse};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;

/// Two nodes and three processes: one that runs far from its memory, one that rests, one of somebody else's.
fn state() -> State {
    let node = |node: u32, free: u64, busy: f64| {
        json!({"node": node, "cpus": 8, "busy_percent": busy, "total_bytes": 64_u64 << 30, "free_bytes": free,
               "allocated_from_afar_bytes_per_s": 3.5e6})
    };
    let overview: Overview = serde_json::from_value(json!({
        "seconds": 2.0,
        "nodes": [node(0, 3 << 30, 10.4), node(1, 61 << 30, 99.9)],
        "balancing": {"is_on": true, "hint_faults_per_s": 1500.0, "near_percent": 25.0, "moved_bytes_per_s": 2e7},
        "processes": [
            {"pid": 9, "program": "idle\u{1b}[2J", "cpu_percent": 0.0, "resident_bytes": 5 << 20,
             "runs_on": null, "lies_on": [1.0, 0.0], "far_at_least_percent": null, "threads": []},
            {"pid": 12, "program": "theirs", "cpu_percent": 800.0, "resident_bytes": 1_u64 << 40,
             "runs_on": [0.5, 0.5], "lies_on": null, "far_at_least_percent": null, "threads": []},
            {"pid": 4711, "program": "far", "cpu_percent": 100.0, "resident_bytes": 40_u64 << 30,
             "runs_on": [0.0, 1.0], "lies_on": [0.904, 0.096], "far_at_least_percent": 90.4, "threads": [
                {"tid": 4712, "name": "worker", "cpu_percent": 99.0, "node": 1},
                {"tid": 4711, "name": "far", "cpu_percent": 1.0, "node": null}]},
        ],
        "process_count": 3,
    }))
    .unwrap();
    let regions: Vec<RegionUse> = serde_json::from_value(json!([
        {"address": 0x7f00_0000_0000_u64, "bytes": 40_u64 << 30, "resident_bytes": 39_u64 << 30,
         "lies_on": [0.91, 0.09], "name": ""},
        {"address": 0x5500_0000_0000_u64, "bytes": 1 << 20, "resident_bytes": 1 << 20, "lies_on": [0.0, 1.0],
         "name": "/usr/lib/a name with blanks (deleted)"},
    ]))
    .unwrap();
    let mut state = State { overview: Some(overview), regions, ..State::new(Sort::Far, None) };
    state.sort_by(Sort::Far);
    state
}

/// The characters on a screen of that size.
fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn processes_are_sorted_and_the_chosen_one_stays_in_sight() {
    let mut state = state();
    insta::assert_snapshot!("processes", screen(&state, 80, 12));
    let pids = |state: &State| state.processes().iter().map(|process| process.pid.0).collect::<Vec<_>>();
    assert_eq!(pids(&state), [4711, 12, 9]);
    state.sort_by(Sort::Cpu);
    assert_eq!(pids(&state), [12, 4711, 9]);
    state.sort_by(Sort::Memory);
    assert_eq!(pids(&state), [12, 4711, 9]);
    state.choose(1);
    assert_eq!(state.chosen_process().unwrap().pid, Pid(4711));
    state.choose(isize::MAX);
    assert_eq!(state.chosen_process().unwrap().pid, Pid(9));
    // Two rows of processes fit.
    let small = screen(&state, 80, 9);
    assert!(small.contains("idle") && !small.contains("theirs"), "{small}");
}

#[test]
fn a_process_is_shown_with_threads_and_mappings() {
    let mut state = state();
    state.process = Some(Pid(4711));
    insta::assert_snapshot!("process", screen(&state, 80, 20));
    state.process = Some(Pid(4));
    assert!(screen(&state, 80, 20).contains("process 4 has ended"));
}

#[test]
fn any_size_of_a_terminal_can_be_drawn_on() {
    let mut state = state();
    for process in [None, Some(Pid(4711))] {
        state.process = process;
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 90)] {
            screen(&state, width, height);
        }
    }
}

#[test]
fn text_has_all_rows() {
    let mut state = state();
    insta::assert_snapshot!("text", figures::text(&state, 80));
    state.process = Some(Pid(4711));
    insta::assert_snapshot!("text-of-process", figures::text(&state, 80));
}

#[test]
fn a_line_of_json_has_regions_only_of_one_process() {
    let mut state = state();
    let line = |state: &State| serde_json::from_str::<serde_json::Value>(&state.json().unwrap()).unwrap();
    assert!(line(&state).get("regions").is_none());
    state.process = Some(Pid(4711));
    assert_eq!(line(&state)["regions"][0]["lies_on"], json!([0.91, 0.09]));
    assert!(!state.json().unwrap().contains('\n'));
}

#[test]
fn sizes_have_three_digits() {
    let sizes = [0.0, 4096.0, 1023e3, 9.9 * 1_048_576.0, 1e9, 5e11, 3e12].map(figures::bytes);
    assert_eq!(sizes, ["0 KiB", "4 KiB", "999 KiB", "9.9 MiB", "954 MiB", "466 GiB", "2.7 TiB"]);
}
