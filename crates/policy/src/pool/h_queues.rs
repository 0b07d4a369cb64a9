//! GreedyDual's queues: LRU queues sorted by H, and the inflation L.
//!
//! A page's H is L upon its last use plus the *value* of a use in its queue. All pages of a queue have the
//! same value, and L never falls. So each queue is sorted by H, and the page of smallest H is at one of the
//! LRU ends. Every event is O(1), a pick O(queues). `gd2l` documents what the paper leaves open.
//!
//! A frame stores L upon the use, not H. When costs change, the values change, and with them the H of every
//! page at once. A page that kept the H of higher costs would outlast all others until L reached it, and so
//! would every page put behind it, since the queue must stay sorted.

use crate::FrameId;
use crate::collections::links::QueueNo;
use crate::collections::queues::Queues;

/// `N` queues of frames in order of H.
#[derive(Debug)]
pub(crate) struct HQueues<const N: usize> {
    /// L upon the last use, per frame; never above L.
    queues: Queues<f64, N>,
    /// The value of a use, per queue.
    values: [f64; N],
    inflation: f64,
    /// The last victim, and the value of L once it is evicted.
    chosen: Option<(FrameId, f64)>,
}

impl<const N: usize> HQueues<N> {
    pub(crate) fn new(frames: usize) -> Self {
        Self { queues: Queues::new(frames), values: [0.0; N], inflation: 0.0, chosen: None }
    }

    /// L, in milliseconds.
    pub(crate) fn inflation(&self) -> f64 {
        self.inflation
    }

    /// Sets the value of a use in each queue.
    pub(crate) fn set_values(&mut self, values: [f64; N]) {
        self.values = values;
    }

    /// H of the page in `frame` in milliseconds, not yet reduced by L.
    pub(crate) fn h(&self, frame: FrameId) -> Option<f64> {
        self.queues.queue_of(frame.0).map(|queue| self.h_in(queue, frame.0))
    }

    /// H of the page in `frame`, which is in `queue`.
    fn h_in(&self, queue: QueueNo, frame: u32) -> f64 {
        self.queues.value(frame) + self.values[queue.at()]
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

    /// L upon the last use of the page in `frame`; without a frame, L.
    fn used_at(&self, frame: Option<u32>) -> f64 {
        frame.map_or(self.inflation, |frame| self.queues.value(frame))
    }

    /// Moves `frame` to the MRU end of `queue`, with the H of a use.
    pub(crate) fn put_mru(&mut self, frame: FrameId, queue: QueueNo) {
        self.queues.set_value(frame.0, self.inflation);
        self.queues.put_mru(queue, frame.0);
    }

    /// Moves `frame` to the midpoint of `queue`, with the H there; in an empty queue, with that of a use.
    pub(crate) fn put_midpoint(&mut self, frame: FrameId, queue: QueueNo) {
        self.queues.take_out(frame.0);
        self.queues.set_value(frame.0, self.used_at(self.queues.midpoint(queue)));
        self.queues.put_midpoint(queue, frame.0);
    }

    /// Moves `frame` to the LRU end of `queue`. It keeps its H, unless its neighbour's is lower, or that of a
    /// use if the queue is empty.
    pub(crate) fn put_lru(&mut self, frame: FrameId, queue: QueueNo) {
        let h = self.h(frame).unwrap_or(f64::INFINITY);
        self.queues.take_out(frame.0);
        // `min`: a larger H at the LRU end would break the queue's order, and its LRU end would no longer be
        // the minimum.
        let used_at = self.used_at(self.queues.lru(queue)).min(h - self.values[queue.at()]);
        self.queues.set_value(frame.0, used_at);
        self.queues.put_lru(queue, frame.0);
    }

    /// The heads of the queues that are not empty, mostly a few of many, in the queues' order. Each queue is
    /// sorted, so its head is its minimum.
    fn heads(&self) -> impl Iterator<Item = (f64, u32, QueueNo)> + '_ {
        let head = |queue| self.queues.lru(queue).map(|frame| (self.h_in(queue, frame), frame, queue));
        (0..N as u8).filter_map(move |queue| head(QueueNo(queue)))
    }

    /// All frames in the order of eviction: by H, and among equals by queue.
    pub(crate) fn eviction_order(&self) -> impl Iterator<Item = FrameId> + '_ {
        let (mut heads, mut count) = ([(0.0, 0, QueueNo(0)); N], 0);
        for head in self.heads() {
            heads[count] = head;
            count += 1;
        }
        // A merge of the heads yields all frames by H.
        std::iter::from_fn(move || {
            let heads = &mut heads[..count];
            // Among equals the lower queue goes first.
            let least = (1..heads.len()).fold(0, |at, no| if heads[no].0 < heads[at].0 { no } else { at });
            let (_, frame, queue) = *heads.get(least)?;
            match self.queues.newer(frame) {
                Some(next) => heads[least] = (self.h_in(queue, next), next, queue),
                None => {
                    heads.copy_within(least + 1.., least);
                    count -= 1;
                }
            }
            Some(FrameId(frame))
        })
    }

    /// Returns the next victim that `evictable` accepts. Its eviction raises L to the H of the last page
    /// passed over, or to its own H if none was.
    pub(crate) fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        self.chosen = None;
        // Mostly the first one can leave, and the order of all others would be for nothing.
        let (h, first, _) = self.heads().reduce(|least, head| if head.0 < least.0 { head } else { least })?;
        let mut passed = FrameId(first);
        if evictable(passed) {
            self.chosen = Some((passed, h));
            return Some(passed);
        }
        let found = self.eviction_order().skip(1).find(|&frame| {
            let takes = evictable(frame);
            if !takes {
                // The last one passed over was the true minimum; L must not rise beyond it (see `gd2l`).
                passed = frame;
            }
            takes
        })?;
        self.chosen = self.h(passed).map(|h| (found, h));
        Some(found)
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
                let used_at = self.queues.value(frame);
                if !used_at.is_finite() || used_at < behind || used_at > self.inflation {
                    return Err(format!("frame {frame}: used at {used_at} after {behind}"));
                }
                behind = used_at;
            }
        }
        Ok(())
    }
}
