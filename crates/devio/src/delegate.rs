//! Methods of [`Device`](crate::Device) that only call another object's method of the same name.

/// No part of the interface.
///
/// `delegate! { self => self.inner; fn size() -> u64; }` defines `size` as a call of `self.inner.size`.
#[doc(hidden)]
#[macro_export]
macro_rules! delegate {
    ($this:ident => $to:expr; $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)+) => {
        $(fn $name(&$this $(, $arg: $ty)*) $(-> $ret)? {
            $to.$name($($arg),*)
        })+
    };
}
