//! Runs a store under a small load and serves its statistics to Prometheus at `http://ADDRESS/metrics`.
//!
//! `cargo run --release -p pagetier-example-metrics -- DIR [ADDRESS]`; ADDRESS is `127.0.0.1:9184` by
//! default. `docs/grafana.json` is a dashboard for it.

use pagetier_example_metrics::{install, load, serve};
use std::path::PathBuf;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut args = std::env::args().skip(1);
    let Some(dir) = args.next().filter(|dir| !dir.starts_with('-')).map(PathBuf::from) else {
        return Err("usage: pagetier-example-metrics DIR [ADDRESS]".into());
    };
    let address = args.next().unwrap_or_else(|| "127.0.0.1:9184".into());
    let recorder = install()?;
    let builder = pagetier::PageStore::builder().directory(&dir);
    let store = builder.pool_bytes(16 << 20).ssd_bytes(64 << 20).open().await?;
    let _export = store.export_metrics("example", Duration::from_secs(1));
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("http://{}/metrics", listener.local_addr()?);
    tokio::select! {
        served = serve(listener, recorder) => served?,
        loaded = load(&store) => loaded?,
    }
    Ok(())
}
