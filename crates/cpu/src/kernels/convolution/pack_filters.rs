//! Packing of filters into micro-panels for implicit GEMM: ATen keeps them as output channel, input channel,
//! tap; the microkernel reads tap, input channel, output channel.

use super::pass::Pass;
use super::tiling::Inputs;
use crate::element::Wide;
use crate::gemm::Operand;
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::prefetch::Prefetch;
use crate::tier::Tier;
use crate::workspace;

/// k-groups of input channels transposed at a time with the filters of a micro-panel.
pub(super) const TRANSPOSED: usize = 16;
/// Order in which filters are packed: as they are; by filter element, where few are used; by channel of the
/// result, or of the source, whichever is the outer dimension in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Packing {
    Whole,
    Elements,
    Results,
    Sources,
}

impl Pass {
    pub fn packing(&self) -> Packing {
        match self.kernel() {
            _ if matches!(self.inputs, Inputs::InPlace(_)) => Packing::Whole,
            columns if columns == 1 || 16 * self.taps <= columns => Packing::Elements,
            columns if self.weight[1] == columns && self.weight[0] != columns => Packing::Results,
            _ => Packing::Sources,
        }
    }

    /// Packs all filters: for each part of the source's channels, micro-panel by micro-panel of the result's,
    /// in the order of the runs.
    pub fn pack<T: Operand>(
        &self,
        tier: Tier,
        pool: &Pool,
        w: &[T],
        out: &mut [T::Wide],
        group: usize,
        scratch: &mut workspace::Scratch<T::Wide>,
    ) {
        let cols = T::kernels(tier).nr;
        let panels = self.to.div_ceil(cols);
        let out = Shared(out.as_mut_ptr());
        scratch.run(pool, self.groups * panels, |at, scratch| {
            let (g, panel) = (at / panels, at % panels);
            let w = &w[g * self.to * self.from * self.kernel()..];
            for i0 in (0..self.k_groups()).step_by(self.channels) {
                let (channels, _) = self.part(i0);
                let start = g * group + (i0 * panels + panel * channels) * self.taps * cols;
                // SAFETY: rows of this panel, which no other task writes.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.get().add(start), self.taps * channels * cols)
                };
                self.prefetch_filters(w, i0, panel, cols).now();
                self.panel(tier, w, i0, panel, out, scratch);
            }
        });
    }

    /// Packs a micro-panel of the result's channels for the source's channels from k-group `i0` on: `w` are a
    /// group's filters.
    pub fn panel<T: Operand>(
        &self,
        tier: Tier,
        w: &[T],
        i0: usize,
        panel: usize,
        out: &mut [T::Wide],
        scratch: &mut [T::Wide],
    ) {
        let kernels = T::kernels(tier);
        let (cols, columns) = (kernels.nr, self.kernel());
        let (channels, elements) = self.part(i0);
        let n = cols.min(self.to - panel * cols);
        let w = &w[panel * cols * self.weight[0] + i0 * self.k_group * self.weight[1]..];
        let packing = self.packing();
        if packing == Packing::Whole {
            let (x, k) = (Mat { ptr: w.as_ptr(), rs: self.weight[0] as isize, cs: 1 }, elements * columns);
            // SAFETY: the kernels of these results and channels; groups of whole vectors do not spill.
            unsafe { (kernels.panels.pack)(x, n, k, cols, channels * self.taps, out.as_mut_ptr()) };
            return;
        }
        if packing == Packing::Elements {
            for (out, &element) in out.chunks_exact_mut(channels * cols).zip(&self.nest.elements) {
                let ptr = w[element..].as_ptr();
                let x = Mat { ptr, rs: self.weight[0] as isize, cs: self.weight[1] as isize };
                // SAFETY: weights of `n` channels of the result; groups of whole vectors do not spill.
                unsafe { (kernels.panels.pack)(x, n, elements, cols, channels, out.as_mut_ptr()) };
            }
            return;
        }
        if packing == Packing::Results {
            let x = Mat { ptr: w.as_ptr(), rs: self.weight[0] as isize, cs: 1 };
            let sizes = [elements, columns];
            // SAFETY: the kernels of these results and channels, and places for them.
            unsafe {
                (kernels.panels.pack_filters)(x, n, sizes, out.as_mut_ptr(), cols, scratch.as_mut_ptr())
            };
            return;
        }
        // Some channels of the source at a time: these become innermost, then the results.
        for first in (0..channels).step_by(TRANSPOSED) {
            let k_groups = TRANSPOSED.min(channels - first);
            let some = (k_groups * self.k_group).min(elements - first * self.k_group);
            let x = Mat {
                ptr: w[first * self.k_group * self.weight[1]..].as_ptr(),
                rs: self.weight[1] as isize,
                cs: 1,
            };
            // SAFETY: the kernels of these channels, and places for them.
            unsafe { (kernels.panels.interleave)(x, some, n * columns, scratch.as_mut_ptr(), TRANSPOSED) };
            for (tap, &element) in self.nest.elements.iter().enumerate() {
                let out = &mut out[(tap * channels + first) * cols..][..k_groups * cols];
                let ptr = scratch[element * TRANSPOSED..].as_ptr();
                let x = Mat { ptr, rs: (columns * TRANSPOSED) as isize, cs: 1 };
                // SAFETY: places of `n` results, and capacity for them.
                unsafe { (kernels.transpose)(x, n, k_groups, out.as_mut_ptr(), cols) };
                if n < cols {
                    out.chunks_exact_mut(cols).for_each(|row| row[n..].fill(T::Wide::ZERO));
                }
            }
        }
    }

    /// Prefetches what [`Pass::panel`] reads.
    pub fn prefetch_filters<T: Operand>(&self, w: &[T], i0: usize, panel: usize, cols: usize) -> Prefetch {
        let (n, (_, elements)) = (cols.min(self.to - panel * cols), self.part(i0));
        let ptr = w[panel * cols * self.weight[0] + i0 * self.k_group * self.weight[1]..].as_ptr();
        let columns = self.kernel();
        let [results, sources] = self.weight.map(|w| w as isize);
        match results < sources {
            true => Prefetch::matrix(Mat { ptr, rs: sources, cs: 1 }, elements, n * columns),
            false => Prefetch::matrix(Mat { ptr, rs: results, cs: 1 }, n, elements * columns),
        }
    }
}
