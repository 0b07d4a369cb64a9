//! Tests over file systems on loop devices; they need root.

mod full_disk;
mod mounted;
mod slow_disk;
mod unmount;
mod vanish;
