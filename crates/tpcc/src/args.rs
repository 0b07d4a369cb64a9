//! Parsers for command-line values: numbers with bounds, costs, policy pairs. Errors say what was expected.

use pagetier_policy::{Costs, PoolPolicy, SsdPolicy, UnknownPolicy};
use std::fmt;
use std::str::FromStr;

/// Parses one number, or says what was expected.
pub type Check = fn(&str) -> Result<f64, String>;

fn number(text: &str, good: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    // `inf` parses as a number, and is above every lower bound.
    let number = text.trim().parse().ok().filter(|n: &f64| n.is_finite() && good(*n));
    number.ok_or_else(|| format!("expected {expected}"))
}

/// A number above 0.
///
/// # Errors
/// What was expected.
pub fn positive(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0, "a number above 0")
}

/// A number of at least 0.
///
/// # Errors
/// What was expected.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |n| n >= 0.0, "a number of at least 0")
}

/// A number from 0 to 100.
///
/// # Errors
/// What was expected.
pub fn percent(text: &str) -> Result<f64, String> {
    number(text, |n| (0.0..=100.0).contains(&n), "a number from 0 to 100")
}

/// A number above 0 and at most 100.
///
/// # Errors
/// What was expected.
pub fn positive_percent(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0 && n <= 100.0, "a number above 0, up to 100")
}

/// A number above 0 and at most 1.
///
/// # Errors
/// What was expected.
pub fn share(text: &str) -> Result<f64, String> {
    number(text, |n| n > 0.0 && n <= 1.0, "a number above 0, up to 1")
}

/// Exactly one number per entry of `checks`, separated by `separator`, each parsed by its check.
///
/// # Errors
/// Which of them is invalid, or how many there are.
pub fn numbers<const N: usize>(text: &str, separator: char, checks: [Check; N]) -> Result<[f64; N], String> {
    let parts: Vec<&str> = text.split(separator).collect();
    if parts.len() != N {
        return Err(format!("expected {N} numbers with {separator:?} between them, found {}", parts.len()));
    }
    let mut numbers = [0.0; N];
    for ((number, part), check) in numbers.iter_mut().zip(parts).zip(checks) {
        *number = check(part).map_err(|why| format!("{part:?}: {why}"))?;
    }
    Ok(numbers)
}

/// Milliseconds of an SSD read, HDD read, SSD write and HDD write, such as `0.11,7.2,0.27,4.96`, each above
/// 0.
///
/// # Errors
/// What was expected.
pub fn costs(text: &str) -> Result<Costs, String> {
    let read = numbers(text, ',', [positive; 4]);
    let [ssd_read_ms, hdd_read_ms, ssd_write_ms, hdd_write_ms] =
        read.map_err(|why| format!("{why}; R_S,R_D,W_S,W_D are four numbers, such as 0.11,7.2,0.27,4.96"))?;
    Ok(Costs { hdd_read_ms, hdd_write_ms, ssd_read_ms, ssd_write_ms })
}

/// The ratio of database, SSD and pool, such as `30:10:1`. Only the SSD's part may be 0.
///
/// # Errors
/// What was expected.
pub fn ratio(text: &str) -> Result<[f64; 3], String> {
    numbers(text, ':', [positive, not_negative, positive])
        .map_err(|why| format!("{why}; DB:SSD:POOL are three numbers, such as 30:10:1"))
}

/// Two numbers above 0, the smaller first, such as `0.001,1000`.
///
/// # Errors
/// What was expected.
pub fn bounds(text: &str) -> Result<(f64, f64), String> {
    let expected = "MIN,MAX are two numbers, the smaller first, such as 0.001,1000";
    match numbers(text, ',', [positive; 2]) {
        Ok([low, high]) if low <= high => Ok((low, high)),
        Ok(_) => Err(expected.into()),
        Err(why) => Err(format!("{why}; {expected}")),
    }
}

/// A pool policy and an SSD policy, such as `gd2l+cac` or `gd2l:frequency+cac:zone=5,outqueue=5000`, in any
/// letter case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicyPair {
    pub pool: PoolPolicy,
    pub ssd: SsdPolicy,
}

impl fmt::Display for PolicyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}+{}", self.pool, self.ssd))
    }
}

