//! Convolutions of each channel by itself: for each tap a line of the image times a weight is added to a line of the result. As
//! vectors these are positions of one channel, where the other kernels' would be channels, of which there is one.

use super::Kind;
use super::band::within;
use crate::element::Wide;
use crate::gemm::{Mat, Operand, same};
use crate::kernels::Args;
use crate::pool::Shared;
use crate::tier::{Loop, Tier};
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::geometry::Conv;

/// Lanes of a sum over a line.
const LANES: usize = 8;

/// Shorter lines are not multiplied with each other here: by measurement, the other kernel is faster then.
const LONG: usize = 24;

/// Whether each channel is convolved by itself, in a way that pays.
pub(super) fn takes(c: &Conv, kind: Kind) -> bool {
    let pays = kind != Kind::Weight || c.stride[2] == 1 && c.output[2] >= LONG;
    c.cin == 1 && c.cout == 1 && pays
}

/// Elements of a plane of what is read, of what it is multiplied with, and of the result.
fn sizes(c: &Conv, kind: Kind) -> [usize; 3] {
    let [input, output, kernel] = [c.input, c.output, c.kernel].map(|d| d.iter().product());
    match kind {
        Kind::Forward => [input, kernel, output],
        Kind::Input => [output, kernel, input],
        Kind::Weight => [output, input, kernel],
    }
}

/// Elements of each of these that a thread has room for: sums, and what is read if it must be widened.
fn room<T: Operand>(c: &Conv, kind: Kind) -> [usize; 3] {
    let [from, with, to] = sizes(c, kind).map(|n| n.next_multiple_of(16));
    if same::<T, T::Wide>() { [0, 0, to] } else { [from, with, to] }
}

/// Bytes of workspace.
pub(super) fn workspace<T: Operand>(c: &Conv, kind: Kind, threads: usize) -> usize {
    threads * room::<T>(c, kind).iter().sum::<usize>() * size_of::<T::Wide>()
}

/// Computes it: the forward pass from input, weight and bias, gradients from that of the output and weight or input.
pub(super) fn run<T: Operand>(c: &Conv, kind: Kind, tier: Tier, args: &mut Args) -> Result<()> {
    let (a, b) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
    let bias = args.opt(2).filter(|_| kind == Kind::Forward).map(View::slice::<T>);
    let ([from, with, to], room) = (sizes(c, kind), room::<T>(c, kind));
    let (planes, samples) = match kind {
        Kind::Weight => (c.groups, c.batch),
        _ => (c.batch * c.groups, 1),
    };
    let bytes = workspace::<T>(c, kind, args.pool.threads());
    let scratch: &mut [T::Wide] = bytemuck::cast_slice_mut(&mut args.workspace[..bytes]);
    let out = Shared(args.writes[0].slice_mut::<T>().as_mut_ptr());
    args.pool.each_with(planes, scratch, |plane, scratch| {
        let (wide_from, scratch) = scratch.split_at_mut(room[0]);
        let (wide_with, sums) = scratch.split_at_mut(room[1]);
        let sums = &mut sums[..to];
        let channel = plane % c.groups;
        sums.fill(bias.map_or(T::Wide::ZERO, |b| b[channel].widen()));
        for sample in 0..samples {
            let [at, of] = match kind {
                Kind::Weight => [sample * c.groups + channel; 2],
                _ => [plane, channel],
            };
            let from = widened(tier, &a[at * from..][..from], wide_from);
            let with = widened(tier, &b[of * with..][..with], wide_with);
            tier.run(Plane { c, kind, from, with, sums });
        }
        // SAFETY: planes lie apart in the result, which nobody else uses meanwhile.
        unsafe { (T::kernels(tier).narrow)(sums.as_ptr(), to, out.get().wrapping_add(plane * to)) };
    });
    Ok(())
}

