//! Fourier transforms: `_fft_c2c`, `_fft_r2c`, `_fft_c2r`, by the crate `rustfft` in f32, or in f64 for f64.
//!
//! A transform of several dimensions is one pass for each. A pass takes lanes along its dimension in groups,
//! whose size depends on the types alone: they are gathered into a thread's part of the workspace,
//! transformed there and written. A real lane of an even number of elements is transformed as half as many
//! complex numbers (Press et al., Numerical Recipes, 12.3). Between passes numbers are wide; they are stored
//! in the result if it is large enough, else in the workspace.

use super::{Args, Kernel, Prepared, Site, contiguous};
use crate::element::{Float, Wide, same};
use crate::float_dtype;
use crate::pool::{Pool, Shared};
use crate::tier::Tier;
use crate::workspace::{self, Scratch};
use headwater_core::diagnostic::Result;
use headwater_core::ops::complex::fft_c2c::{FFT_C2C, c2c};
use headwater_core::ops::complex::fft_c2r::{FFT_C2R, c2r};
use headwater_core::ops::complex::fft_r2c::{FFT_R2C, r2c};
use headwater_core::ops::complex::{Transform, half};
use num_complex::Complex;
use rustfft::{Fft, FftDirection, FftNum, FftPlannerScalar};
use std::sync::Arc;

/// A kernel by the function that gives its passes.
macro_rules! kernel {
    ($op:ident, $passes:ident, $takes:expr) => {
        Kernel {
            op: &$op,
            takes: $takes,
            workspace: |site| {
                float_dtype!(site.outs[0].dtype, T => $passes(site).map_or(0, |p| Room::of::<T>(&p).bytes(site.threads)))
            },
            strided: contiguous,
            prepare: |site| float_dtype!(site.outs[0].dtype, T => Ok(prepared::<T>($passes(site)?))),
        }
    };
}

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel!(FFT_C2C, complex, |site| c2c(&site.cx).is_ok_and(|(t, _)| fits(&t) && !t.dims.is_empty())),
    kernel!(FFT_R2C, real, |site| r2c(&site.cx).is_ok_and(|t| fits(&t))),
    kernel!(FFT_C2R, back, |site| c2r(&site.cx).is_ok_and(|t| fits(&t))),
];

/// Longest signal that is transformed here: tables of a longer one would take hundreds of megabytes.
const LONGEST: usize = 1 << 22;

fn fits(t: &Transform) -> bool {
    t.dims.iter().all(|&d| t.signal[d] <= LONGEST)
}

/// Complex numbers of a group of lanes: they stay in the first caches.
const GROUP: usize = 4096;

/// Most lanes of a group.
const LANES: usize = 256;

/// Lanes of a group that are read adjacently, a cache line, up to this many complex numbers.
const BESIDE: usize = 8;
const BESIDE_MOST: usize = 1 << 18;

/// The numbers that a pass reads and writes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lane {
    /// Complex numbers.
    Complex,
    /// Real numbers, of which it writes the frequencies: all, or the first half.
    Real,
    /// Frequencies, of which it writes the real numbers.
    Back,
}

/// All lanes along one dimension.
struct Pass<W> {
    lane: Lane,
    /// Dimensions around: `before × lane × after`.
    before: usize,
    after: usize,
    /// Elements of a lane: of the signal, read and written.
    signal: usize,
    read: usize,
    write: usize,
    /// Transform of the signal's elements, or of half as many complex ones for an even number of real ones.
    fft: Arc<dyn Fft<W>>,
    /// `e^(-2πi k/n)` for `k` up to a half of `n`, for real signals of an even number of elements.
    twiddles: Vec<Complex<W>>,
    /// Factor of what is written.
    scale: W,
}

/// The nearest number.
fn number<W: Wide>(x: f64) -> W {
    W::from_f64(x)
}

