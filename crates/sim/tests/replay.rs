//! The command line of `replay`.

use pagetier_policy::{PageId, SpaceId};
use pagetier_rivals::{POOL_POLICIES, SSD_POLICIES};
use pagetier_sim::{Reference, encode, suite::FIXED};
use serde_json::Value;
use std::process::{Command, Output};

fn replay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_replay")).args(args).output().unwrap()
}

fn what_if(args: &[&str]) -> Output {
    replay(&[&["what-if"], args].concat())
}

fn text(args: &[&str]) -> String {
    let output = replay(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = replay(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn trace(name: &str, bytes: &[u8]) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_trace_is_costed() {
    let page = |no| PageId::new(SpaceId(3), no);
    let references = [
        Reference::read(page(1)),
        Reference::write(page(2)),
        Reference::read(page(1)),
        Reference::read(page(3)),
    ];
    let path = trace("four.ptr", &references.map(encode).concat());
    let report = json(&[
        "--trace",
        &path,
        "--pool-pages",
        "1",
        "--ssd-pages",
        "8",
        "--pool-policy",
        "lru",
        "--ssd-policy",
        "cc",
        "--costs",
        "1,100,2,50",
    ]);
    // Page 1 missed; 2 missed, 1 to the SSD; 1 back from it, 2 cleaned to it; 3 missed, 1 dropped, since it
    // is on the SSD already.
    for (field, value) in [
        ("requests", 4),
        ("pool_hits", 0),
        ("pool_misses", 4),
        ("ssd_hits", 1),
        ("hdd_reads", 3),
        ("hdd_writes", 0),
        ("ssd_reads", 1),
        ("ssd_writes", 2),
    ] {
        assert_eq!(report[field], value, "{field}");
    }
    assert_eq!((&report["cost"], &report["hit_ratio"]), (&Value::from(305.0), &Value::from(0.0)));
    assert!(report.get("alpha").is_none() && report.get("new_orders").is_none());
}

#[test]
fn alpha_is_told_by_group() {
    let report = json(&["--tpcc", "1", "--ratio", "30:10:2", "--batches", "2000", "--ssd-policy", "cac"]);
    let groups = report["alpha"].as_array().unwrap();
    let stock: Vec<_> = groups.iter().filter(|g| g["name"] == "stock").collect();
    assert!(!stock.is_empty() && stock.iter().all(|g| g["alpha"].as_f64().unwrap() > 0.0), "{groups:?}");
    assert!(report["total_ms_per_new_order"].as_f64().unwrap() > 0.0);
}

#[test]
fn all_pairs_see_the_same_references() {
    let all = json(&[
        "--zipf",
        "500",
        "--write-percent",
        "10",
        "--pool-pages",
        "50",
        "--ssd-pages",
        "100",
        "--batches",
        "100",
        "--compare",
        "all",
    ]);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), POOL_POLICIES.len() * SSD_POLICIES.len());
    assert!(all.iter().all(|r| r["requests"] == 6400));
    let table = text(&[
        "--zipf",
        "500",
        "--pool-pages",
        "50",
        "--ssd-pages",
        "100",
        "--batches",
        "10",
        "--compare",
        "lru+cc,gd2l+none,cfdc-75+tac,cflru-25+mv-fifo-gsc",
    ]);
    for pair in ["lru+cc ", "gd2l+none ", "cfdc-75+tac ", "cflru-25+mv-fifo-gsc "] {
        assert_eq!(table.lines().filter(|line| line.starts_with(pair)).count(), 1, "{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 145), "{table}");
}

const ZIPF: [&str; 11] = [
    "--zipf",
    "500",
    "--write-percent",
    "10",
    "--pool-pages",
    "50",
    "--ssd-pages",
    "100",
    "--batches",
    "100",
    "--warmup",
];

#[test]
fn bounds_stand_beside_each_run() {
    let args = [&ZIPF[..], &["50", "--compare", "LRU+CC,GD2L+CAC", "--bound"]].concat();
    let runs = json(&args);
    for run in runs.as_array().unwrap() {
        let bounds = run["bounds"].as_array().unwrap();
        let placements: Vec<_> = bounds.iter().map(|b| b["placement"].as_str().unwrap()).collect();
        assert_eq!(placements, ["static", "static, by the warm-up", "static, memory written through"]);
        for bound in bounds {
            let times = run["cost"].as_f64().unwrap() / bound["cost_ms"].as_f64().unwrap();
            assert!((bound["times_cost"].as_f64().unwrap() - times).abs() < 1e-9, "{bound}");
            let accesses = run["hdd_reads"].as_f64().unwrap() + run["hdd_writes"].as_f64().unwrap();
            let times = accesses / bound["hdd_accesses"].as_f64().unwrap();
            assert!((bound["times_hdd_accesses"].as_f64().unwrap() - times).abs() < 1e-9, "{bound}");
        }
    }
    assert!(json(&ZIPF[..10]).get("bounds").is_none());
    let table = text(&args);
    for (run, pair) in runs.as_array().unwrap().iter().zip(["lru+cc ", "gd2l+cac "]) {
        let line = table.lines().find(|line| line.starts_with(pair)).unwrap();
        let printed: Vec<_> = line.split_whitespace().rev().take(3).collect();
        let bounds = run["bounds"].as_array().unwrap().iter().rev();
        let times: Vec<_> =
            bounds.map(|b| format!("{:.2}", b["times_hdd_accesses"].as_f64().unwrap())).collect();
        assert_eq!(printed, times, "{table}");
    }
}

#[test]
fn the_table_tells_what_the_json_does() {
    let args = [&ZIPF[..], &["0", "--pool-policy", "GD2L", "--ssd-policy", "Cac"]].concat();
    let report = json(&args);
    assert_eq!(report["cost_unit"], "ms");
    let table = text(&[&args[..], &["-v"]].concat());
    let headings: Vec<_> = table.lines().nth(1).unwrap().split("  ").collect();
    assert!(headings.iter().any(|h| h.trim() == "hit %") && table.contains("M req/s"), "{table}");
    let run = table.lines().find(|line| line.starts_with("gd2l+cac ")).unwrap();
    let hits = format!("{:.2}", 100.0 * report["hit_ratio"].as_f64().unwrap());
    let cost_s = format!("{:.1}", report["cost"].as_f64().unwrap() / 1000.0);
    let cells: Vec<_> = run.split_whitespace().collect();
    assert_eq!((cells[1], cells[8]), (&*hits, &*cost_s), "{table}");
    for field in ["pool_hits", "pool_misses", "ssd_hits", "cluster_switches"] {
        assert!(table.contains(&format!("{} ", report[field])), "{field}: {table}");
    }
    assert!(table.contains("α by space/subrange"), "{table}");
}

#[test]
fn help_names_every_policy() {
    for help in [text(&["--help"]), String::from_utf8(what_if(&["--help"]).stdout).unwrap()] {
        let words: Vec<_> = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
        let names = POOL_POLICIES.iter().map(ToString::to_string);
        for name in names.chain(SSD_POLICIES.iter().map(ToString::to_string)) {
            assert!(words.contains(&name.as_str()), "{name}: {help}");
        }
        assert!(words.contains(&"cfdc-75"), "{help}");
    }
}

#[test]
fn clustered_writes_switch_clusters_less_often() {
    let switches = |policy: &str| {
        let args = [
            "--zipf",
            "20000",
            "--write-percent",
            "50",
            "--skew",
            "0.6",
            "--pool-pages",
            "2000",
            "--ssd-pages",
            "0",
        ];
        let more = ["--batches", "500", "--pool-policy", policy, "--ssd-policy", "none", "--look-ahead", "1"];
        let report = json(&[&args[..], &more].concat());
        let factor =
            report["cluster_switches"].as_f64().unwrap() / report["request_switches"].as_f64().unwrap();
        assert!((report["cluster_switch_factor"].as_f64().unwrap() - factor).abs() < 1e-12);
        factor
    };
    let [lru, casa, cfdc, sawc] = ["lru", "casa", "cfdc-75", "sawc"].map(switches);
    assert!(cfdc < 0.5 * lru && sawc < 0.5 * casa, "{lru} {casa} {cfdc} {sawc}");
}

type Program = fn(&[&str]) -> Output;

/// Arguments, and a text that their refusal must contain.
type Case<'a> = (&'a [&'a str], &'a str);

#[test]
fn the_suite_keeps_the_costs_of_fixed_settings() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-traces");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("baseline.json");
    let _ = std::fs::remove_file(&file);
    let (folder, path) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let args = ["suite", "--half", "tune", "--only", "drift/1", "--seeds", "1", "--traces", folder];
    let args = [&args[..], &["--longest", "3000", "--baseline", path]].concat();
    let cost = |report: &Value, pair: &str| {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|row| row["pair"] == pair).unwrap()["cost_ms"].as_f64().unwrap()
    };
    let first = json(&args);
    // An impossible cost shows that the second run takes it from the file.
    let kept = std::fs::read_to_string(&file).unwrap();
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    let whole = kept["rows"].as_array().unwrap().iter().filter(|row| row["part"] == "whole").count();
    assert_eq!(whole, FIXED.len());
    kept["rows"].as_array_mut().unwrap().retain(|row| row["pair"] != "lru+cc");
    let row = kept["rows"].as_array_mut().unwrap().iter_mut().find(|row| row["pair"] == "gd2l+cac");
    row.unwrap()["cost_ms"] = 0.5.into();
    std::fs::write(&file, kept.to_string()).unwrap();
    let second = json(&args);
    assert_eq!(cost(&second, "gd2l+cac"), 0.5);
    for pair in ["auto+auto", "lru+cc", "gd2l+lru2"] {
        assert_eq!(cost(&second, pair), cost(&first, pair), "{pair}");
    }
    let other = replay(&[&args[..], &["--run-read-ms", "2"]].concat());
    assert!(!other.status.success());
    assert!(String::from_utf8_lossy(&other.stderr).contains("another --longest"));
}

#[test]
fn a_scan_costs_random_reads_or_by_run() {
    let page = |no| PageId::new(SpaceId(3), no);
    let scan = |no| Reference { sequential: true, ..Reference::read(page(no)) };
    // A run of three, a page elsewhere, one that follows it on demand, and a scan that goes on from there.
    let references = [scan(5), scan(6), scan(7), Reference::read(page(1)), Reference::read(page(2)), scan(3)];
    let path = trace("runs.ptr", &references.map(encode).concat());
    let args = ["--trace", &path, "--pool-pages", "8", "--ssd-pages", "8", "--costs", "1,100,2,50"];
    let cost = |more: &[&str]| json(&[&args[..], more].concat())["cost"].as_f64().unwrap();
    assert_eq!(cost(&[]), 600.0);
    assert_eq!(cost(&["--run-read-ms", "1"]), 303.0);
}

#[test]
fn bad_input_is_named() {
    let torn = trace("torn.ptr", &[0; 13]);
    let no_trace = trace("text.ptr", b"not a page trace");
    let empty = trace("empty.ptr", b"");
    let beyond = trace("beyond.ptr", &[&[0; 12][..], &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]].concat());
    let short = trace("short.ptr", &[0; 24]);
    let sizes = ["--pool-pages", "1", "--ssd-pages", "1"];
    // For both programs.
    let shared: &[Case<'_>] = &[
        (&[], "required"),
        (&["--trace", "no/such.ptr"], "no/such.ptr"),
        (&["--trace", &torn], "13 bytes"),
        (&["--trace", &no_trace], "16 bytes"),
        (&["--trace", &empty], "the trace is empty"),
        (&["--trace", &beyond], "record 1"),
        (&["--tpcc", "1", "--zipf", "9"], "cannot be used with"),
        (&["--tpcc", "0"], "1..=10000"),
        (&["--tpcc", "4294967295"], "1..=10000"),
        (&["--zipf", "0"], "1..=67108864"),
        (&["--zipf", "4294967295"], "1..=67108864"),
        (&["--zipf", "9", "--skew", "nan"], "0 to 100"),
        (&["--zipf", "9", "--skew=-1"], "0 to 100"),
        (&["--zipf", "9", "--pool-policy", "mru"], "gd2l"),
        (&["--zipf", "9", "--ssd-policy", "arc"], "mv-fifo-gsc"),
        (&["--zipf", "9", "--pool-policy", "cfdc-101"], "cfdc"),
        (&["--zipf", "9", "--cluster-pages", "0"], "65536"),
        (&["--zipf", "9", "--costs", "1,2,3"], "four numbers"),
        (&["--zipf", "9", "--costs", "1,2,3,-4"], "four numbers"),
        (&["--zipf", "9", "--costs", "1,x,2,3,4"], "four numbers"),
        (&["--zipf", "9", "--costs", "1,2,3,inf"], "four numbers"),
        (&["--zipf", "9", "--write-percent", "101"], "0 to 100"),
    ];
    let of_replay: &[Case<'_>] = &[
        (&["--trace", &short, "--warmup", "1"], "all 2 references"),
        (&["--trace", &short, "--warmup", "1", "--bound"], "all 2 references"),
        (&["--zipf", "9", "--compare", "gd2l"], "gd2l+cac"),
        (&["--zipf", "9", "--compare", "lru+cc,mru+cc"], "\"mru\""),
        (&["--zipf", "9", "--group-width", "0"], "above 0"),
        (&["--zipf", "9", "--group-width", "nan"], "above 0"),
        (&["--zipf", "9", "--ssd-policy", "cac:group-width=0"], "group-width=W"),
        (&["--zipf", "9", "--run-read-ms=-1"], "at least 0"),
        (&["--zipf", "9", "--cpu-us", "nan"], "0 to 1000000"),
        (&["--zipf", "9", "--cpu-us=-1"], "0 to 1000000"),
        (&["--zipf", "9", "--zone-percent", "0"], "above 0, up to 100"),
        (&["--zipf", "9", "--zone-percent", "nan"], "above 0, up to 100"),
        (&["--zipf", "9", "--look-ahead", "0"], "1..=67108864"),
        (&["--zipf", "9", "--outqueue", "18446744073709551615"], "0..=67108864"),
        (&["--zipf", "9", "--batches", "0"], "1.."),
        (&["--zipf", "9", "--alpha", "0,1"], "two numbers"),
        (&["--zipf", "9", "--alpha", "1,inf"], "two numbers"),
        (&["--zipf", "9", "--alpha", "2,1"], "two numbers"),
    ];
    let of_what_if: &[Case<'_>] = &[
        (&["--zipf", "9", "--requests", "0"], "1.."),
        (&["--zipf", "9", "--requests", "18446744073709551615"], "1000000000"),
        (&["--zipf", "9", "--sample", "nan"], "above 0, up to 1"),
        (&["--zipf", "9", "--warmup-percent", "100"], "--warmup-percent"),
        (&["--zipf", "9", "--page-bytes", "0"], "1..=1073741824"),
        (&["--zipf", "9", "--pool-factors", "0"], "above 0"),
        (&["--zipf", "9", "--ssd-factors", "1,nan"], "at least 0"),
        (&["--zipf", "9", "--ssd-factors", "1e9"], "too many"),
    ];
    let programs: [(Program, &[Case<'_>]); 2] = [(replay, of_replay), (what_if, of_what_if)];
    for (program, own) in programs {
        for (args, named) in shared.iter().chain(own) {
            assert_refused(&program(&[args, &sizes[..]].concat()), args, named);
        }
        for (option, bad) in
            [("--pool-pages", "0"), ("--pool-pages", "4294967295"), ("--ssd-pages", "4294967295")]
        {
            let others = if option == "--pool-pages" { "--ssd-pages" } else { "--pool-pages" };
            let args = ["--zipf", "9", option, bad, others, "1"];
            assert_refused(&program(&args), &args, option);
        }
        for (ratio, named) in [
            ("30:x:10:1", "three numbers"),
            ("30:10", "three numbers"),
            ("inf:10:1", "three numbers"),
            ("30:nan:1", "three numbers"),
            ("1e9:1:1", "at least one page"),
            ("1:1:1e9", "too many"),
        ] {
            let args = ["--tpcc", "1", "--ratio", ratio];
            assert_refused(&program(&args), &args, named);
        }
    }
}

/// Checks that the program exited by itself, with a message that contains `named`, and without a backtrace.
#[track_caller]
fn assert_refused(output: &Output, args: &[&str], named: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {:?}: {stderr}", output.status);
    assert!(stderr.contains(named) && !stderr.contains("panicked"), "{args:?}: {stderr}");
}
