//! Replays page references over any pool policy with any SSD policy, and says what they would have cost.

use clap::{ArgGroup, Parser};
use pagetier_policy::{
    CacParams, Costs, Dropped, GroupStats, POOL_POLICIES, PoolPolicyParams, SSD_POLICIES, ssd_policy,
};
use pagetier_sim::{
    Accesses, Bound, Counts, Source, TierParams, Tiers, Tpcc, Trace, Zipf, parse, table_name,
};
use serde::Serialize;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Replays a page trace, or generated references, over a buffer pool and an SSD cache without devices.
#[derive(Parser, Debug)]
#[command(name = "replay", group = ArgGroup::new("source").required(true).args(["trace", "tpcc", "zipf"]))]
struct Args {
    /// A page trace (.ptr).
    #[arg(long)]
    trace: Option<PathBuf>,
    /// TPC-C page references of this many warehouses.
    #[arg(long, value_name = "WAREHOUSES")]
    tpcc: Option<u32>,
    /// Zipf-distributed references to this many pages.
    #[arg(long, value_name = "PAGES")]
    zipf: Option<u32>,
    /// The skew of --zipf.
    #[arg(long, default_value_t = 0.9)]
    skew: f64,
    /// The share of writes of --zipf, in per cent.
    #[arg(long, default_value_t = 0.0, value_parser = parse::percent)]
    write_percent: f64,

    /// The share of the pages of --zipf, in per cent, that exchange ranks during as many references as there are pages.
    #[arg(long, default_value_t = 0.0, value_parser = parse::percent)]
    churn_percent: f64,
    /// The share of references of --zipf, in per cent, that a scan makes without saying so.
    #[arg(long, default_value_t = 0.0, value_parser = parse::percent)]
    scan_percent: f64,

    /// Pages that the pool holds.
    #[arg(long, required_unless_present = "ratio")]
    pool_pages: Option<u32>,
    /// Pages that the SSD holds.
    #[arg(long, required_unless_present = "ratio")]
    ssd_pages: Option<u32>,
    /// Sizes of database, SSD and pool, as 30:10:1, instead of pages; with --tpcc.
    #[arg(long, conflicts_with_all = ["pool_pages", "ssd_pages"], requires = "tpcc", value_parser = parse_ratio)]
    ratio: Option<[f64; 3]>,
    /// The pool's policy; cflru, ref and cfdc also with their window in per cent of the pool, as cfdc-75.
    #[arg(long, default_value = POOL_POLICIES[0], value_parser = parse_pool_policy)]
    pool_policy: String,
    /// The SSD's policy.
    #[arg(long, default_value = SSD_POLICIES[0], value_parser = clap::builder::PossibleValuesParser::new(SSD_POLICIES))]
    ssd_policy: String,
    /// `all` runs every pool policy with every SSD policy; or a list, as lru+cc,gd2l+cac.
    #[arg(long, value_name = "PAIRS")]
    compare: Option<String>,

    /// Milliseconds of an SSD read, HDD read, SSD write and HDD write.
    #[arg(long, value_name = "R_S,R_D,W_S,W_D", value_parser = parse::costs, default_value = "0.11,7.2,0.27,4.96")]
    costs: Costs,
    /// Batches (transactions, or 1,024 references of a trace, or 64 of --zipf) before counting starts.
    #[arg(long, default_value_t = 0)]
    warmup: u64,
    /// Batches that count; without it the whole trace, or 10,000.
    #[arg(long)]
    batches: Option<u64>,
    /// The generators' seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The eviction zone in per cent of the SSD.
    #[arg(long, default_value_t = 10.0, value_parser = parse::percent)]
    zone_percent: f64,
    /// Entries of the outqueue; as many as SSD pages if not given.
    #[arg(long)]
    outqueue: Option<usize>,
    /// Width of a group's subrange in logical reads per minute.
    #[arg(long)]
    group_width: Option<f64>,
    /// Bounds of α.
    #[arg(long, value_name = "MIN,MAX", value_parser = parse_pair)]
    alpha: Option<(f64, f64)>,
    /// The reads of pages that drop out of the outqueue are subtracted from their group.
    #[arg(long)]
    subtract_dropped: bool,
    /// Next victims that the cleaner looks at.
    #[arg(long, default_value_t = 64)]
    look_ahead: usize,
    /// The most dirty pages in per cent of the pool; recoverability writes clean the oldest beyond it.
    #[arg(long, default_value_t = 100.0, value_parser = parse::percent)]
    dirty_percent_max: f64,
    /// Pages of a cluster: of policies that write in clusters, and for the cluster switches.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    cluster_pages: u32,
    /// Processor time per reference in microseconds.
    #[arg(long, default_value_t = 2.0)]
    cpu_us: f64,

