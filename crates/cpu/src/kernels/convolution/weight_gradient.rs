//! The weight gradient: implicit GEMM that sums over outputs, for each tap and pair of channels input times
//! output gradient. Blocks of outputs are summed in order; with few channels, several sequences of blocks are
//! summed by tasks of their own and then added (split-K).

use super::blocks::{Block, Blocks, prefetch_channels};
use super::index_map::{IndexMap, spatial};
use super::nchw_tile::{NchwTile, copy_rows};
use super::tiling::{cost, cut};
use super::{Shape, channels};
use crate::element::{Wide, same};
use crate::gemm::{IndirectRow, IndirectRun, IndirectTile, Operand};
use crate::kernels::Args;
use crate::matrix::{Mat, MatMut};
use crate::pool::{Pool, Shared};
use crate::prefetch::{PacedPrefetch, Prefetch};
use crate::tier::Tier;
use crate::workspace;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::geometry::Conv;
use std::ops::Range;

/// Output channels summed at a time.
const RESULTS: usize = 128;
/// Positions summed at a time, about, of a single tap and of several: the gradients of a micro-panel fit into
/// the first-level cache.
const POSITIONS: [usize; 2] = [128, 256];
/// Lines summed at a time at least, while that are few positions: the lines around them are held for each.
const FEW: [usize; 2] = [8, 512];
/// Tasks that are enough for any number of threads.
const TASKS: usize = 16;
/// Parts of the input channels that are enough for gradients to be packed once for all, and the elements of
/// these at most.
const SHARING: usize = 3;
const SHARED: usize = 1 << 20;
/// Elements of a line of the caches, of any type.
const LINE: usize = 16;

/// Gradient `[samples, groups · cout, output…]`, input `[samples, groups · cin, input…]`, weights `[groups ·
/// cout, cin, kernel…]`.
pub(super) struct WeightGradient {
    tier: Tier,
    groups: usize,
    cin: usize,
    cout: usize,
    map: IndexMap,
    blocks: Blocks,
    planes: NchwTile,
    /// Columns summed at a time.
    k_group: usize,
    /// Offsets of the inputs of a block's lines in the planes, in columns taken at a time.
    lines: Vec<IndirectRun>,
    tap_groups: Vec<TapGroup>,
    /// Sequences of blocks with separate partial sums.
    sequences: usize,
}

/// Taps that read the same lines.
struct TapGroup {
    /// These lines, of an image's outputs; and of all of a block's lines those among them, if it has whole
    /// images.
    met: Range<usize>,
    lines: Vec<IndirectRun>,
    /// For each channel and these taps of it: where their inputs begin in the planes, in columns, and the row
    /// of their sums.
    rows: Vec<IndirectRow>,
}

impl TapGroup {
    /// In as many groups as it takes, or in one that sums over all lines, by what costs less: tiles have at
    /// most `rows`.
    fn of(
        m: &IndexMap,
        planes: &NchwTile,
        lines: &[IndirectRun],
        rows: usize,
        k_group: usize,
    ) -> Vec<TapGroup> {
        let (height, width) = (m.result[1].max(1), m.result[2].div_ceil(k_group));
        let mut groups: Vec<TapGroup> = Vec::new();
        let starts: Vec<IndirectRow> = planes
            .taps()
            .into_iter()
            .enumerate()
            .map(|(position, offset)| IndirectRow { offset, position })
            .collect();
        for row in &starts {
            let met = m.outputs_inside(1, row.position / m.taps[2] % m.taps[1]);
            match groups.iter_mut().find(|group| group.met == met) {
                Some(group) => group.rows.push(*row),
                None => groups.push(TapGroup { met, lines: Vec::new(), rows: vec![*row] }),
            }
        }
        let split: usize = groups.iter().map(|g| cost(g.rows.len(), rows, g.met.len() * width)).sum();
        if split >= cost(starts.len(), rows, height * width) {
            groups = vec![TapGroup { met: 0..height, lines: Vec::new(), rows: starts }];
        }
        for group in &mut groups {
            group.lines =
                lines.iter().copied().filter(|run| group.met.contains(&(run.right % height))).collect();
        }
        groups
    }

