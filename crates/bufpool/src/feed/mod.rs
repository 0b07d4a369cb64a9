//! What requests pass on to others without waiting: hits to the policy, all requests to a recording, a sample
//! of them to an analysis, sequential access to read-ahead. A buffer that is full loses them.
//!
//! Begin with `hits`.

pub(crate) mod detector;
pub(crate) mod hits;
pub(crate) mod record;
pub(crate) mod sample_channel;
pub(crate) mod sampler;
