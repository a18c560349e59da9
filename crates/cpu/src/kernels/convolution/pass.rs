//! A loop nest of a convolution: forward, or a part of the data gradient.

mod points;

use super::band::Band;
use super::nest::{Meeting, Nest, ahead, single};
use super::patches::Patches;
use super::tiles::{Inputs, Tilings};
use super::{Block, Blocks, Shape, channels};
use crate::element::Wide;
use crate::gemm::{IndirectTile, Operand, even, filters_scratch};
use crate::matrix::Mat;
use crate::pool::{Pool, Shared};
use crate::prefetch::Prefetch;
use crate::tier::Tier;
use crate::workspace;
use headwater_core::ops::conv::geometry::Conv;

/// Results' channels computed at a time.
const RESULTS: usize = 128;
/// Positions computed at a time, about.
const POSITIONS: usize = 512;
/// Places of channels turned at a time with the weights of a panel.
const TURNED: usize = 16;
/// Places of patches summed over at a time, about: a panel of weights lies in the first-level cache.
const DEPTH: usize = 256;

/// See the module. Source `[samples, groups · from, source…]`, result `[samples, groups · to, whole…]`.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    samples: usize,
    groups: usize,
    from: usize,
    to: usize,
    /// Channels of the source in a place of its band.
    k_group: usize,
    nest: Nest,
    /// One tap of each input: see `points`, which needs no band.
    point: bool,
    /// Weight of result channel `o`, source channel `i` (in a group) and tap `t`:
    /// `o · weight[0] + i · weight[1] + nest.elements[t]`; a group's weights follow the last one's.
    weight: [usize; 2],
    /// Of cells.
    blocks: Blocks,
    /// Places of the source's channels summed over at a time, and a panel's rows for each.
    channels: usize,
    taps: usize,
    inputs: Inputs,
    tilings: Tilings,
}

impl Pass {
    /// The forward pass, by register tiles of some shape.
    pub fn forward(c: &Conv, shape: Shape) -> Pass {
        let weight = [c.cin * c.kernel_size(), c.kernel_size()];
        Pass::new(c, [c.cin, c.cout], shape, weight, Nest::forward(c), Patches::new(c, shape))
    }

    /// The data gradient: a pass for each nest.
    pub fn backward(c: &Conv, shape: Shape) -> Vec<Pass> {
        let weight = [c.kernel_size(), c.cin * c.kernel_size()];
        let pass = |nest| Pass::new(c, [c.cout, c.cin], shape, weight, nest, None);
        Nest::backward(c).into_iter().map(pass).collect()
    }

    /// `patches` are multiplied as they lie.
    fn new(
        c: &Conv,
        [from, to]: [usize; 2],
        shape: Shape,
        weight: [usize; 2],
        nest: Nest,
        patches: Option<Patches>,
    ) -> Pass {
        // Of patches columns are taken together, of others channels.
        let k_group = if patches.is_some() { 1 } else { shape.k_group };
        let (m, samples, places) = (nest.meeting, c.batch, from.div_ceil(k_group));
        let members: usize = nest.members.iter().map(Vec::len).product();
        let point = single(&m) && members == 1;
        let (channels, taps) = match patches {
            Some(patches) => (even(places, (DEPTH / patches.places()).max(1), 1), patches.places()),
            None => (channels(nest.most_taps(), places), nest.taps()),
        };
        let blocks = match patches {
            // Nothing is held, as if there were a tap.
            Some(_) => Blocks::new(&Meeting { taps: [1; 3], ..m }, samples, 1, POSITIONS / 2),
            None if point => points::blocks(&m, samples, places),
            // Of cells at least as many as a tile has rows.
            None if members > 1 => Blocks::new(&m, samples, channels, (POSITIONS / members).max(shape.rows)),
            None => Blocks::new(&m, samples, channels, POSITIONS),
        };
        let inputs = patches.map_or_else(|| Inputs::Held(Band::new(m, blocks, channels)), Inputs::Image);
        let tilings = match point {
            true => Tilings::default(),
            false => Tilings::new(&nest, &blocks, &inputs, [channels, places % channels], shape.rows),
        };
        let groups = c.groups;
        Pass {
            samples,
            groups,
            from,
            to,
            k_group,
            nest,
            point,
            weight,
            blocks,
            channels,
            taps,
            inputs,
            tilings,
        }
    }

