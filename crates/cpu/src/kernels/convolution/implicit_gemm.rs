//! Implicit GEMM (cuDNN's name for it: Chetlur et al., 2014): the forward pass, and the input gradient by
//! stride phases. Inputs of a block of outputs are copied, padded and channels last, into a tile
//! ([`NhwcTile`]). Rows of the left operand then begin anywhere in it ([`crate::gemm::IndirectTile`]): no
//! im2col matrix is written. Filters are the packed right operand.
//!
//! [`NhwcTile`]: super::nhwc_tile::NhwcTile

use super::blocks::{Block, prefetch_channels};
use super::pack_filters::{Packing, TRANSPOSED};
use super::pass::{Job, Pass, RESULTS};
use super::tiling::Inputs;
use crate::gemm::{IndirectTile, Operand, filters_scratch};
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::prefetch::Prefetch;
use crate::tier::Tier;
use crate::workspace;

impl Pass {
    /// Elements of a group's packed filters; of a thread's tile of inputs, its sums, staging, and a
    /// micro-panel of filters.
    fn pieces<T: Operand>(&self, tier: Tier) -> (usize, [usize; 4]) {
        let cols = T::kernels(tier).nr;
        let weights = self.to.next_multiple_of(cols) * self.k_groups() * self.taps;
        let panel = cols * self.channels * self.taps;
        let (weights, panel) = if self.at_once() { (0, panel) } else { (weights, 0) };
        let sums = self.positions() * line(self.to, cols);
        let round = |n: usize| n.next_multiple_of(16);
        // Filters between transpositions.
        let staging = match self.packing() {
            Packing::Whole | Packing::Elements => 0,
            Packing::Results => filters_scratch(self.kernel()),
            Packing::Sources => self.kernel() * TRANSPOSED * cols,
        };
        let (held, plane) = match &self.inputs {
            Inputs::Held(band) => (band.elements(), band.plane()),
            Inputs::InPlace(_) => (0, 0),
        };
        (round(weights), [held, sums, plane.max(staging), panel].map(round))
    }

    /// Elements of workspace: of all threads, and of each.
    pub fn implicit_gemm_workspace<T: Operand>(&self, tier: Tier) -> (usize, usize) {
        let (weights, own) = self.pieces::<T>(tier);
        (weights * self.groups, own.iter().sum())
    }

    /// Computes the pass.
    #[allow(clippy::too_many_arguments)]
    pub fn implicit_gemm<T: Operand>(
        &self,
        tier: Tier,
        pool: &Pool,
        scratch: &mut [T::Wide],
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        out: &mut [T],
    ) {
        let (group, own) = self.pieces::<T>(tier);
        let (packed, scratch) = scratch.split_at_mut(group * self.groups);
        let mut scratch = workspace::spread(scratch, own.iter().sum(), pool.threads());
        if !self.at_once() {
            self.pack::<T>(tier, pool, w, packed, group, &mut scratch);
        }
        let packed = &*packed;
        let tasks = self.blocks.count() * self.groups * self.to.div_ceil(RESULTS);
        let out = Shared(out.as_mut_ptr());
        scratch.run(pool, tasks, |at, scratch| {
            let (band, scratch) = scratch.split_at_mut(own[0]);
            let (sums, scratch) = scratch.split_at_mut(own[1]);
            let (moved, panel) = scratch.split_at_mut(own[2]);
            let job = self.job(at);
            let weights = match self.at_once() {
                true => Filters::Raw(&w[job.group * self.to * self.from * self.kernel()..], panel),
                false => Filters::Packed(&packed[job.group * group..][..group]),
            };
            let next = (at + 1 < tasks).then(|| self.job(at + 1));
            // Further results of the inputs that are already packed.
            let again =
                |n: &Job| self.k_groups() <= self.channels && n.block == job.block && n.group == job.group;
            let next = next.filter(|n| !again(n));
            self.block::<T>(tier, &job, next.as_ref(), x, weights, out, [band, &mut *sums, &mut *moved]);
            let bias = bias.map(|b| &b[job.group * self.to..][..self.to]);
            // SAFETY: blocks, groups and parts of the channels have results of their own.
            unsafe { self.store::<T>(tier, &job, sums, bias, out) };
        });
    }

