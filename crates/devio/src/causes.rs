//! Errors on one line.

use std::error::Error;
use std::fmt::{Display, Formatter, Result};

/// Shows an error and its causes, joined by colons: every error says only its own part, and its
/// [`source`](Error::source) says the rest.
#[derive(Clone, Copy, Debug)]
pub struct Causes<'a>(pub &'a (dyn Error + 'static));

impl Display for Causes<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