    /// Elements of the result it writes.
    pub fn written(&self) -> usize {
        let Nest { meeting: Meeting { result, .. }, whole, .. } = &self.nest;
        let plane = if self.point { result[1] * result[2] } else { whole[1] * whole[2] };
        self.samples * self.groups * self.to * result[0] * plane
    }

    /// Places that the source's channels take.
    fn places(&self) -> usize {
        self.from.div_ceil(self.k_group)
    }

    /// Positions of a block at most.
    fn positions(&self) -> usize {
        self.blocks.positions() * self.nest.members.iter().map(Vec::len).product::<usize>()
    }

    /// Elements of the whole kernel, whichever taps this pass uses.
    fn kernel(&self) -> usize {
        self.weight[0].min(self.weight[1])
    }

    /// Whether weights are packed where they are used, panel by panel: all results are one block, which needs
    /// each once.
    fn at_once(&self) -> bool {
        self.blocks.count() == 1
    }

    /// Elements of a group's packed weights; of a thread's band, its sums, room to move things, and a panel
    /// of weights.
    fn pieces<T: Operand>(&self, tier: Tier) -> (usize, [usize; 4]) {
        let cols = T::kernels(tier).nr;
        let weights = self.to.next_multiple_of(cols) * self.places() * self.taps;
        let panel = cols * self.channels * self.taps;
        let (weights, panel) = if self.at_once() { (0, panel) } else { (weights, 0) };
        let sums = self.positions() * line(self.to, cols);
        let round = |n: usize| n.next_multiple_of(16);
        // Weights on their way to a panel.
        let turned = match self.packing() {
            Packing::Whole | Packing::Elements => 0,
            Packing::Results => filters_scratch(self.kernel()),
            Packing::Sources => self.kernel() * TURNED * cols,
        };
        let (held, plane) = match &self.inputs {
            Inputs::Held(band) => (band.elements(), band.plane()),
            Inputs::Image(_) => (0, 0),
        };
        (round(weights), [held, sums, plane.max(turned), panel].map(round))
    }

    fn packing(&self) -> Packing {
        match self.kernel() {
            _ if matches!(self.inputs, Inputs::Image(_)) => Packing::Whole,
            columns if columns == 1 || 16 * self.taps <= columns => Packing::Elements,
            columns if self.weight[1] == columns && self.weight[0] != columns => Packing::Results,
            _ => Packing::Sources,
        }
    }

    /// Bytes of workspace.
    pub fn workspace<T: Operand>(&self, tier: Tier, threads: usize) -> usize {
        let (all, each) = match self.point {
            true => self.point_workspace::<T>(tier),
            false => {
                let (weights, own) = self.pieces::<T>(tier);
                (weights * self.groups, own.iter().sum())
            }
        };
        (all + each * threads) * size_of::<T::Wide>()
    }

