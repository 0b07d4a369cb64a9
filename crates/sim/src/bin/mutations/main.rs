//! Leaves out one rule of the protocol after the other, and checks that a test or the campaign notices.
//!
//! Applies the patches of `crates/sim/mutations` to a copy of the repository, builds its tests and its
//! campaign once, and runs them: each mutation in processes of its own, which name it in `PAGETIER_MUTATION`.
//! What catches a mutation must pass without it.
//!
//! Exit code 0: every mutation was caught; 2: invalid arguments; 1: otherwise.

mod copy;
mod patch;
mod run;

use clap::Parser;
use patch::{Catcher, Mutation};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

#[derive(Parser, Debug)]
#[command(name = "mutations", about = "Checks that every rule of the protocol is missed when it is left out")]
struct Args {
    /// The folder of the copy and of what is built from it. The next run builds only what has changed.
    #[arg(long, default_value = "target/mutations")]
    dir: PathBuf,
    /// Only these mutations, by name.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only one mutation in this many.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    one_in: u32,
    /// The maximum number of the campaign's seeds per mutation.
    #[arg(long, default_value_t = 400)]
    seeds: u64,
    /// The number of mutations that run at once. Default: one per core.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, std::num::NonZero::get))]
    jobs: usize,
    /// Lists the mutations and what catches them.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match checked(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutations: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every mutation was caught.
fn checked(args: &Args) -> Result<bool, String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize();
    let root = root.map_err(|error| error.to_string())?;
    let all = copy::mutations(&root)?;
    // A misspelt name would otherwise select nothing, and nothing missed counts as success.
    if let Some(unknown) = args.only.iter().find(|name| all.iter().all(|one| one.name != **name)) {
        return Err(format!("{unknown}: no such mutation; see --list"));
    }
    if args.list {
        all.iter().for_each(list);
        return Ok(true);
    }
    let tree = copy::write(&root, &args.dir, &all)?;
    let built = run::build(&tree, &args.dir, &all)?;
    let chosen = all.iter().filter(|one| args.only.is_empty() || args.only.contains(&one.name));
    let chosen: Vec<&Mutation> = chosen.step_by(args.one_in as usize).collect();
    let (next, missed) = (Mutex::new(chosen.iter()), Mutex::new(Vec::new()));
    let work = || {
        // The braces release the lock before the work begins: without them, one mutation would run at a
        // time.
        while let Some(one) = { next.lock().expect("no thread panics").next() } {
            let begun = Instant::now();
            let (caught, how) = match built.catch(one, args.seeds) {
                Ok(how) => (true, how),
                Err(why) => (false, format!("NOT CAUGHT: {why}")),
            };
            println!("{:>26} {:>6.1} s  {how}", one.name, begun.elapsed().as_secs_f64());
            if !caught {
                missed.lock().expect("no thread panics").push(one.name.clone());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let missed = missed.into_inner().expect("no thread panics");
    println!("{} of {} mutations caught", chosen.len() - missed.len(), chosen.len());
    if !missed.is_empty() {
        println!("not caught: {}", missed.join(", "));
    }
    Ok(missed.is_empty())
}

fn list(one: &Mutation) {
    let by = match &one.caught_by {
        Catcher::Campaign(with) if with.is_empty() => "the campaign".to_owned(),
        Catcher::Campaign(with) => format!("the campaign with {}", with.join(" ")),
        Catcher::Test { target, name } => format!("{target}, {name}"),
    };
    println!("{}: {}\n    {by}", one.name, one.about.replace('\n', " "));
}
