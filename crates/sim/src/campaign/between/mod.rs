//! What happens to a crashed store's devices before its next open: bit rot, loss of the SSD, replacement
//! by older or foreign devices, a look without writing. Faults of devices in use are in `world::planned`.
//!
//! Begin with `rot`.

pub(crate) mod loss;
pub(crate) mod past;
pub(crate) mod read_only;
pub(crate) mod rot;
