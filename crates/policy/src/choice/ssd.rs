//! The choice of the SSD policy, typed and by name.

use super::{by_name, write_options};
use crate::SsdPolicyFactory;
use crate::ssd::{Adaptive, Ageing, Alpha, Cac, CacOptions, NoSsd, SlotPolicy, SlotPolicyParams, SsdSetting};
use std::fmt;

/// The policy that decides which pages the SSD holds. It converts to and from names such as `auto`, `cac`,
/// `cac:ageing,sketch` and `none` (`Display`, case-insensitive `FromStr`, serde).
///
/// The policies with which the papers compare, such as LRU2, TAC and MV-FIFO, are in the package
/// `pagetier-rivals`: after `pagetier_rivals::register()` they are found by name as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SsdPolicy {
    /// `auto`: the recommended policy. It adapts to the workload: see [`Adaptive`].
    #[default]
    Auto,
    /// `auto:pin=NAME`: the same policy, fixed to one of its settings.
    Pinned(SsdSetting),
    /// `cac` and, with α = 1, `cc` (Liu & Salem 2013), with the options of [`CacOptions`].
    Cac(CacOptions),
    /// `none`: nothing is admitted.
    None,
    /// Any other: one of `pagetier-rivals`, or one of your own.
    Custom(&'static dyn SsdPolicyFactory),
}

impl SsdPolicy {
    /// Every policy of this crate, the default first and [`SsdPolicy::None`] last, each with the options that
    /// its bare name implies.
    pub const ALL: &[Self] = &[Self::Auto, Self::Cac(CacOptions::CAC), Self::Cac(CacOptions::CC), Self::None];

    /// The names of the options of `cac` and `cc`. `ageing=N` halves the counts every N accesses per slot.
    pub const PARTS: &[&str] = &["ageing", "sketch", "strict-zone"];

    /// Builds the policy, for an empty SSD. Without slots there is nothing to decide and nothing to evict: a
    /// policy that tracked pages would keep a record of each for good.
    #[must_use]
    pub fn build(self, params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
        if params.slots == 0 {
            return Box::new(NoSsd);
        }
        match self {
            Self::Auto => Box::new(Adaptive::new(params, None)),
            Self::Pinned(setting) => Box::new(Adaptive::new(params, Some(setting))),
            Self::Cac(options) => Box::new(Cac::new(options, params)),
            Self::None => Box::new(NoSsd),
            Self::Custom(factory) => factory.build(params),
        }
    }

    /// Returns the known names, for messages.
    #[must_use]
    pub fn known() -> String {
        format!(
            "{}; cac and cc with options, as in cac:ageing,sketch: {}, and ageing=N (counts are halved every N \
             accesses per slot); auto pinned to one setting, as in auto:pin=plain: {}",
            Self::names().join(", "),
            Self::PARTS.join(", "),
            SsdSetting::all().map(SsdSetting::name).collect::<Vec<_>>().join(", ")
        )
    }

    /// Returns this policy with the option `text` enabled, if it has that option.
    fn with_option(self, text: &str) -> Option<Self> {
        if self == Self::Auto {
            return SsdSetting::named(text.strip_prefix("pin=")?).map(Self::Pinned);
        }
        let Self::Cac(mut options) = self else { return None };
        match text.split_once('=') {
            Some(("ageing", per_slot)) => {
                let per_slot = per_slot.parse().ok().filter(|n| *n > 0)?;
                options.ageing = Some(Ageing::Every(per_slot));
            }
            Some(_) => return None,
            None => match text {
                "ageing" => options.ageing = Some(Ageing::DEFAULT),
                "sketch" => options.sketch = true,
                "strict-zone" => options.strict_zone = true,
                _ => return None,
            },
        }
        Some(Self::Cac(options))
    }
}

/// The enabled options, by the names of [`SsdPolicy::PARTS`].
fn parts(options: &CacOptions) -> Vec<String> {
    let ageing = options.ageing.map(|ageing| match ageing {
        Ageing::DEFAULT => "ageing".to_owned(),
        Ageing::Every(per_slot) => format!("ageing={per_slot}"),
        Ageing::WhenOutdated(per_slot) => format!("ageing-when-outdated={per_slot}"),
    });
    let named = [(options.sketch, "sketch"), (options.strict_zone, "strict-zone")];
    ageing
        .into_iter()
        .chain(named.into_iter().filter(|(on, _)| *on).map(|(_, name)| name.to_owned()))
        .collect()
}

impl fmt::Display for SsdPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Pinned(setting) => f.pad(&format!("auto:pin={}", setting.name())),
            Self::Cac(options) => {
                let name = match options.alpha {
                    Alpha::ByGroup => "cac",
                    Alpha::One => "cc",
                };
                write_options(f, name, parts(options))
            }
            Self::None => f.pad("none"),
            Self::Custom(factory) => f.pad(&factory.name()),
        }
    }
}

by_name!(SsdPolicy, "SSD", ssd, ssd_names);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<SsdPolicy> {
        text.parse().ok()
    }

    #[test]
    fn every_policy_reads_back_from_its_name_in_any_case() {
        for policy in SsdPolicy::ALL {
            let name = policy.to_string();
            assert_eq!((read(&name), read(&name.to_uppercase())), (Some(*policy), Some(*policy)), "{name}");
            assert!(SsdPolicy::known().contains(&name), "{name}");
        }
        let all = ["cac:ageing,sketch,strict-zone", "cc:sketch", "cac:ageing=40"];
        for text in SsdPolicy::PARTS.iter().map(|part| format!("cac:{part}")).chain(all.map(str::to_owned)) {
            assert_eq!(read(&text).map(|policy| policy.to_string()), Some(text));
        }
    }

    #[test]
    fn what_names_no_policy_is_refused_with_the_names_that_there_are() {
        for text in [
            "",
            "arc",
            "cac:",
            "cac:x",
            "cac:ageing=0",
            "cac:ageing=",
            "cac:sketch=1",
            "none:sketch",
            "auto:sketch",
        ] {
            let error = text.parse::<SsdPolicy>().expect_err(text).to_string();
            assert!(error.contains("unknown SSD policy") && error.contains("cac, cc, none"), "{error}");
        }
    }

    #[test]
    fn the_default_can_be_pinned_to_each_of_its_settings() {
        for setting in SsdSetting::all() {
            let text = format!("auto:pin={}", setting.name());
            assert_eq!(read(&text), Some(SsdPolicy::Pinned(setting)));
            assert_eq!(SsdPolicy::Pinned(setting).to_string(), text);
        }
        assert_eq!((read("auto:pin="), read("auto:pin=x"), read("cac:pin=plain")), (None, None, None));
    }
}
