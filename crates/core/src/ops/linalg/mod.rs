//! Linear algebra of small dense matrices: factorizations, and what they give. Each matrix is worked on in
//! f64, sequentially in the reference, in parallel on devices.

operators! {
    checked: LINALG_CHOLESKY_EX, LINALG_INV_EX, LINALG_SOLVE_EX;
    cholesky: LINALG_CHOLESKY, CHOLESKY, CHOLESKY_SOLVE, CHOLESKY_INVERSE;
    det: DET, SLOGDET, LOGDET;
    eigh: LINALG_EIGH, LINALG_EIGVALSH, EIGH;
    householder: LINALG_HOUSEHOLDER_PRODUCT, ORMQR, GEQRF;
    inverse: INVERSE;
    lstsq: LINALG_LSTSQ;
    lu: LINALG_LU_FACTOR, LINALG_LU, LU_UNPACK, LINALG_LU_SOLVE, LU_SOLVE, LU, PIVOTS, PERMUTATION;
    matrix_exp: MATRIX_EXP;
    matrix_power: MATRIX_POWER, MULTI_DOT;
    pinv: LINALG_PINV, PINV;
    qr: LINALG_QR, QR;
    rank: LINALG_MATRIX_RANK, LINALG_COND;
    solve: LINALG_SOLVE, SOLVE;
    svd: LINALG_SVD, SVD, FACTORS;
    svdvals: SVDVALS;
    tensorinv: LINALG_TENSORINV, LINALG_TENSORSOLVE;
    triangular: LINALG_SOLVE_TRIANGULAR, TRIANGULAR_SOLVE, SOLVE_TRIANGLE;
    vander: LINALG_VANDER, VANDER;
}

pub mod dense;
pub mod factor;

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ensure;
use crate::graph::{Builder, ValueId};
use crate::ops::OpCx;
use crate::tensor::{Tensor, TensorType};

/// Type of input `i`, and the rows and columns of the matrices it holds. PyTorch factorizes f32 and f64
/// alone.
///
/// # Errors
/// `Shape` or `DType` if it holds none.
pub fn matrices<'a>(cx: &OpCx<'a>, i: usize) -> Result<(&'a TensorType, [usize; 2])> {
    let t = cx.ty(i)?;
    ensure!(matches!(t.dtype, DType::F32 | DType::F64), DType, "linear algebra is in f32 or f64, got {t}");
    let rank = t.shape.rank();
    ensure!(rank >= 2, Shape, "a matrix is needed, got {t}");
    Ok((t, [t.shape[rank - 2], t.shape[rank - 1]]))
}

/// As [`matrices`], of square ones: their order.
///
/// # Errors
/// `Shape` if they are not square.
pub fn squares<'a>(cx: &OpCx<'a>, i: usize) -> Result<(&'a TensorType, usize)> {
    let (t, [m, n]) = matrices(cx, i)?;
    ensure!(m == n, Shape, "a square matrix is needed, got {t}");
    Ok((t, n))
}

/// Exchanges the last two dimensions.
fn transposed(b: &mut Builder, x: ValueId) -> Result<ValueId> {
    b.transpose_last(x)
}

/// Calls `f` for each matrix of the inputs, `sizes` elements each, with as many elements of each output.
fn each_matrix<const N: usize, const M: usize>(
    inputs: [&[f64]; N],
    sizes: [usize; N],
    outs: &[TensorType],
    results: [usize; M],
    f: impl Fn([&[f64]; N], [&mut [f64]; M]) -> Result<()>,
) -> Result<Vec<Tensor>> {
    let mut made: [Vec<f64>; M] = std::array::from_fn(|i| vec![0.0; outs[i].shape.numel()]);
    let count = (0..N).map(|i| inputs[i].len().checked_div(sizes[i]).unwrap_or(0)).min().unwrap_or(0);
    for k in 0..count {
        let given = std::array::from_fn(|i| &inputs[i][k * sizes[i]..][..sizes[i]]);
        let mut rest = made.iter_mut();
        let out = std::array::from_fn(|i| {
            &mut rest.next().expect("as many results")[k * results[i]..][..results[i]]
        });
        f(given, out)?;
    }
    Ok(outs.iter().zip(made).map(|(t, v)| Tensor::float(t.dtype, t.shape.clone(), v)).collect())
}