    /// Lines of a block that the outputs of these taps are among.
    fn lines<'a>(&'a self, all: &'a [IndirectRun], block: &Block) -> &'a [IndirectRun] {
        let met = self.met.start.max(block.lines.start)..self.met.end.min(block.lines.end);
        match block.images.len() {
            _ if met.is_empty() => &[],
            1 => &all[met.start - block.lines.start..met.end - block.lines.start],
            images => &self.lines[..images * met.len()],
        }
    }
}

impl WeightGradient {
    pub fn new(c: &Conv, tier: Tier, shape: Shape) -> WeightGradient {
        let Shape { k_group, mr, .. } = shape;
        let [source, result, taps, step, tap, pad] = spatial(c);
        let map = IndexMap { source, result, taps, step, tap, base: pad.map(|p| -(p as isize)) };
        let held = channels(c.kernel_size(), c.cin);
        let positions = POSITIONS[usize::from(c.kernel_size() > 1)];
        let positions = (FEW[0] * result[2]).clamp(positions, FEW[1]);
        let blocks = Blocks::new(&map, c.batch, held, positions);
        let planes = NchwTile::new(map, blocks, held, k_group);
        let tasks = c.groups * c.cin.div_ceil(held) * c.cout.div_ceil(RESULTS);
        let sequences = TASKS.div_ceil(tasks.max(1)).min(blocks.count()).max(1);
        let place = |(right, at): (usize, isize)| IndirectRun { left: at / k_group as isize, right };
        let lines: Vec<IndirectRun> = planes.outputs().into_iter().enumerate().map(place).collect();
        let tap_groups = TapGroup::of(&map, &planes, &lines, mr, k_group);
        WeightGradient {
            tier,
            groups: c.groups,
            cin: c.cin,
            cout: c.cout,
            map,
            blocks,
            planes,
            k_group,
            lines,
            tap_groups,
            sequences,
        }
    }

    fn taps(&self) -> usize {
        self.map.taps.iter().product()
    }

    /// Parts of the input and the output channels.
    fn parts(&self) -> [usize; 2] {
        [self.cin.div_ceil(self.planes.channels), self.cout.div_ceil(RESULTS)]
    }

    /// Tasks of a sequence, each for a part of the input and of the output channels of a group.
    fn jobs(&self) -> usize {
        self.groups * self.parts().iter().product::<usize>()
    }

    fn job(&self, at: usize) -> Job {
        let [_, outputs] = self.parts();
        let (o0, at) = (at % outputs * RESULTS, at / outputs);
        let (i0, at) = (at % self.parts()[0] * self.planes.channels, at / self.parts()[0]);
        Job { group: at % self.groups, sequence: at / self.groups, i0, o0 }
    }

    /// Elements of a job's sums for a panel of its output channels: `[input channel][tap][output channel]`.
    fn panel(&self, cols: usize) -> usize {
        self.planes.channels * self.taps() * cols
    }

    /// Elements of all of a job's sums, panel after panel.
    fn sums(&self, cols: usize) -> usize {
        RESULTS.min(self.cout).div_ceil(cols) * self.panel(cols)
    }

    /// Elements of the gradients of a block, packed for a job.
    fn packed(&self, cols: usize) -> usize {
        self.blocks.positions() * RESULTS.min(self.cout).next_multiple_of(cols)
    }

    /// Elements of all gradients if they are packed before, for all parts of the input channels; or none.
    fn before(&self, cols: usize) -> usize {
        let [inputs, outputs] = self.parts();
        let all = self.blocks.count() * self.groups * outputs * self.packed(cols);
        if inputs >= SHARING && all <= SHARED { all.next_multiple_of(LINE) } else { 0 }
    }

