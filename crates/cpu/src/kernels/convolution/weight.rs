//! The weight gradient: for each tap and pair of channels the sum over all outputs of input times gradient. The outputs'
//! blocks are summed in order; where there are few channels, several sequences of blocks are summed apart and then added.

use super::band::{Band, Meeting, Runs};
use super::{Blocks, channels, spatial};
use crate::element::Wide;
use crate::gemm::{MAX_LANES, MAX_ROWS, Mat, Operand, Walk};
use crate::kernels::Args;
use crate::pool::Shared;
use crate::tier::Tier;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::geometry::Conv;

/// Output channels summed at a time.
const RESULTS: usize = 64;
/// Tasks that are enough for any number of threads.
const TASKS: usize = 16;
/// Outputs' channels written together.
const WRITTEN: usize = 16;

/// Gradient `[samples, groups · cout, output…]`, input `[samples, groups · cin, input…]`, weights `[groups · cout, cin, kernel…]`.
pub(super) struct Weights {
    tier: Tier,
    groups: usize,
    cin: usize,
    cout: usize,
    meeting: Meeting,
    blocks: Blocks,
    band: Band,
    /// Of as many channels as the band holds, and of those left at the end.
    runs: [Runs; 2],
    /// Sequences of blocks that are summed apart.
    sequences: usize,
    /// Output channels, filled up to whole panels.
    line: usize,
}

impl Weights {
    pub fn new<T: Operand>(c: &Conv, tier: Tier) -> Weights {
        let [source, result, taps, step, tap, pad] = spatial(c);
        let meeting = Meeting { source, result, taps, step, tap, base: pad.map(|p| -(p as isize)) };
        let blocks = Blocks::new(c.batch * result[0], result[1], result[2]);
        let band = Band::new(meeting, blocks, channels(c.kernel_size(), c.cin));
        let runs = [band.runs(band.channels), band.runs(c.cin % band.channels)];
        let tasks = c.groups * c.cin.div_ceil(band.channels) * c.cout.div_ceil(RESULTS);
        let sequences = TASKS.div_ceil(tasks.max(1)).min(blocks.count()).max(1);
        let line = c.cout.next_multiple_of(T::kernels(tier).cols);
        Weights {
            tier,
            groups: c.groups,
            cin: c.cin,
            cout: c.cout,
            meeting,
            blocks,
            band,
            runs,
            sequences,
            line,
        }
    }

    fn taps(&self) -> usize {
        self.meeting.taps.iter().product()
    }

    /// Elements of a sequence's sums: `[group][part of the input channels][tap][channel of the part][output channel]`.
    fn sums(&self) -> usize {
        self.groups * self.cin * self.taps() * self.line
    }

    /// Elements of a thread's band and packed gradients.
    fn own<T: Operand>(&self) -> [usize; 2] {
        let cols = T::kernels(self.tier).cols;
        let positions = self.blocks.together * self.blocks.lines * self.meeting.result[2];
        let gradients = positions * RESULTS.min(self.cout).next_multiple_of(cols) + MAX_LANES;
        [self.band.elements(), gradients].map(|n| n.next_multiple_of(16))
    }

    /// Bytes of workspace.
    pub fn workspace<T: Operand>(&self, threads: usize) -> usize {
        let sums = (self.sums() * self.sequences).next_multiple_of(16);
        (sums + self.own::<T>().iter().sum::<usize>() * threads) * size_of::<T::Wide>()
    }

    pub fn run<T: Operand>(&self, args: &mut Args) -> Result<()> {
        let (g, x) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
        let out = args.writes[0].slice_mut::<T>();
        if g.is_empty() || x.is_empty() || out.is_empty() {
            out.fill(T::from_f64(0.0));
            return Ok(());
        }
        let own = self.own::<T>();
        let bytes = self.workspace::<T>(args.pool.threads());
        let scratch: &mut [T::Wide] = bytemuck::cast_slice_mut(&mut args.workspace[..bytes]);
        let (sums, scratch) = scratch.split_at_mut((self.sums() * self.sequences).next_multiple_of(16));
        let parts = [self.cin.div_ceil(self.band.channels), self.cout.div_ceil(RESULTS)];
        let all = Shared(sums.as_mut_ptr());
        args.pool.each_with(self.sequences * self.groups * parts[0] * parts[1], scratch, |at, scratch| {
            let (band, gradients) = scratch.split_at_mut(own[0]);
            let (o0, at) = (at % parts[1] * RESULTS, at / parts[1]);
            let (i0, at) = (at % parts[0] * self.band.channels, at / parts[0]);
            let job = Job { group: at % self.groups, sequence: at / self.groups, i0, o0 };
            // SAFETY: each task sums other channels, or other blocks into sums of their own.
            unsafe { self.sum::<T>(&job, g, x, band, gradients, all) };
        });
        let (sums, out) = (&*sums, Shared(out.as_mut_ptr()));
        let groups = self.cout.div_ceil(WRITTEN);
        args.pool.each(self.groups * groups, |at| {
            let (g, o0) = (at / groups, at % groups * WRITTEN);
            // SAFETY: each task writes the weights of other output channels.
            unsafe { self.write::<T>(sums, g, o0..self.cout.min(o0 + WRITTEN), out) };
        });
        Ok(())
    }

