//! The header names each function's errors, and says who else may use its handles meanwhile. The head of the
//! header has what goes for all of them.

use std::collections::{BTreeMap, BTreeSet};

const HEADER: &str = include_str!("../include/nodewise.h");
const WRAPPER: &str = include_str!("../include/nodewise.hpp");
/// Shows a function's failures: `says(nodewise_f(...), NODEWISE_CODE, "words of the message")`. Programs
/// built with the installed library run it (`tests/install.rs`).
const CONTRACT: &str = include_str!("../tests/contract.c");
/// The same where the system refuses calls.
const REFUSED: &str = include_str!("../tests/refused.c");
/// The same on a machine with several nodes, a guest of `crates/bench`.
const FULL_NODE: &str = include_str!("../tests/full_node.c");

/// A declaration and the comment right above it.
#[derive(Clone, Copy)]
struct Documented<'a> {
    comment: &'a str,
    declaration: &'a str,
}

/// The header's declarations, in order.
fn declarations() -> Vec<Documented<'static>> {
    let begin = HEADER.find("typedef int32_t nodewise_result;").expect("results come first");
    let mut rest = &HEADER[begin..];
    let (mut all, mut comment) = (Vec::new(), "");
    loop {
        // A comment above an empty line belongs to a section.
        let line_ends = rest.chars().take_while(|c| c.is_whitespace()).filter(|&c| c == '\n').count();
        rest = rest.trim_start();
        if line_ends > 1 {
            comment = "";
        }
        if rest.is_empty() {
            return all;
        }
        if rest.starts_with("/*") {
            let end = rest.find("*/").expect("comments end") + 2;
            (comment, rest) = rest.split_at(end);
        } else if rest.starts_with(['#', '}']) {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else {
            let mut depth = 0;
            let end = rest.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ';' && depth == 0
            });
            let (declaration, after) = rest.split_at(end.expect("declarations end"));
            all.push(Documented { comment, declaration });
            (comment, rest) = ("", &after[1..]);
        }
    }
}

/// The words of a text that begin with a prefix.
fn words<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(move |word| word.starts_with(prefix))
}

fn name(function: Documented<'_>) -> Option<&str> {
    let before = function.declaration.split_once('(')?.0;
    let is_type = function.declaration.starts_with("typedef") || function.declaration.starts_with("enum");
    words(before, "nodewise_").last().filter(|_| !is_type)
}

fn functions() -> Vec<(&'static str, Documented<'static>)> {
    declarations().into_iter().filter_map(|declared| Some((name(declared)?, declared))).collect()
}

/// The results that there are.
fn results() -> Vec<&'static str> {
    let listed =
        HEADER.split_once("enum {").and_then(|(_, rest)| rest.split_once('}')).expect("results come first").0;
    words(listed, "NODEWISE_").collect()
}

/// Which results are said of each function, by itself or by way of those that it is said to fail like.
fn said() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut said: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut above = "";
    for (function, Documented { comment, .. }) in functions() {
        let like = words(comment, "nodewise_").chain(comment.contains("The same").then_some(above));
        let like: BTreeSet<&str> = like.filter_map(|like| said.get(like)).flatten().copied().collect();
        said.insert(function, words(comment, "NODEWISE_").chain(like).collect());
        above = function;
    }
    said
}

/// The failures that these programs show: a function and the result that it gives.
fn shown() -> BTreeSet<(&'static str, &'static str)> {
    let (results, functions) = (results(), functions());
    let calls = [CONTRACT, REFUSED, FULL_NODE].into_iter().flat_map(|program| program.split("says(").skip(1));
    let calls = calls.filter_map(|call| {
        let function = words(call, "nodewise_").next()?;
        functions.iter().find(|(name, _)| *name == function)?;
        Some((function, words(call, "NODEWISE_").find(|word| results.contains(word))?))
    });
    calls.collect()
}

