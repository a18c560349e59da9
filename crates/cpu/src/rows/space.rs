//! Runs of an iteration space along which every operand moves by one stride. Pure index arithmetic.

pub(super) use headwater_core::axes::{Axis, count, injective, merge};

/// Consecutive indices of some axes, cut into stretches along the last axis: within one, every operand moves
/// by its step.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Length of each stretch.
    pub lens: Vec<usize>,
    /// Offsets of all operands at the start of each stretch, in elements.
    offsets: Vec<isize>,
    operands: usize,
    index: Vec<usize>,
}

impl Runs {
    /// Capacity for what [`Runs::cut`] will make, so that it does not allocate.
    pub fn reserve(&mut self, axes: &[Axis], operands: usize, count: usize) {
        let runs = axes.last().map_or(1, |a| count / a.size.max(1) + 2);
        self.lens.reserve(runs);
        self.offsets.reserve(runs * operands);
        self.index.reserve(axes.len());
    }

    /// Cuts the indices `from..from + count`.
    pub fn cut(&mut self, axes: &[Axis], operands: usize, from: usize, count: usize) {
        self.lens.clear();
        self.offsets.clear();
        self.operands = operands;
        let Some((last, outer)) = axes.split_last() else {
            self.lens.push(count);
            self.offsets.resize(operands, 0);
            return;
        };
        if outer.is_empty() {
            self.lens.push(count);
            self.offsets.extend(last.steps.iter().map(|s| from as isize * s));
            return;
        }
        self.index.clear();
        self.index.resize(axes.len(), 0);
        let mut rest = from;
        for (i, a) in self.index.iter_mut().zip(axes).rev() {
            *i = rest % a.size;
            rest /= a.size;
        }
        let mut left = count;
        while left > 0 {
            let len = left.min(last.size - self.index[outer.len()]);
            self.lens.push(len);
            for o in 0..operands {
                let at = self.index.iter().zip(axes).map(|(&i, a)| i as isize * a.steps[o]).sum();
                self.offsets.push(at);
            }
            left -= len;
            self.index[outer.len()] = 0;
            for (i, a) in self.index[..outer.len()].iter_mut().zip(outer).rev() {
                *i += 1;
                if *i < a.size {
                    break;
                }
                *i = 0;
            }
        }
    }

    /// Stretches of one operand: offset and length.
    #[inline(always)]
    pub fn of(&self, operand: usize) -> impl Iterator<Item = (isize, usize)> + '_ {
        let starts = self.offsets[operand..].iter().step_by(self.operands).copied();
        starts.zip(self.lens.iter().copied())
    }

    /// Offset of an operand at the start of a stretch.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "machine code alone asks"))]
    #[inline(always)]
    pub fn offset(&self, stretch: usize, operand: usize) -> isize {
        self.offsets[stretch * self.operands + operand]
    }

    /// Offset of an operand at the first index.
    #[inline(always)]
    pub fn start(&self, operand: usize) -> isize {
        self.offsets[operand]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(size: usize, steps: &[isize]) -> Axis {
        Axis { size, steps: steps.to_vec() }
    }

    #[test]
    fn runs_cover_indices_in_order() {
        let axes = [axis(2, &[100]), axis(3, &[-10]), axis(4, &[1])];
        let mut all = Vec::new();
        for i in 0..2isize {
            for j in 0..3isize {
                (0..4isize).for_each(|k| all.push(100 * i - 10 * j + k));
            }
        }
        let mut runs = Runs::default();
        for from in 0..24 {
            for count in 0..=24 - from {
                runs.cut(&axes, 1, from, count);
                let got: Vec<isize> =
                    runs.of(0).flat_map(|(o, n)| (0..n as isize).map(move |k| o + k)).collect();
                assert_eq!(got, all[from..from + count]);
            }
        }
    }
}
