//! LRU queues over frame indices: intrusive doubly linked lists in one flat array, each with an exact
//! midpoint.
//!
//! Invariant of a queue: its *old* frames are the `floor(3/8 · len)` nearest to the LRU end, and `mid` is the
//! old frame nearest to the MRU end. Every operation changes both counts by at most one, so the midpoint
//! moves at most two steps and everything is O(1).

/// No frame.
pub const NIL: u32 = u32::MAX;

/// One of the queues over the same links; up to 62.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueNo(pub u8);

impl QueueNo {
    /// As an index.
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

const OLD: u8 = 0x80;
/// The frame is outbound: see [`Queue::push_outbound`].
const OUT: u8 = 0x40;

#[derive(Clone, Copy, Debug)]
struct Node<V> {
    /// The neighbour towards the MRU end.
    newer: u32,
    /// The neighbour towards the LRU end.
    older: u32,
    value: V,
}

/// The links of all frames, shared by the queues of one policy: a frame is in at most one queue.
#[derive(Debug)]
pub(crate) struct Links<V> {
    nodes: Vec<Node<V>>,
    /// The queue's number + 1, or `0` for none, and the flags `OLD` and `OUT`. Kept apart from the nodes
    /// because it is read far more often.
    state: Vec<u8>,
}

impl<V: Copy + Default> Links<V> {
    /// For frames below `frames`; [`Links::cover`] makes room for a higher one.
    pub(crate) fn new(frames: usize) -> Self {
        let empty = Node { newer: NIL, older: NIL, value: V::default() };
        Self { nodes: vec![empty; frames], state: vec![0; frames] }
    }

    /// Makes room for `frame`.
    pub(crate) fn cover(&mut self, frame: u32) {
        let need = frame as usize + 1;
        if need > self.nodes.len() {
            self.nodes.resize(need, Node { newer: NIL, older: NIL, value: V::default() });
            self.state.resize(need, 0);
        }
    }

    /// The queue that `frame` is in.
    pub(crate) fn queue_of(&self, frame: u32) -> Option<QueueNo> {
        let state = self.state.get(frame as usize)?;
        // 0 is no queue, so a frame is untracked without a field of its own.
        (state & !(OLD | OUT)).checked_sub(1).map(QueueNo)
    }

    pub(crate) fn value(&self, frame: u32) -> V {
        self.nodes[frame as usize].value
    }

    pub(crate) fn set_value(&mut self, frame: u32, value: V) {
        self.nodes[frame as usize].value = value;
    }

    /// The neighbour of `frame` towards the MRU end, or [`NIL`].
    pub(crate) fn newer(&self, frame: u32) -> u32 {
        self.nodes[frame as usize].newer
    }

    fn older(&self, frame: u32) -> u32 {
        self.nodes[frame as usize].older
    }

    fn is_old(&self, frame: u32) -> bool {
        self.state[frame as usize] & OLD != 0
    }

    fn is_out(&self, frame: u32) -> bool {
        self.state[frame as usize] & OUT != 0
    }
}

/// One LRU queue over [`Links`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// The state of its frames that are neither old nor outbound.
    mark: u8,
    mru: u32,
    lru: u32,
    mid: u32,
    len: u32,
    old: u32,
    /// The last of the outbound frames, which lie at the LRU end; or [`NIL`].
    last_out: u32,
}

impl Queue {
    /// Queue `no`, unique among the queues over the same links.
    pub(crate) const fn new(no: QueueNo) -> Self {
        Self { mark: no.0 + 1, mru: NIL, lru: NIL, mid: NIL, len: 0, old: 0, last_out: NIL }
    }

    const fn no(&self) -> QueueNo {
        QueueNo(self.mark - 1)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// The frame at the LRU end, or [`NIL`].
    pub(crate) const fn lru(&self) -> u32 {
        self.lru
    }

    /// The midpoint frame: the old frame nearest to the MRU end; in a queue too short to have old frames, the
    /// LRU end; or [`NIL`].
    pub(crate) const fn midpoint(&self) -> u32 {
        if self.mid == NIL { self.lru } else { self.mid }
    }

    pub(crate) fn push_mru<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        self.link(links, frame, self.mru, NIL);
        self.rebalance(links);
    }

