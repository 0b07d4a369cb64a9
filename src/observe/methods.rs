//! The store's methods by which an operator sees what it does.

use super::export::{self, StatsExport, StatsExportError};
#[cfg(feature = "metrics")]
use super::metrics::{self, MetricsExport};
use super::scrub::{self, Scrub, ScrubOptions};
use super::why::{PageWhy, why};
use crate::error::Error;
use crate::store::page_store::PageStore;
use pagetier_page::PageId;
use std::path::Path;
use std::time::Duration;

impl PageStore {
    /// Explains where `page` is and why: its state in memory with GD2L's H, its copies, and the benefit,
    /// counts and group by which the SSD's policy judges it. Reads nothing from a device and changes nothing.
    /// The parts are read one after another, so a page that moves during the call may appear in both places.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore, id: PageId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let why = store.why(id)?;
    /// println!("{why}");
    /// println!("{}", serde_json::to_string(&why)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The page does not exist.
    pub fn why(&self, page: PageId) -> Result<PageWhy, Error> {
        why(&self.shared, page)
    }

    /// Starts a scrub of every copy on the SSD and every home on the HDD. It reads each, verifies checksum,
    /// id and (on the SSD) version, and compares homes with clean copies. It repairs what it can: drops a bad
    /// copy that the HDD has too, rewrites a bad home from the copy on the SSD, and rewrites a page in memory
    /// whose only copy is bad. It reports the rest. It skips pages allocated after the start. Must be called
    /// in a tokio runtime.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use pagetier::scrub::ScrubOptions;
    ///
    /// let scrub = store.scrub(ScrubOptions::default().pages_per_second(Some(1_000.0)));
    /// let report = scrub.finished().await;
    /// for finding in report.findings {
    ///     println!("page {}: {} (healed: {})", finding.page, finding.error, finding.healed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn scrub(&self, options: ScrubOptions) -> Scrub {
        scrub::start(&self.shared, options)
    }

    /// Writes [`LiveStats`](crate::stats::LiveStats) as JSON to the file `path`, at once and then every
    /// `every` (at least 100 ms), until the result is dropped. The file is written whole and renamed into
    /// place, so a reader never sees part of one. It is not flushed, because it is of no use after a
    /// restart. If a later write fails, the export logs that once and tries again at the next interval. Must
    /// be called in a tokio runtime.
    ///
    /// ```
    /// # use pagetier::*;
    /// # async fn example(store: &PageStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let every = std::time::Duration::from_secs(1);
    /// let export = store.export_stats("/run/db.json", every).await?; // `pagetier top` reads it
    /// # drop(export);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first file cannot be written.
    pub async fn export_stats(
        &self,
        path: impl AsRef<Path>,
        every: Duration,
    ) -> Result<StatsExport, StatsExportError> {
        export::start(&self.shared, path.as_ref(), every).await
    }

    /// Publishes the statistics through the [`metrics`](https://docs.rs/metrics) facade, at once and then
    /// every `every` (at least 100 ms), with the label `store` set to `name`, until the result is dropped.
    /// Install a recorder (a Prometheus exporter, say) first. [`operating`](crate::operating#metrics) lists
    /// the metrics; `docs/grafana.json`, a file of the repository, shows them. Must be called in a tokio
    /// runtime.
    ///
    /// ```
    /// # use pagetier::*;
    /// # fn example(store: &PageStore) {
    /// // After a recorder was installed, such as that of `metrics-exporter-prometheus`:
    /// let export = store.export_metrics("orders", std::time::Duration::from_secs(10));
    /// # drop(export);
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn export_metrics(&self, name: &str, every: Duration) -> MetricsExport {
        metrics::start(&self.shared, name, every)
    }
}