impl<W: Wide + FftNum> Pass<W> {
    /// A pass over the sizes `sizes` along dimension `dim`, of a signal of `n` elements.
    fn new(
        lane: Lane,
        sizes: &[usize],
        dim: usize,
        [n, read, write]: [usize; 3],
        forward: bool,
        tier: Tier,
    ) -> Self {
        let halved = lane != Lane::Complex && n.is_multiple_of(2);
        let turn = -std::f64::consts::TAU / n as f64;
        let twiddle = |k: usize| {
            let (sin, cos) = (turn * k as f64).sin_cos();
            Complex::new(number(cos), number(sin))
        };
        Pass {
            lane,
            before: sizes[..dim].iter().product(),
            after: sizes[dim + 1..].iter().product(),
            signal: n,
            read,
            write,
            fft: planned(if halved { n / 2 } else { n }, forward, tier),
            twiddles: if halved { (0..half(n)).map(twiddle).collect() } else { Vec::new() },
            scale: W::ONE,
        }
    }

    /// Lanes of a group.
    fn group(&self) -> usize {
        let n = self.fft.len();
        if self.after == 1 {
            (GROUP / n).clamp(1, LANES)
        } else {
            let least = (BESIDE_MOST / n).clamp(1, BESIDE);
            (GROUP / n).clamp(least, LANES).min(self.after.max(1))
        }
    }

    /// Complex numbers that a thread works in.
    fn room(&self) -> usize {
        self.group() * self.fft.len() + self.fft.get_inplace_scratch_len()
    }

    /// Reads lanes of `from`, writes those of `to`; both may be the same memory.
    ///
    /// # Safety
    /// `from` and `to` have all elements that the pass reads and writes, pairs for complex ones. If they
    /// share memory, each lane is read from where it is written.
    unsafe fn run<S, D>(&self, pool: &Pool, rooms: &mut Scratch<Complex<W>>, from: Shared<S>, to: Shared<D>)
    where
        S: Float<Wide = W>,
        D: Float<Wide = W>,
    {
        let (n, group) = (self.fft.len(), self.group());
        // Lanes of a group are in one `before`, or are rows.
        let (per, across) = if self.after == 1 {
            (self.before.div_ceil(group), 1)
        } else {
            (self.after.div_ceil(group), self.before)
        };
        rooms.run(pool, per * across, |block, room| {
            let first = block % per * group;
            let most = if self.after == 1 { self.before } else { self.after };
            let count = group.min(most - first);
            let (lanes, scratch) = room.split_at_mut(group * n);
            let lanes = &mut lanes[..count * n];
            let outer = block / per;
            // The first element of the group in lanes of `len`, from lane to lane, from element to element.
            let place = |len: usize| match self.after {
                1 => [first * len, len, 1],
                after => [outer * len * after + first, 1, after],
            };
            let ([start, lane, step], get) = (place(self.read), |i: usize| {
                // SAFETY: the caller's promise: an element of one of this group's lanes, which no other task
                // writes.
                unsafe { (*from.get().add(i)).widen() }
            });
            let pair = |i: usize| Complex::new(get(2 * i), get(2 * i + 1));
            self.each(count, n, |l, k| {
                let at = |k: usize| start + l * lane + k * step;
                lanes[l * n + k] = self.load(k, |k| get(at(k)), |k| pair(at(k)));
            });
            self.fft.process_with_scratch(lanes, &mut scratch[..self.fft.get_inplace_scratch_len()]);
            let ([start, lane, step], put) = (place(self.write), |i: usize, x: W| {
                // SAFETY: as above, written.
                unsafe { *to.get().add(i) = D::narrow(x * self.scale) };
            });
            self.each(count, self.write, |l, k| {
                let (at, lane) = (start + l * lane + k * step, &lanes[l * n..][..n]);
                if self.lane == Lane::Back {
                    return put(at, self.real(k, lane));
                }
                let x = self.frequency(k, lane);
                put(2 * at, x.re);
                put(2 * at + 1, x.im);
            });
        });
    }

    /// Calls `f` with each lane and element, in the order of memory.
    fn each(&self, lanes: usize, elements: usize, mut f: impl FnMut(usize, usize)) {
        if self.after == 1 {
            (0..lanes).for_each(|l| (0..elements).for_each(|k| f(l, k)));
        } else {
            (0..elements).for_each(|k| (0..lanes).for_each(|l| f(l, k)));
        }
    }

