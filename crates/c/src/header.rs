//! The header says what the library has: a C compiler is shown the header, and after it each function,
//! structure and constant as rustc knows them. C refuses two declarations of one name that differ.

use crate::{
    allowance, arena, array, counter, hint, location, node_replicated, pool, reduce, replicated,
    replicated_array, result, scope, sort, task,
};
use nodewise_runtime::{
    Allowance, NodeArena, NodeCounter, NodePool, NodePoolBuilder, NodeReplicated, Replicated, ReplicatedVec,
    Seat, TaskCounter,
};
use result::Code;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

const HEADER: &str = include_str!("../include/nodewise.h");

/// A type as C writes it, in front of a name.
trait InC {
    fn in_c() -> String;
}

macro_rules! names {
    ($($rust:ty => $c:literal),* $(,)?) => {
        $(impl InC for $rust {
            fn in_c() -> String {
                $c.into()
            }
        })*
    };
}

names! {
    () => "void", c_void => "void", c_char => "char", c_int => "int", bool => "bool",
    u32 => "uint32_t", u64 => "uint64_t", usize => "size_t", Code => "nodewise_result",
    Allowance => "nodewise_allowance",
    NodeArena => "nodewise_arena",
    NodeCounter => "nodewise_counter",
    TaskCounter => "nodewise_task_counter",
    NodePool => "nodewise_pool",
    NodePoolBuilder => "nodewise_pool_options",
    Seat => "nodewise_seat",
    task::TaskHandle => "nodewise_task",
    ReplicatedVec<u8> => "nodewise_replicated_array",
    Replicated<replicated::Value> => "nodewise_replicated",
    NodeReplicated<node_replicated::Operated> => "nodewise_node_replicated",
    array::Array => "nodewise_array",
    array::Block => "nodewise_block",
    array::LayoutInC => "nodewise_layout",
    array::NodePages => "nodewise_node_pages",
    array::Placement => "nodewise_placement",
    node_replicated::NodeRead => "nodewise_node_read",
    node_replicated::Operations => "nodewise_operations",
    pool::NodeStatistics => "nodewise_node_statistics",
    reduce::Reduction => "nodewise_reduction",
    replicated::Read => "nodewise_read",
    replicated::ValueType => "nodewise_value_type",
    scope::ScopeHandle => "nodewise_scope",
}

impl<T: InC> InC for *const T {
    fn in_c() -> String {
        format!("{} const *", T::in_c())
    }
}

impl<T: InC> InC for *mut T {
    fn in_c() -> String {
        format!("{} *", T::in_c())
    }
}

/// A function, as C declares it under a name.
trait Function {
    fn declared(name: &str) -> String;
}

macro_rules! functions {
    ($($argument:ident)*) => {
        impl<R: InC, $($argument: InC),*> Function for unsafe extern "C" fn($($argument),*) -> R {
            fn declared(name: &str) -> String {
                let arguments: Vec<String> = vec![$($argument::in_c()),*];
                let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
                format!("{} {name}({arguments})", R::in_c())
            }
        }

        impl<R: InC, $($argument: InC),*> InC for Option<unsafe extern "C" fn($($argument),*) -> R> {
            fn in_c() -> String {
                format!("__typeof__({})", <unsafe extern "C" fn($($argument),*) -> R>::declared("(*)"))
            }
        }
    };
}

functions!();
functions!(A);
functions!(A B);
functions!(A B C);
functions!(A B C D);
functions!(A B C D E);
functions!(A B C D E F);
functions!(A B C D E F G);
functions!(A B C D E F G H);

fn declared<F: Function>(name: &str, _: F) -> (String, String) {
    (name.into(), F::declared(name))
}

macro_rules! declarations {
    ($($module:ident: $($name:ident($($argument:tt)*)),*;)*) => {
        vec![$($(declared(
            stringify!($name),
            $module::$name as unsafe extern "C" fn($($argument)*) -> _,
        )),*),*]
    };
}

