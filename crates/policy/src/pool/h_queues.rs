//! GreedyDual's queues: LRU queues sorted by H, and the inflation L.
//!
//! All pages put at the MRU end of one queue get the same increment over L as their H, and L never falls. So
//! each queue is sorted by H, and the page of smallest H is at one of the LRU ends. Every event is O(1), a
//! pick O(queues). `gd2l` documents what the paper leaves open.

use crate::FrameId;
use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;

/// `N` queues of frames in order of H.
#[derive(Debug)]
pub(crate) struct HQueues<const N: usize> {
    /// H per frame.
    queues: Queues<f64, N>,
    inflation: f64,
    /// The last victim, and the value of L once it is evicted.
    chosen: Option<(FrameId, f64)>,
}

impl<const N: usize> HQueues<N> {
    pub(crate) fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames), inflation: 0.0, chosen: None }
    }

    /// L, in milliseconds.
    pub(crate) fn inflation(&self) -> f64 {
        self.inflation
    }

    /// H of the page in `frame` in milliseconds, not yet reduced by L.
    pub(crate) fn h(&self, frame: FrameId) -> Option<f64> {
        self.queues.tracks(frame.0).then(|| self.queues.value(frame.0))
    }

    /// The queue that `frame` is in.
    pub(crate) fn queue_of(&self, frame: FrameId) -> Option<QueueNo> {
        self.queues.queue_of(frame.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn len_of(&self, queue: QueueNo) -> usize {
        self.queues.len_of(queue)
    }

    /// Makes room for `frame`, and takes it out of its queue.
    pub(crate) fn admit(&mut self, frame: FrameId) {
        self.queues.cover(frame.0);
        self.queues.take_out(frame.0);
    }

    /// The H of the page in `frame`; without a frame, `h`.
    fn h_or(&self, frame: Option<u32>, h: f64) -> f64 {
        frame.map_or(h, |frame| self.queues.value(frame))
    }

    /// Moves `frame` to the MRU end of `queue`, with `h` or its neighbour's H, whichever is higher.
    pub(crate) fn put_mru(&mut self, frame: FrameId, queue: QueueNo, h: f64) {
        // `max`: costs may have fallen. A smaller H at the MRU end would break the queue's order, and its LRU
        // end would no longer be the minimum.
        self.queues.set_value(frame.0, self.h_or(self.queues.mru(queue), h).max(h));
        self.queues.put_mru(queue, frame.0);
    }

    /// Moves `frame` to the midpoint of `queue`, with the H there; in an empty queue, with `h`.
    pub(crate) fn put_midpoint(&mut self, frame: FrameId, queue: QueueNo, h: f64) {
        self.queues.take_out(frame.0);
        self.queues.set_value(frame.0, self.h_or(self.queues.midpoint(queue), h));
        self.queues.put_midpoint(queue, frame.0);
    }

    /// Moves `frame` to the LRU end of `queue`. It keeps its H, unless its neighbour's, or `h` in an empty
    /// queue, is lower.
    pub(crate) fn put_lru(&mut self, frame: FrameId, queue: QueueNo, h: f64) {
        self.queues.take_out(frame.0);
        // `min`, for the same reason at the other end.
        let h = self.queues.value(frame.0).min(self.h_or(self.queues.lru(queue), h));
        self.queues.set_value(frame.0, h);
        self.queues.put_lru(queue, frame.0);
    }

    /// All frames in the order of eviction: by H, and among equals by queue.
    pub(crate) fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let mut heads = [(f64::INFINITY, None); N];
        for (no, head) in heads.iter_mut().enumerate() {
            if let Some(frame) = self.queues.lru(QueueNo(no as u8)) {
                // Each queue is sorted, so its head is its minimum: a merge of the heads yields all frames by
                // H.
                *head = (self.queues.value(frame), Some(frame));
            }
        }
        std::iter::from_fn(move || {
            let mut least = 0;
            for no in 1..N {
                // `<`: among equals the lower queue goes first.
                if heads[no].0 < heads[least].0 {
                    least = no;
                }
            }
            let frame = heads[least].1?;
            let next = self.queues.newer(frame);
            heads[least] = (next.map_or(f64::INFINITY, |next| self.queues.value(next)), next);
            Some(FrameId(frame))
        })
    }

    /// Returns the next victim that `evictable` accepts. Its eviction raises L to the H of the last page
    /// passed over, or to its own H if none was.
    pub(crate) fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut passed = None;
        let found = self.eviction_order().find(|&frame| {
            let takes = evictable(frame);
            if !takes {
                // The last one passed over was the true minimum; L must not rise beyond it (see `gd2l`).
                passed = Some(frame);
            }
            takes
        });
        self.chosen = found.map(|frame| (frame, self.queues.value(passed.unwrap_or(frame).0)));
        found
    }

    /// Takes `frame` out; if `evicted`, raises L.
    pub(crate) fn remove(&mut self, frame: FrameId, evicted: bool) {
        if evicted && let Some(h) = self.h(frame) {
            // Another frame than the one found may have been evicted meanwhile: then its own H counts.
            let chosen = self.chosen.take().filter(|(chosen, _)| *chosen == frame);
            // L never falls: an H set from a lower L would break the order of the queue that it enters.
            self.inflation = self.inflation.max(chosen.map_or(h, |(_, level)| level));
        }
        self.queues.take_out(frame.0);
    }

    /// Recounts every queue, and checks its order.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.queues.validate()?;
        for no in 0..N as u8 {
            let mut behind = f64::NEG_INFINITY;
            for frame in self.queues.lru_first(QueueNo(no)) {
                let h = self.queues.value(frame);
                if !h.is_finite() || h < behind {
                    return Err(format!("frame {frame}: H {h} after {behind}"));
                }
                behind = h;
            }
        }
        Ok(())
    }
}
