//! Convolutions and their two gradients, on ATen's layouts (images NCHW, filters OIHW), without im2col.
//!
//! | what | method | file |
//! |---|---|---|
//! | forward, input gradient | implicit GEMM on a padded channels-last tile | `implicit_gemm`, `nhwc_tile`, `pack_filters` |
//! | input gradient | the same, by stride phases | `input_gradient` |
//! | 1×1, one tap without padding | matrix product in place | `pointwise` |
//! | patches that do not overlap | implicit GEMM in place | `patchify` |
//! | weight gradient | implicit GEMM over outputs, on a padded channels-first tile | `weight_gradient`, `nchw_tile` |
//! | one channel a group | direct | `depthwise` |
//!
//! An output reads its inputs by an affine index map (`index_map`); a pass (`pass`) is a loop nest (`nest`)
//! over blocks of outputs (`blocks`) and register tiles of outputs with the same valid taps (`tiling`).
//! `ARCHITECTURE.md` in this folder has a figure, the cost model and rejected variants.
//!
//! Padding is made of zeros. Taps that read nothing else are skipped where that saves time (`tiling`);
//! elsewhere they are multiplied like other numbers, so that a weight or a gradient that is infinite gives
//! NaN there. So does, where pairs of bf16 are summed, an infinite input in the gradient of weights, in its
//! channel: for weights whose last output in a line of odd length reads the input before it.

mod blocks;
mod depthwise;
mod implicit_gemm;
mod index_map;
mod input_gradient;
mod nchw_tile;
mod nest;
mod nhwc_tile;
mod pack_filters;
mod pass;
mod patchify;
mod pointwise;
mod strided;
mod tiling;
mod weight_gradient;

use super::{Kernel, Prepared, Site};
use crate::element::{Float, same};
use crate::float_dtype;
use crate::gemm::{Operand, even};
use crate::pool::Pool;
use crate::tier::Tier;
use crate::view::View;
use crate::workspace;
use depthwise::Depthwise;
use headwater_core::diagnostic::Result;
use headwater_core::ops::conv::convolution;
use headwater_core::ops::conv::geometry::Conv;
use nest::Nest;
use pass::Pass;
use weight_gradient::WeightGradient;

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &convolution::CONVOLUTION,
        takes: |site| convolution::forward(&site.cx).is_ok_and(|c| sensible(&c)),
        workspace: |site| workspace(site, Kind::Forward),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Forward),
    },
    Kernel {
        op: &convolution::CONVOLUTION_INPUT_GRAD,
        takes: |site| convolution::input_grad(&site.cx).is_ok_and(|c| sensible(&c) && Nest::feasible(&c)),
        workspace: |site| workspace(site, Kind::Input),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Input),
    },
    Kernel {
        op: &convolution::CONVOLUTION_WEIGHT_GRAD,
        takes: |site| convolution::weight_grad(&site.cx).is_ok_and(|c| sensible(&c)),
        workspace: |site| workspace(site, Kind::Weight),
        strided: super::contiguous,
        prepare: |site| prepare(site, Kind::Weight),
    },
];

/// Forward pass, input gradient or weight gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Forward,
    Input,
    Weight,
}

impl Kind {
    fn of(self, site: &Site) -> Result<Conv> {
        match self {
            Kind::Forward => convolution::forward(&site.cx),
            Kind::Input => convolution::input_grad(&site.cx),
            Kind::Weight => convolution::weight_grad(&site.cx),
        }
    }

    /// Loop nests of the forward pass, or of the gradient of inputs.
    fn passes(self, c: &Conv, site: &Site) -> Vec<Pass> {
        match self {
            Kind::Input => Pass::input_gradient(c, Shape::of(site)),
            _ => vec![Pass::forward(c, Shape::of(site))],
        }
    }
}

