//! Pointwise convolutions (1×1), and every pass of one tap without padding: plain matrix products of the
//! filters with the image. Its input channels are rows and its positions columns, as they are in memory. With
//! strides, positions are gathered first and results scattered.

use super::blocks::Block;
use super::pass::{Job, Pass, RESULTS, index};
use super::strided;
use crate::element::same;
use crate::gemm::{Operand, Tile, even};
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::prefetch::TilePrefetch;
use crate::simd::MAX_LANES;
use crate::tier::Tier;
use crate::workspace;
use std::ops::Range;

/// k-groups summed over at a time, at most: micro-panels of both operands then fit into the first-level
/// cache.
const DEPTH: usize = 512;
/// Positions rounded at a time, if their results do not follow each other.
const MOVED: usize = 64;
/// Fewer blocks than this are divided by their results as well, and packed before.
const FEW: usize = 16;

/// Elements of a group's packed filters, of a block's packed positions, and whether these are packed before
/// for all threads. Each thread has positions packed unless they are shared, those of a part gathered, sums,
/// and the bias of some results, for each column of a micro-panel.
struct Pieces {
    weights: usize,
    right: usize,
    shared: bool,
    own: [usize; 4],
}

impl Pass {
    /// Results computed at a time, in whole blocks of rows.
    fn height<T: Operand>(&self, tier: Tier) -> usize {
        even(self.to, RESULTS, T::kernels(tier).mr)
    }

    /// k-groups summed over at a time: whole steps of a microkernel.
    fn depth(&self) -> usize {
        even(self.k_groups(), DEPTH, MAX_LANES).min(self.k_groups().max(1))
    }

    /// Columns of a block, in whole panels.
    fn columns<T: Operand>(&self, tier: Tier) -> usize {
        self.blocks.positions().next_multiple_of(T::kernels(tier).nr)
    }

    fn pointwise_pieces<T: Operand>(&self, tier: Tier) -> Pieces {
        let (height, columns) = (self.height::<T>(tier), self.columns::<T>(tier));
        let round = |n: usize| n.next_multiple_of(16);
        let (right, shared) = (round(self.k_groups() * columns), self.tasks() < FEW);
        let own = [
            if shared { 0 } else { right },
            // A piece of the source's type, which is no wider.
            self.depth() * self.k_group * columns,
            height * columns,
            height * T::kernels(tier).nr,
        ];
        let weights = round(self.to.div_ceil(height) * self.room(height));
        Pieces { weights, right, shared, own: own.map(round) }
    }

    /// Elements of workspace: of all threads, and of each.
    pub fn pointwise_workspace<T: Operand>(&self, tier: Tier) -> (usize, usize) {
        let Pieces { weights, right, shared, own } = self.pointwise_pieces::<T>(tier);
        let right = if shared { right * self.tasks() } else { 0 };
        (weights * self.groups + right, own.iter().sum())
    }

    /// Blocks of positions of all groups.
    fn tasks(&self) -> usize {
        self.blocks.count() * self.groups
    }

