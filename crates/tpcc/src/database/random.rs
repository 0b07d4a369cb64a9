//! Random input as specified in TPC-C clauses 2.1.5, 2.1.6 and 4.3.2.

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

/// The constants C of NURand, clause 2.1.6.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Constants {
    /// For last names (A = 255).
    pub(crate) last: u32,
    /// For customer numbers (A = 1023).
    pub(crate) customer: u32,
    /// For item numbers (A = 8191).
    pub(crate) item: u32,
}

/// A source of random input, determined by its seed.
#[derive(Debug)]
pub(crate) struct Random(SmallRng);

impl Random {
    /// The source of `stream` under `seed`; streams are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        // Hash the seed first: if it were only added to, a stream of one seed could be another stream of
        // the next.
        let mut mix = SmallRng::seed_from_u64(seed);
        let base = mix.next_u64();
        Self(SmallRng::seed_from_u64(base.wrapping_add(stream.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
    }

    /// A number from `low` to `high`, inclusive.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        self.0.random_range(low..=high)
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.between(1, 100) <= percent
    }

    /// NURand(A, x, y) of clause 2.1.6.
    pub(crate) fn nurand(&mut self, a: u32, c: u32, x: u32, y: u32) -> u32 {
        ((self.between(0, a) | self.between(x, y)) + c) % (y - x + 1) + x
    }

    /// Draws the constants for a load.
    pub(crate) fn load_constants(&mut self) -> Constants {
        Constants {
            last: self.between(0, 255),
            customer: self.between(0, 1_023),
            item: self.between(0, 8_191),
        }
    }

    /// Draws the constants for a run on a database loaded with `load`: clause 2.1.6.1 limits how far the one
    /// for last names is from that of the load.
    pub(crate) fn run_constants(&mut self, load: Constants) -> Constants {
        loop {
            // Only the constant for names has such a limit, but all three are drawn again until it holds.
            let run = self.load_constants();
            let delta = run.last.abs_diff(load.last);
            if (65..=119).contains(&delta) && delta != 96 && delta != 112 {
                return run;
            }
        }
    }

    /// Fills `text` with letters and digits.
    pub(crate) fn letters(&mut self, text: &mut [u8]) {
        // Six bits always select one of 64 letters. `x` and `y` are there twice to make up the number,
        // and so twice as likely, on which nothing depends.
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789xy";
        // One draw serves ten letters at 6 bits each: most of a loaded database is such text.
        for part in text.chunks_mut(10) {
            let mut bits = self.0.next_u64();
            for letter in part {
                *letter = ALPHABET[(bits & 63) as usize];
                bits >>= 6;
            }
        }
    }

    /// Writes `low` to `high` letters at the start of `text`, then zeroes.
    pub(crate) fn some_letters(&mut self, text: &mut [u8], low: u32, high: u32) {
        let (letters, rest) = text.split_at_mut(self.between(low, high) as usize);
        self.letters(letters);
        rest.fill(0);
    }

    /// Fills `text` with digits.
    pub(crate) fn digits(&mut self, text: &mut [u8]) {
        for digit in text {
            *digit = b'0' + self.between(0, 9) as u8;
        }
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.between(0, i as u32) as usize);
        }
    }
}

const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The last name of number `n` (0 to 999), clause 4.3.2.3: at most 15 letters, padded with zeroes.
pub(crate) fn last_name(n: u32) -> [u8; 16] {
    let mut name = [0; 16];
    let mut at = 0;
    for digit in [n / 100, n / 10 % 10, n % 10] {
        let syllable = SYLLABLES[digit as usize].as_bytes();
        name[at..at + syllable.len()].copy_from_slice(syllable);
        at += syllable.len();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nurand_stays_in_range_and_is_skewed_as_its_definition_says() {
        let mut random = Random::new(1, 0);
        let mut counts = [0_u32; 3_000];
        for _ in 0..300_000 {
            let n = random.nurand(1_023, 259, 1, 3_000);
            counts[n as usize - 1] += 1;
        }
        // The exact distribution, by counting all pairs.
        let mut exact = [0_u32; 3_000];
        for a in 0..=1_023_u32 {
            for b in 1..=3_000_u32 {
                exact[(((a | b) + 259) % 3_000) as usize] += 1;
            }
        }
        let pairs = 1_024.0 * 3_000.0;
        let (mut seen, mut expected) = (0.0, 0.0);
        for (&seen_n, &exact_n) in counts.iter().zip(&exact) {
            if f64::from(exact_n) / pairs > 2.0 / 3_000.0 {
                seen += f64::from(seen_n) / 300_000.0;
                expected += f64::from(exact_n) / pairs;
            }
        }
        assert!(
            expected > 0.3 && (seen - expected).abs() < 0.01,
            "hot share {seen}, by definition {expected}"
        );
    }

    #[test]
    fn last_names_are_made_of_syllables() {
        assert_eq!(&last_name(371)[..12], b"PRICALLYOUGH");
        assert_eq!(last_name(0), *b"BARBARBAR\0\0\0\0\0\0\0");
        assert_eq!(&last_name(999)[..12], b"EINGEINGEING");
        let mut all: Vec<_> = (0..1_000).map(last_name).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1_000);
    }

    #[test]
    fn a_run_draws_its_constant_at_the_required_distance() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let load = random.load_constants();
            let delta = random.run_constants(load).last.abs_diff(load.last);
            assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_input_and_another_stream_another() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            let mut text = [0; 40];
            random.letters(&mut text);
            text
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert!(draw(1, 2).iter().all(u8::is_ascii_alphanumeric));
    }
}
