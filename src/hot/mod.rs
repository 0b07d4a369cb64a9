//! The hot set: which pages memory and SSD hold, in a file that the embedder asks for (`hot_set`), or on the
//! HDD by the store itself (`kept`, in pages that `list` describes). What the store's handle shares with the
//! task that keeps it is in `store/hot_state`.
//!
//! Begin with `kept`, whose header has the cases.

mod hot_set;
mod kept;
mod list;

pub use hot_set::HotSetReport;
