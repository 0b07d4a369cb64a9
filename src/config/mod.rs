//! How a store is configured: the builder, its options as plain data, and what the tiers' sizes cost. Opens
//! nothing (`open` does), and nothing here changes while a store runs.
//!
//! Begin with `options`, where each option is declared once, and `store_config` (`Config`), which the open
//! store keeps.

pub(crate) mod builder;
pub(crate) mod bytes;
pub(crate) mod calibrate;
pub(crate) mod choices;
pub(crate) mod options;
pub(crate) mod sizes;
pub(crate) mod store_config;