    /// Elements of what a thread needs while it sums: a mark of the inputs it holds, these, and packed
    /// gradients.
    fn own(&self, cols: usize) -> [usize; 3] {
        let gradients = if self.before(cols) > 0 { 0 } else { self.packed(cols) };
        [LINE, self.planes.elements(), gradients].map(|n| n.next_multiple_of(LINE))
    }

    /// Elements of a thread's workspace, of the sums that all share, and of the gradients that are packed
    /// before. With one sequence the sums are a thread's own: it writes them at once, while they are in its
    /// cache.
    fn pieces(&self, cols: usize) -> [usize; 3] {
        // While it writes, the total of a panel's sums.
        let own = self.own(cols).iter().sum::<usize>().max(self.panel(cols)).next_multiple_of(LINE);
        match self.sequences {
            1 => [own + self.sums(cols), 0, self.before(cols)],
            n => [own, n * self.jobs() * self.sums(cols), self.before(cols)],
        }
    }

    /// Bytes of workspace.
    pub fn workspace<T: Operand>(&self, threads: usize) -> usize {
        let [own, sums, gradients] = self.pieces(T::kernels(self.tier).nr);
        (sums + gradients + own * threads) * size_of::<T::Wide>()
    }

    pub fn run<T: Operand>(&self, args: &mut Args) -> Result<()> {
        let (g, x) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
        let out = args.writes[0].slice_mut::<T>();
        if g.is_empty() || x.is_empty() || out.is_empty() {
            out.fill(T::from_f64(0.0));
            return Ok(());
        }
        let cols = T::kernels(self.tier).nr;
        let (sums, panel, jobs) = (self.sums(cols), self.panel(cols), self.jobs());
        let bytes = self.workspace::<T>(args.pool.threads());
        let [own, shared, before] = self.pieces(cols);
        let (all, scratch) = workspace::all::<T::Wide>(args.workspace, bytes).split_at_mut(shared);
        let (packed, scratch) = scratch.split_at_mut(before);
        let mut scratch = workspace::spread(scratch, own, args.pool.threads());
        // No thread holds anything yet: its mark follows its own partial sums.
        let mark = if self.sequences == 1 { sums } else { 0 };
        scratch.parts().for_each(|own| own[mark..mark + LINE].fill(T::Wide::ZERO));
        self.pack_before::<T>(args.pool, g, packed);
        let packed = &*packed;
        let out = Shared(out.as_mut_ptr());
        if self.sequences == 1 {
            scratch.run(args.pool, jobs, |at, scratch| {
                let (sums, scratch) = scratch.split_at_mut(sums);
                let job = self.job(at);
                // Lines that are written must come first as well.
                let MatMut { ptr, rs } = self.results(&job, out);
                let results =
                    Prefetch::matrix(Mat { ptr, rs, cs: 1 }, self.outputs(&job), self.each(&job)).written();
                self.sum::<T>(&job, g, x, packed, scratch, sums, results);
                for (j, sums) in (0..self.outputs(&job)).step_by(cols).zip(sums.chunks_exact(panel)) {
                    // SAFETY: jobs write other weights.
                    unsafe { self.write::<T>(&job, j, sums, 0, scratch, out) };
                }
            });
            return Ok(());
        }
        let shared = Shared(all.as_mut_ptr());
        scratch.run(args.pool, self.sequences * jobs, |at, scratch| {
            // SAFETY: each task has sums of its own.
            let sums = unsafe { std::slice::from_raw_parts_mut(shared.get().add(at * sums), sums) };
            self.sum::<T>(&self.job(at), g, x, packed, scratch, sums, Prefetch::NONE);
        });
        let (all, panels) = (&*all, sums / panel);
        scratch.run(args.pool, jobs * panels, |at, scratch| {
            let (job, j) = (self.job(at / panels), at % panels * cols);
            if j < self.outputs(&job) {
                // SAFETY: each task writes the weights of other output or input channels.
                unsafe { self.write::<T>(&job, j, &all[at * panel..], jobs * sums, scratch, out) };
            }
        });
        Ok(())
    }