    /// The channels that a job sums over from k-group `i0` on, of the first sample, and elements to the next
    /// one.
    fn source<'a, T>(&self, job: &Job, i0: usize, x: &'a [T]) -> (&'a [T], usize) {
        let plane = self.nest.map.source.iter().product::<usize>();
        (&x[(job.group * self.from + i0 * self.k_group) * plane..], self.groups * self.from * plane)
    }

    /// The results of a block, to be prefetched for writing; nothing for results with depth.
    fn results<T>(&self, job: &Job, block: &Block, out: Shared<T>) -> Prefetch {
        let [depth, height, width] = self.nest.output;
        if depth != 1 || block.positions() == 0 {
            return Prefetch::NONE;
        }
        let first = out.get().wrapping_add(self.result(job, block.images.start, block, job.first));
        // Whole planes, also of which some results are written.
        let elements = (block.lines.len() - 1) * width + block.columns.len();
        let channels = RESULTS.min(self.to - job.first);
        let images = (block.images.len(), self.groups * self.to * height * width);
        prefetch_channels(first, images, channels, elements, height * width).written()
    }

    /// Sums a block: `sums[position][channel]`, of [`RESULTS`] channels at most.
    #[allow(clippy::too_many_arguments)]
    fn block<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        next_job: Option<&Job>,
        x: &[T],
        mut weights: Filters<T>,
        out: Shared<T>,
        [band, sums, moved]: [&mut [T::Wide]; 3],
    ) {
        let kernels = T::kernels(tier);
        let (cols, taps, m) = (kernels.nr, self.taps, &self.nest.map);
        let block = self.blocks.get(job.block);
        let tiling = self.tilings.get(&self.blocks, job.block);
        let phases = self.nest.outputs_of(&block);
        let panels = self.to.div_ceil(cols);
        let mine = job.first / cols..(job.first + RESULTS).min(self.to).div_ceil(cols);
        let crs = line(self.to, cols);
        for i0 in (0..self.k_groups()).step_by(self.channels) {
            let (channels, elements) = self.part(i0);
            let part = usize::from(channels < self.channels);
            // While these are multiplied, the next ones are prefetched.
            let next = match i0 + channels < self.k_groups() {
                true => Some((job, i0 + channels)),
                false => next_job.map(|job| (job, 0)),
            };
            let (first, sample) = self.source(job, i0, x);
            let (a, step) = match &self.inputs {
                Inputs::Held(layout) => {
                    let first = first.as_ptr();
                    // SAFETY: the channels of the group, of every sample.
                    unsafe { layout.fill(&kernels.panels, first, sample, &block, elements, moved, band) };
                    (band.as_ptr(), channels * size_of::<T::Wide>())
                }
                Inputs::InPlace(patches) => (first[patches.first(&block)..].as_ptr().cast(), size_of::<T>()),
            };
            let prefetch = next.map_or(Prefetch::NONE, |(job, i0)| {
                let ((first, sample), (_, elements)) = (self.source(job, i0, x), self.part(i0));
                self.blocks.get(job.block).prefetch_inputs(m, first.as_ptr(), sample, elements)
            });
            let mut prefetch = prefetch.paced(mine.len() * tiling.tiles.len());
            // And the results, when they are about to be written.
            let last = i0 + channels == self.k_groups();
            let results = if last { self.results(job, &phases, out) } else { Prefetch::NONE };
            let mut results = results.paced(mine.len() * tiling.tiles.len());
            for panel in mine.clone() {
                let mut ahead = Prefetch::NONE;
                let b = match &mut weights {
                    Filters::Packed(w) => {
                        &w[(i0 * panels + panel * channels) * taps * cols..][..taps * channels * cols]
                    }
                    Filters::Raw(w, packed) => {
                        let packed = &mut packed[..taps * channels * cols];
                        self.panel(tier, w, i0, panel, packed, moved);
                        // While these are used, the next ones are prefetched.
                        if panel + 1 < mine.end {
                            ahead = self.prefetch_filters(w, i0, panel + 1, cols);
                        } else if i0 + channels < self.k_groups() {
                            ahead = self.prefetch_filters(w, i0 + channels, mine.start, cols);
                        }
                        &*packed
                    }
                };
                let mut ahead = ahead.paced(tiling.tiles.len());
                let column = panel * cols - job.first;
                for tile in &tiling.tiles {
                    let sum = &tiling.sums[tile.sum][part];
                    let tile = IndirectTile {
                        rows: &tiling.rows[tile.rows.clone()],
                        a,
                        step,
                        runs: &sum.runs,
                        inner: sum.inner,
                        pitch: sum.pitch,
                        b: b.as_ptr(),
                        cols: cols.min(self.to - panel * cols),
                        c: sums[column..].as_mut_ptr(),
                        crs,
                        add: i0 > 0,
                    };
                    ahead.step();
                    prefetch.step();
                    results.step();
                    // SAFETY: the runs are in the tile or the image, the panel has a row for each of their
                    // elements, and the sums have a row for each position, of whole panels.
                    unsafe { (kernels.panels.indirect)(&tile) };
                }
            }
        }
    }

    /// Writes the sums of a block where they belong, with the bias.
    ///
    /// # Safety
    /// `out` is the result, and nobody else uses the elements of this block meanwhile.
    unsafe fn store<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        sums: &mut [T::Wide],
        bias: Option<&[T]>,
        out: Shared<T>,
    ) {
        let kernels = T::kernels(tier);
        let crs = line(self.to, kernels.nr);
        let block = self.nest.outputs_of(&self.blocks.get(job.block));
        let of_image = block.of_image();
        let plane: usize = self.nest.output.iter().product();
        let channels = RESULTS.min(self.to - job.first);
        if let Some(bias) = bias {
            let bias = &bias[job.first..][..channels];
            for sums in sums[..block.positions() * crs].chunks_exact_mut(crs) {
                sums.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b.widen());
            }
        }
        // Whole lines follow each other.
        let width = self.nest.output[2];
        let some = if block.columns.len() == width { of_image } else { block.columns.len() };
        for (i, image) in block.images.clone().enumerate() {
            let first = self.result(job, image, &block, job.first);
            for (line, from) in (0..of_image).step_by(some).enumerate() {
                let to = out.get().wrapping_add(first + line * width);
                let x = Mat { ptr: sums[(i * of_image + from) * crs..].as_ptr(), rs: crs as isize, cs: 1 };
                // SAFETY: sums of these positions and channels, and their results.
                unsafe { (kernels.store_transposed)(x, some, channels, to, plane) };
            }
        }
    }
}

/// Filters of a group: packed before, or to be packed into a micro-panel.
enum Filters<'a, T: Operand> {
    Packed(&'a [T::Wide]),
    Raw(&'a [T], &'a mut [T::Wide]),
}

/// Elements from one position's sums to the next: those of different positions start in different sets of the
/// cache.
fn line(to: usize, cols: usize) -> usize {
    to.min(RESULTS).next_multiple_of(cols) + 16
}
