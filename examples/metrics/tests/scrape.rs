//! The endpoint serves every metric that the dashboard queries, with the store's figures.

use pagetier::PageStore;
use pagetier_example_metrics::{install, load, serve};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn scrape(address: std::net::SocketAddr) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// The value of the first sample of `name`.
fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The store's metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("pagetier_"))
}

/// The alert rules. Each says how bad it is, what happened and what to do.
const RULES: &str = include_str!("../../../docs/alerts.yml");

fn check_rules() {
    let of = |key: &str| RULES.lines().filter(|line| line.trim_start().starts_with(key)).count();
    assert!(of("- alert:") >= 8);
    for key in ["expr:", "severity:", "summary:", "description:"] {
        assert_eq!(of(key), of("- alert:"), "{key}");
    }
    assert!(RULES.lines().all(|line| line.len() <= 110));
    lint(&["check", "rules", "--lint-fatal", "/dev/stdin"], RULES);
}

const LATENCY: &str = "pagetier_device_latency_seconds";
const READS: &str = "store=\"example\",device=\"hdd\",class=\"demand\",direction=\"read\"";

/// The buckets of a histogram are cumulative, and the last one has every operation.
fn check_latencies(text: &str) {
    let buckets = text.lines().filter_map(|line| {
        let bucket = line.strip_prefix(&format!("{LATENCY}_bucket{{{READS},le=\""))?;
        let (end, count) = bucket.split_once("\"} ")?;
        Some((end.trim_start_matches('+').parse().ok()?, count.parse().ok()?))
    });
    let buckets: Vec<(f64, f64)> = buckets.collect();
    let of = |what: &str| value(text, &format!("{LATENCY}_{what}{{{READS}}}")).unwrap();
    let (all, sum) = (of("count"), of("sum"));
    assert!(buckets.len() == 45 && all > 0.0, "{text}");
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{buckets:?}");
    assert_eq!(buckets[44], (f64::INFINITY, all));
    // In seconds: some of the operations wait for a disk, and none for minutes.
    assert!((0.0..60.0 * all).contains(&sum) && sum > 0.0, "{sum}");
}

/// Prometheus' own linter accepts `text`.
fn lint(args: &[&str], text: &str) -> String {
    let piped = Stdio::piped;
    let command = Command::new("promtool").args(args).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let mut linter = match command {
        Ok(linter) => linter,
        Err(error) => {
            pagetier_testing::skipped("promtool", &error.to_string());
            return String::new();
        }
    };
    linter.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}\n{text}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_the_dashboard_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = install().unwrap();
    let builder = PageStore::builder().directory(dir.path()).pool_bytes(8 << 20).ssd_bytes(16 << 20);
    let store = builder.open().await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, recorder));
    // The latencies are those from here on.
    let export = store.export_metrics("example", Duration::from_millis(100));
    let some_load = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        // On a busy machine the pages are still being made.
        let reads = format!("{LATENCY}_count{{{READS}}}");
        while value(&scrape(address).await, &reads).is_none_or(|count| count == 0.0) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        ended = load(&store) => panic!("the load ended: {ended:?}"),
        () = some_load => {}
    }
    drop(export);
    let export = store.export_metrics("example", Duration::from_millis(100));
    let (text, pool) = (scrape(address).await, store.stats().pool);
    assert!(text.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(value(&text, "pagetier_pool_misses_total{"), Some(pool.misses as f64), "{text}");

    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let asked: BTreeSet<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .flat_map(|target| names(target["expr"].as_str().unwrap()))
        .collect();
    assert!(asked.len() >= 12, "{asked:?}");
    for panel in panels {
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 40), "{}", panel["title"]);
    }
    check_rules();
    for name in asked.into_iter().chain(names(RULES)) {
        assert!(text.contains(&format!("\n{name}{{")), "{name} is not served:\n{text}");
    }
    check_latencies(&text);
    // Of names, units, types and help texts.
    assert_eq!(lint(&["check", "metrics"], text.split_once("\r\n\r\n").unwrap().1), "");
    // Dropping the export ends it, after a publication in progress.
    drop(export);
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.get(pagetier::PageId::new(store.spaces().find("load").unwrap(), 1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(value(&scrape(address).await, "pagetier_pool_misses_total{"), Some(pool.misses as f64));

    // An SSD that is exchanged and a store that is opened again count from 0. The counters go on.
    let written = "pagetier_device_operations_total{store=\"example\",device=\"ssd\",class=\"meta\"";
    let published = async |store: &PageStore| {
        drop(store.export_metrics("example", Duration::from_secs(60)));
        value(&scrape(address).await, written).unwrap()
    };
    let before = published(&store).await;
    store.ssd().replace(dir.path().join("next"), 16 << 20).await.unwrap();
    let replaced = published(&store).await;
    assert!(replaced > before, "{replaced} after {before}");
    store.close().await.unwrap();
    let builder = PageStore::builder().directory(dir.path()).ssd(dir.path().join("next"));
    let store = builder.pool_bytes(8 << 20).ssd_bytes(16 << 20).open().await.unwrap();
    let opened = published(&store).await;
    assert!(opened > replaced, "{opened} after {replaced}");
    let again = published(&store).await;
    assert_eq!(again, opened, "the same operations count once");
}
