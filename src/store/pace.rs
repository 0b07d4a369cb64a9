//! Limits the rate of work in the background that goes page by page.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The maximum delay that is caught up on after a stall.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// Lets at most one step begin per `each`, without catching up on more than [`CATCH_UP_MAX`].
#[derive(Debug)]
pub(crate) struct Pace {
    each: Option<Duration>,
    next: Instant,
}

impl Pace {
    /// At most `per_second` steps; `None`: as fast as they are.
    pub(crate) fn new(per_second: Option<f64>) -> Self {
        let each = per_second.map(|steps| Duration::from_secs_f64((1.0 / steps).clamp(0.0, 3600.0)));
        Self { each, next: Instant::now() }
    }

    /// Waits for the turn of the next step. Returns whether there is a limit.
    pub(crate) async fn wait(&mut self) -> bool {
        let Some(each) = self.each else { return false };
        // After a stall, say a suspended machine, it does not go at full speed until all lost time is made
        // up.
        let earliest = Instant::now().checked_sub(CATCH_UP_MAX).unwrap_or(self.next);
        self.next = self.next.max(earliest) + each;
        sleep_until(self.next).await;
        true
    }
}
