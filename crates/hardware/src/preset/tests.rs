use super::*;

fn refusal(text: &str) -> String {
    Preset::parse(text, "my.toml").unwrap_err().to_string()
}

#[test]
fn a_machine_is_read_from_the_json_that_it_is_written_as() {
    let file = std::env::temp_dir().join(format!("nodewise-preset-{}.json", std::process::id()));
    for name in Preset::names() {
        let preset = Preset::named(name).unwrap();
        fs::write(&file, preset.to_json()).unwrap();
        assert_eq!(Preset::load_json(&file).unwrap(), preset);
    }
    fs::remove_file(&file).unwrap();
}

#[test]
fn every_preset_is_a_machine() {
    for name in Preset::names() {
        let preset = Preset::named(name).unwrap();
        assert_eq!(preset.name, name);
        for (from, row) in preset.routes.iter().enumerate() {
            for (to, route) in row.iter().enumerate() {
                let end = route.iter().fold(from, |at, &link| {
                    assert_eq!(preset.links[link].from, at);
                    preset.links[link].to
                });
                assert_eq!(end, to);
            }
        }
    }
}

/// On its own line, above it, or above its section; what is said above the first link goes for all.
#[test]
fn every_figure_has_its_source() {
    for name in Preset::names() {
        let (mut section, mut said, mut links) = ("", false, false);
        for (index, line) in Preset::text(name).unwrap().lines().enumerate() {
            if line.is_empty() {
                (section, said) = ("", false);
            } else if let Some(source) = line.strip_prefix("# ") {
                said = !source.is_empty();
            } else if line.starts_with('[') {
                section = line;
                links |= said && section == "[[link]]";
            } else if !section.is_empty() || line.starts_with("distances") {
                let known = said || line.contains(" # ") || links && section == "[[link]]";
                assert!(known, "{name}.toml:{}: where is it from? {line}", index + 1);
            }
        }
    }
}

/// Published rows are of machines whose cores have one thread, as they were before there were two.
#[test]
fn machines_with_two_threads_a_core_are_else_those_with_one() {
    for name in Preset::names() {
        let preset = Preset::named(name).unwrap();
        let Some(one) = name.strip_suffix("-smt") else {
            assert_eq!((preset.core.threads, preset.cpus()), (1, preset.cores()), "{name}");
            continue;
        };
        let mut one = Preset::named(one).unwrap();
        assert_eq!((preset.core.threads, preset.cpus()), (2, 2 * one.cpus()), "{name}");
        assert_eq!(preset.nodes_of_cpus().len(), preset.cpus());
        one.core = crate::Core { threads: 2, smt_speedup: preset.core.smt_speedup, ..one.core };
        (one.name, one.about) = (preset.name.clone(), preset.about.clone());
        assert_eq!(preset, one);
    }
}

#[test]
fn json_says_the_same_as_toml() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("measured.json");
    let load = |text: &str| {
        fs::write(&path, text).unwrap();
        Preset::load_json(&path)
    };
    for name in Preset::names() {
        let value: toml::Table = toml::from_str(Preset::text(name).unwrap()).unwrap();
        let json = serde_json::to_string(&value).unwrap();
        assert_eq!(load(&json), Preset::named(name), "{name}");
    }
    let refused = |text: &str| load(text).unwrap_err().to_string();
    assert!(refused("{\n  \"name\": }").contains("measured.json:2: "));
    assert!(
        refused("{\"name\": \"x\"}").ends_with("missing field `about`"),
        "{}",
        refused("{\"name\": \"x\"}")
    );
}

#[test]
fn routes_of_the_square_and_of_the_asymmetric_machine() {
    let square = Preset::named("opteron-8385-4n").unwrap();
    let hops: Vec<usize> = (0..4).map(|to| square.hops(0, to)).collect();
    assert_eq!(hops, [0, 1, 1, 2]);
    let asymmetric = Preset::named("opteron-6272-8n").unwrap();
    for from in 0..8 {
        for to in 0..8 {
            assert_eq!(asymmetric.distances[from][to], [10, 16, 22][asymmetric.hops(from, to)]);
        }
    }
}