    /// Element `k` of what is transformed in the place of a lane whose elements are `real`, or pairs
    /// `complex`.
    #[inline(always)]
    fn load(&self, k: usize, real: impl Fn(usize) -> W, complex: impl Fn(usize) -> Complex<W>) -> Complex<W> {
        let n = self.signal;
        match self.lane {
            Lane::Complex => complex(k),
            Lane::Real if self.twiddles.is_empty() => Complex::new(real(k), W::ZERO),
            Lane::Real => Complex::new(real(2 * k), real(2 * k + 1)),
            Lane::Back => {
                // Imaginary parts of what is its own conjugate do not count.
                let given = |k: usize| match complex(k) {
                    x if k == 0 || 2 * k == n => Complex::new(x.re, W::ZERO),
                    x => x,
                };
                if self.twiddles.is_empty() {
                    return if k < half(n) { given(k) } else { given(n - k).conj() };
                }
                let (x, y) = (given(k), given(n / 2 - k).conj());
                let odd = (x - y) * self.twiddles[k].conj();
                x + y + Complex::new(-odd.im, odd.re)
            }
        }
    }

    /// Frequency `k` of a lane from what was transformed.
    #[inline(always)]
    fn frequency(&self, k: usize, lane: &[Complex<W>]) -> Complex<W> {
        if self.twiddles.is_empty() {
            return lane[k];
        }
        let n = self.signal;
        if k >= half(n) {
            return self.frequency_below(n - k, lane).conj();
        }
        self.frequency_below(k, lane)
    }

    /// Frequency `k` of the first half, for a real signal of an even number of elements.
    #[inline(always)]
    fn frequency_below(&self, k: usize, lane: &[Complex<W>]) -> Complex<W> {
        let h = lane.len();
        let wrapped = |k: usize| if k == h { 0 } else { k };
        let (x, y) = (lane[wrapped(k)], lane[wrapped(h - k)].conj());
        let odd = (x - y) * self.twiddles[k];
        let (even, odd) = (x + y, Complex::new(odd.im, -odd.re));
        (even + odd) * number::<W>(0.5)
    }

    /// Real element `k` of a lane from what was transformed.
    #[inline(always)]
    fn real(&self, k: usize, lane: &[Complex<W>]) -> W {
        match (self.twiddles.is_empty(), k % 2) {
            (true, _) => lane[k].re,
            (false, 0) => lane[k / 2].re,
            (false, _) => lane[k / 2].im,
        }
    }
}

/// A transform of `n` complex numbers, by the instructions of a tier.
fn planned<W: FftNum>(n: usize, forward: bool, tier: Tier) -> Arc<dyn Fft<W>> {
    let direction = if forward { FftDirection::Forward } else { FftDirection::Inverse };
    #[cfg(target_arch = "x86_64")]
    if tier >= Tier::Avx2
        && let Ok(mut planner) = rustfft::FftPlannerAvx::new()
    {
        return planner.plan_fft(n, direction);
    }
    #[cfg(target_arch = "aarch64")]
    if tier >= Tier::Neon
        && let Ok(mut planner) = rustfft::FftPlannerNeon::new()
    {
        return planner.plan_fft(n, direction);
    }
    let _ = tier;
    FftPlannerScalar::new().plan_fft(n, direction)
}

/// Passes over complex numbers of the sizes `sizes`.
fn along<W: Wide + FftNum>(site: &Site, sizes: &[usize], dims: &[usize], forward: bool) -> Vec<Pass<W>> {
    let pass = |&d: &usize| Pass::new(Lane::Complex, sizes, d, [sizes[d]; 3], forward, site.tier);
    dims.iter().map(pass).collect()
}

/// The passes, of which the last one scales.
fn scaled<W: Wide + FftNum>(mut passes: Vec<Pass<W>>, t: &Transform) -> Vec<Pass<W>> {
    if let Some(last) = passes.last_mut() {
        last.scale = number(t.scale);
    }
    passes
}

/// Passes of `_fft_c2c`.
fn complex<W: Wide + FftNum>(site: &Site) -> Result<Vec<Pass<W>>> {
    let (t, forward) = c2c(&site.cx)?;
    Ok(scaled(along(site, &t.signal, &t.dims, forward), &t))
}

