//! Linear algebra of small matrices: the core's algorithms in f64, a matrix at a time on each thread. Every
//! matrix by itself, so that any number of threads gives the same bits. Large matrices would need blocking.

use super::{Args, Kernel, Prepared, Site, contiguous, no_workspace};
use crate::element::{Float, Wide};
use crate::float_dtype;
use crate::pool::Shared;
use headwater_core::diagnostic::{Error, Result};
use headwater_core::ops::OpDef;
use headwater_core::ops::linalg::cholesky::CHOLESKY;
use headwater_core::ops::linalg::dense::{Lu, cholesky, inverse, singular, solve_triangle};
use headwater_core::ops::linalg::det::{DET, SLOGDET};
use headwater_core::ops::linalg::eigh::EIGH;
use headwater_core::ops::linalg::factor::{exponential, qr, symmetric};
use headwater_core::ops::linalg::inverse::INVERSE;
use headwater_core::ops::linalg::lu::{self, LU};
use headwater_core::ops::linalg::matrix_exp::MATRIX_EXP;
use headwater_core::ops::linalg::pinv::{PINV, pseudo_inverse, tolerances};
use headwater_core::ops::linalg::qr::{QR, sizes};
use headwater_core::ops::linalg::solve::SOLVE;
use headwater_core::ops::linalg::svd::{FACTORS, factors};
use headwater_core::ops::linalg::svdvals::SVDVALS;
use headwater_core::ops::linalg::triangular::{SOLVE_TRIANGLE, flags};
use headwater_core::ops::linalg::{matrices, squares};
use std::sync::Mutex;

/// The family.
pub static KERNELS: &[Kernel] = &[
    kernel(&INVERSE, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [n * n], move |[a], [x]| inverse(a, n, x)))
    }),
    kernel(&DET, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [1], move |[a], [x]| {
            x[0] = Lu::new(a, n).determinant();
            Ok(())
        }))
    }),
    kernel(&SLOGDET, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [1, 1], move |[a], [sign, log]| {
            (sign[0], log[0]) = Lu::new(a, n).log_determinant();
            Ok(())
        }))
    }),
    kernel(&SOLVE, |site| {
        let (n, [_, k]) = (squares(&site.cx, 0)?.1, matrices(&site.cx, 1)?.1);
        Ok(each([n * n, n * k], [n * k], move |[a, b], [x]| Lu::new(a, n).solve(b, k, x)))
    }),
    kernel(&SOLVE_TRIANGLE, |site| {
        let (n, [_, k], flags) = (squares(&site.cx, 0)?.1, matrices(&site.cx, 1)?.1, flags(&site.cx)?);
        Ok(each([n * n, n * k], [n * k], move |[a, b], [x]| {
            solve_triangle(a, n, b, k, flags, x);
            Ok(())
        }))
    }),
    kernel(&CHOLESKY, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [n * n], move |[a], [x]| cholesky(a, n, x)))
    }),
    kernel(&LU, |site| {
        let [m, n] = matrices(&site.cx, 0)?.1;
        Ok(each([m * n], [m * n, m * m], move |[a], [x, p]| {
            lu::factors(a, [m, n], x, p);
            Ok(())
        }))
    }),
    kernel(&QR, |site| {
        let (mn, c) = sizes(&site.cx)?;
        Ok(each([mn[0] * mn[1]], [mn[0] * c, c * mn[1]], move |[a], [q, r]| {
            qr(a, mn, c, q, r);
            Ok(())
        }))
    }),
    kernel(&EIGH, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [n, n * n], move |[a], [values, vectors]| {
            symmetric(a, n, values, vectors);
            Ok(())
        }))
    }),
    kernel(&MATRIX_EXP, |site| {
        let n = squares(&site.cx, 0)?.1;
        Ok(each([n * n], [n * n], move |[a], [x]| exponential(a, n, x)))
    }),
    kernel(&PINV, |site| {
        let ([m, n], given) = (matrices(&site.cx, 0)?.1, tolerances(&site.cx)?);
        Ok(each([m * n], [m * n], move |[a], [x]| {
            pseudo_inverse(a, [m, n], given, x);
            Ok(())
        }))
    }),
    kernel(&FACTORS, |site| {
        let ([m, n], full) = (matrices(&site.cx, 0)?.1, site.cx.flag("full")?);
        let [mu, nv] = if full { [m, n] } else { [m.min(n); 2] };
        Ok(each([m * n], [m * mu, m.min(n), nv * n], move |[a], [u, s, vh]| {
            factors(a, [m, n], full, u, s, vh);
            Ok(())
        }))
    }),
    kernel(&SVDVALS, |site| {
        let [m, n] = matrices(&site.cx, 0)?.1;
        let k = m.min(n);
        Ok(each([m * n], [k, m * k, n * k], move |[a], [values, u, v]| {
            singular(a, [m, n], values, u, v);
            Ok(())
        }))
    }),
];