/// The names and declarations of all functions.
fn functions() -> Vec<(String, String)> {
    declarations! {
        result: nodewise_error_message(), nodewise_version();
        location: nodewise_current_node(), nodewise_current_cpu(), nodewise_refresh(), nodewise_nodes_near(_, _, _, _),
            nodewise_bind_thread(_, _);
        allowance: nodewise_allowance_of_this_thread(_), nodewise_allowance_on_nodes(_, _, _, _), nodewise_allowance_free(_),
            nodewise_allowance_nodes(_, _, _, _), nodewise_allowance_cpus(_, _, _, _, _),
            nodewise_allowance_has_memory(_, _, _), nodewise_allowance_distance(_, _, _, _),
            nodewise_allowance_cpu_quota(_, _, _), nodewise_allowance_parallelism(_, _),
            nodewise_allowance_workers(_, _, _, _, _);
        counter: nodewise_counter_new(_), nodewise_counter_free(_), nodewise_counter_add(_, _),
            nodewise_counter_approximate(_, _), nodewise_counter_exact(_, _), nodewise_counter_on_node(_, _, _),
            nodewise_task_counter_new(_), nodewise_task_counter_free(_), nodewise_task_counter_submit(_, _),
            nodewise_task_counter_done(_, _), nodewise_task_counter_count(_, _), nodewise_task_counter_wait(_),
            nodewise_task_counter_wait_timeout(_, _, _);
        pool: nodewise_pool_options_new(_), nodewise_pool_options_free(_), nodewise_pool_options_workers(_, _),
            nodewise_pool_options_nodes(_, _, _), nodewise_pool_options_stack_bytes(_, _),
            nodewise_pool_options_allowance(_, _), nodewise_pool_options_confined(_, _),
            nodewise_pool_options_callers_work(_, _), nodewise_pool_options_by_cache(_, _), nodewise_pool_new(_, _),
            nodewise_default_pool(_), nodewise_default_pool_limit(_), nodewise_pool_free(_), nodewise_pool_nodes(_, _, _, _), nodewise_pool_workers(_, _),
            nodewise_pool_worker_node(_, _), nodewise_pool_worker_index(_, _), nodewise_pool_worker_indices(_, _),
            nodewise_pool_identity(_, _), nodewise_this_seat(),
            nodewise_pool_statistics(_, _, _, _), nodewise_pool_join(_, _, _, _, _, _), nodewise_pool_isolate(_, _, _, _);
        task: nodewise_pool_spawn(_, _, _, _, _), nodewise_pool_spawn_on(_, _, _, _, _, _), nodewise_pool_spawn_moved(_, _, _, _, _, _, _, _), nodewise_task_wait(_, _), nodewise_task_join(_, _),
            nodewise_task_is_finished(_, _), nodewise_task_free(_);
        scope: nodewise_pool_scope(_, _, _, _), nodewise_scope_spawn(_, _, _, _), nodewise_scope_spawn_copy(_, _, _, _), nodewise_scope_spawn_moved(_, _, _, _, _, _),
            nodewise_scope_spawn_on(_, _, _, _, _), nodewise_scope_cancel(_), nodewise_scope_is_cancelled(_, _);
        reduce: nodewise_pool_parallel_for(_, _, _, _, _, _), nodewise_pool_parallel_for_grain(_, _, _, _, _, _, _),
            nodewise_pool_parallel_reduce(_, _, _, _, _, _, _);
        sort: nodewise_pool_sort(_, _, _, _);
        array: nodewise_array_new(_, _, _, _, _, _), nodewise_array_free(_), nodewise_array_data(_, _),
            nodewise_array_placement(_, _, _, _, _, _, _), nodewise_array_page_nodes(_, _, _, _, _, _),
            nodewise_array_lay_out(_, _, _), nodewise_array_lay_out_range(_, _, _, _, _), nodewise_array_blocks(_, _, _, _),
            nodewise_array_for_each_block(_, _, _, _, _), nodewise_pool_for_each_block(_, _, _, _, _, _, _);
        arena: nodewise_arena_new(_, _, _), nodewise_arena_free(_), nodewise_arena_allocate(_, _, _, _),
            nodewise_arena_deallocate(_, _, _, _), nodewise_arena_reserved_bytes(_, _),
            nodewise_arena_placement(_, _, _, _, _);
        hint: nodewise_hint(_, _, _, _), nodewise_forget_hints(_, _), nodewise_is_managed(_);
        replicated_array: nodewise_replicated_array_new(_, _, _, _), nodewise_replicated_array_free(_),
            nodewise_replicated_array_local(_, _), nodewise_replicated_array_near(_, _, _),
            nodewise_replicated_array_nodes(_, _, _, _), nodewise_replicated_array_update(_, _, _, _);
        replicated: nodewise_replicated_new(_, _, _), nodewise_replicated_free(_), nodewise_replicated_read(_, _, _),
            nodewise_read_end(_), nodewise_replicated_update(_, _, _, _), nodewise_replicated_set(_, _, _),
            nodewise_replicated_placement(_, _, _, _, _);
        node_replicated: nodewise_node_replicated_new(_, _, _, _), nodewise_node_replicated_free(_),
            nodewise_node_replicated_read(_, _, _), nodewise_node_read_end(_), nodewise_node_replicated_update(_, _, _),
            nodewise_node_replicated_placement(_, _, _, _, _);
    }
}