impl FromStr for PolicyPair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((pool, ssd)) = text.split_once('+') else {
            return Err(format!("{text:?} is not a pair of policies, POOL+SSD, such as gd2l+cac"));
        };
        let unknown = |why: UnknownPolicy| why.to_string();
        Ok(Self { pool: pool.parse().map_err(unknown)?, ssd: ssd.parse().map_err(unknown)? })
    }
}

/// Pairs separated by commas, such as `lru+cc,gd2l+cac:strict-zone,zone=5`. A part with a `+` or a pool
/// policy starts a pair, unless it starts with an option; any other part is an option of the policy before
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyPairs(pub Vec<PolicyPair>);

impl FromStr for PolicyPairs {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut pairs: Vec<String> = Vec::new();
        for part in list.split(',') {
            let head = part.split(['+', ':']).next().unwrap_or_default().trim().to_ascii_lowercase();
            // An option may have the `+` of its pair, as the second part of `gd2l:frequency,write-back+cac`.
            let option = PoolPolicy::PARTS.contains(&head.as_str());
            let begins = !option && (part.contains('+') || head.parse::<PoolPolicy>().is_ok());
            // An empty part stands alone, and then fails as a pair: a stray comma must not be lost.
            match pairs.last_mut().filter(|_| !begins && !part.trim().is_empty()) {
                Some(pair) => *pair = format!("{pair},{part}"),
                None => pairs.push(part.to_owned()),
            }
        }
        pairs.iter().map(|pair| pair.parse()).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_in_the_order_of_reads_and_writes() {
        assert_eq!(costs("0.11, 7.2,0.27,4.96"), Ok(Costs::PAPER));
        for bad in ["", "1,2,3", "1,2,3,4,5", "1,x,2,3,4", "1,2,3,-4", "1,2,3,0", "1,2,3,nan", "1,2,3,inf"] {
            assert!(costs(bad).unwrap_err().contains("four numbers"), "{bad}");
        }
    }

    #[test]
    fn every_number_of_a_list_counts() {
        assert_eq!(ratio("30:10:1"), Ok([30.0, 10.0, 1.0]));
        assert_eq!(ratio("30:0:1"), Ok([30.0, 0.0, 1.0]));
        for bad in ["30:10", "30:x:10:1", "30:x:1", "inf:10:1", "30:nan:1", "0:10:1", "30:10:0", "30:10:1:"] {
            assert!(ratio(bad).unwrap_err().contains("three numbers"), "{bad}");
        }
        assert!(ratio("30:x:1").unwrap_err().contains("\"x\""));
        assert_eq!(bounds("0.5,2"), Ok((0.5, 2.0)));
        for bad in ["2,0.5", "0,1", "1,inf", "1", "nan,1"] {
            assert!(bounds(bad).unwrap_err().contains("two numbers"), "{bad}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        let refused: [(Check, &[&str]); 5] = [
            (positive, &["0", "-1", "nan", "inf", "", "x"]),
            (not_negative, &["-0.1", "nan", "inf"]),
            (percent, &["-1", "100.1", "nan"]),
            (positive_percent, &["0", "101", "nan"]),
            (share, &["0", "1.1", "nan"]),
        ];
        for (check, texts) in refused {
            for text in texts {
                assert!(check(text).unwrap_err().contains("expected a number"), "{text}");
            }
            assert_eq!(check("1"), Ok(1.0));
        }
    }

    #[test]
    fn a_list_of_pairs_distinguishes_options_from_policies() {
        pagetier_rivals::register();
        let names = |list: &str| {
            list.parse().map(|PolicyPairs(pairs)| pairs.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names("CFDC-75+Tac"), Ok(vec!["cfdc-75+tac".to_owned()]));
        let list = "lru+cc,gd2l:frequency,write-back+cac:strict-zone,zone=5,gd2l+cac";
        let three = ["lru+cc", "gd2l:frequency,write-back+cac:strict-zone,zone=5", "gd2l+cac"];
        assert_eq!(names(list), Ok(three.map(str::to_owned).to_vec()));
        for bad in [
            "lru",
            "",
            "lru+cc,",
            ",lru+cc",
            "lru+arc",
            "mru+cac",
            "lru+cc,strict-zone",
            "lru+cac:strict-zone,mru",
        ] {
            assert!(names(bad).is_err(), "{bad}");
        }
        assert!(names("lru+arc").unwrap_err().contains("mv-fifo-gsc"));
    }
}
