//! Bytes in use at every moment of a schedule, as a segment tree. Additions to a range, and the largest value
//! in one, take logarithmic time.

/// See the module's description. Moments are counted from 0; ranges include both ends.
pub(super) struct Timeline {
    len: usize,
    /// Leaves of the tree: a power of two, at least `len`.
    width: usize,
    /// Largest value below each tree node, what is added above it left out.
    most: Vec<i64>,
    /// Additions to everything below each tree node.
    added: Vec<i64>,
}

impl Timeline {
    /// A timeline of these values.
    pub fn new(values: &[i64]) -> Timeline {
        let width = values.len().next_power_of_two().max(1);
        // Leaves after the last moment never are the largest.
        let mut most = vec![i64::MIN / 2; 2 * width];
        most[width..width + values.len()].copy_from_slice(values);
        for i in (1..width).rev() {
            most[i] = most[2 * i].max(most[2 * i + 1]);
        }
        Timeline { len: values.len(), width, most, added: vec![0; 2 * width] }
    }

    /// Adds to every moment from `from` to `to`.
    pub fn add(&mut self, from: usize, to: usize, amount: i64) {
        let (mut l, mut r) = (from + self.width, to + self.width);
        let ends = [l, r];
        loop {
            // Each level has at most one tree node at either end that is wholly inside.
            if l == r {
                self.all_below(l, amount);
                break;
            }
            if l % 2 == 1 {
                self.all_below(l, amount);
                l += 1;
            }
            if r.is_multiple_of(2) {
                self.all_below(r, amount);
                r -= 1;
            }
            if l > r {
                break;
            }
            (l, r) = (l / 2, r / 2);
        }
        for mut i in ends {
            while i > 1 {
                i /= 2;
                self.most[i] = self.most[2 * i].max(self.most[2 * i + 1]) + self.added[i];
            }
        }
    }

    fn all_below(&mut self, i: usize, amount: i64) {
        self.most[i] += amount;
        self.added[i] += amount;
    }

    /// The largest value from `from` to `to`.
    pub fn most(&self, from: usize, to: usize) -> i64 {
        self.within(1, 0, self.width - 1, from, to)
    }

    fn within(&self, i: usize, low: usize, high: usize, from: usize, to: usize) -> i64 {
        if to < low || high < from {
            return i64::MIN / 2;
        }
        if from <= low && high <= to {
            return self.most[i];
        }
        let middle = (low + high) / 2;
        let left = self.within(2 * i, low, middle, from, to);
        left.max(self.within(2 * i + 1, middle + 1, high, from, to)) + self.added[i]
    }

    /// The largest value of all.
    pub fn peak(&self) -> i64 {
        if self.len == 0 { 0 } else { self.most[1] }
    }

    /// The value at every moment.
    pub fn values(&self) -> Vec<i64> {
        let mut above = self.added.clone();
        for i in 2..2 * self.width {
            if i < self.width {
                above[i] += above[i / 2];
            }
        }
        (self.width..self.width + self.len)
            .map(|i| self.most[i] + if i > 1 { above[i / 2] } else { 0 })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_add_up_as_in_a_plain_list(
            len in 1usize..40, ops in prop::collection::vec((0usize..40, 0usize..40, -50i64..50), 0..40)
        ) {
            let mut plain: Vec<i64> = (0..len as i64).map(|i| i * 7 % 11).collect();
            let mut tree = Timeline::new(&plain);
            for (a, b, amount) in ops {
                let (from, to) = (a.min(b) % len, a.max(b) % len);
                let (from, to) = (from.min(to), from.max(to));
                tree.add(from, to, amount);
                plain[from..=to].iter_mut().for_each(|x| *x += amount);
                prop_assert_eq!(tree.most(from, to), *plain[from..=to].iter().max().unwrap());
                prop_assert_eq!(tree.peak(), *plain.iter().max().unwrap());
                prop_assert_eq!(tree.values(), plain.clone());
            }
        }
    }
}