macro_rules! structures {
    ($($rust:ty { $($field:ident),* })*) => {
        [$((<$rust>::in_c(), size_of::<$rust>(), vec![$((stringify!($field), offset_of!($rust, $field))),*])),*]
    };
}

/// Sizes and places of fields, as assertions in C.
fn structures() -> Vec<String> {
    let structures = structures! {
        array::Block { node, begin, end }
        array::LayoutInC { kind, count, nodes, weights }
        array::NodePages { node, pages }
        array::Placement { misplaced, absent, unknown }
        node_replicated::NodeRead { }
        node_replicated::Operations { operation_bytes, response_bytes, operate, context }
        Seat { pool, index }
        pool::NodeStatistics { node, workers, run, stolen_inside, stolen_across }
        reduce::Reduction { value_bytes, part, combine, drop, grain }
        replicated::Read { }
        replicated::ValueType { bytes, copy, destroy, context, copy_in }
    };
    let asserted = structures.into_iter().flat_map(|(name, size, fields)| {
        let offsets = fields.into_iter().map({
            let name = name.clone();
            move |(field, offset)| format!("offsetof({name}, {field}) == {offset}")
        });
        std::iter::once(format!("sizeof({name}) == {size}")).chain(offsets).collect::<Vec<_>>()
    });
    asserted.collect()
}

/// A field's declared type, assigned from a pointer to rustc's.
fn field_types() -> String {
    let callback = <Option<reduce::PartRun>>::in_c();
    let combine = <Option<reduce::Combine>>::in_c();
    let drop_value = <Option<reduce::DropValue>>::in_c();
    let copy = <Option<replicated::CopyValue>>::in_c();
    let copy_in = <Option<replicated::CopyValueIn>>::in_c();
    let destroy = <Option<replicated::DestroyValue>>::in_c();
    let operate = <Option<node_replicated::OperateOn>>::in_c();
    format!(
        "void fields(nodewise_reduction *r, nodewise_value_type *t, nodewise_operations *o) {{\n\
         {callback} *part = &r->part; {combine} *combine = &r->combine; {drop_value} *drop = &r->drop;\n\
         {copy} *copy = &t->copy; {copy_in} *copy_in = &t->copy_in; {destroy} *destroy = &t->destroy;\n\
         {operate} *operate = &o->operate; (void)operate;\n\
         (void)part; (void)combine; (void)drop; (void)copy; (void)copy_in; (void)destroy;\n}}\n"
    )
}

