//! The contracts of devices and policies as tests that any implementation can run on itself.

mod device;
mod policy;

pub use device::{Growth, SIZE_MIN, check_device};
pub use policy::{check_pool, check_ssd};
