//! The hot set: which pages memory and SSD hold, saved to a file at the embedder's request (`hot_set`), or by
//! the store itself to the HDD (`keeper`, in pages that `list` describes). The state that the store's handle
//! shares with the task of `keeper` is in `store/hot_state`.
//!
//! Begin with `keeper`, whose header has the cases.

mod hot_set;
mod keeper;
mod list;

pub use hot_set::HotSetReport;
