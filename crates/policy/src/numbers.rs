//! Numbers in the names of policies, kept exactly, so that a choice stays `Copy`, `Eq` and `Hash`.

use std::fmt;
use std::str::FromStr;

/// A positive decimal number with at most three places, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Thousandths(u32);

impl Thousandths {
    fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    fn read(text: &str) -> Option<Self> {
        let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
        // `parse` would take a sign.
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(places) || places.len() > 3 {
            return None;
        }
        format!("{whole}{places:0<3}").parse().ok().filter(|n| *n > 0).map(Self)
    }
}

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, places) = (self.0 / 1000, self.0 % 1000);
        match places {
            0 => write!(f, "{whole}"),
            _ => write!(f, "{whole}.{}", format!("{places:03}").trim_end_matches('0')),
        }
    }
}

/// Defines a number that is read from and written to a name: a positive one, at most `$max`.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $default:expr, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(Thousandths);

        impl $name {
            /// The paper's.
            pub const DEFAULT: Self = Self(Thousandths($default));

            /// The number.
            #[must_use]
            pub fn get(self) -> f64 {
                self.0.get()
            }
        }

        /// Reads the number as it stands in a name: positive, with at most three decimal places.
        impl FromStr for $name {
            type Err = NotANumber;

            fn from_str(text: &str) -> Result<Self, NotANumber> {
                Thousandths::read(text).filter(|n| *n <= Thousandths($max)).map(Self).ok_or(NotANumber)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The size of the eviction zone in per cent of the SSD's slots, above 0 and at most 100. A recovery
    /// reads the zone. Default: 10 (2013 paper, section 6.1).
    ZonePercent, 10_000, 100_000
}

number! {
    /// The width of CAC's subranges in logical reads per minute. Default: 1 (2013 paper, section 5.2).
    GroupWidth, 1000, u32::MAX
}

/// The text is no number that the option takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotANumber;

impl fmt::Display for NotANumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a positive number in range with at most three decimal places")
    }
}

impl std::error::Error for NotANumber {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_back_and_others_are_refused() {
        for (text, number) in [("10", 10.0), ("0.001", 0.001), ("2.5", 2.5), ("100", 100.0), ("0.25", 0.25)] {
            let zone: ZonePercent = text.parse().unwrap();
            assert_eq!((zone.get(), zone.to_string().as_str()), (number, text));
        }
        assert_eq!("10.0".parse(), Ok(ZonePercent::DEFAULT));
        for text in
            ["", "0", "0.000", "-1", "+1", "1.", ".5", "1.0005", "100.001", "101", "nan", "inf", "1e1"]
        {
            assert_eq!(text.parse::<ZonePercent>(), Err(NotANumber), "{text}");
        }
        assert_eq!("60".parse::<GroupWidth>().map(GroupWidth::get), Ok(60.0));
        assert_eq!("4294968".parse::<GroupWidth>(), Err(NotANumber));
    }
}