    /// Computes the pass.
    #[allow(clippy::too_many_arguments)]
    pub fn run<T: Operand>(
        &self,
        tier: Tier,
        pool: &Pool,
        workspace: &mut [u8],
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        out: &mut [T],
    ) {
        if self.written() == 0 {
            return;
        }
        let bytes = self.workspace::<T>(tier, pool.threads());
        let scratch: &mut [T::Wide] = workspace::all(workspace, bytes);
        if self.point {
            return self.points(tier, pool, scratch, x, w, bias, out);
        }
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
                true => Weights::Raw(&w[job.group * self.to * self.from * self.kernel()..], panel),
                false => Weights::Packed(&packed[job.group * group..][..group]),
            };
            let next = (at + 1 < tasks).then(|| self.job(at + 1));
            // Other results of what is there.
            let again =
                |n: &Job| self.places() <= self.channels && n.block == job.block && n.group == job.group;
            let next = next.filter(|n| !again(n));
            self.block::<T>(tier, &job, next.as_ref(), x, weights, out, [band, &mut *sums, &mut *moved]);
            let bias = bias.map(|b| &b[job.group * self.to..][..self.to]);
            // SAFETY: blocks, groups and parts of the channels have results of their own.
            unsafe { self.store::<T>(tier, &job, sums, bias, out) };
        });
    }

    fn job(&self, at: usize) -> Job {
        let parts = self.to.div_ceil(RESULTS);
        let (part, at) = (at % parts, at / parts);
        Job { group: at % self.groups, block: at / self.groups, first: part * RESULTS }
    }

    /// The channels that a job sums over from place `i0` on, of the first sample, and elements to the next
    /// one.
    fn source<'a, T>(&self, job: &Job, i0: usize, x: &'a [T]) -> (&'a [T], usize) {
        let plane = self.nest.meeting.source.iter().product::<usize>();
        (&x[(job.group * self.from + i0 * self.k_group) * plane..], self.groups * self.from * plane)
    }

    /// Weights as right operands: for each part of the source's channels, panel by panel of the result's, in
    /// the order of the band's runs.
    fn pack<T: Operand>(
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
            for i0 in (0..self.places()).step_by(self.channels) {
                let (channels, _) = self.part(i0);
                let start = g * group + (i0 * panels + panel * channels) * self.taps * cols;
                // SAFETY: rows of this panel, which no other task writes.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(out.get().add(start), self.taps * channels * cols)
                };
                self.ahead(w, i0, panel, cols).now();
                self.panel(tier, w, i0, panel, out, scratch);
            }
        });
    }

    /// Packs a panel of the result's channels for the source's channels from place `i0` on: `w` are a group's
    /// weights.
    fn panel<T: Operand>(
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
        // Of some channels of the source, these become innermost, then the results.
        for first in (0..channels).step_by(TURNED) {
            let places = TURNED.min(channels - first);
            let some = (places * self.k_group).min(elements - first * self.k_group);
            let x = Mat {
                ptr: w[first * self.k_group * self.weight[1]..].as_ptr(),
                rs: self.weight[1] as isize,
                cs: 1,
            };
            // SAFETY: the kernels of these channels, and places for them.
            unsafe { (kernels.panels.interleave)(x, some, n * columns, scratch.as_mut_ptr(), TURNED) };
            for (tap, &element) in self.nest.elements.iter().enumerate() {
                let out = &mut out[(tap * channels + first) * cols..][..places * cols];
                let ptr = scratch[element * TURNED..].as_ptr();
                let x = Mat { ptr, rs: (columns * TURNED) as isize, cs: 1 };
                // SAFETY: places of `n` results, and room for them.
                unsafe { (kernels.transpose)(x, n, places, out.as_mut_ptr(), cols) };
                if n < cols {
                    out.chunks_exact_mut(cols).for_each(|row| row[n..].fill(T::Wide::ZERO));
                }
            }
        }
    }

    /// What [`Pass::panel`] reads.
    fn ahead<T: Operand>(&self, w: &[T], i0: usize, panel: usize, cols: usize) -> Prefetch {
        let (n, (_, elements)) = (cols.min(self.to - panel * cols), self.part(i0));
        let ptr = w[panel * cols * self.weight[0] + i0 * self.k_group * self.weight[1]..].as_ptr();
        let columns = self.kernel();
        let [results, sources] = self.weight.map(|w| w as isize);
        match results < sources {
            true => Prefetch::matrix(Mat { ptr, rs: sources, cs: 1 }, elements, n * columns),
            false => Prefetch::matrix(Mat { ptr, rs: results, cs: 1 }, n, elements * columns),
        }
    }

    /// Of the channels held together from place `i0` on: places, and elements.
    fn part(&self, i0: usize) -> (usize, usize) {
        let channels = self.channels.min(self.places() - i0);
        (channels, (channels * self.k_group).min(self.from - i0 * self.k_group))
    }

    /// Where the results of a block are written; nothing of results with depth.
    fn results<T>(&self, job: &Job, block: &Block, out: Shared<T>) -> Prefetch {
        let [depth, height, width] = self.nest.whole;
        if depth != 1 || block.positions() == 0 {
            return Prefetch::NONE;
        }
        let first = out.get().wrapping_add(self.result(job, block.images.start, block, job.first));
        // Whole planes, also of which some results are written.
        let elements = (block.lines.len() - 1) * width + block.columns.len();
        let channels = RESULTS.min(self.to - job.first);
        let images = (block.images.len(), self.groups * self.to * height * width);
        ahead(first, images, channels, elements, height * width).written()
    }

    /// Sums a block: `sums[position][channel]`, of [`RESULTS`] channels at most.
    #[allow(clippy::too_many_arguments)]
    fn block<T: Operand>(
        &self,
        tier: Tier,
        job: &Job,
        next_job: Option<&Job>,
        x: &[T],
        mut weights: Weights<T>,
        out: Shared<T>,
        [band, sums, moved]: [&mut [T::Wide]; 3],
    ) {
        let kernels = T::kernels(tier);
        let (cols, taps, m) = (kernels.nr, self.taps, &self.nest.meeting);
        let block = self.blocks.get(job.block);
        let tiling = self.tilings.get(&self.blocks, job.block);
        let members = self.nest.members_of(&block);
        let panels = self.to.div_ceil(cols);
        let mine = job.first / cols..(job.first + RESULTS).min(self.to).div_ceil(cols);
        let crs = line(self.to, cols);
        for i0 in (0..self.places()).step_by(self.channels) {
            let (channels, elements) = self.part(i0);
            let part = usize::from(channels < self.channels);
            // While these are multiplied, the next ones come.
            let next = match i0 + channels < self.places() {
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
                Inputs::Image(patches) => (first[patches.first(&block)..].as_ptr().cast(), size_of::<T>()),
            };
            let soon = next.map_or(Prefetch::NONE, |(job, i0)| {
                let ((first, sample), (_, elements)) = (self.source(job, i0, x), self.part(i0));
                m.ahead(first.as_ptr(), sample, &self.blocks.get(job.block), elements)
            });
            let mut soon = soon.paced(mine.len() * tiling.tiles.len());
            // And the results' places, when they are about to be written.
            let last = i0 + channels == self.places();
            let results = if last { self.results(job, &members, out) } else { Prefetch::NONE };
            let mut results = results.paced(mine.len() * tiling.tiles.len());
            for panel in mine.clone() {
                let mut ahead = Prefetch::NONE;
                let b = match &mut weights {
                    Weights::Packed(w) => {
                        &w[(i0 * panels + panel * channels) * taps * cols..][..taps * channels * cols]
                    }
                    Weights::Raw(w, packed) => {
                        let packed = &mut packed[..taps * channels * cols];
                        self.panel(tier, w, i0, panel, packed, moved);
                        // While these are used, the next ones come.
                        if panel + 1 < mine.end {
                            ahead = self.ahead(w, i0, panel + 1, cols);
                        } else if i0 + channels < self.places() {
                            ahead = self.ahead(w, i0 + channels, mine.start, cols);
                        }
                        &*packed
                    }
                };
                let mut ahead = ahead.paced(tiling.tiles.len());
                let column = panel * cols - job.first;
                for tile in &tiling.tiles {
                    let sum = &tiling.sums[tile.sum][part];
                    let walk = IndirectTile {
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
                    soon.step();
                    results.step();
                    // SAFETY: the runs lie in the band or the image, the panel has a row for each of their
                    // elements, and the sums have a row for each position, of whole panels.
                    unsafe { (kernels.panels.indirect)(&walk) };
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
        let block = self.nest.members_of(&self.blocks.get(job.block));
        let of_image = block.of_image();
        let plane: usize = self.nest.whole.iter().product();
        let channels = RESULTS.min(self.to - job.first);
        if let Some(bias) = bias {
            let bias = &bias[job.first..][..channels];
            for sums in sums[..block.positions() * crs].chunks_exact_mut(crs) {
                sums.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b.widen());
            }
        }
        // Whole lines follow each other.
        let width = self.nest.whole[2];
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

    /// Where a channel's results of a block begin in an image: of a block of outputs, or of cells where these
    /// have one each.
    fn result(&self, job: &Job, image: usize, block: &Block, channel: usize) -> usize {
        let nest = &self.nest;
        let (sample, depth) = (image / nest.meeting.result[0], image % nest.meeting.result[0]);
        let at = |d: usize, i: usize| match d == 0 || self.point {
            true => i * nest.apart[d] + nest.place[d],
            false => i,
        };
        let channel = (sample * self.groups + job.group) * self.to + channel;
        index(channel, nest.whole, [at(0, depth), at(1, block.lines.start), at(2, block.columns.start)])
    }
}

/// The index of an element of a channel's image.
fn index(channel: usize, size: [usize; 3], [z, y, x]: [usize; 3]) -> usize {
    ((channel * size[0] + z) * size[1] + y) * size[2] + x
}

/// Weights of a group: packed before, or to be packed into a panel.
enum Weights<'a, T: Operand> {
    Packed(&'a [T::Wide]),
    Raw(&'a [T], &'a mut [T::Wide]),
}

/// How weights become panels: as they lie; by elements of the kernel, which are few; by results, whose
/// kernels follow each other; or by channels of the source, whose kernels do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    Whole,
    Elements,
    Results,
    Sources,
}

/// What one task computes.
struct Job {
    group: usize,
    block: usize,
    /// First of the result's channels in the group.
    first: usize,
}

/// Elements from one position's sums to the next: those of different positions start in different sets of the
/// cache.
fn line(to: usize, cols: usize) -> usize {
    to.min(RESULTS).next_multiple_of(cols) + 16
}
