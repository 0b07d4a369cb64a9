//! The choice of the SSD policy, typed and by name.

use super::{by_name, joined, write_options};
use crate::SsdPolicyFactory;
use crate::custom::registered;
use crate::numbers::ZonePercent;
use crate::ssd::{
    Adaptive, Alpha, AutoOptions, Cac, CacOptions, NoSsd, SlotPolicy, SlotPolicyParams, SsdSetting,
};
use std::fmt;

/// The policy that decides which pages the SSD holds, with the parameters that its paper gives it. It
/// converts to and from names such as `auto`, `cac:strict-zone`, `auto:outqueue=5000,zone=5` and `none`
/// (`Display`, case-insensitive `FromStr`, serde).
///
/// The policies with which the papers compare, such as LRU2, TAC and MV-FIFO, are in the package
/// `pagetier-rivals`: after `pagetier_rivals::register()` they are found by name as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SsdPolicy {
    /// `auto`: the recommended policy. It adapts to the workload: see [`Adaptive`].
    Auto(AutoOptions),
    /// `cac` and, with α = 1, `cc` (Liu & Salem 2013), with the options of [`CacOptions`].
    Cac(CacOptions),
    /// `none`: nothing is admitted.
    None,
    /// Any other, with its eviction zone: one of `pagetier-rivals`, or one of your own.
    Custom(&'static dyn SsdPolicyFactory, ZonePercent),
}

impl Default for SsdPolicy {
    fn default() -> Self {
        Self::Auto(AutoOptions::DEFAULT)
    }
}

impl SsdPolicy {
    /// Every policy of this crate, the default first and [`SsdPolicy::None`] last, each with the options that
    /// its bare name implies.
    pub const ALL: &[Self] = &[
        Self::Auto(AutoOptions::DEFAULT),
        Self::Cac(CacOptions::CAC),
        Self::Cac(CacOptions::CC),
        Self::None,
    ];

    /// The names of the options of `cac` and `cc` that need no value.
    pub const PARTS: &[&str] = &[STRICT_ZONE];

    /// The names of the options that have a value: of all policies but `none`; of `auto`, `cac` and `cc`; and
    /// of `cac` and `cc`.
    pub const VALUES: &[&str] = &[ZONE, OUTQUEUE, GROUP_WIDTH];

    /// Builds the policy, for an empty SSD. Without slots there is nothing to decide and nothing to evict: a
    /// policy that tracked pages would keep a record of each for good.
    #[must_use]
    pub fn build(self, params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
        if params.slots == 0 {
            return Box::new(NoSsd);
        }
        match self {
            Self::Auto(options) => Box::new(Adaptive::new(options, params)),
            Self::Cac(options) => Box::new(Cac::new(options, params)),
            Self::None => Box::new(NoSsd),
            Self::Custom(factory, _) => factory.build(params),
        }
    }

    /// The eviction zone. Without a policy, the zone has no use.
    #[must_use]
    pub const fn zone(self) -> ZonePercent {
        match self {
            Self::Auto(AutoOptions { zone, .. })
            | Self::Cac(CacOptions { zone, .. })
            | Self::Custom(_, zone) => zone,
            Self::None => ZonePercent::DEFAULT,
        }
    }

    /// The entries of the outqueue over an SSD of `slots` slots: as many, unless the policy names another
    /// number. None if it has no outqueue, as only `auto`, `cac` and `cc` do.
    #[must_use]
    pub fn outqueue_entries(self, slots: u64) -> u64 {
        match self {
            Self::Auto(_) | Self::Cac(_) => self.outqueue().map_or(slots, u64::from),
            Self::None | Self::Custom(..) => 0,
        }
    }

    const fn outqueue(self) -> Option<u32> {
        match self {
            Self::Auto(AutoOptions { outqueue, .. }) | Self::Cac(CacOptions { outqueue, .. }) => outqueue,
            Self::None | Self::Custom(..) => None,
        }
    }

    /// This policy for a `share` of the pages: with as much of its outqueue.
    #[must_use]
    pub fn for_share(mut self, share: f64) -> Self {
        let scaled = self.outqueue().map(|entries| (f64::from(entries) * share).round() as u32);
        if let Self::Auto(AutoOptions { outqueue, .. }) | Self::Cac(CacOptions { outqueue, .. }) = &mut self {
            *outqueue = scaled;
        }
        self
    }

