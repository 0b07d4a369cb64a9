//! The base of most pool policies: a few LRU queues over the same frames. Each frame is in at most one queue
//! and carries a value.
//!
//! A frame is *tracked* while it is in one of the queues. Its value remains after that, until it is set
//! again. Everything but iteration is O(1), and every queue maintains its exact midpoint (see `links`).

use crate::CleanReason;
use crate::collections::links::{Links, NIL, Queue, QueueNo};

/// `N` queues, numbered from 0, over frames that carry a `V`.
#[derive(Debug)]
pub struct Queues<V, const N: usize> {
    links: Links<V>,
    queues: [Queue; N],
}

impl<V: Copy + Default, const N: usize> Queues<V, N> {
    /// For frames below `frames`; [`Queues::cover`] makes room for a higher one.
    pub fn new(frames: usize) -> Self {
        let queues = std::array::from_fn(|no| Queue::new(QueueNo(no as u8)));
        Self { links: Links::new(frames), queues }
    }

    /// Makes room for `frame`.
    pub fn cover(&mut self, frame: u32) {
        self.links.cover(frame);
    }

    /// The queue that `frame` is in.
    pub fn queue_of(&self, frame: u32) -> Option<QueueNo> {
        self.links.queue_of(frame)
    }

    /// Whether `frame` is in a queue.
    pub fn tracks(&self, frame: u32) -> bool {
        self.queue_of(frame).is_some()
    }

    pub fn value(&self, frame: u32) -> V {
        self.links.value(frame)
    }

    pub fn set_value(&mut self, frame: u32, value: V) {
        self.links.set_value(frame, value);
    }

    /// Frames in all queues.
    pub fn len(&self) -> usize {
        self.queues.iter().map(Queue::len).sum()
    }

    /// Frames in queue `no`.
    pub fn len_of(&self, no: QueueNo) -> usize {
        self.queue(no).len()
    }

    /// The frame at the LRU end.
    pub fn lru(&self, no: QueueNo) -> Option<u32> {
        some(self.queue(no).lru())
    }

    /// The neighbour of `frame`, which is in a queue, towards the MRU end.
    pub fn newer(&self, frame: u32) -> Option<u32> {
        some(self.links.newer(frame))
    }

    /// The frame behind which [`Queues::put_midpoint`] puts others.
    pub fn midpoint(&self, no: QueueNo) -> Option<u32> {
        some(self.queue(no).midpoint())
    }

    /// Takes `frame` out of the queue that it is in, if any.
    pub fn take_out(&mut self, frame: u32) {
        if let Some(no) = self.queue_of(frame) {
            self.queues[no.at()].unlink(&mut self.links, frame);
        }
    }

    /// Moves `frame`, wherever it was, to the MRU end of queue `no`.
    pub fn put_mru(&mut self, no: QueueNo, frame: u32) {
        match self.queue_of(frame) {
            // The frequent case, a hit within one queue, with one adjustment of the midpoint instead of two.
            Some(here) if here == no => return self.queues[no.at()].move_to_mru(&mut self.links, frame),
            Some(other) => self.queues[other.at()].unlink(&mut self.links, frame),
            None => {}
        }
        self.queues[no.at()].push_mru(&mut self.links, frame);
    }

    /// Moves `frame`, wherever it was, to the LRU end of queue `no`.
    pub fn put_lru(&mut self, no: QueueNo, frame: u32) {
        self.take_out(frame);
        self.queues[no.at()].push_lru(&mut self.links, frame);
    }

    /// Moves `frame`, wherever it was, just behind the midpoint of queue `no`.
    pub fn put_midpoint(&mut self, no: QueueNo, frame: u32) {
        self.take_out(frame);
        self.queues[no.at()].push_midpoint(&mut self.links, frame);
    }

    /// Moves `frame`, wherever it was, to the LRU end of queue `no`, behind the frames that this method put
    /// there before it.
    pub fn put_outbound(&mut self, no: QueueNo, frame: u32) {
        self.take_out(frame);
        self.queues[no.at()].push_outbound(&mut self.links, frame);
    }

    /// Moves `frame`, whose page was written for `reason`, to queue `no` of clean pages. A page written for
    /// replacement is evicted next, behind those so written before it. Any other goes to the midpoint, as the
    /// 2013 paper treats pages that change their queue without being used (section 3.1).
    pub fn put_cleaned(&mut self, no: QueueNo, frame: u32, reason: CleanReason) {
        match reason {
            CleanReason::Replacement => self.put_outbound(no, frame),
            CleanReason::Recoverability => self.put_midpoint(no, frame),
        }
    }

    /// The frames of queue `no` from the LRU end on.
    pub fn lru_first(&self, no: QueueNo) -> impl Iterator<Item = u32> + '_ {
        self.queue(no).oldest_first(&self.links)
    }

    /// All frames: queue by queue in the order of their numbers, each from the LRU end on.
    pub fn in_turn(&self) -> impl Iterator<Item = u32> + '_ {
        self.queues.iter().flat_map(|queue| queue.oldest_first(&self.links))
    }

    fn queue(&self, no: QueueNo) -> &Queue {
        &self.queues[no.at()]
    }

    /// Recounts every queue.
    pub fn validate(&self) -> Result<(), String> {
        self.queues.iter().try_for_each(|queue| queue.validate(&self.links))
    }
}

fn some(frame: u32) -> Option<u32> {
    (frame != NIL).then_some(frame)
}
