//! Lists of frames, any number of them over the same links. Every operation is O(1).

use super::links::NIL;

/// The links of all frames: a frame is in at most one of the chains over them.
#[derive(Debug, Default)]
pub struct ChainLinks(Vec<Node>);

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u32,
    after: u32,
}

impl ChainLinks {
    /// For frames below `frames`; grows when a higher one comes.
    pub fn with_capacity(frames: usize) -> Self {
        Self(Vec::with_capacity(frames))
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Node>()
    }

    fn node(&mut self, frame: u32) -> &mut Node {
        let need = frame as usize + 1;
        if need > self.0.len() {
            self.0.resize(need, Node { before: NIL, after: NIL });
        }
        &mut self.0[frame as usize]
    }
}

/// A list of frames, in the order in which they were put in. The caller knows which chain a frame is in.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    first: u32,
    last: u32,
    len: usize,
}

impl Chain {
    pub const EMPTY: Self = Self { first: NIL, last: NIL, len: 0 };

    pub const fn len(&self) -> usize {
        self.len
    }

    pub fn put_last(&mut self, links: &mut ChainLinks, frame: u32) {
        *links.node(frame) = Node { before: self.last, after: NIL };
        // An empty chain's first is its last.
        match self.last {
            NIL => self.first = frame,
            last => links.node(last).after = frame,
        }
        self.last = frame;
        self.len += 1;
    }

    /// Takes `frame` out, which must be in this chain.
    pub fn take_out(&mut self, links: &mut ChainLinks, frame: u32) {
        let Node { before, after } = *links.node(frame);
        match before {
            NIL => self.first = after,
            before => links.node(before).after = after,
        }
        match after {
            NIL => self.last = before,
            after => links.node(after).before = before,
        }
        self.len -= 1;
    }

    /// Moves `frame`, which must be in this chain, to its end.
    pub fn move_last(&mut self, links: &mut ChainLinks, frame: u32) {
        self.take_out(links, frame);
        self.put_last(links, frame);
    }

    /// The frames, the first first.
    pub fn iter<'a>(&self, links: &'a ChainLinks) -> impl Iterator<Item = u32> + use<'a> {
        let next = |frame: &u32| links.0.get(*frame as usize).map(|node| node.after).filter(|f| *f != NIL);
        std::iter::successors(Some(self.first).filter(|frame| *frame != NIL), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_over_the_same_links_keep_their_orders() {
        let (mut links, mut a, mut b) = (ChainLinks::default(), Chain::EMPTY, Chain::EMPTY);
        for frame in 0..8 {
            if frame % 2 == 0 { a.put_last(&mut links, frame) } else { b.put_last(&mut links, frame) }
        }
        a.take_out(&mut links, 0);
        a.take_out(&mut links, 4);
        a.move_last(&mut links, 2);
        b.take_out(&mut links, 7);
        b.put_last(&mut links, 0);
        let all = |chain: &Chain| chain.iter(&links).collect::<Vec<_>>();
        assert_eq!((all(&a), a.len()), (vec![6, 2], 2));
        assert_eq!((all(&b), b.len()), (vec![1, 3, 5, 0], 4));
    }
}