fn constants() -> Vec<String> {
    let codes = [
        ("OK", Code::Ok),
        ("INVALID_ARGUMENT", Code::InvalidArgument),
        ("MACHINE", Code::Machine),
        ("NO_WORKERS", Code::NoWorkers),
        ("THREAD", Code::Thread),
        ("LAYOUT", Code::Layout),
        ("MEMORY", Code::Memory),
        ("NODE_FULL", Code::NodeFull),
        ("DEVICE", Code::Device),
        ("RANGE", Code::Range),
        ("HINTS", Code::Hints),
        ("BUSY", Code::Busy),
        ("CALLBACK_FAILED", Code::CallbackFailed),
        ("PANIC", Code::Panic),
        ("OTHER", Code::Other),
    ]
    .map(|(name, code)| (name, i64::from(code as i32)));
    let others = [
        ("NO_NODE", i64::from(pool::NO_NODE)),
        ("LAYOUT_ON", array::LAYOUT_ON.into()),
        ("LAYOUT_INTERLEAVED", array::LAYOUT_INTERLEAVED.into()),
        ("LAYOUT_WEIGHTED", array::LAYOUT_WEIGHTED.into()),
        ("LAYOUT_BLOCKED", array::LAYOUT_BLOCKED.into()),
        ("HINT_PRIVATE", hint::PRIVATE.into()),
        ("HINT_READ_SHARED", hint::READ_SHARED.into()),
        ("HINT_WRITE_SHARED", hint::WRITE_SHARED.into()),
        ("HONOURED_BY_MANAGER", hint::BY_MANAGER.into()),
        ("HONOURED_BY_LIBRARY", hint::BY_LIBRARY.into()),
        ("HUGE_PAGES", array::HUGE_PAGES.into()),
        ("BASE_PAGES", array::BASE_PAGES.into()),
        ("ANYWHERE", array::ANYWHERE.into()),
        ("INT8", sort::INT8.into()),
        ("INT16", sort::INT16.into()),
        ("INT32", sort::INT32.into()),
        ("INT64", sort::INT64.into()),
        ("UINT8", sort::UINT8.into()),
        ("UINT16", sort::UINT16.into()),
        ("UINT32", sort::UINT32.into()),
        ("UINT64", sort::UINT64.into()),
        ("FLOAT", sort::FLOAT.into()),
        ("DOUBLE", sort::DOUBLE.into()),
    ];
    let no_index = ("NO_INDEX", pool::NO_INDEX.to_string());
    let numbers = codes.into_iter().chain(others).map(|(name, value)| (name, value.to_string()));
    numbers.chain([no_index]).map(|(name, value)| format!("NODEWISE_{name} == {value}u")).collect()
}

/// The complaints of a compiler about a translation unit; empty if it has none.
fn compiled(compiler: &str, options: &[&str], source: &str) -> String {
    let mut running = Command::new(compiler)
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-I"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include"))
        .args(options)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{compiler}, which `make setup` installs: {error}"));
    running.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    let output = running.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

/// Names that the header declares as functions.
fn in_header() -> BTreeSet<String> {
    let mut code = String::new();
    let mut rest = HEADER;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    code.push_str(rest);
    let name =
        |before: &str| before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap().to_owned();
    code.match_indices('(')
        .map(|(at, _)| name(&code[..at]))
        .filter(|name| name.starts_with("nodewise_"))
        .collect()
}

#[test]
fn the_header_has_the_functions_and_no_others() {
    let ours: BTreeSet<String> = functions().into_iter().map(|(name, _)| name).collect();
    assert_eq!(in_header(), ours);
}

#[test]
fn the_header_says_what_the_library_has() {
    let declarations = functions().into_iter().map(|(_, declaration)| format!("{declaration};\n"));
    let assertions = structures().into_iter().chain(constants());
    let assertions = assertions.map(|assertion| format!("_Static_assert({assertion}, \"\");\n"));
    let mut source = "#include <nodewise.h>\n".to_owned();
    source.extend(declarations.chain(assertions));
    source += &field_types();
    assert_eq!(compiled("cc", &["-std=gnu11", "-xc"], &source), "", "{source}");
}

#[test]
fn a_header_that_says_otherwise_is_found() {
    let (_, declaration) = functions().into_iter().find(|(name, _)| name == "nodewise_counter_add").unwrap();
    let other = format!("#include <nodewise.h>\n{};\n", declaration.replace("uint64_t", "uint32_t"));
    assert!(compiled("cc", &["-std=gnu11", "-xc"], &other).contains("conflicting types"));
}

#[test]
fn the_header_is_plain_c_and_c_plus_plus() {
    for (c, c_plus_plus) in [("cc", "c++"), ("clang", "clang++")] {
        for standard in ["-std=c99", "-std=c11"] {
            assert_eq!(compiled(c, &[standard, "-Wpedantic", "-xc"], "#include <nodewise.h>\n"), "");
        }
        for standard in ["-std=c++17", "-std=c++20"] {
            let options = [standard, "-Wpedantic", "-xc++"];
            assert_eq!(compiled(c_plus_plus, &options, "#include <nodewise.h>\n"), "");
            assert_eq!(compiled(c_plus_plus, &options, include_str!("../tests/stress.cpp")), "");
        }
    }
}