#[test]
fn what_cannot_be_is_refused_with_place_and_reason() {
    let text = Preset::text("opteron-8385-4n").unwrap();
    let line = |part: &str| text[..text.find(part).unwrap()].lines().count() + 1;
    let no_bandwidth = refusal(&text.replacen("gb_per_s = 4.0", "gb_per_s = 0.0", 1));
    let place = line("[[link]]");
    assert_eq!(
        no_bandwidth,
        format!(
            "my.toml:{place}: bandwidth of the link from node 0 to node 1 is 0, and has to be more than 0"
        )
    );
    let unreachable =
        refusal(&text.replace("between = [1, 3]", "from = 3\nto = 1").replace("[2, 3]", "[1, 2]"));
    assert!(
        unreachable.ends_with("node 3 cannot be reached from node 0: no links lead there"),
        "{unreachable}"
    );
    assert!(refusal(&text.replace("service_ns = 10.7", "service_ns = -1")).contains("service_ns is -1"));
    assert!(refusal(&text.replace("ways = 48", "ways = 0")).contains("llc has 0 ways"));
    assert!(refusal(&text.replace("ghz = 2.3", "ghz = \"fast\"")).starts_with("my.toml:"));
    assert!(refusal(&text.replace("count = 4", "count = 400")).contains("more than 64 nodes"));
    assert!(
        refusal(&text.replace("cores = 4", "cores = 257"))
            .ends_with("257 cores on a node, and at most 256 are modelled")
    );
    assert!(
        refusal(&text.replace("[llc]\n", "[llc]\ncores = 257\n"))
            .contains("cores of the llc is 257, more than 256")
    );
    let many = text.replace("cores = 4", "cores = 32").replace("[llc]\n", "[llc]\ncores = 1\n");
    assert!(refusal(&many).ends_with("128 LLCs, and at most 64 are modelled"), "{}", refusal(&many));
    let core = |lines: &str| refusal(&text.replace("[core]", &format!("[core]\n{lines}")));
    assert!(core("threads = 4").ends_with("threads is 4, and a core has 1 or 2"));
    assert!(core("smt_speedup = 1.1").ends_with("smt_speedup is 1.1, not from 1 to 1"));
    assert!(core("threads = 2\nsmt_speedup = 2.5").ends_with("smt_speedup is 2.5, not from 1 to 2"));
    let one_miss = text.replace("outstanding_misses = ", "outstanding_misses = 1 # ");
    let one_miss = refusal(&one_miss.replace("[core]", "[core]\nthreads = 2"));
    assert!(one_miss.ends_with("outstanding_misses is 1, and two threads need one each"), "{one_miss}");
    let uncached = Preset::text("ace-7").unwrap().replace("[core]", "[core]\nthreads = 2");
    let uncached = refusal(&uncached.replace("outstanding_misses = ", "outstanding_misses = 2 # "));
    assert!(uncached.ends_with("a machine without caches has one thread a core"), "{uncached}");
    assert!(refusal(&text.replace("[l2]\n", "[l2]\ncores = 2\n")).contains("l2 is each core's own"));
    let own = "[node.controller]\nidle_latency_ns = 1.0\nservice_ns = 1.0\nprobe_bytes = 1\n\n[[link]]";
    assert!(refusal(&text.replacen("[[link]]", own, 1)).contains("probe_bytes are the machine's"));
    let own = own.replace("probe_bytes = 1", "bank_ns = 1.0");
    assert!(refusal(&text.replacen("[[link]]", &own, 1)).ends_with("bank_ns without banks"));
    assert!(refusal(&text.replace("[llc]", "[l9]")).contains("unknown field `l9`"));
    assert!(refusal(&text.replace("between = [0, 1]", "between = [0, 0]")).contains("node 0 to node 0"));
    let place = line("[l2]");
    assert_eq!(
        refusal(&text.replace("kib = 512 ", "kib = 8192 ")),
        format!(
            "my.toml:{place}: l2 of 8192 KiB is larger than the llc of 6144 KiB, which has all that is in it"
        )
    );
    let no_llc = text.split("[llc]").next().unwrap().to_owned() + &text[text.find("[controller]").unwrap()..];
    assert!(refusal(&no_llc).ends_with("l1 needs an llc, which knows who holds a line"));
    let route = format!("{text}\n[[route]]\nfrom = 0\nto = 3\nvia = [3]\n");
    assert!(refusal(&route).ends_with("the route takes a link from node 0 to node 3, and there is none"));
}

