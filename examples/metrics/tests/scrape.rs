//! The endpoint serves every metric that the dashboard queries, with the store's figures.

use pagetier::PageStore;
use pagetier_example_metrics::{load, serve};
use std::collections::{BTreeMap, BTreeSet};
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

/// The alert rules, by key. Reads the few forms of YAML that the file uses.
fn alerts() -> Vec<BTreeMap<&'static str, String>> {
    let mut rules: Vec<BTreeMap<_, String>> = Vec::new();
    let mut folded = "";
    for line in include_str!("../../../docs/alerts.yml").lines() {
        assert!(!line.contains('\t') && line.len() <= 110, "{line}");
        let words = line.trim_start_matches([' ', '-']);
        let is_key = |(key, _): &(&str, &str)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let Some((key, value)) = words.split_once(':').filter(is_key) else {
            // The next line of a value that began with ">-".
            if let Some(value) = rules.last_mut().and_then(|rule| rule.get_mut(folded)) {
                *value += words;
            }
            continue;
        };
        if key == "alert" {
            rules.push(BTreeMap::new());
        }
        if let Some(rule) = rules.last_mut() {
            folded = key;
            rule.insert(key, value.trim().trim_end_matches(">-").to_owned());
        }
    }
    for rule in &rules {
        for key in ["alert", "expr", "severity", "summary", "description"] {
            assert!(rule.get(key).is_some_and(|value| !value.is_empty()), "{rule:?} has no {key}");
        }
        assert!(["critical", "warning"].contains(&rule["severity"].as_str()), "{rule:?}");
        assert!(names(&rule["expr"]).next().is_some(), "{rule:?}");
    }
    rules
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_the_dashboard_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().unwrap();
    let builder = PageStore::builder().directory(dir.path()).pool_bytes(8 << 20).ssd_bytes(16 << 20);
    let store = builder.open().await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, recorder));
    let some_load = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        // On a busy machine the pages are still being made.
        while store.stats().pool.loads_hdd == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        ended = load(&store) => panic!("the load ended: {ended:?}"),
        () = some_load => {}
    }
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
    let rules = alerts();
    assert!(rules.len() >= 8, "{rules:?}");
    let watched = rules.iter().flat_map(|rule| names(&rule["expr"]));
    for name in asked.into_iter().chain(watched) {
        assert!(text.contains(&format!("\n{name}{{")), "{name} is not served:\n{text}");
    }
    // The buckets of a histogram are cumulative, and the last one has every operation.
    let read = "store=\"example\",device=\"hdd\",class=\"demand\",direction=\"read\"";
    let mut buckets: Vec<(f64, f64)> = text
        .lines()
        .filter_map(|line| {
            let bucket = line.strip_prefix(&format!("pagetier_device_latency_us_bucket{{{read},le=\""))?;
            let (end, count) = bucket.split_once("\"} ")?;
            Some((end.trim_start_matches('+').parse().ok()?, count.parse().ok()?))
        })
        .collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let counts: Vec<f64> = buckets.iter().map(|(_, count)| *count).collect();
    let all = value(&text, &format!("pagetier_device_latency_us_count{{{read}}}"));
    assert!(counts.len() == 45 && counts.is_sorted(), "{text}");
    assert!(all.is_some_and(|all| all > 0.0) && counts.last().copied() == all, "{text}");
    // Dropping the export ends it.
    drop(export);
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
