//! The hot set: which pages memory and SSD hold, saved to a file at the embedder's request (`hot_set`), or by
//! the store itself to the HDD (`kept`, in pages that `list` describes). The state that the store's handle
//! shares with the task of `kept` is in `store/hot_state`.
//!
//! Begin with `kept`, whose header has the cases.

mod hot_set;
mod kept;
mod list;

pub use hot_set::HotSetReport;