    /// Computes such a pass.
    #[allow(clippy::too_many_arguments)]
    pub fn pointwise<T: Operand>(
        &self,
        tier: Tier,
        pool: &Pool,
        scratch: &mut [T::Wide],
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        out: &mut [T],
    ) {
        let Pieces { weights, right, shared, own } = self.pointwise_pieces::<T>(tier);
        let (packed, scratch) = scratch.split_at_mut(weights * self.groups);
        self.pack_pointwise_filters::<T>(tier, pool, w, packed, weights);
        let (packed, tasks) = (&*packed, self.tasks());
        let job = |at: usize, first: usize| Job { group: at % self.groups, block: at / self.groups, first };
        let height = self.height::<T>(tier);
        let all = self.to.div_ceil(height);
        // Few blocks are divided by their results as well: what all of these need is packed before.
        let parts = if shared { all } else { 1 };
        let (positions, scratch) = scratch.split_at_mut(if shared { right * tasks } else { 0 });
        let mut scratch = workspace::spread(scratch, own.iter().sum(), pool.threads());
        if shared {
            let depths = self.k_groups().div_ceil(self.depth());
            let room = Shared(positions.as_mut_ptr());
            scratch.run(pool, tasks * depths, |at, scratch| {
                let job = job(at / depths, 0);
                let (p, padded) = (at % depths * self.depth(), self.padded::<T>(tier, &job));
                let to = room.get().wrapping_add(at / depths * right + p * padded);
                // SAFETY: the buffer of a part of a block's positions, which no other task writes.
                let to = unsafe { std::slice::from_raw_parts_mut(to, self.summed(p).0 * padded) };
                self.pack_positions::<T>(tier, &job, p, x, &mut scratch[..own[1]], to);
            });
        }
        let positions = &*positions;
        let each = all.div_ceil(parts) * height;
        let out = Shared(out.as_mut_ptr());
        scratch.run(pool, tasks * parts, |at, scratch| {
            let (first, at) = (at % parts * each, at / parts);
            let job = job(at, first);
            let results = first..self.to.min(first + each);
            let weights = &packed[job.group * weights..][..weights];
            let bias = bias.map(|b| &b[job.group * self.to..][..self.to]);
            let (own_right, scratch) = scratch.split_at_mut(own[0]);
            let (gathered, scratch) = scratch.split_at_mut(own[1]);
            let right = match shared {
                true => &positions[at * right..][..right],
                false => {
                    let padded = self.padded::<T>(tier, &job);
                    for p in (0..self.k_groups()).step_by(self.depth()) {
                        let to = &mut own_right[p * padded..][..self.summed(p).0 * padded];
                        self.pack_positions::<T>(tier, &job, p, x, gathered, to);
                    }
                    &*own_right
                }
            };
            let (sums, biases) = scratch.split_at_mut(own[2]);
            // SAFETY: blocks, groups and parts of the channels have results of their own.
            unsafe {
                self.pointwise_block::<T>(tier, &job, results, right, weights, bias, [sums, biases], out)
            };
        });
    }

    /// Columns of a block in whole panels.
    fn padded<T: Operand>(&self, tier: Tier, job: &Job) -> usize {
        self.blocks.get(job.block).positions().next_multiple_of(T::kernels(tier).nr)
    }

    /// Weights as left operands: for each block of results all parts of the sum.
    fn pack_pointwise_filters<T: Operand>(
        &self,
        tier: Tier,
        pool: &Pool,
        w: &[T],
        out: &mut [T::Wide],
        group: usize,
    ) {
        let kernels = T::kernels(tier);
        let height = self.height::<T>(tier);
        let parts = self.to.div_ceil(height);
        let out = Shared(out.as_mut_ptr());
        pool.each(self.groups * parts, |at| {
            let (g, first) = (at / parts, at % parts * height);
            let n = height.min(self.to - first);
            let w = &w[g * self.to * self.from * self.kernel()..];
            for p in (0..self.k_groups()).step_by(self.depth()) {
                let (depth, elements) = self.summed(p);
                let at = first * self.weight[0] + p * self.k_group * self.weight[1] + self.nest.elements[0];
                let x =
                    Mat { ptr: w[at..].as_ptr(), rs: self.weight[0] as isize, cs: self.weight[1] as isize };
                let to = out.get().wrapping_add(g * group + self.left(height, p, first));
                // SAFETY: weights of these results and channels, and their buffer, which no other task
                // writes; what packing spills goes to the part of the sum that follows, or to the padding at
                // the end.
                unsafe { (kernels.panels.pack_left)(x, n, elements, kernels.mr, depth, to) };
            }
        });
    }

    /// Stride, in elements, between the packed weights of blocks of results. Another task packs the next
    /// block meanwhile, so it includes padding for what packing spills.
    fn room(&self, height: usize) -> usize {
        height * self.k_groups() + MAX_LANES
    }

    /// Offset of the packed weights of a block of results, for the part of the sum from k-group `p` on.
    fn left(&self, height: usize, p: usize, first: usize) -> usize {
        first / height * self.room(height) + p * height
    }

    /// The part of the sum from k-group `p` on: k-groups, and elements.
    fn summed(&self, p: usize) -> (usize, usize) {
        let depth = self.depth().min(self.k_groups() - p);
        (depth, (depth * self.k_group).min(self.from - p * self.k_group))
    }