    /// Also what the best static placement would have cost, its pages chosen by the accesses of the very run.
    #[arg(long)]
    bound: bool,
    /// Print one JSON object (with --compare: an array of them).
    #[arg(long)]
    json: bool,
}

fn is_pool_policy(name: &str) -> bool {
    PoolPolicyParams::new(0, Costs::PAPER).policy(name).is_some()
}

fn parse_pool_policy(name: &str) -> Result<String, String> {
    if is_pool_policy(name) { Ok(name.into()) } else { Err(format!("one of {}", POOL_POLICIES.join(", "))) }
}

fn parse_ratio(text: &str) -> Result<[f64; 3], String> {
    let numbers: Vec<f64> = text.split(':').map_while(|n| n.trim().parse().ok()).collect();
    match numbers[..] {
        [db, ssd, pool] if text.split(':').count() == 3 && db > 0.0 && ssd >= 0.0 && pool > 0.0 => {
            Ok([db, ssd, pool])
        }
        _ => Err("three numbers, as 30:10:1".into()),
    }
}

fn parse_pair(text: &str) -> Result<(f64, f64), String> {
    let (low, high) = text.split_once(',').ok_or("two numbers, as 0.001,1000")?;
    match (low.trim().parse(), high.trim().parse()) {
        (Ok(low), Ok(high)) if 0.0 < low && low <= high => Ok((low, high)),
        _ => Err("two numbers above 0, the lower first".into()),
    }
}

#[derive(Serialize)]
struct Report {
    pool_policy: String,
    ssd_policy: String,
    pool_pages: u32,
    ssd_pages: u32,
    #[serde(flatten)]
    counts: Counts,
    /// The sum of the four costs, in milliseconds.
    cost: f64,
    hdd_ms: f64,
    ssd_ms: f64,
    hit_ratio: f64,
    cluster_switch_factor: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_orders: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_ms_per_new_order: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hdd_ms_per_new_order: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssd_ms_per_new_order: Option<f64>,
    /// Reads and writes of the HDD, per New-Order, or per 1,000 requests where there are none.
    hdd_accesses_per_unit: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    db_pages: Option<u64>,
    ssd_used: usize,
    policy_memory_bytes: usize,
    requests_per_second: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alpha: Vec<Alpha>,
}

/// What a static placement would have cost.
#[derive(Serialize)]
struct StaticReport {
    placement: &'static str,
    #[serde(flatten)]
    bound: Bound,
    hdd_accesses_per_unit: f64,
    hdd_reads_per_unit: f64,
    ms_per_unit: f64,
}

/// New-Orders, or thousands of requests where there are none.
fn units(orders: Option<u64>, requests: u64) -> f64 {
    orders.map_or(requests as f64 / 1000.0, |n| n as f64).max(f64::MIN_POSITIVE)
}

#[derive(Serialize)]
struct Alpha {
    space: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
    subrange: u32,
    alpha: f64,
    miss_rate_ssd: Option<f64>,
    miss_rate_hdd: Option<f64>,
    pages: u64,
}

