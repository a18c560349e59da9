//! Iteration spaces of row programs over given layouts: axes, and how every operand moves along them. Pure
//! index arithmetic, shared by devices.

/// One iteration dimension: its size, and the step of every operand along it, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Number of indices.
    pub size: usize,
    /// For each operand, how far it moves from one index to the next.
    pub steps: Vec<isize>,
}

/// Number of indices of some axes.
pub fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.size).product()
}

/// Drops axes of size 1 and joins neighbours that every operand walks as one.
pub fn merge(axes: Vec<Axis>) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for axis in axes.into_iter().filter(|a| a.size != 1) {
        match out.last_mut() {
            Some(last)
                if last
                    .steps
                    .iter()
                    .zip(&axis.steps)
                    .all(|(o, i)| Some(*o) == i.checked_mul(axis.size as isize)) =>
            {
                *last = Axis { size: last.size * axis.size, steps: axis.steps };
            }
            _ => out.push(axis),
        }
    }
    out
}

/// True if different indices of the axes always name different elements of an operand. Sorted by step, every
/// axis leaps over all that the smaller ones reach. (Sufficient; layouts that interleave otherwise count as
/// overlapping.)
pub fn injective(axes: &[&Axis], operand: usize) -> bool {
    let mut sorted: Vec<(usize, usize)> =
        axes.iter().filter(|a| a.size > 1).map(|a| (a.steps[operand].unsigned_abs(), a.size)).collect();
    sorted.sort_unstable();
    let mut reach = 0usize;
    sorted.into_iter().all(|(step, size)| {
        let fits = step > reach;
        reach = reach.saturating_add(step.saturating_mul(size - 1));
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(size: usize, steps: &[isize]) -> Axis {
        Axis { size, steps: steps.to_vec() }
    }

    #[test]
    fn axes_merge_where_all_operands_agree() {
        let merged = merge(vec![axis(2, &[12, 0]), axis(1, &[7, 7]), axis(3, &[4, 4]), axis(4, &[1, 1])]);
        assert_eq!(merged, [axis(2, &[12, 0]), axis(12, &[1, 1])]);
    }

    #[test]
    fn overlapping_layouts_are_seen() {
        let (a, b) = (axis(3, &[4, 0, 1, -4]), axis(4, &[1, 1, 1, 1]));
        let both = [&a, &b];
        assert_eq!([0, 1, 2, 3].map(|o| injective(&both, o)), [true, false, false, true]);
    }
}