const fn kernel(op: &'static OpDef, prepare: fn(&Site) -> Result<Prepared>) -> Kernel {
    Kernel { op, takes: some, workspace: no_workspace, strided: contiguous, prepare }
}

/// For [`Kernel::takes`]: matrices with elements.
fn some(site: &Site) -> bool {
    super::floats(site) && site.cx.present().chain(site.outs).all(|t| t.shape.numel() > 0)
}

/// Calls `f` for each matrix of the inputs, `sizes` elements each, with as many elements of each output as
/// `results` says.
fn each<const N: usize, const M: usize>(
    sizes: [usize; N],
    results: [usize; M],
    f: impl Fn([&[f64]; N], [&mut [f64]; M]) -> Result<()> + Send + Sync + 'static,
) -> Prepared {
    Box::new(move |args| float_dtype!(args.writes[0].dtype(), T => run::<T, N, M>(args, sizes, results, &f)))
}

fn run<T: Float, const N: usize, const M: usize>(
    args: &mut Args,
    sizes: [usize; N],
    results: [usize; M],
    f: &(impl Fn([&[f64]; N], [&mut [f64]; M]) -> Result<()> + Sync),
) -> Result<()> {
    let mut inputs: [&[T]; N] = [&[]; N];
    for (i, input) in inputs.iter_mut().enumerate() {
        *input = args.read(i)?.slice::<T>();
    }
    let count = inputs[0].len() / sizes[0];
    let mut outs = [Shared(std::ptr::null_mut::<T>()); M];
    for (i, out) in outs.iter_mut().enumerate() {
        let slice = args.writes[i].slice_mut::<T>();
        assert_eq!(slice.len(), count * results[i]);
        *out = Shared(slice.as_mut_ptr());
    }
    // The error of the first matrix that has one, whichever thread meets it first.
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    args.pool.each(count, |k| {
        let given: [Vec<f64>; N] = std::array::from_fn(|i| wide(&inputs[i][k * sizes[i]..][..sizes[i]]));
        let mut made: [Vec<f64>; M] = std::array::from_fn(|i| vec![0.0; results[i]]);
        let done = f(given.each_ref().map(Vec::as_slice), made.each_mut().map(Vec::as_mut_slice));
        if let Err(e) = done
            && let Ok(mut failed) = failed.lock()
            && failed.as_ref().is_none_or(|(first, _)| k < *first)
        {
            *failed = Some((k, e));
        }
        for (out, values) in outs.iter().zip(&made) {
            for (j, &x) in values.iter().enumerate() {
                // SAFETY: element `j` of this matrix, of a result that has `count` of them; no other task's.
                unsafe { *out.get().add(k * values.len() + j) = T::from_f64(x) };
            }
        }
    });
    match failed.into_inner() {
        Ok(Some((_, e))) => Err(e),
        _ => Ok(()),
    }
}

fn wide<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.widen().to_f64()).collect()
}