impl From<GroupStats> for Alpha {
    fn from(group: GroupStats) -> Self {
        Self {
            space: group.space.0,
            name: None,
            subrange: group.subrange,
            alpha: group.alpha,
            miss_rate_ssd: group.miss_rate_ssd,
            miss_rate_hdd: group.miss_rate_hdd,
            pages: group.pages,
        }
    }
}

/// What is replayed.
enum Input {
    Trace(Trace),
    Tpcc(u32),
    Zipf(u32),
}

impl Input {
    fn new(args: &Args) -> Result<Self, Box<dyn Error>> {
        match (&args.trace, args.tpcc, args.zipf) {
            (Some(path), ..) => match Trace::read(path) {
                Ok(trace) => Ok(Self::Trace(trace)),
                Err(error) => Err(format!("{}: {error}", path.display()).into()),
            },
            (None, Some(warehouses), _) => Ok(Self::Tpcc(warehouses)),
            (None, None, pages) => Ok(Self::Zipf(pages.unwrap_or(1))),
        }
    }

    /// Pages of pool and SSD.
    fn sizes(&self, args: &Args) -> (u32, u32) {
        match (self, args.ratio) {
            (Self::Tpcc(warehouses), Some([db, ssd, pool])) => {
                let pages = Tpcc::new(*warehouses, args.seed).pages() as f64;
                ((pages * pool / db) as u32, (pages * ssd / db) as u32)
            }
            _ => (args.pool_pages.unwrap_or(1), args.ssd_pages.unwrap_or(0)),
        }
    }
}

fn zipf(args: &Args, pages: u32) -> Zipf {
    Zipf::new(pages, args.skew, args.write_percent / 100.0, args.seed)
        .churning(args.churn_percent / 100.0)
        .scanned(args.scan_percent / 100.0)
}

struct Run<'a> {
    args: &'a Args,
    sizes: (u32, u32),
}