/// Passes of `_fft_r2c`: real lanes first.
fn real<W: Wide + FftNum>(site: &Site) -> Result<Vec<Pass<W>>> {
    let t = r2c(&site.cx)?;
    let (last, n) = (t.last()?, t.signal[t.last()?]);
    let sizes = &site.outs[0].shape[..t.signal.len()];
    let first = Pass::new(Lane::Real, sizes, last, [n, n, sizes[last]], true, site.tier);
    let others = along(site, sizes, &t.dims[..t.dims.len() - 1], true);
    Ok(scaled([first].into_iter().chain(others).collect(), &t))
}

/// Passes of `_fft_c2r`: real lanes last.
fn back<W: Wide + FftNum>(site: &Site) -> Result<Vec<Pass<W>>> {
    let t = c2r(&site.cx)?;
    let (last, n) = (t.last()?, t.signal[t.last()?]);
    let sizes = &site.cx.shape(0)?[..t.signal.len()];
    let mut passes = along(site, sizes, &t.dims[..t.dims.len() - 1], false);
    passes.push(Pass::new(Lane::Back, sizes, last, [n, half(n), n], false, site.tier));
    Ok(scaled(passes, &t))
}

/// Parts of the workspace, in complex numbers.
#[derive(Clone, Copy)]
struct Room {
    /// Offset of the numbers between passes; 0 if they are in the result.
    between: usize,
    /// Workspace of each thread.
    each: usize,
    /// Bytes of a number.
    size: usize,
}

impl Room {
    fn of<T: Float>(passes: &[Pass<T::Wide>]) -> Room
    where
        T::Wide: FftNum,
    {
        let between = match passes {
            [_, .., last] if !same::<T, T::Wide>() || last.lane == Lane::Back => {
                (last.before * last.read * last.after).next_multiple_of(LINE)
            }
            _ => 0,
        };
        let each = passes.iter().map(Pass::room).max().unwrap_or(0);
        Room { between, each, size: size_of::<Complex<T::Wide>>() }
    }

    fn bytes(self, threads: usize) -> usize {
        (self.between + self.each * threads) * self.size
    }
}

/// Complex numbers in whole lines of the caches.
const LINE: usize = 8;

/// Runs the passes sequentially.
fn prepared<T: Float>(passes: Vec<Pass<T::Wide>>) -> Prepared
where
    T::Wide: FftNum,
{
    let room = Room::of::<T>(&passes);
    Box::new(move |args: &mut Args| {
        let x = args.read(0)?.slice::<T>();
        let y = args.writes[0].slice_mut::<T>();
        let (Some(first), Some(last)) = (passes.first(), passes.last()) else { return Ok(()) };
        // Real numbers, or parts of complex ones.
        let numbers = |p: &Pass<T::Wide>, lane: usize, real: Lane| {
            p.before * p.after * lane * if p.lane == real { 1 } else { 2 }
        };
        assert_eq!(x.len(), numbers(first, first.read, Lane::Real));
        assert_eq!(y.len(), numbers(last, last.write, Lane::Back));
        let (from, to) = (Shared(x.as_ptr().cast_mut()), Shared(y.as_mut_ptr()));
        let (between, each) = args.workspace.split_at_mut(room.between * room.size);
        let mut rooms = workspace::each::<Complex<T::Wide>>(each, room.each, args.pool.threads());
        let between: Shared<T::Wide> =
            Shared(if room.between > 0 { between.as_mut_ptr().cast() } else { to.get().cast() });
        // SAFETY: as many elements as asserted. Between passes numbers are in the result only if that holds
        // as many of their type; else in a part of the workspace that was made for them, which is aligned.
        // Every pass but the first and the last works on whole lanes in place.
        unsafe {
            match &passes[..] {
                [only] => only.run(args.pool, &mut rooms, from, to),
                [first, middle @ .., last] => {
                    first.run(args.pool, &mut rooms, from, between);
                    middle.iter().for_each(|p| p.run(args.pool, &mut rooms, between, between));
                    last.run(args.pool, &mut rooms, between, to);
                }
                [] => {}
            }
        }
        Ok(())
    })
}