/// Each number of each preset in turn: either it is refused, with the line, or it is one that a machine may
/// have.
#[test]
fn no_number_is_beyond_what_can_be_simulated() {
    let text = Preset::text("opteron-8385-4n").unwrap();
    let slow = |line: &str| match line.split(' ').next() {
        Some("ghz") => "ghz = 0.001".to_owned(),
        Some("cycles_per_instruction") => "cycles_per_instruction = 2000.0".to_owned(),
        _ => line.to_owned(),
    };
    let slow: Vec<String> = text.lines().map(slow).collect();
    let error = Preset::parse(&slow.join("\n"), "my.toml").unwrap_err();
    assert!(error.to_string().contains("an instruction takes 2e6 ns, more than 1e6"), "{error}");

    for name in Preset::names() {
        let lines: Vec<&str> = Preset::text(name).unwrap().lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some((key, value)) = line.split_once(" = ") else { continue };
            let number = value.split(' ').next().unwrap();
            if number.parse::<f64>().is_err() {
                continue;
            }
            let absurd: &[&str] = if number.contains('.') {
                &["-1.0", "1e-300", "1e300", "nan", "inf", "-inf"]
            } else {
                &["-1", "9223372036854775807"]
            };
            for absurd in absurd {
                let line = format!("{key} = {absurd}");
                let mut changed = lines.clone();
                changed[index] = &line;
                let may_be = key == "hop_latency_ns" && *absurd == "1e-300";
                match Preset::parse(&changed.join("\n"), "my.toml") {
                    Ok(_) => assert!(may_be, "{name}: {line}"),
                    Err(error) => assert!(error.line().is_some(), "{name}: {line}: {error}"),
                }
            }
        }
    }
}

#[test]
fn a_given_route_is_taken() {
    let text = Preset::text("opteron-8385-4n").unwrap();
    let route = format!("{text}\n[[route]]\nfrom = 0\nto = 3\nvia = [2]\n");
    let preset = Preset::parse(&route, "").unwrap();
    let ends: Vec<usize> = preset.routes[0][3].iter().map(|&link| preset.links[link].to).collect();
    assert_eq!(ends, [2, 3]);
}

#[test]
fn scaling_shrinks_caches_only() {
    let preset = Preset::named("dahu-2n").unwrap();
    let half = preset.scaled(0.5);
    assert_eq!(half.llc.unwrap().kib, 11264);
    assert_eq!((half.controller, &half.links), (preset.controller, &preset.links));
    assert_eq!(preset.scaled(1e-9).l1.unwrap().kib, 1);
}

#[test]
fn errors_have_kinds() {
    let good = Preset::text("dahu-2n").unwrap();
    let kind = |text: &str| Preset::parse(text, "my.toml").unwrap_err().kind();
    assert_eq!(Preset::named("dahu").unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(Preset::load("/nowhere").unwrap_err().kind(), ErrorKind::Unreadable);
    assert_eq!(kind("name = "), ErrorKind::Malformed);
    assert_eq!(kind(&good.replace("line_bytes = 64", "line_bytes = 63")), ErrorKind::Impossible);
}