    /// Packs all gradients, if that is done in advance: those of the jobs of a block consecutively.
    fn pack_before<T: Operand>(&self, pool: &Pool, g: &[T], packed: &mut [T::Wide]) {
        let cols = T::kernels(self.tier).nr;
        if packed.is_empty() {
            return;
        }
        let ([_, parts], panels) = (self.parts(), RESULTS.min(self.cout).div_ceil(cols));
        let to = Shared(packed.as_mut_ptr());
        pool.each(self.blocks.count() * self.groups * parts * panels, |at| {
            let (j, at) = (at % panels * cols, at / panels);
            let job = Job { group: at / parts % self.groups, sequence: 0, i0: 0, o0: at % parts * RESULTS };
            let block = self.blocks.get(at / parts / self.groups);
            if j < self.outputs(&job) {
                let to = to.get().wrapping_add(at * self.packed(cols));
                // SAFETY: the buffer of a panel, which no other task writes.
                unsafe { self.pack::<T>(&job, g, &block, j..j + 1, to) };
            }
        });
    }

    /// Places that the lines of a block take, of each image: pieces of an image that are packed by
    /// themselves, and the positions and places of each. Whole images, or line by line if columns are left at
    /// its end, which are taken with zeros.
    fn places(&self, block: &Block) -> [usize; 3] {
        let width = block.columns.len();
        let (pieces, piece) = match width.is_multiple_of(self.k_group) {
            true => (1, block.of_image()),
            false => (block.lines.len(), width),
        };
        [pieces, piece, piece.div_ceil(self.k_group)]
    }

    /// Packs a block's gradients of the panels that begin in some output channels of the job, position by
    /// position, at their place among those of all panels.
    ///
    /// # Safety
    /// `out` can hold the gradients of the job in the block; nobody else uses those of these panels.
    unsafe fn pack<T: Operand>(
        &self,
        job: &Job,
        g: &[T],
        block: &Block,
        outputs: Range<usize>,
        out: *mut T::Wide,
    ) {
        let kernels = T::kernels(self.tier);
        let cols = kernels.nr;
        let [pieces, piece, places] = self.places(block);
        let positions = block.images.len() * pieces * places;
        for (i, image) in block.images.clone().enumerate() {
            for j in outputs.clone().step_by(cols) {
                let (mat, n) = (self.gradients(job, g, image, block, j), cols.min(self.outputs(job) - j));
                for p in 0..pieces {
                    let mat = mat.moved((p * self.map.result[2]) as isize);
                    let out = out.wrapping_add(j * positions + (i * pieces + p) * places * cols);
                    // SAFETY: gradients of this image's lines, and their places; groups of whole vectors do
                    // not spill.
                    unsafe { (kernels.panels.pack)(mat, n, piece, cols, places, out) };
                }
            }
        }
    }

    /// Output channels of a job.
    fn outputs(&self, job: &Job) -> usize {
        RESULTS.min(self.cout - job.o0)
    }

    /// Gradients of a job's output channels from `j` on, of a block's positions in an image: a row for each
    /// channel.
    fn gradients<T: Operand>(&self, job: &Job, g: &[T], image: usize, block: &Block, j: usize) -> Mat<T> {
        let [depths, height, width] = self.map.result;
        let (sample, depth) = (image / depths, image % depths);
        let channel = (sample * self.groups + job.group) * self.cout + job.o0 + j;
        let each = depths * height * width;
        Mat {
            ptr: g[channel * each + (depth * height + block.lines.start) * width + block.columns.start..]
                .as_ptr(),
            rs: each as isize,
            cs: 1,
        }
    }

    /// Weights of an output channel that a job sums.
    fn each(&self, job: &Job) -> usize {
        self.taps() * self.planes.channels.min(self.cin - job.i0)
    }

