//! One replay, and the static placements of the same references.

use crate::Args;
use crate::report::{Alpha, Report, StaticReport, units};
use pagetier_policy::ssd::Dropped;
use pagetier_policy::{FramePolicyParams, SlotPolicyParams, SpaceId};
use pagetier_sim::{Accesses, Bound, Reference, Source, TierParams, Tiers, table_name};
use pagetier_tpcc::args::PolicyPair;
use std::error::Error;
use std::time::Instant;

/// The default number of generated batches to count.
const BATCHES: u64 = 10_000;

/// The parameters that all replays of this invocation share.
pub(crate) struct Run<'a> {
    pub(crate) args: &'a Args,
    /// The sizes of pool and SSD in pages.
    pub(crate) sizes: (u32, u32),
}

impl Run<'_> {
    fn tiers(&self, pair: &PolicyPair) -> Tiers {
        let (args, tiers, (pool_pages, ssd_pages)) = (&self.args.run, &self.args.tiers, self.sizes);
        let mut params = SlotPolicyParams::new(tiers.costs, ssd_pages as usize, pool_pages as usize);
        params.outqueue_entries = args.outqueue.unwrap_or(ssd_pages) as usize;
        params.group_width_per_min = args.group_width.unwrap_or(params.group_width_per_min);
        (params.alpha_min, params.alpha_max) = args.alpha.unwrap_or((params.alpha_min, params.alpha_max));
        if args.subtract_dropped {
            params.dropped = Dropped::Subtracted;
        }
        // The name of a policy may say the size of its clusters; the replay counts what the policy writes.
        let name = pair.pool.to_string();
        let named = name.split_once("cluster=").and_then(|(_, pages)| pages.parse().ok());
        let tier_params = TierParams {
            costs: tiers.costs,
            look_ahead: args.look_ahead as usize,
            dirty_share_max: args.dirty_percent_max / 100.0,
            zone_share: args.zone_percent.unwrap_or_else(|| pair.ssd.zone().get()) / 100.0,
            cpu_ms: args.cpu_us / 1000.0,
            cluster_pages: named.unwrap_or(tiers.cluster_pages),
            ..TierParams::new(pool_pages, ssd_pages)
        };
        let pool_params = FramePolicyParams {
            cluster_pages: tiers.cluster_pages,
            ..FramePolicyParams::new(pool_pages as usize, tiers.costs)
        };
        Tiers::new(tier_params, pair.pool.build(&pool_params), pair.ssd.build(&params))
    }

    /// The maximum number of batches to count.
    fn batches(&self) -> u64 {
        let all = if self.args.source.which.trace.is_some() { u64::MAX } else { BATCHES };
        self.args.run.batches.unwrap_or(all)
    }

    /// Replays the references under these policies.
    pub(crate) fn replay(
        &self,
        source: &mut dyn Source,
        pair: &PolicyPair,
    ) -> Result<Report, Box<dyn Error>> {
        let costs = &self.args.tiers.costs;
        let mut tiers = self.tiers(pair);
        let mut batch = Vec::new();
        let mut pass = |tiers: &mut Tiers, source: &mut dyn Source, batches: u64| {
            for _ in 0..batches {
                batch.clear();
                if !source.batch(&mut batch) {
                    break;
                }
                batch.iter().for_each(|&reference| tiers.apply(reference));
            }
        };
        let started = Instant::now();
        pass(&mut tiers, source, self.args.run.warmup);
        let (before, orders_before) = (*tiers.counts(), source.new_orders());
        pass(&mut tiers, source, self.batches());
        let seconds = started.elapsed().as_secs_f64();
        let counts = tiers.counts().since(&before);
        if counts.requests == 0 {
            return Err(nothing_counted(before.requests));
        }
        // A source without New-Orders reports 0, and few batches of TPC-C may have none: costs are then
        // per 1,000 requests.
        let orders = Some(source.new_orders() - orders_before).filter(|&n| n > 0);
        let run_read_ms = self.args.run.run_read_ms.unwrap_or(costs.hdd_read_ms);
        let (hdd_ms, ssd_ms) = (counts.hdd_ms_by_run(costs, run_read_ms), counts.ssd_ms(costs));
        let per_order = |ms: f64| orders.map(|n| ms / n as f64);
        let mut alpha: Vec<Alpha> = tiers.ssd_policy().groups().into_iter().map(Alpha::from).collect();
        if self.args.source.which.tpcc.is_some() {
            alpha.iter_mut().for_each(|a| a.name = table_name(SpaceId(a.space)));
        }
        Ok(Report {
            pool_policy: pair.pool.to_string(),
            ssd_policy: pair.ssd.to_string(),
            pool_pages: self.sizes.0,
            ssd_pages: self.sizes.1,
            counts,
            cost: hdd_ms + ssd_ms,
            cost_unit: "ms",
            hdd_ms,
            ssd_ms,
            hit_ratio: counts.pool_hits as f64 / counts.requests as f64,
            cluster_switch_factor: counts.cluster_switch_factor(),
            new_orders: orders,
            total_ms_per_new_order: per_order(hdd_ms + ssd_ms),
            hdd_ms_per_new_order: per_order(hdd_ms),
            ssd_ms_per_new_order: per_order(ssd_ms),
            hdd_accesses_per_unit: (counts.hdd_reads + counts.hdd_writes) as f64
                / units(orders, counts.requests),
            db_pages: source.db_pages(),
            ssd_used: tiers.ssd_used(),
            policy_memory_bytes: tiers.ssd_policy().memory_bytes(),
            pool_choice: tiers.pool_policy().choice().map(Into::into),
            ssd_choice: tiers.ssd_policy().choice().map(Into::into),
            // The time includes the warm-up, hence all requests and not the counted ones.
            requests_per_second: tiers.counts().requests as f64 / seconds.max(1e-9),
            alpha,
            bounds: Vec::new(),
        })
    }

    /// The static placements of the counted batches.
    pub(crate) fn bounds(&self, source: &mut dyn Source) -> Result<Vec<StaticReport>, Box<dyn Error>> {
        let mut batch: Vec<Reference> = Vec::new();
        let (mut known, mut accesses) = (Accesses::default(), Accesses::default());
        let (mut requests, mut requests_before, mut orders_before) = (0, 0, 0);
        let warmup = self.args.run.warmup;
        for at in 0..self.batches().saturating_add(warmup) {
            batch.clear();
            // The count precedes the first batch that is counted, so that its New-Orders belong to the
            // bound.
            if at == warmup {
                orders_before = source.new_orders();
            }
            if !source.batch(&mut batch) {
                break;
            }
            let (counted, so_far) =
                if at < warmup { (&mut known, &mut requests_before) } else { (&mut accesses, &mut requests) };
            *so_far += batch.len() as u64;
            // One batch of TPC-C is one transaction, in which a page is read once wherever it is placed.
            counted.begin();
            for &reference in &batch {
                // Other sources have no transactions: each reference counts by itself.
                if self.args.source.which.tpcc.is_none() {
                    counted.begin();
                }
                counted.add(reference);
            }
        }
        if requests == 0 {
            return Err(nothing_counted(requests_before));
        }
        let orders = Some(source.new_orders() - orders_before).filter(|&n| n > 0);
        let (memory, ssd, costs) = (self.sizes.0 as usize, self.sizes.1 as usize, &self.args.tiers.costs);
        let report = |placement, bound: Bound| StaticReport::new(placement, bound, units(orders, requests));
        Ok(vec![
            report("static", accesses.write_back(memory, ssd, costs)),
            report("static, by the warm-up", accesses.write_back_by(&known, memory, ssd, costs)),
            report("static, memory written through", accesses.write_through(memory, ssd, costs)),
        ])
    }
}

fn nothing_counted(requests: u64) -> Box<dyn Error> {
    format!("nothing is left to count: --warmup takes all {requests} references").into()
}
