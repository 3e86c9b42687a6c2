//! The kernel's work for the program, and events of the whole machine meanwhile.

use super::read::Profile;
use nodewise_verdict::html::escaped;
use std::fmt::Write as _;

/// Events that tell what the kernel does about nodes and memory (`/proc/vmstat`, `/proc/interrupts`).
const SHOWN: [(&str, &str); 4] = [
    ("numa_hint_faults", "hint faults"),
    ("numa_pages_migrated", "pages migrated by balancing"),
    ("pgmigrate_success", "pages migrated in all"),
    ("TLB shootdowns", "interrupts to flush TLBs"),
];

/// The lines of text, without their ends.
fn lines(profile: &Profile) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(kernel) = &profile.kernel {
        lines.push(format!(
            "The kernel took {:.1} % of the CPU time: {:.1} % to balance, {:.1} % to bring memory in, {:.1} % to \
             take it back{}.",
            kernel.kernel_percent,
            kernel.balancing_percent,
            kernel.taking_percent,
            kernel.returning_percent,
            kernel.losses().map(|losses| format!(" ({losses})")).unwrap_or_default()
        ));
    }
    let event = |&(name, words): &(&str, &str)| {
        profile.events.get(name).filter(|&&count| count > 0.0).map(|count| format!("{count:.0} {words}"))
    };
    let events: Vec<String> = SHOWN.iter().filter_map(event).collect();
    if !events.is_empty() {
        lines.push(format!("Meanwhile, on the whole machine: {}.", events.join(", ")));
    }
    lines
}

pub fn text(profile: &Profile) -> String {
    lines(profile).iter().fold(String::new(), |mut out, line| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{line}");
        out
    })
}

pub fn html(out: &mut String, profile: &Profile) {
    let lines = lines(profile);
    if lines.is_empty() {
        return;
    }
    out.push_str("<h2>The kernel's work</h2>\n");
    for line in lines {
        let _ = writeln!(out, "<p>{}</p>", escaped(&line));
    }
    if !profile.counts_accesses {
        out.push_str("<p class=\"faint\">Hint faults are also how this recording was sampled.</p>\n");
    }
}