/// Numbers in the type computed in: themselves, or widened into `room`.
fn widened<'a, T: Operand>(tier: Tier, x: &'a [T], room: &'a mut [T::Wide]) -> &'a [T::Wide] {
    if same::<T, T::Wide>() {
        return bytemuck::cast_slice(x);
    }
    let (n, room) = (x.len(), &mut room[..x.len()]);
    // SAFETY: as many numbers as there is room for; the processor has the tier.
    unsafe { (T::kernels(tier).widen)(Mat { ptr: x.as_ptr(), rs: 0, cs: 1 }, 1, n, room.as_mut_ptr(), n) };
    room
}

/// One plane of a result, or what one sample adds to it.
struct Plane<'a, W> {
    c: &'a Conv,
    kind: Kind,
    from: &'a [W],
    with: &'a [W],
    sums: &'a mut [W],
}

impl<W: Wide> Loop for Plane<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Plane { c, kind, from, with, sums } = self;
        let [_, height, width] = c.input;
        let [_, oheight, owidth] = c.output;
        let first = |d: usize, k: usize| (k * c.dilation[d]) as isize - c.pad[d] as isize;
        for tap in 0..c.kernel.iter().product() {
            let [z, y, x] =
                [tap / (c.kernel[1] * c.kernel[2]), tap / c.kernel[2] % c.kernel[1], tap % c.kernel[2]];
            // Of the output's indices those that meet an input, and the first of these.
            let (oz, depths, iz) = within(first(0, z), c.stride[0], c.output[0], c.input[0]);
            let (oy, lines, iy) = within(first(1, y), c.stride[1], oheight, height);
            let (ox, n, ix) = within(first(2, x), c.stride[2], owidth, width);
            if n == 0 {
                continue;
            }
            let mut total = W::ZERO;
            let reach = (n - 1) * c.stride[2] + 1;
            for d in 0..depths {
                let mut o = ((oz + d) * oheight + oy) * owidth + ox;
                let mut i = ((iz + d * c.stride[0]) * height + iy) * width + ix;
                for _ in 0..lines {
                    match kind {
                        Kind::Forward => {
                            forward(&mut sums[o..o + n], &from[i..i + reach], c.stride[2], with[tap]);
                        }
                        Kind::Input => {
                            backward(&mut sums[i..i + reach], &from[o..o + n], c.stride[2], with[tap]);
                        }
                        Kind::Weight => total += dot(&from[o..o + n], &with[i..i + reach], c.stride[2]),
                    }
                    (o, i) = (o + owidth, i + c.stride[1] * width);
                }
            }
            if kind == Kind::Weight {
                sums[tap] += total;
            }
        }
    }
}

/// Adds every `step`-th number of a line, times a weight.
#[inline(always)]
fn forward<W: Wide>(sums: &mut [W], x: &[W], step: usize, weight: W) {
    if step == 1 {
        for (s, &x) in sums.iter_mut().zip(x) {
            *s += x * weight;
        }
    } else {
        for (s, &x) in sums.iter_mut().zip(x.iter().step_by(step)) {
            *s += x * weight;
        }
    }
}

/// Adds a line, times a weight, to every `step`-th number.
#[inline(always)]
fn backward<W: Wide>(sums: &mut [W], g: &[W], step: usize, weight: W) {
    if step == 1 {
        for (s, &g) in sums.iter_mut().zip(g) {
            *s += g * weight;
        }
    } else {
        for (s, &g) in sums.iter_mut().step_by(step).zip(g) {
            *s += g * weight;
        }
    }
}

/// The sum of a line's products with every `step`-th number of another: in lanes, which are then added in order.
#[inline(always)]
fn dot<W: Wide>(g: &[W], x: &[W], step: usize) -> W {
    let mut lanes = [W::ZERO; LANES];
    let whole = if step == 1 { g.len() / LANES * LANES } else { 0 };
    for (g, x) in g[..whole].chunks_exact(LANES).zip(x.chunks_exact(LANES)) {
        for i in 0..LANES {
            lanes[i] += g[i] * x[i];
        }
    }
    for i in whole..g.len() {
        lanes[i % LANES] += g[i] * x[i * step];
    }
    lanes.into_iter().sum()
}