fn workspace(site: &Site, kind: Kind) -> usize {
    let Ok(c) = kind.of(site) else { return 0 };
    float_dtype!(site.outs[0].dtype, T => {
        if depthwise::takes(&c, kind) {
            Depthwise::new(&c, kind, site.tier).workspace::<T>(site.threads)
        } else if kind == Kind::Weight {
            WeightGradient::new(&c, site.tier, Shape::of(site)).workspace::<T>(site.threads)
        } else {
            let passes = kind.passes(&c, site);
            passes.iter().map(|p| p.workspace::<T>(site.tier, site.threads)).max().unwrap_or(0)
        }
    })
}

fn prepare(site: &Site, kind: Kind) -> Result<Prepared> {
    let (c, tier) = (kind.of(site)?, site.tier);
    Ok(float_dtype!(site.outs[0].dtype, T => {
        if depthwise::takes(&c, kind) {
            let depthwise = Depthwise::new(&c, kind, tier);
            Box::new(move |args| depthwise.run::<T>(args))
        } else if kind == Kind::Weight {
            let weights = WeightGradient::new(&c, tier, Shape::of(site));
            Box::new(move |args| weights.run::<T>(args))
        } else {
            run(site, kind.passes(&c, site))
        }
    }))
}

/// True if there are channels to sum over, and not much padding. The reference computes other convolutions.
fn sensible(c: &Conv) -> bool {
    c.cin > 0 && c.cout > 0 && c.is_compact()
}

/// Register tiles of an instruction set: elements of a k-group, MR, and whether operands may be multiplied in
/// place.
#[derive(Clone, Copy, Debug)]
struct Shape {
    k_group: usize,
    mr: usize,
    in_place: bool,
}

impl Shape {
    fn of(site: &Site) -> Shape {
        float_dtype!(site.outs[0].dtype, T => {
            let kernels = T::kernels(site.tier);
            let k_group = kernels.panels.k_group;
            Shape { k_group, mr: kernels.mr, in_place: k_group > 1 || same::<T, <T as Float>::Wide>() }
        })
    }
}

/// Runs passes sequentially. Results that none of them writes are zeros.
fn run(site: &Site, passes: Vec<Pass>) -> Prepared {
    let written: usize = passes.iter().map(Pass::written).sum();
    let all = written == site.outs[0].shape.numel() || matches!(&passes[..], [one] if one.fills());
    let tier = site.tier;
    float_dtype!(site.outs[0].dtype, T => Box::new(move |args| {
        if !all {
            args.writes[0].slice_mut::<T>().fill(T::from_f64(0.0));
        }
        let (x, w) = (args.read(0)?.slice::<T>(), args.read(1)?.slice::<T>());
        let bias = args.opt(2).map(View::slice::<T>);
        let out = args.writes[0].slice_mut::<T>();
        passes.iter().for_each(|p| p.run::<T>(tier, args.pool, args.workspace, x, w, bias, out));
        Ok(())
    }))
}

/// Channels summed over at a time, in even parts: a micro-panel of the right operand, or the inputs of a
/// line's sums, fit into the first-level cache.
fn channels(taps: usize, all: usize) -> usize {
    let most = (288 / taps.max(1)).next_multiple_of(8).clamp(8, 256);
    even(all, most, 8).min(all).max(1)
}

impl Pass {
    /// Bytes of workspace.
    fn workspace<T: Operand>(&self, tier: Tier, threads: usize) -> usize {
        let (all, each) = match self.pointwise {
            true => self.pointwise_workspace::<T>(tier),
            false => self.implicit_gemm_workspace::<T>(tier),
        };
        (all + each * threads) * size_of::<T::Wide>()
    }

    /// Computes the pass.
    #[allow(clippy::too_many_arguments)]
    fn run<T: Operand>(
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
        let scratch: &mut [T::Wide] = workspace::all(workspace, self.workspace::<T>(tier, pool.threads()));
        match self.pointwise {
            true => self.pointwise(tier, pool, scratch, x, w, bias, out),
            false => self.implicit_gemm(tier, pool, scratch, x, w, bias, out),
        }
    }
}
