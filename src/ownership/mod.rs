//! What one open holds until the store has left: the directory, the locks, the fence, the embedder's log
//! gate. Nothing here knows what is in the files.
//!
//! Begin with `lock`: its table says how each file and device is held. `ending` is the other end: a
//! shutdown waits there for the operations in progress.

pub(crate) mod ending;
pub(crate) mod gate;
pub(crate) mod held_dir;
pub(crate) mod lock;