impl Run<'_> {
    fn tiers(&self, pool: &str, ssd: &str) -> Result<Tiers, Box<dyn Error>> {
        let (args, (pool_pages, ssd_pages)) = (self.args, self.sizes);
        let mut params = CacParams::new(args.costs, ssd_pages as usize, pool_pages as usize);
        params.outqueue_entries = args.outqueue.unwrap_or(ssd_pages as usize);
        params.group_width_per_min = args.group_width.unwrap_or(params.group_width_per_min);
        (params.alpha_min, params.alpha_max) = args.alpha.unwrap_or((params.alpha_min, params.alpha_max));
        if args.subtract_dropped {
            params.dropped = Dropped::Subtracted;
        }
        let tier_params = TierParams {
            costs: args.costs,
            look_ahead: args.look_ahead,
            dirty_share_max: args.dirty_percent_max / 100.0,
            zone_share: args.zone_percent / 100.0,
            cpu_ms: args.cpu_us / 1000.0,
            cluster_pages: args.cluster_pages,
            ..TierParams::new(pool_pages.max(1), ssd_pages)
        };
        let pool_params = PoolPolicyParams {
            cluster_pages: args.cluster_pages,
            ..PoolPolicyParams::new(pool_pages as usize, args.costs)
        };
        let pool = pool_params.policy(pool).ok_or("no such pool policy")?;
        let ssd = ssd_policy(ssd, &params).ok_or("no such SSD policy")?;
        Ok(Tiers::new(tier_params, pool, ssd))
    }

    fn replay(&self, source: &mut dyn Source, pool: &str, ssd: &str) -> Result<Report, Box<dyn Error>> {
        let args = self.args;
        let mut tiers = self.tiers(pool, ssd)?;
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
        pass(&mut tiers, source, args.warmup);
        let (before, orders_before) = (*tiers.counts(), source.new_orders());
        let limit = if args.trace.is_some() { u64::MAX } else { 10_000 };
        pass(&mut tiers, source, args.batches.unwrap_or(limit));
        let seconds = started.elapsed().as_secs_f64();
        let counts = tiers.counts().since(&before);
        let orders = Some(source.new_orders() - orders_before).filter(|&n| n > 0);
        let (hdd_ms, ssd_ms) = (counts.hdd_ms(&args.costs), counts.ssd_ms(&args.costs));
        let per_order = |ms: f64| orders.map(|n| ms / n as f64);
        let mut alpha: Vec<Alpha> = tiers.ssd_policy().groups().into_iter().map(Alpha::from).collect();
        if args.tpcc.is_some() {
            alpha.iter_mut().for_each(|a| a.name = table_name(pagetier_policy::SpaceId(a.space)));
        }
        Ok(Report {
            pool_policy: pool.into(),
            ssd_policy: ssd.into(),
            pool_pages: self.sizes.0,
            ssd_pages: self.sizes.1,
            counts,
            cost: hdd_ms + ssd_ms,
            hdd_ms,
            ssd_ms,
            hit_ratio: counts.pool_hits as f64 / counts.requests.max(1) as f64,
            cluster_switch_factor: counts.cluster_switch_factor(),
            new_orders: orders,
            total_ms_per_new_order: per_order(hdd_ms + ssd_ms),
            hdd_ms_per_new_order: per_order(hdd_ms),
            ssd_ms_per_new_order: per_order(ssd_ms),
            hdd_accesses_per_unit: (counts.hdd_reads + counts.hdd_writes) as f64
                / units(orders, counts.requests),
            db_pages: None,
            ssd_used: tiers.ssd_used(),
            policy_memory_bytes: tiers.ssd_policy().memory_bytes(),
            requests_per_second: tiers.counts().requests as f64 / seconds.max(1e-9),
            alpha,
        })
    }

    /// The static placements of the counted batches.
    fn bounds(&self, source: &mut dyn Source) -> Vec<StaticReport> {
        let args = self.args;
        let mut batch = Vec::new();
        let (mut known, mut accesses) = (Accesses::default(), Accesses::default());
        let (mut requests, mut orders_before) = (0, 0);
        let limit = if args.trace.is_some() { u64::MAX } else { 10_000 };
        for at in 0..args.batches.unwrap_or(limit).saturating_add(args.warmup) {
            batch.clear();
            if at == args.warmup {
                orders_before = source.new_orders();
            }
            if !source.batch(&mut batch) {
                break;
            }
            let counted = if at < args.warmup { &mut known } else { &mut accesses };
            requests += if at < args.warmup { 0 } else { batch.len() as u64 };
            counted.begin();
            for &reference in &batch {
                if args.tpcc.is_none() {
                    counted.begin();
                }
                counted.add(reference);
            }
        }
        let orders = Some(source.new_orders() - orders_before).filter(|&n| n > 0);
        let (memory, ssd) = (self.sizes.0 as usize, self.sizes.1 as usize);
        let report = |placement, bound: Bound| StaticReport {
            placement,
            hdd_accesses_per_unit: bound.hdd_accesses as f64 / units(orders, requests),
            hdd_reads_per_unit: bound.hdd_reads as f64 / units(orders, requests),
            ms_per_unit: bound.cost_ms / units(orders, requests),
            bound,
        };
        vec![
            report("static", accesses.write_back(memory, ssd, &args.costs)),
            report("static, by the warm-up", accesses.write_back_by(&known, memory, ssd, &args.costs)),
            report("static, memory written through", accesses.write_through(memory, ssd, &args.costs)),
        ]
    }

    fn bounds_of(&self, input: &Input) -> Vec<StaticReport> {
        match input {
            Input::Trace(trace) => self.bounds(&mut trace.source()),
            Input::Zipf(pages) => self.bounds(&mut zipf(self.args, *pages)),
            Input::Tpcc(warehouses) => self.bounds(&mut Tpcc::new(*warehouses, self.args.seed)),
        }
    }

    fn pair(&self, input: &Input, pool: &str, ssd: &str) -> Result<Report, Box<dyn Error>> {
        match input {
            Input::Trace(trace) => self.replay(&mut trace.source(), pool, ssd),
            Input::Zipf(pages) => self.replay(&mut zipf(self.args, *pages), pool, ssd),
            Input::Tpcc(warehouses) => {
                let mut tpcc = Tpcc::new(*warehouses, self.args.seed);
                let mut report = self.replay(&mut tpcc, pool, ssd)?;
                report.db_pages = Some(tpcc.pages());
                Ok(report)
            }
        }
    }
}