    /// The weights' gradients of a job: a row for each output channel.
    fn results<T>(&self, job: &Job, out: Shared<T>) -> MatMut<T> {
        let of_output = self.cin * self.taps();
        let first = (job.group * self.cout + job.o0) * of_output + job.i0 * self.taps();
        MatMut { ptr: out.get().wrapping_add(first), rs: of_output as isize }
    }

    /// Sums a job; meanwhile prefetches the `results` for writing.
    #[allow(clippy::too_many_arguments)]
    fn sum<T: Operand>(
        &self,
        job: &Job,
        g: &[T],
        x: &[T],
        packed: &[T::Wide],
        scratch: &mut [T::Wide],
        sums: &mut [T::Wide],
        results: Prefetch,
    ) {
        let kernels = T::kernels(self.tier);
        let cols = kernels.nr;
        let plane = |size: [usize; 3]| size.iter().product::<usize>();
        let (from, to) = (plane(self.map.source), plane(self.map.result));
        let channels = self.planes.channels.min(self.cin - job.i0);
        let (outputs, panel) = (self.outputs(job), self.panel(cols));
        let own = self.own(cols);
        let (mark, scratch) = scratch.split_at_mut(own[0]);
        let (inputs, gradients) = scratch.split_at_mut(own[1]);
        let per = self.blocks.count().div_ceil(self.sequences);
        let blocks = job.sequence * per..self.blocks.count().min((job.sequence + 1) * per);
        if blocks.is_empty() {
            sums.fill(T::Wide::ZERO);
        }
        let end = blocks.end;
        // Other output channels of the inputs of a single block find them where they were held for the last
        // ones. The mark is their part's number plus one; zero means none.
        let mark = &mut bytemuck::cast_slice_mut::<T::Wide, u32>(mark)[0];
        let part =
            (job.sequence * self.groups + job.group) * self.parts()[0] + job.i0 / self.planes.channels + 1;
        let part = if blocks.len() == 1 { part as u32 } else { 0 };
        for (turn, at) in blocks.enumerate() {
            let block = self.blocks.get(at);
            let first = &x[(job.group * self.cin + job.i0) * from..];
            let sample = self.groups * self.cin * from;
            if part == 0 || *mark != part {
                // SAFETY: the channels of the group, of every sample; scratch memory in elements of the
                // images.
                unsafe { self.hold(first.as_ptr(), sample, &block, channels, inputs) };
                *mark = part;
            }
            let [pieces, _, places] = self.places(&block);
            let width = block.columns.len();
            let positions = block.images.len() * pieces * places;
            let gradients = match packed.is_empty() {
                true => {
                    // SAFETY: capacity for all of the job's panels.
                    unsafe { self.pack::<T>(job, g, &block, 0..outputs, gradients.as_mut_ptr()) };
                    &*gradients
                }
                false => {
                    let at = (at * self.groups + job.group) * self.parts()[1] + job.o0 / RESULTS;
                    &packed[at * self.packed(cols)..][..self.packed(cols)]
                }
            };
            // k-groups of several columns are read in place.
            let step = if self.k_group == 1 { size_of::<T::Wide>() } else { size_of::<T>() };
            let of_channels = |group: &TapGroup| group.rows.len() / self.planes.channels * channels;
            let tiles = self.tap_groups.iter().map(|g| of_channels(g).div_ceil(kernels.mr)).sum::<usize>();
            let tiles = outputs.div_ceil(cols) * tiles;
            // While these are multiplied, the next ones are prefetched.
            let next = (at + 1 < end).then(|| self.blocks.get(at + 1));
            let flat = self.map.result[0] == 1;
            let inputs_soon = match &next {
                Some(next) if flat => next.prefetch_inputs(&self.map, first.as_ptr(), sample, channels),
                _ => Prefetch::NONE,
            };
            let gradients_soon = match &next {
                // The following panels, which another thread may have packed.
                _ if !packed.is_empty() => {
                    let mat = Mat { ptr: gradients.as_ptr(), rs: 0, cs: 1 };
                    Prefetch::matrix(mat, 1, outputs.next_multiple_of(cols) * positions)
                }
                Some(next) if flat => {
                    let g = self.gradients(job, g, next.images.start, next, 0).ptr;
                    let sample_g = self.groups * self.cout * to;
                    prefetch_channels(g, (next.images.len(), sample_g), outputs, next.of_image(), to)
                }
                _ => Prefetch::NONE,
            };
            let prefetch =
                [gradients_soon, inputs_soon, if next.is_none() { results } else { Prefetch::NONE }];
            let mut prefetch = prefetch.map(|ahead| ahead.paced(tiles));
            for j in (0..outputs).step_by(cols) {
                let b = gradients[j * positions..].as_ptr();
                let sums = &mut sums[j / cols * panel..];
                let all = self.tap_groups.iter();
                for (group, tile) in all.flat_map(|g| cut(of_channels(g), kernels.mr).map(move |t| (g, t))) {
                    let inner = width.div_ceil(self.k_group);
                    let tile = IndirectTile {
                        rows: &group.rows[tile],
                        a: inputs.as_ptr(),
                        step,
                        runs: group.lines(&self.lines, &block),
                        inner,
                        pitch: inner,
                        b,
                        cols: cols.min(outputs - j),
                        c: sums.as_mut_ptr(),
                        crs: cols,
                        add: turn > 0,
                    };
                    prefetch.iter_mut().for_each(PacedPrefetch::step);
                    // SAFETY: inputs that the outputs read through these taps, a row of gradients for each
                    // output, and sums of the job.
                    unsafe { (kernels.panels.indirect)(&tile) };
                }
            }
        }
    }