    /// Returns the known names, for messages.
    #[must_use]
    pub fn known() -> String {
        format!(
            "{}; cac and cc with options, as in cac:{STRICT_ZONE},{GROUP_WIDTH}=0.5: {} and {GROUP_WIDTH}=W \
             (logical reads per minute); auto, cac and cc with {OUTQUEUE}=N (entries of the outqueue); all \
             but none with {ZONE}=K (per cent of the slots, above 0 and at most 100, with up to three \
             decimals); auto pinned to one setting, as in auto:pin=plain: {}",
            Self::names().join(", "),
            Self::PARTS.join(", "),
            SsdSetting::all().map(SsdSetting::name).collect::<Vec<_>>().join(", ")
        )
    }

    /// Returns this policy with the option `text` enabled, if it has that option.
    fn with_option(mut self, text: &str) -> Option<Self> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        match (&mut self, name, value) {
            (Self::Custom(_, zone), ZONE, Some(value)) => *zone = value.parse().ok()?,
            (Self::Auto(options), _, Some(value)) => match name {
                "pin" => options.pin = Some(SsdSetting::named(value)?),
                ZONE => options.zone = value.parse().ok()?,
                OUTQUEUE => options.outqueue = Some(entries(value)?),
                _ => return None,
            },
            (Self::Cac(options), _, Some(value)) => match name {
                ZONE => options.zone = value.parse().ok()?,
                OUTQUEUE => options.outqueue = Some(entries(value)?),
                GROUP_WIDTH => options.group_width = Some(value.parse().ok()?),
                _ => return None,
            },
            (Self::Cac(options), STRICT_ZONE, None) => options.strict_zone = true,
            _ => return None,
        }
        Some(self)
    }

    /// Finds a policy outside of this module. What stands behind a colon is the policy's own. So is a zone
    /// that it knows as an option; any other is the SSD's.
    fn in_catalogues(name: &str, options: Vec<String>) -> Option<Self> {
        let found = |name: &str| registered().into_iter().find_map(|catalogue| (catalogue.ssd)(name));
        let custom = |name: String| Some(Self::Custom(found(&name)?, ZonePercent::DEFAULT));
        custom(joined(name, options.clone())).or_else(|| {
            let (zones, own): (Vec<String>, Vec<String>) =
                options.into_iter().partition(|option| option.split('=').next() == Some(ZONE));
            zones.iter().try_fold(custom(joined(name, own))?, |policy, zone| policy.with_option(zone))
        })
    }
}

const STRICT_ZONE: &str = "strict-zone";
const ZONE: &str = "zone";
const OUTQUEUE: &str = "outqueue";
const GROUP_WIDTH: &str = "group-width";

/// A number of entries, without a sign.
fn entries(value: &str) -> Option<u32> {
    value.parse().ok().filter(|_| value.starts_with(|c: char| c.is_ascii_digit()))
}

/// The enabled options of `auto`.
fn auto_parts(AutoOptions { pin, zone, outqueue }: &AutoOptions) -> impl Iterator<Item = String> {
    let pin = pin.map(|setting| format!("pin={}", setting.name()));
    pin.into_iter().chain(tiers_parts(*zone, *outqueue))
}

/// The enabled options of `cac` and `cc`.
fn cac_parts(options: &CacOptions) -> impl Iterator<Item = String> {
    let strict = options.strict_zone.then(|| STRICT_ZONE.to_owned());
    let width = options.group_width.map(|width| format!("{GROUP_WIDTH}={width}"));
    strict.into_iter().chain(width).chain(tiers_parts(options.zone, options.outqueue))
}

/// The sizes that are not the default ones.
fn tiers_parts(zone: ZonePercent, outqueue: Option<u32>) -> impl Iterator<Item = String> {
    let outqueue = outqueue.map(|entries| format!("{OUTQUEUE}={entries}"));
    let zone = (zone != ZonePercent::DEFAULT).then(|| format!("{ZONE}={zone}"));
    outqueue.into_iter().chain(zone)
}

impl fmt::Display for SsdPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto(options) => write_options(f, "auto", auto_parts(options)),
            Self::Cac(options) => {
                let name = match options.alpha {
                    Alpha::ByGroup => "cac",
                    Alpha::One => "cc",
                };
                write_options(f, name, cac_parts(options))
            }
            Self::None => f.pad("none"),
            Self::Custom(factory, zone) => write_options(f, &factory.name(), tiers_parts(*zone, None)),
        }
    }
}

