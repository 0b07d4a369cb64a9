//! A limit on a wait that counts only time in which the process ran.

use std::time::Duration;
use tokio::time::Instant;

/// What the time between two looks counts for at most. Waiting tasks look far more often: a longer time was
/// spent stopped, by a signal, a debugger or a hypervisor, and says nothing about the devices.
const STEP_MAX: Duration = Duration::from_millis(100);

/// How much longer a task waits.
#[derive(Debug)]
pub(crate) struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { left: limit, looked: Instant::now() }
    }

    /// Whether the limit is reached. Call it several times per [`STEP_MAX`].
    pub(crate) fn is_over(&mut self) -> bool {
        let now = Instant::now();
        self.left = self.left.saturating_sub((now - self.looked).min(STEP_MAX));
        self.looked = now;
        self.left.is_zero()
    }
}

#[cfg(all(test, not(loom)))]
#[tokio::test(start_paused = true)]
async fn time_in_which_the_process_was_stopped_does_not_count() {
    let mut patience = Patience::new(Duration::from_secs(2));
    let mut looks = 0;
    while !patience.is_over() {
        let pause = if looks % 4 == 0 { Duration::from_secs(35) } else { Duration::from_millis(5) };
        tokio::time::advance(pause).await;
        looks += 1;
    }
    assert!((60..80).contains(&looks), "{looks} looks");
}
