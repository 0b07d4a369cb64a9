//! Programs with homes and log on Ceph: see `examples` and `tests`.
