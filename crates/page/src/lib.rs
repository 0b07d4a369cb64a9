//! Pages: ids, headers, checksums, and the order of versions.
//!
//! Pure: no I/O, no clocks, no allocation. `docs/format.md` has the byte table; the fixture in `tests/` holds
//! bytes that every later version must read.

#![forbid(unsafe_code)]

mod crc;
mod header;
mod id;
mod log_mark;
mod sample;
mod seed;
mod size;
mod stamp;
mod trace;

pub use crc::{crc32c, crc32c_append};
pub use header::{Defect, Flags, HEADER_BYTES, Header, PAGE_FORMAT, format_homes, is_blank, seal, verify};
pub use id::{Lsn, PageId, SpaceId};
pub use log_mark::{LogMark, LogNeeds};
pub use sample::Sampling;
pub use seed::StoreSeed;
pub use size::{PageSize, PageSizeError};
pub use stamp::{Stamp, StampSource};
pub use trace::{TRACE_RECORD_BYTES, TraceRecord};