    /// Holds the inputs of a block. Bits stay as they are, unless numbers are widened.
    ///
    /// # Safety
    /// As [`NchwTile::fill`].
    unsafe fn hold<T: Operand>(
        &self,
        x: *const T,
        sample: usize,
        block: &Block,
        channels: usize,
        inputs: &mut [T::Wide],
    ) {
        let kernels = T::kernels(self.tier);
        // SAFETY: the caller's promise.
        unsafe {
            if self.k_group == 1 && !same::<T, T::Wide>() {
                self.planes.fill(&kernels.panels, kernels.widen, x, sample, block, channels, inputs);
            } else {
                let inputs = std::slice::from_raw_parts_mut(inputs.as_mut_ptr().cast::<T>(), inputs.len());
                self.planes.fill(&kernels.panels, copy_rows, x, sample, block, channels, inputs);
            }
        }
    }

    /// Adds up the sums of a panel, which begins with output channel `j` of the job, and writes the weights'
    /// gradients. The sums of the sequences have the stride `pitch`.
    ///
    /// # Safety
    /// `out` is the result, and nobody else uses these elements meanwhile.
    unsafe fn write<T: Operand>(
        &self,
        job: &Job,
        j: usize,
        sums: &[T::Wide],
        pitch: usize,
        scratch: &mut [T::Wide],
        out: Shared<T>,
    ) {
        let kernels = T::kernels(self.tier);
        let (cols, each) = (kernels.nr, self.each(job));
        let part = each * cols;
        let mut sum = &sums[..(self.sequences - 1) * pitch + part];
        if self.sequences > 1 {
            let total = &mut scratch[..part];
            // SAFETY: as many sums of each sequence, and their total.
            unsafe { (kernels.sum_rows)(sum.as_ptr(), pitch, self.sequences, part, total.as_mut_ptr()) };
            sum = total;
        }
        let x = Mat { ptr: sum.as_ptr(), rs: cols as isize, cs: 1 };
        let (outputs, out) = (cols.min(self.outputs(job) - j), self.results(job, out));
        // SAFETY: the weights of these outputs and channels.
        unsafe {
            (kernels.store_transposed)(x, each, outputs, out.moved(j as isize * out.rs).ptr, out.rs as usize)
        };
    }
}

/// The sum of one task: a part of the channels of a group over a sequence of blocks.
struct Job {
    group: usize,
    sequence: usize,
    i0: usize,
    o0: usize,
}
