//! The plan of a comparison, from its options: the runs, how many at once, and the setting that makes rows
//! comparable.

use super::machine::cores;
use super::results::Setting;
use crate::command::cli::Cli;
use crate::command::comparison::CompareArgs;
use crate::command::matrix::{self, Case};
use crate::command::policies::Policies;
use clap::ValueEnum;
use std::num::NonZeroUsize;

/// New-Orders per window and warehouse.
const WINDOW: u64 = 250;
const QUICK_WINDOW: u64 = 300;
/// The measured windows of a whole run.
const MEASURED: usize = 8;

impl CompareArgs {
    /// Warehouses of every database. All have the same number; the SSD's size follows the ratio.
    pub(crate) fn warehouses(&self, cli: &Cli) -> u16 {
        // Ten, since ITEM has 8 MB whatever the number is: with ten it is a third of the smallest pool,
        // and with fewer it would decide the miss rates.
        cli.warehouses.unwrap_or(if self.quick { 1 } else { 10 })
    }

    /// The cases to run.
    pub(crate) fn cases(&self, more: &[Policies]) -> Vec<Case> {
        matrix::of_databases(matrix::cases(&self.compare, more), &self.databases)
    }

    /// The number of runs at once.
    pub(crate) fn jobs(&self, cases: usize) -> usize {
        // Every core may be busy: virtual time does not see how fast the machine is.
        self.jobs.map_or_else(cores, NonZeroUsize::get).clamp(1, cases.max(1))
    }

    /// The parameters that make rows comparable.
    pub(crate) fn setting(&self, base: &Cli) -> Setting {
        let warehouses = self.warehouses(base);
        let (per_warehouse, windows_max, windows_measured) =
            if self.quick { (QUICK_WINDOW, 40, 3) } else { (WINDOW, 60, MEASURED) };
        let windows_max = self.windows.map_or(windows_max, usize::from);
        Setting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            warehouses,
            terminals: base.terminals(warehouses),
            seed: base.seed,
            row_overhead: base.row_overhead,
            page_bytes: base.page_size().bytes() as u64,
            hdd_model: name_of(&base.hdd_model),
            ratio_of: name_of(&base.ratio_of),
            window: per_warehouse * u64::from(warehouses),
            windows_max,
            windows_measured,
        }
    }
}

impl Setting {
    /// Whether `--quick` measured it.
    pub(super) fn is_overview(&self) -> bool {
        self.windows_measured < MEASURED
    }
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
