//! The parts of the example: a metrics endpoint, and a load that produces metrics.

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use pagetier::stats::MetricsExport;
use pagetier::{PageId, PageStore};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The number of pages of the load, more than memory holds.
const PAGES: u32 = 4000;
/// The maximum number of bytes read of a request.
const REQUEST_BYTES: usize = 4096;

/// Installs the recorder that the endpoint serves. Call it before the export begins: metrics published before
/// that are lost. Must be called in a tokio runtime.
///
/// # Errors
/// The process has a recorder.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    // Otherwise the latencies come out as quantiles, which cannot be added up.
    let latency = Matcher::Full("pagetier_device_latency_seconds".to_owned());
    let builder =
        PrometheusBuilder::new().set_buckets_for_metric(latency, &MetricsExport::LATENCY_BUCKETS)?;
    let recorder = builder.install_recorder()?;
    let handle = recorder.clone();
    tokio::spawn(async move {
        loop {
            // The recorder keeps each latency until its upkeep or a scrape.
            tokio::time::sleep(Duration::from_secs(5)).await;
            handle.run_upkeep();
        }
    });
    Ok(recorder)
}

/// Answers every request with the metrics. An engine with its own HTTP server adds a route instead.
///
/// # Errors
/// The listener failed.
pub async fn serve(listener: TcpListener, recorder: PrometheusHandle) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let recorder = recorder.clone();
        tokio::spawn(async move {
            // An error of one client does not concern the others.
            let _ = answer(stream, &recorder).await;
        });
    }
}

async fn answer(mut stream: TcpStream, recorder: &PrometheusHandle) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    let _read = stream.read(&mut request).await?;
    let body = recorder.render();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads and changes pages, some more often than others, and syncs from time to time. Returns only on errors.
///
/// # Errors
/// The store failed.
pub async fn load(store: &PageStore) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let space = match store.spaces().find("load") {
        Some(space) => space,
        None => store.spaces().create("load").await?,
    };
    while store.spaces().pages(space)? < PAGES {
        drop(store.allocate(space).await?);
    }
    for step in 0_u32.. {
        let drawn = step.wrapping_mul(2_654_435_761) >> 8;
        let no = if drawn % 4 == 0 { drawn / 4 % PAGES } else { drawn / 4 % (PAGES / 8) };
        let page = PageId::new(space, no);
        if step % 5 == 0 {
            store.get_mut(page).await?[0] = step as u8;
        } else {
            drop(store.get(page).await?);
        }
        if step % 500 == 0 {
            store.sync().await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