#[test]
fn every_function_is_documented() {
    let undocumented: Vec<_> = functions()
        .into_iter()
        // The head says what ends a handle, and how.
        .filter(|(name, function)| function.comment.is_empty() && !name.ends_with("_free"))
        .map(|(name, _)| name)
        .collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

/// A handle that is not `const` may be used by others meanwhile only if that is said; and it is said that it
/// may not.
#[test]
fn functions_that_change_a_handle_say_who_else_may_use_it() {
    let mut of_types = BTreeMap::new();
    for declared in declarations() {
        if let Some(name) =
            declared.declaration.strip_prefix("typedef struct ").and_then(|d| d.split(' ').next())
        {
            of_types.insert(name, declared.comment);
        }
    }
    let handle = |argument: &str| -> Option<&str> {
        let (kind, name) = argument.trim().split_once(" *")?;
        let kind = of_types.get_key_value(kind.trim())?.0;
        (!name.starts_with('*') && !name.starts_with("out_")).then_some(kind)
    };
    let mut changing = 0;
    for (name, function) in functions() {
        let arguments = function.declaration.split_once('(').unwrap().1;
        for kind in arguments.trim_end_matches(')').split(',').filter_map(handle) {
            // Room for a list is the caller's; handles are ended as the head says.
            let is_room = arguments.contains("capacity");
            if is_room || name.ends_with("_free") {
                continue;
            }
            let said = format!("{} {}", function.comment, of_types[kind]).to_lowercase();
            let told = ["exclusive", "on the thread that began it"].iter().any(|words| said.contains(words));
            assert!(told, "{name}: may others use the {kind} meanwhile?");
            changing += 1;
        }
    }
    assert!(changing > 5, "only {changing} such functions were found");
}

#[test]
fn every_function_is_called_by_the_contract() {
    let called: BTreeSet<&str> = words(CONTRACT, "nodewise_").collect();
    let missing: Vec<&str> =
        functions().into_iter().map(|(name, _)| name).filter(|name| !called.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_failure_that_is_shown_is_documented() {
    let said = said();
    for (function, result) in shown() {
        // The head says where every function returns this one.
        let is_said = result == "NODEWISE_INVALID_ARGUMENT" || said[function].contains(result);
        assert!(is_said, "{function} returns {result}, and the header does not say so");
    }
}

#[test]
fn every_failure_that_is_documented_is_shown() {
    let (results, shown) = (results(), shown());
    let said = said();
    let said = said.iter().flat_map(|(function, said)| said.iter().map(|result| (*function, *result)));
    let missing: Vec<_> =
        said.filter(|failure| results.contains(&failure.1) && !shown.contains(failure)).collect();
    // In `counter.rs`, since it takes others who add meanwhile.
    assert_eq!(missing, [("nodewise_counter_exact", "NODEWISE_BUSY")]);
}

/// Some functions are not needed in C++. There `set` is an update, so that it assigns, and each loop has a
/// grain. Tasks have their callables in them, the index is read from the seat, and the version is the
/// package's.
#[test]
fn every_function_has_its_place_in_the_wrapper() {
    let used: BTreeSet<&str> = words(WRAPPER, "nodewise_").collect();
    let missing: Vec<&str> =
        functions().into_iter().map(|(name, _)| name).filter(|name| !used.contains(name)).collect();
    let not_needed = [
        "nodewise_version",
        "nodewise_pool_worker_index",
        "nodewise_pool_spawn",
        "nodewise_pool_spawn_on",
        "nodewise_task_join",
        "nodewise_pool_parallel_for",
        "nodewise_replicated_set",
    ];
    assert_eq!(missing, not_needed);
}

#[test]
fn every_result_is_shown() {
    let shown: BTreeSet<&str> = shown().into_iter().map(|(_, result)| result).collect();
    let missing: Vec<&str> = results().into_iter().filter(|result| !shown.contains(result)).collect();
    // Success, and what has no name yet.
    assert_eq!(missing, ["NODEWISE_OK", "NODEWISE_OTHER"]);
}
