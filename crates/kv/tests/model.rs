//! Random operations against a `BTreeMap`, with power cuts and killed processes. After each crash the store
//! is in the state after some operation, no older than the last confirmed one, and `check` finds no problem.
//!
//! `PAGETIER_KV_OPS=1000000 cargo test --release -p pagetier-kv --test all model -- --nocapture` runs a
//! million operations; `PAGETIER_KV_SEED=S` replays one seed.

use crate::world::{World, contents, soundness};
use pagetier_kv::{Kv, KvError};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

const OPS: u64 = 12_000;
const OPS_PER_SEED: u64 = 2_000;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A change: the key, and its new value or none.
type Change = (Vec<u8>, Option<Vec<u8>>);

#[derive(Default)]
struct Model {
    /// The state that is certainly durable.
    confirmed: Map,
    /// The changes since then, in order; the last one may have failed.
    since: Vec<Change>,
    /// The state that reads return.
    now: Map,
}

fn apply(map: &mut Map, (key, value): &Change) {
    match value {
        Some(value) => map.insert(key.clone(), value.clone()),
        None => map.remove(key),
    };
}

impl Model {
    fn change(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.since.push(change);
    }

    fn confirm(&mut self) {
        for change in self.since.drain(..) {
            apply(&mut self.confirmed, &change);
        }
    }

    /// Adopts the state that a recovery found, if it is allowed.
    fn recovered(&mut self, found: Map) -> Result<(), String> {
        let mut allowed = self.confirmed.clone();
        let mut changes = self.since.drain(..);
        while allowed != found {
            match changes.next() {
                Some(change) => apply(&mut allowed, &change),
                None => return Err(difference(&allowed, &found)),
            }
        }
        drop(changes);
        self.now = found.clone();
        self.confirmed = found;
        Ok(())
    }
}

fn difference(expected: &Map, found: &Map) -> String {
    let missing = expected.iter().find(|(key, value)| found.get(*key) != Some(value)).map(|(key, _)| key);
    let extra = found.iter().find(|(key, value)| expected.get(*key) != Some(value)).map(|(key, _)| key);
    format!("the store is none of its past states: {missing:?} is missing, {extra:?} is too many")
}

fn random_key(rng: &mut SmallRng, universe: u32) -> Vec<u8> {
    let number = rng.random_range(0..universe);
    let mut key = format!("{number:05}").into_bytes();
    // The same number always has the same length.
    key.resize(5 + (number.wrapping_mul(2_654_435_761) >> 24) as usize % 200, b'k');
    key
}

fn random_value(rng: &mut SmallRng) -> Vec<u8> {
    let bytes = match rng.random_range(0..100) {
        0..70 => rng.random_range(0..120),
        70..90 => rng.random_range(100..1_200),
        90..99 => rng.random_range(1_000..9_000),
        _ => rng.random_range(9_000..60_000),
    };
    let mut value = vec![0; bytes];
    rng.fill(&mut value[..]);
    value
}

/// Runs one operation. `Err` means that the store failed, as it does without power.
async fn step(kv: &Kv, model: &mut Model, rng: &mut SmallRng, deletes: u32) -> Result<(), KvError> {
    let key = random_key(rng, 900);
    match rng.random_range(0..100) {
        at if at < deletes => {
            let was_there = model.now.contains_key(&key);
            model.change((key.clone(), None));
            if rng.random_bool(0.3) {
                assert_eq!(kv.delete(&key).await?, was_there);
                if was_there {
                    model.confirm();
                }
            } else {
                assert_eq!(kv.delete_unsynced(&key).await?.is_some(), was_there);
            }
        }
        0..75 => {
            let value = random_value(rng);
            model.change((key.clone(), Some(value.clone())));
            if rng.random_bool(0.3) {
                kv.put(&key, &value).await?;
                model.confirm();
            } else {
                kv.put_unsynced(&key, &value).await?;
            }
        }
        75..95 => assert_eq!(kv.get(&key).await?.as_ref(), model.now.get(&key)),
        95..99 => some_range(kv, model, rng, key).await?,
        _ => {
            kv.sync().await?;
            model.confirm();
        }
    }
    Ok(())
}