/// The pairs of policies to run.
fn pairs(args: &Args) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let Some(list) = &args.compare else {
        return Ok(vec![(args.pool_policy.clone(), args.ssd_policy.clone())]);
    };
    if list == "all" {
        let all =
            POOL_POLICIES.iter().flat_map(|p| SSD_POLICIES.iter().map(move |s| ((*p).into(), (*s).into())));
        return Ok(all.collect());
    }
    let pair = |text: &str| match text.split_once('+') {
        Some((p, s)) if is_pool_policy(p) && SSD_POLICIES.contains(&s) => Ok((p.into(), s.into())),
        _ => {
            Err(format!("{text}: not a pair of policies; as {}+{}", POOL_POLICIES[0], SSD_POLICIES[0]).into())
        }
    };
    list.split(',').map(pair).collect()
}

fn print_table(reports: &[Report]) {
    println!(
        "{:<24} {:>10} {:>8} {:>10} {:>10} {:>7} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8}",
        "pool+ssd",
        "requests",
        "miss %",
        "HDD reads",
        "HDD writes",
        "CSF",
        "SSD reads",
        "SSD writes",
        "cost s",
        "HDD/NO",
        "SSD/NO",
        "ms/NO",
        "HDD acc."
    );
    for r in reports {
        let c = &r.counts;
        let per = |ms: Option<f64>| ms.map_or_else(|| "-".into(), |ms| format!("{ms:.1}"));
        println!(
            "{:<24} {:>10} {:>8.2} {:>10} {:>10} {:>7.4} {:>10} {:>10} {:>10.1} {:>8} {:>8} {:>8} {:>8.2}",
            format!("{}+{}", r.pool_policy, r.ssd_policy),
            c.requests,
            100.0 * (1.0 - r.hit_ratio),
            c.hdd_reads,
            c.hdd_writes,
            r.cluster_switch_factor,
            c.ssd_reads,
            c.ssd_writes,
            r.cost / 1000.0,
            per(r.hdd_ms_per_new_order),
            per(r.ssd_ms_per_new_order),
            per(r.total_ms_per_new_order),
            r.hdd_accesses_per_unit,
        );
    }
}

fn print_bounds(bounds: &[StaticReport], unit: &str) {
    for b in bounds {
        println!(
            "{:<32} {:.2} HDD accesses per {unit}, {:.2} of them reads; {:.1} ms",
            b.placement, b.hdd_accesses_per_unit, b.hdd_reads_per_unit, b.ms_per_unit
        );
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let input = Input::new(args)?;
    let run = Run { args, sizes: input.sizes(args) };
    if run.sizes.0 == 0 {
        return Err("the pool needs at least one page".into());
    }
    let reports: Vec<Report> =
        pairs(args)?.iter().map(|(p, s)| run.pair(&input, p, s)).collect::<Result<_, _>>()?;
    match (args.json, &reports[..]) {
        (true, [report]) if args.compare.is_none() => println!("{}", serde_json::to_string_pretty(report)?),
        (true, reports) => println!("{}", serde_json::to_string_pretty(reports)?),
        (false, reports) => print_table(reports),
    }
    if args.bound && !args.json {
        let unit = if args.tpcc.is_some() { "New-Order" } else { "1,000 requests" };
        print_bounds(&run.bounds_of(&input), unit);
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}
