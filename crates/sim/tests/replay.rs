//! The command line of `replay`.

use pagetier_policy::{PageId, SpaceId};
use pagetier_sim::{Reference, encode};
use serde_json::Value;
use std::process::{Command, Output};

fn replay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_replay")).args(args).output().unwrap()
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
    // 1 missed; 2 missed, 1 to the SSD; 1 back from it, 2 cleaned to it; 3 missed, 1 dropped, it is there already.
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
    let report = json(&["--tpcc", "1", "--ratio", "30:10:2", "--batches", "2000"]);
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
    assert_eq!(all.len(), pagetier_policy::POOL_POLICIES.len() * pagetier_policy::SSD_POLICIES.len());
    assert!(all.iter().all(|r| r["requests"] == 6400));
    let table = replay(&[
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
    let table = String::from_utf8(table.stdout).unwrap();
    assert_eq!(table.lines().count(), 5, "{table}");
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

#[test]
fn bad_input_is_named() {
    let torn = trace("torn.ptr", &[0; 13]);
    let no_trace = trace("text.ptr", b"not a page trace");
    let sizes = ["--pool-pages", "1", "--ssd-pages", "1"];
    let cases: [(&[&str], &str); 12] = [
        (&[], "required"),
        (&["--trace", "no/such.ptr"], "no/such.ptr"),
        (&["--trace", &torn], "13 bytes"),
        (&["--trace", &no_trace], "16 bytes"),
        (&["--zipf", "9", "--pool-policy", "mru"], "gd2l"),
        (&["--zipf", "9", "--compare", "gd2l"], "gd2l-freq-write+cac-aged-write-rewrite-sketch"),
        (&["--zipf", "9", "--pool-policy", "cfdc-101"], "cfdc"),
        (&["--zipf", "9", "--cluster-pages", "0"], "65536"),
        (&["--zipf", "9", "--costs", "1,2,3"], "four numbers"),
        (&["--zipf", "9", "--costs", "1,2,3,-4"], "four numbers"),
        (&["--zipf", "9", "--alpha", "0,1"], "two numbers"),
        (&["--zipf", "9", "--write-percent", "101"], "0 to 100"),
    ];
    for (args, named) in cases {
        let output = replay(&[args, &sizes].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(named), "{args:?}: {stderr}");
    }
    let output = replay(&["--zipf", "9", "--pool-pages", "0", "--ssd-pages", "1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("at least one page"));
}