by_name!(SsdPolicy, "SSD", ssd_names);

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
        let all = [
            "cc:strict-zone",
            "cac:group-width=0.1,outqueue=5000,zone=2.5",
            "cac:strict-zone,group-width=40",
            "auto:pin=plain,outqueue=0,zone=100",
        ];
        for text in SsdPolicy::PARTS.iter().map(|part| format!("cac:{part}")).chain(all.map(str::to_owned)) {
            assert_eq!(read(&text).map(|policy| policy.to_string()), Some(text));
        }
        // In any order; what is the default anyway is not written.
        let written = read("cc:zone=10,outqueue=7,strict-zone").map(|policy| policy.to_string());
        assert_eq!(written.as_deref(), Some("cc:strict-zone,outqueue=7"));
    }

    #[test]
    fn a_policys_sizes_are_those_of_its_name() {
        let sizes = |text: &str| {
            let policy = read(text).unwrap();
            (policy.zone().get(), policy.outqueue_entries(30))
        };
        assert_eq!([sizes("auto"), sizes("none"), sizes("cc:zone=20")], [(10.0, 30), (10.0, 0), (20.0, 30)]);
        assert_eq!([sizes("auto:outqueue=7,zone=5"), sizes("cac:outqueue=0")], [(5.0, 7), (10.0, 0)]);
        let sampled = read("cac:outqueue=1000").unwrap().for_share(0.25);
        assert_eq!(sampled.to_string(), "cac:outqueue=250");
        assert_eq!(read("cac").map(|policy| policy.for_share(0.25)), read("cac"));
    }

    #[test]
    fn what_names_no_policy_is_refused_with_the_names_that_there_are() {
        for text in [
            "",
            "arc",
            "cac:",
            "cac:x",
            "cac:ageing",
            "cac:strict-zone=1",
            "none:strict-zone",
            "auto:strict-zone",
            "cac:zone=0",
            "cac:zone=101",
            "cac:zone=nan",
            "cac:zone",
            "auto:group-width=1",
            "cac:group-width=0",
            "cac:outqueue=-1",
            "auto:outqueue=+1",
            "none:zone=10",
        ] {
            let error = text.parse::<SsdPolicy>().expect_err(text).to_string();
            assert!(error.contains("unknown SSD policy") && error.contains("cac, cc, none"), "{error}");
        }
    }

    /// A registered policy, with what its name said; it knows one zone, `far`, as an option of its own.
    #[derive(Debug)]
    struct Zoned(&'static str);

    impl SsdPolicyFactory for Zoned {
        fn name(&self) -> String {
            self.0.to_owned()
        }

        fn build(&self, _params: &SlotPolicyParams) -> Box<dyn SlotPolicy> {
            Box::new(NoSsd)
        }
    }

    #[test]
    fn a_zone_that_a_registered_policy_knows_is_its_own_and_any_other_the_ssds() {
        static ZONED: [Zoned; 2] = [Zoned("zoned"), Zoned("zoned:zone=far")];
        static CATALOGUE: crate::Catalogue = crate::Catalogue {
            pool_names: &[],
            pool: |_| None,
            ssd_names: &["zoned"],
            ssd: |name| ZONED.iter().find(|policy| policy.0 == name).map(|policy| policy as _),
        };
        crate::register(&CATALOGUE);
        for (text, zone) in [("zoned", 10.0), ("zoned:zone=5", 5.0), ("zoned:zone=far", 10.0)] {
            let policy = read(text).unwrap();
            assert_eq!((policy.to_string().as_str(), policy.zone().get()), (text, zone));
        }
        assert_eq!(read("zoned:zone=near"), None);
    }

    #[test]
    fn the_default_can_be_pinned_to_each_of_its_settings() {
        for setting in SsdSetting::all() {
            let text = format!("auto:pin={}", setting.name());
            let pinned = SsdPolicy::Auto(AutoOptions { pin: Some(setting), ..AutoOptions::DEFAULT });
            assert_eq!((read(&text), pinned.to_string()), (Some(pinned), text));
        }
        assert_eq!((read("auto:pin="), read("auto:pin=x"), read("cac:pin=plain")), (None, None, None));
    }
}