    pub(crate) fn push_lru<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        self.link(links, frame, NIL, self.lru);
        self.mark_old(links, frame);
        // The only old frame is also the one nearest to the MRU end.
        if self.mid == NIL {
            self.mid = frame;
        }
        self.rebalance(links);
    }

    /// Puts `frame` at the LRU end as outbound: behind the outbound frames that are still there.
    pub(crate) fn push_outbound<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        self.push_behind_outbound(links, frame);
        links.state[frame as usize] |= OUT;
        self.last_out = frame;
    }

    /// Puts `frame` just behind the midpoint frame, on its LRU side; without a midpoint, at the LRU end, but
    /// behind the outbound frames.
    pub(crate) fn push_midpoint<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        // On the LRU side of an outbound frame, which leaves next, the page would leave before it.
        if self.mid == NIL || links.is_out(self.mid) {
            return self.push_behind_outbound(links, frame);
        }
        self.link(links, frame, links.older(self.mid), self.mid);
        self.mark_old(links, frame);
        self.rebalance(links);
    }

    fn push_behind_outbound<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        let before = self.last_out;
        if before == NIL {
            return self.push_lru(links, frame);
        }
        // Next to the midpoint on its MRU side the frame is young.
        let old = links.is_old(before) && self.mid != before;
        self.link(links, frame, before, links.newer(before));
        if old {
            self.mark_old(links, frame);
        }
        self.rebalance(links);
    }

    pub(crate) fn unlink<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        self.cut(links, frame);
        links.state[frame as usize] = 0;
        self.rebalance(links);
    }

    /// Does the work of [`Queue::unlink`] and [`Queue::push_mru`] with one adjustment of the midpoint.
    pub(crate) fn move_to_mru<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        // A page used again and again needs no move; but if it was outbound, a use ends that.
        if self.mru == frame {
            if self.last_out == frame {
                self.last_out = links.older(frame);
                links.state[frame as usize] &= !OUT;
            }
            return;
        }
        self.cut(links, frame);
        self.link(links, frame, self.mru, NIL);
        self.rebalance(links);
    }

    /// Frames from the LRU end on.
    pub(crate) fn oldest_first<'a, V: Copy + Default>(
        &self,
        links: &'a Links<V>,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.lru;
        std::iter::from_fn(move || {
            let frame = at;
            (frame != NIL).then(|| {
                at = links.newer(frame);
                frame
            })
        })
    }

    fn link<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32, older: u32, newer: u32) {
        links.state[frame as usize] = self.mark;
        let node = &mut links.nodes[frame as usize];
        node.older = older;
        node.newer = newer;
        match older {
            NIL => self.lru = frame,
            f => links.nodes[f as usize].newer = frame,
        }
        match newer {
            NIL => self.mru = frame,
            f => links.nodes[f as usize].older = frame,
        }
        self.len += 1;
    }

    fn cut<V: Copy + Default>(&mut self, links: &mut Links<V>, frame: u32) {
        let Node { newer, older, .. } = links.nodes[frame as usize];
        match older {
            NIL => self.lru = newer,
            f => links.nodes[f as usize].newer = newer,
        }
        match newer {
            NIL => self.mru = older,
            f => links.nodes[f as usize].older = older,
        }
        self.len -= 1;
        if links.is_old(frame) {
            self.old -= 1;
        }
        if self.mid == frame {
            // The next older one takes over; the count of old frames fell, too, so the boundary holds until
            // it is rebalanced.
            self.mid = older;
        }
        if self.last_out == frame {
            // Older frames than the last outbound one are outbound themselves.
            self.last_out = older;
        }
    }

    fn mark_old<V>(&mut self, links: &mut Links<V>, frame: u32) {
        links.state[frame as usize] = links.state[frame as usize] & OUT | self.mark | OLD;
        self.old += 1;
    }

    fn rebalance<V: Copy + Default>(&mut self, links: &mut Links<V>) {
        let want = old_target(self.len);
        // At most one step each: an operation changes the length and the old frames by one.
        while self.old > want {
            let young = self.mid;
            self.mid = links.older(young);
            links.state[young as usize] &= !OLD;
            self.old -= 1;
        }
        while self.old < want {
            let next = if self.mid == NIL { self.lru } else { links.newer(self.mid) };
            self.mark_old(links, next);
            self.mid = next;
        }
    }

    /// Recounts the queue.
    pub(crate) fn validate<V: Copy + Default>(&self, links: &Links<V>) -> Result<(), String> {
        let (mut count, mut behind) = (0u32, NIL);
        for frame in self.oldest_first(links) {
            if links.queue_of(frame) != Some(self.no()) {
                return Err(format!("frame {frame} is linked in {:?} but marked otherwise", self.no()));
            }
            if links.older(frame) != behind {
                return Err(format!("frame {frame}: back link broken"));
            }
            if links.is_old(frame) != (count < self.old) {
                return Err(format!("frame {frame} at {count} of {}: wrong side of the midpoint", self.old));
            }
            count += 1;
            if count == self.old && self.mid != frame {
                return Err(format!("midpoint is {} instead of {frame}", self.mid));
            }
            if count > self.len {
                return Err(format!("{:?} is longer than {}", self.no(), self.len));
            }
            if !links.is_out(frame) && behind != NIL && links.is_out(behind) && self.last_out != behind {
                return Err(format!("frame {behind}, not {}, is the last on its way out", self.last_out));
            }
            behind = frame;
        }
        if count != self.len || behind != self.mru || self.old != old_target(self.len) {
            return Err(format!("queue {self:?}: counted {count}, last {behind}"));
        }
        Ok(())
    }
}

/// The number of old frames in a queue of `len`: 3/8, after InnoDB's `innodb_old_blocks_pct` of 37.
const fn old_target(len: u32) -> u32 {
    (len as u64 * 3 / 8) as u32
}