    /// A block: some results of its positions, which are packed.
    ///
    /// # Safety
    /// `out` is the result, and nobody else uses these elements meanwhile.
    #[allow(clippy::too_many_arguments)]
    unsafe fn pointwise_block<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        results: Range<usize>,
        right: &[T::Wide],
        weights: &[T::Wide],
        bias: Option<&[T]>,
        [sums, biases]: [&mut [T::Wide]; 2],
        out: Shared<T>,
    ) {
        let kernels = T::kernels(tier);
        let cols = kernels.nr;
        let block = self.blocks.get(job.block);
        let (images, of_image) = (block.images.clone(), block.of_image());
        let (columns, pitch) = (block.positions(), self.columns::<T>(tier));
        let padded = columns.next_multiple_of(cols);
        // Micro-panels whose positions are all in one image are written in place.
        let whole = images.len() == 1 || of_image.is_multiple_of(cols);
        let direct = same::<T, T::Wide>() && whole && self.follows(&block);
        let height = self.height::<T>(tier);
        for first in results.clone().step_by(height) {
            let rows = first..results.end.min(first + height);
            if let Some(bias) = bias {
                for (row, b) in biases.chunks_exact_mut(cols).zip(&bias[rows.clone()]) {
                    row.fill(b.widen());
                }
            }
            for p in (0..self.k_groups()).step_by(self.depth()) {
                let depth = self.summed(p).0;
                let left = weights[self.left(height, p, first)..].as_ptr();
                let [ars, acs] = kernels.panels.left_strides(kernels.mr, depth);
                for column in (0..columns).step_by(cols) {
                    let (c, crs): (*mut T::Wide, _) = match direct {
                        true => {
                            let image = images.start + column / of_image;
                            let to = self.result(job, image, &block, first) + column % of_image;
                            (out.get().wrapping_add(to).cast(), self.nest.output.iter().product())
                        }
                        false => (sums[column..].as_mut_ptr(), pitch),
                    };
                    let (start, srs) = match (p > 0, bias) {
                        (true, _) => (c.cast_const(), crs as isize),
                        (false, Some(_)) => (biases.as_ptr(), cols as isize),
                        (false, None) => (std::ptr::null(), 0),
                    };
                    let tile = Tile {
                        rows: rows.len(),
                        cols: cols.min(columns - column),
                        k: depth,
                        a: left,
                        ars,
                        acs,
                        blocks: (kernels.mr * depth) as isize,
                        b: right[p * padded + column * depth..].as_ptr(),
                        brs: cols as isize,
                        start,
                        srs,
                        c,
                        crs: crs as isize,
                        prefetch: TilePrefetch::NONE,
                    };
                    // SAFETY: packed panels, and sums or results of this block.
                    unsafe { (kernels.panels.tile)(&tile) };
                }
            }
            if !direct {
                for (c, sums) in rows.zip(sums.chunks_exact(pitch)) {
                    // SAFETY: the caller's promise.
                    unsafe { self.place_row::<T>(tier, job, c, sums, out) };
                }
            }
        }
    }

    /// Index of the first input that a line of a block reads in a channel.
    fn input(&self, job: &Job, [image, line]: [usize; 2], block: &Block, channel: usize) -> usize {
        let m = &self.nest.map;
        let (sample, depth) = (image / m.result[0], image % m.result[0]);
        let at = |d: usize, i: usize| i * m.step[d] + m.base[d].unsigned_abs();
        let channel = (sample * self.groups + job.group) * self.from + channel;
        index(channel, m.source, [at(0, depth), at(1, line), at(2, block.columns.start)])
    }

    /// Packs the positions of a block, of the part of the sum from k-group `p` on.
    fn pack_positions<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        p: usize,
        x: &[T],
        gathered: &mut [T::Wide],
        right: &mut [T::Wide],
    ) {
        let kernels = T::kernels(tier);
        let m = &self.nest.map;
        let block = self.blocks.get(job.block);
        let Block { images, lines, columns } = block.clone();
        let (depth, elements) = self.summed(p);
        let (width, of_image) = (columns.len(), block.of_image());
        let plane: usize = m.source.iter().product();
        let input = |image, line, channel| self.input(job, [image, line], &block, p * self.k_group + channel);
        let mut pack = |x: Mat<T>, n: usize, column: usize| {
            // SAFETY: positions of these channels, and their panels; a panel is whole vectors, so that
            // nothing spills.
            unsafe {
                (kernels.panels.pack)(x, n, elements, kernels.nr, depth, right[column * depth..].as_mut_ptr())
            };
        };
        let whole = images.len() == 1 || of_image.is_multiple_of(kernels.nr);
        let follow = lines.len() == 1 || m.step[1] == 1 && width == m.source[2];
        if whole && m.step[2] == 1 && follow {
            for (i, image) in images.enumerate() {
                let ptr = x[input(image, lines.start, 0)..].as_ptr();
                pack(Mat { ptr, rs: 1, cs: plane as isize }, of_image, i * of_image);
            }
            return;
        }
        let columns = block.positions();
        let gathered = &mut bytemuck::cast_slice_mut::<T::Wide, T>(gathered)[..elements * columns];
        for (channel, row) in gathered.chunks_exact_mut(columns).enumerate() {
            let each = images.clone().flat_map(|image| lines.clone().map(move |line| (image, line)));
            for ((image, line), to) in each.zip(row.chunks_exact_mut(width)) {
                let from = &x[input(image, line, channel)..];
                let from = &from[..(width - 1) * m.step[2] + 1];
                // SAFETY: `width` elements of the line, and as many places.
                unsafe { strided::gather(from.as_ptr(), m.step[2], width, to.as_mut_ptr()) };
            }
        }
        pack(Mat { ptr: gathered.as_ptr(), rs: 1, cs: columns as isize }, columns, 0);
    }

    /// Writes a channel's sums of a block where they belong.
    ///
    /// # Safety
    /// As [`Pass::pointwise_block`].
    unsafe fn place_row<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        channel: usize,
        sums: &[T::Wide],
        out: Shared<T>,
    ) {
        let kernels = T::kernels(tier);
        let block = self.blocks.get(job.block);
        let (width, of_image) = (block.columns.len(), block.of_image());
        let plane = self.nest.output[1] * self.nest.output[2];
        for (image, sums) in block.images.clone().zip(sums.chunks_exact(of_image)) {
            let start = self.result(job, image, &block, channel);
            if self.follows(&block) {
                // SAFETY: results of this block that follow each other.
                unsafe { (kernels.narrow)(sums.as_ptr(), of_image, out.get().wrapping_add(start)) };
                continue;
            }
            // The gap is zeros up to where the next block begins, or to the image's end.
            let next = self.blocks.get(job.block + 1);
            let end = match next.images.start == block.images.start {
                true => self.result(job, image, &next, channel),
                false => (start / plane + 1) * plane,
            };
            let to = out.get().wrapping_add(start);
            let mut written = self.fills().then_some(0);
            let mut rounded = [T::zeroed(); MOVED];
            for (i, sums) in sums.chunks(MOVED).enumerate() {
                // SAFETY: as many of the buffer; results of this block, and the elements between them.
                unsafe {
                    (kernels.narrow)(sums.as_ptr(), sums.len(), rounded.as_mut_ptr());
                    self.scatter(&rounded[..sums.len()], i * MOVED, width, to, written.as_mut());
                }
            }
            if let Some(written) = written {
                // SAFETY: as above.
                unsafe { to.add(written).write_bytes(0, end - start - written) };
            }
        }
    }

    /// Writes a channel's results of a block's image, from a position on, where they belong: `to` is where
    /// that of the first position does, and lines of the block have `width` of them. Between them zeros if it
    /// is known up to where, from `to`, the image is written.
    ///
    /// # Safety
    /// Nobody else uses these elements, or those between them, meanwhile.
    unsafe fn scatter<T: Operand>(
        &self,
        mut results: &[T],
        first: usize,
        width: usize,
        to: *mut T,
        mut written: Option<&mut usize>,
    ) {
        let [_, stride_y, stride_x] = self.nest.stride;
        let pitch = stride_y * self.nest.output[2];
        let (mut line, mut column) = (first / width, first % width);
        while !results.is_empty() {
            let (some, rest) = results.split_at((width - column).min(results.len()));
            let at = line * pitch + column * stride_x;
            // SAFETY: the caller's promise.
            unsafe {
                match &mut written {
                    None => strided::scatter(some.as_ptr(), some.len(), to.add(at), stride_x),
                    Some(written) => {
                        to.add(**written).write_bytes(0, at - **written);
                        strided::scatter_zero(some.as_ptr(), some.len(), to.add(at), stride_x);
                        **written = at + (some.len() - 1) * stride_x + 1;
                    }
                }
            }
            (line, column, results) = (line + 1, 0, rest);
        }
    }

    /// True if results of a block are contiguous in an image, and nothing is between its lines and the
    /// next ones: what does is written along with a line.
    fn follows(&self, block: &Block) -> bool {
        self.nest.stride[1..] == [1; 2]
            && (block.lines.len() == 1 || block.columns.len() == self.nest.output[2])
    }
}