    /// # Safety
    /// `all` are the sums of all sequences, of which nobody else uses those of the job.
    unsafe fn sum<T: Operand>(
        &self,
        job: &Job,
        g: &[T],
        x: &[T],
        band: &mut [T::Wide],
        gradients: &mut [T::Wide],
        all: Shared<T::Wide>,
    ) {
        let kernels = T::kernels(self.tier);
        let (cols, taps, width) = (kernels.cols, self.taps(), self.meeting.result[2]);
        let plane = |size: [usize; 3]| size.iter().product::<usize>();
        let (from, to) = (plane(self.meeting.source), plane(self.meeting.result));
        let channels = self.band.channels.min(self.cin - job.i0);
        let runs = &self.runs[usize::from(channels < self.band.channels)];
        let outputs = RESULTS.min(self.cout - job.o0);
        let sums = job.sequence * self.sums() + (job.group * self.cin + job.i0) * taps * self.line + job.o0;
        let per = self.blocks.count().div_ceil(self.sequences);
        let blocks = job.sequence * per..self.blocks.count().min((job.sequence + 1) * per);
        if blocks.is_empty() {
            for row in 0..taps * channels {
                let columns = outputs.next_multiple_of(cols);
                // SAFETY: sums of the job.
                unsafe { std::slice::from_raw_parts_mut(all.get().add(sums + row * self.line), columns) }
                    .fill(T::Wide::ZERO);
            }
        }
        for (turn, block) in blocks.enumerate() {
            let (images, lines) = self.blocks.get(block);
            let first = &x[(job.group * self.cin + job.i0) * from..];
            let here = (images.clone(), lines.clone());
            // SAFETY: the channels of the group, of every sample.
            unsafe {
                self.band.fill(kernels, first.as_ptr(), self.groups * self.cin * from, here, channels, band)
            };
            // Gradients of each panel of output channels, position by position.
            let of_image = lines.len() * width;
            let positions = images.len() * of_image;
            for (i, image) in images.clone().enumerate() {
                let (sample, depth) = (image / self.meeting.result[0], image % self.meeting.result[0]);
                for j in (0..outputs).step_by(cols) {
                    let channel = (sample * self.groups + job.group) * self.cout + job.o0 + j;
                    let at = channel * to + (depth * self.meeting.result[1] + lines.start) * width;
                    let mat = Mat { ptr: g[at..].as_ptr(), rs: to as isize, cs: 1 };
                    let out = &mut gradients[j * positions + i * of_image * cols..];
                    debug_assert!(
                        out.len() >= of_image * cols + if j + cols >= outputs { 0 } else { MAX_LANES }
                    );
                    // SAFETY: gradients of this image's lines; what spills behind is written next, or the room at the end.
                    unsafe {
                        (kernels.pack)(mat, cols.min(outputs - j), of_image, cols, of_image, out.as_mut_ptr())
                    };
                }
            }
            let rows_of = |run: usize| run * runs.length;
            for j in (0..outputs).step_by(cols) {
                for (run, &start) in runs.starts.iter().enumerate() {
                    for row in (0..runs.length).step_by(kernels.rows) {
                        let n = kernels.rows.min(runs.length - row);
                        let mut rows = [std::ptr::null(); MAX_ROWS];
                        for (k, r) in rows[..n].iter_mut().enumerate() {
                            *r = band[start as usize + row + k..].as_ptr();
                        }
                        let c = all.get().wrapping_add(sums + (rows_of(run) + row) * self.line + j);
                        let mut b = gradients[j * positions..].as_ptr();
                        let mut add = turn > 0;
                        let mut lines_done = 0;
                        let all_lines = images.len() * lines.len();
                        while lines_done < all_lines {
                            let mut outer = [0isize; LINES];
                            let some = LINES.min(all_lines - lines_done);
                            for (k, o) in outer[..some].iter_mut().enumerate() {
                                let line = lines_done + k;
                                let place = [line / lines.len(), line % lines.len(), 0];
                                *o = self.band.at(place, channels) as isize;
                            }
                            let walk = Walk {
                                rows: &rows[..n],
                                outer: &outer[..some],
                                inner: width,
                                step: (self.band.step[2] * channels) as isize,
                                b,
                                c,
                                crs: self.line as isize,
                                cols,
                                add,
                            };
                            // SAFETY: inputs in the band that the outputs meet through these taps, a row of gradients for
                            // each output, and sums of the job.
                            unsafe { (kernels.walk)(&walk) };
                            b = b.wrapping_add(some * width * cols);
                            (lines_done, add) = (lines_done + some, true);
                        }
                    }
                }
            }
        }
    }

    /// Adds up the sequences and writes the weights' gradients of some output channels of a group.
    ///
    /// # Safety
    /// `out` is the result, and nobody else uses these elements meanwhile.
    unsafe fn write<T: Operand>(
        &self,
        sums: &[T::Wide],
        group: usize,
        outputs: std::ops::Range<usize>,
        out: Shared<T>,
    ) {
        let taps = self.taps();
        for i0 in (0..self.cin).step_by(self.band.channels) {
            let channels = self.band.channels.min(self.cin - i0);
            for tap in 0..taps {
                for i in 0..channels {
                    let row =
                        ((group * self.cin + i0) * taps + tap * channels + i) * self.line + outputs.start;
                    let mut sum = [T::Wide::ZERO; WRITTEN];
                    let sum = &mut sum[..outputs.len()];
                    sum.copy_from_slice(&sums[row..][..outputs.len()]);
                    for sequence in 1..self.sequences {
                        let more = &sums[sequence * self.sums() + row..][..outputs.len()];
                        sum.iter_mut().zip(more).for_each(|(s, &m)| *s += m);
                    }
                    for (j, &s) in sum.iter().enumerate() {
                        let at = ((group * self.cout + outputs.start + j) * self.cin + i0 + i) * taps + tap;
                        // SAFETY: a weight of these output channels.
                        unsafe { *out.get().add(at) = T::narrow(s) };
                    }
                }
            }
        }
    }
}

/// Lines walked at a time.
const LINES: usize = 64;

/// What one task sums: a part of the channels of a group over a sequence of blocks.
struct Job {
    group: usize,
    sequence: usize,
    i0: usize,
    o0: usize,
}
