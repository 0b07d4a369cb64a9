//! An LRU stack with access by depth.

/// Pages in the order of their last references. A Fenwick tree counts the occupied places, so that finding a
/// page by its depth and moving it to the top take O(log n).
#[derive(Debug)]
pub(crate) struct Stack {
    /// The tree's partial sums over the places, from index 1.
    sums: Vec<u32>,
    /// The page in each place.
    pages: Vec<u32>,
    depth: usize,
}

impl Stack {
    /// Pages 0 to `pages` - 1, the last on top, for at most `moves` moves.
    pub(crate) fn new(pages: u32, moves: usize) -> Self {
        // A page that moves leaves its place empty for good, so each move needs a new one at the end.
        let room = pages as usize + moves;
        let mut this =
            Self { sums: vec![0; room + 1], pages: Vec::with_capacity(room), depth: pages as usize };
        for page in 0..pages {
            this.push(page);
        }
        this
    }

    /// Moves the page below `depth` others to the top and returns it; the deepest page if there are fewer.
    pub(crate) fn take(&mut self, depth: usize) -> u32 {
        let place = self.place((self.depth - depth.min(self.depth - 1)) as u32);
        let page = self.pages[place];
        // The sums wrap, so this adds -1.
        self.add(place + 1, u32::MAX);
        self.push(page);
        page
    }

    fn push(&mut self, page: u32) {
        self.pages.push(page);
        self.add(self.pages.len(), 1);
    }

    fn add(&mut self, mut at: usize, by: u32) {
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    /// The place of the `nth` page from the bottom, from 1.
    fn place(&self, mut nth: u32) -> usize {
        let mut at = 0;
        // The first step may point beyond the end of the tree, where `get` finds nothing and the step is
        // halved.
        let mut step = self.sums.len().next_power_of_two();
        while step > 0 {
            if let Some(&sum) = self.sums.get(at + step)
                && sum < nth
            {
                at += step;
                nth -= sum;
            }
            step /= 2;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_whose_elements_move_to_the_front() {
        let mut stack = Stack::new(7, 1000);
        let mut list: Vec<u32> = (0..7).rev().collect();
        for at in 0..1000_usize {
            let depth = at * at % 9;
            let page = list.remove(depth.min(6));
            list.insert(0, page);
            assert_eq!(stack.take(depth), page);
        }
    }
}