/// Compares a range, in a random direction, with random kinds of bounds.
async fn some_range(kv: &Kv, model: &Model, rng: &mut SmallRng, from: Vec<u8>) -> Result<(), KvError> {
    let to = random_key(rng, 900);
    let (from, to) = if from < to { (from, to) } else { (to, from) };
    let mut bound = |key| match rng.random_range(0..3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    };
    let (from, to) = (bound(&from[..]), bound(&to[..]));
    if matches!((from, to), (Bound::Excluded(a), Bound::Excluded(b)) if a == b) {
        return Ok(());
    }
    let mut expected: Vec<_> =
        model.now.range::<[u8], _>((from, to)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut scan = kv.scan((from, to));
    if rng.random_bool(0.5) {
        scan = scan.backward();
        expected.reverse();
    }
    for entry in expected {
        assert_eq!(scan.next().await?, Some(entry));
    }
    assert_eq!(scan.next().await?, None);
    Ok(())
}

/// Runs until the power is cut, the process is killed, or `ops` operations are done.
async fn life(world: &World, model: &mut Model, rng: &mut SmallRng, ops: u64) -> Result<(u64, bool), String> {
    match rng.random_range(0..3) {
        0 => world.power.cut_at(rng.random_range(50..4_000)),
        1 => world.power.cut_at(rng.random_range(1..600)),
        _ => {}
    }
    let kv = match world.open().await {
        Ok(kv) => kv,
        Err(_) if world.power.is_cut() => return Ok((0, false)),
        Err(error) => return Err(format!("does not open: {error}")),
    };
    match contents(&kv).await {
        Ok(found) => model.recovered(found)?,
        Err(_) if world.power.is_cut() => return Ok((0, false)),
        Err(error) => return Err(format!("after recovery: {error}")),
    }
    powered(world, soundness(&kv).await)?;
    let deletes = [20, 20, 60][rng.random_range(0..3)];
    for done in 0..ops {
        let stepped = step(&kv, model, rng, deletes).await;
        if world.power.is_cut() {
            return Ok((done, false));
        }
        stepped.map_err(|error| format!("operation {done}: {error}"))?;
    }
    powered(world, soundness(&kv).await)?;
    if rng.random_bool(0.3) && !world.power.is_cut() {
        let closed = kv.shutdown().await;
        if !world.power.is_cut() {
            closed.map_err(|error| format!("close: {error}"))?;
            model.confirm();
        }
        return Ok((ops, false));
    }
    Ok((ops, true))
}

/// Ignores failures without power.
fn powered(world: &World, result: Result<(), String>) -> Result<(), String> {
    if world.power.is_cut() { Ok(()) } else { result }
}

async fn run(seed: u64, ops: u64) -> Result<u32, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut world, mut model) = (World::new(seed), Model::default());
    let (mut done, mut lives) = (0, 0);
    while done < ops {
        let part = rng.random_range(1..1_500).min(ops - done);
        let (more, kill) = life(&world, &mut model, &mut rng, part).await?;
        done += more.max(1);
        lives += 1;
        // Let the operations in flight end.
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.restart(kill && !world.power.is_cut() && rng.random_bool(0.7), &mut rng);
    }
    Ok(lives)
}

#[test]
fn the_store_is_always_one_of_its_confirmed_or_later_states() {
    let number = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    let ops = number("PAGETIER_KV_OPS").unwrap_or(OPS);
    let seeds = match number("PAGETIER_KV_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..ops.div_ceil(OPS_PER_SEED),
    };
    let (mut lives, mut done) = (0, 0);
    for seed in seeds {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        match runtime.block_on(run(seed, OPS_PER_SEED)) {
            Ok(more) => (lives, done) = (lives + more, done + OPS_PER_SEED),
            Err(error) => panic!(
                "seed {seed}: {error}; replay with PAGETIER_KV_SEED={seed} cargo test -p pagetier-kv --test all model"
            ),
        }
    }
    println!("{done} operations in {lives} lives");
}
