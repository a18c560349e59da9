"""Cases: products, factors and functions of matrices, and Fourier transforms."""

import torch

from .types import F64, INF


def products(c):
    c("linear.default", c.f(2, 3, 4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(2, 4), c.f(5, 4))
    c("linear.default", c.f(4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(0, 4), c.f(5, 4), c.f(5))
    c("linear.default", c.f(2, 0), c.f(3, 0), c.f(3))
    shapes = [
        ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (3,)),
        ((2, 3), (5, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (4, 3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
    ]
    for left, right in shapes:
        c("matmul.default", c.f(*left), c.f(*right))
    c("mm.default", c.f(2, 3), c.f(3, 4))
    c("bmm.default", c.f(2, 3, 4), c.f(2, 4, 5))
    c("bmm.default", c.f(0, 3, 4), c.f(0, 4, 5))
    c("mv.default", c.f(3, 4), c.f(4))
    c("dot.default", c.f(4), c.f(4))
    c("outer.default", c.f(3), c.f(2))
    c("addmm.default", c.f(5), c.f(3, 4), c.f(4, 5))
    c("addmm.default", c.f(3, 1), c.f(3, 4), c.f(4, 5), beta=0.5, alpha=2)
    c("addmm.default", c.f(3, 5), c.f(3, 4), c.f(4, 5), beta=0)
    c("addmv.default", c.f(3), c.f(3, 4), c.f(4))
    c("baddbmm.default", c.f(2, 3, 5), c.f(2, 3, 4), c.f(2, 4, 5))
    c("baddbmm.default", c.f(1, 5), c.f(2, 3, 4), c.f(2, 4, 5), beta=0.5, alpha=0.25)
    c("baddbmm.default", c.f(2, 1, 1), c.f(2, 3, 4), c.f(2, 4, 5), beta=0)
    for equation, *shapes in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("i,j->ij", (3,), (2,)),
        ("ii->i", (3, 3)),
        ("ij->", (2, 3)),
        ("...ij,jk", (2, 2, 3), (3, 4)),
        ("bnd,d->bn", (2, 3, 4), (4,)),
        ("ijk,kl,lm->ijm", (2, 2, 3), (3, 2), (2, 4)),
    ):
        c("einsum.default", equation, [c.f(*s) for s in shapes])
    c("cosine_similarity.default", c.f(3, 4), c.f(3, 4))
    c("cosine_similarity.default", c.f(3, 4), c.f(1, 4), -1, 1e-6)
    import transformers.integrations.moe  # noqa: F401  registers the operator

    grouped = "transformers::grouped_mm_fallback.default"
    c(grouped, c.f(6, 3), c.f(3, 3, 4), torch.tensor([2, 5, 6], dtype=torch.int32))
    c(grouped, c.f(6, 3), c.f(4, 3, 2), torch.tensor([0, 4, 4, 6], dtype=torch.int32))  # experts without rows
    c(grouped, c.f(6, 3), c.f(2, 3, 2), torch.tensor([1, 4], dtype=torch.int32))  # rows without an expert are 0


def matrices(c):
    def definite(*shape):
        x = c.f(*shape)
        return x @ x.mT + 0.5 * torch.eye(shape[-1], dtype=F64)

    c("linalg_inv.default", c.f(3, 3) + 2 * torch.eye(3, dtype=F64))
    c("inverse.default", c.f(2, 2, 2) + 2 * torch.eye(2, dtype=F64))
    for name in ("linalg_det.default", "det.default", "linalg_slogdet.default", "slogdet.default"):
        c(name, c.f(3, 3))
        c(name, c.f(2, 2, 2))
    c("logdet.default", definite(3, 3))
    c("linalg_solve.default", definite(3, 3), c.f(3, 2))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(2, 3))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(3, 2))
    c("linalg_solve.default", c.f(2, 3, 3) + 2 * torch.eye(3, dtype=F64), c.f(2, 2, 3), left=False)
    for name in ("linalg_cholesky.default", "cholesky.default"):
        c(name, definite(3, 3))
        c(name, definite(2, 2, 2), upper=True)
    c("linalg_svdvals.default", c.f(4, 3))
    c("linalg_svdvals.default", c.f(2, 2, 3))


def fourier(c):
    for n in (1, 2, 3, 4, 7, 12, 30):
        for mode in range(3):
            c("_fft_c2c.default", c.z(2, n), [1], mode, mode != 1)
            c("_fft_r2c.default", c.f(2, n), [1], mode, True)
            c("_fft_c2r.default", c.z(2, n // 2 + 1), [1], mode, n)
        c("_fft_r2c.default", c.f(n, 2), [0], 0, False)
    for dims in ([0], [0, 1], [2, 0], [1, 2], [0, 1, 2]):
        for forward in (True, False):
            c("_fft_c2c.default", c.z(3, 4, 5), dims, 1, forward)
        c("_fft_r2c.default", c.f(3, 4, 5), dims, 2, True)
        c("_fft_r2c.default", c.f(3, 4, 5), dims, 1, False)
    for dims, n in (([0], 4), ([0, 2], 9), ([2, 0], 5), ([1, 0, 2], 8)):  # frequencies that are no real signal's
        shape = [3, 4, 5]
        shape[dims[-1]] = n // 2 + 1
        c("_fft_c2r.default", c.z(*shape), dims, 1, n)
    c("_fft_c2c.default", c.z(0, 4), [1], 0, True)
    c("_fft_r2c.default", c.f(0, 4), [1], 0, True)
    for n in (1, 4, 5):
        c("fft_fftfreq.default", n, 0.5, dtype=F64)
        c("fft_rfftfreq.default", n, 0.5, dtype=F64)
    for name in ("fft_fftshift", "fft_ifftshift"):
        c(f"{name}.default", c.f(3, 4))
        c(f"{name}.default", c.f(5, 2), [0])


def matrix_norms(c):
    for order in ("fro", "nuc"):
        c("linalg_matrix_norm.str_ord", c.f(2, 3, 4), order)
        c("linalg_matrix_norm.str_ord", c.f(3, 2, 4), order, [2, 0], True)
        c("linalg_norm.ord_str", c.f(3, 4), order)
    for order in (1, -1, 2, -2, INF, -INF):
        c("linalg_matrix_norm.default", c.f(2, 3, 4), order)
        c("linalg_matrix_norm.default", c.f(3, 2, 4), order, [2, 0], True)
        c("linalg_norm.default", c.f(3, 4), order)
    for order in (None, 1, 2, 0.5, INF):
        c("linalg_norm.default", c.f(5), order)
        c("linalg_norm.default", c.f(2, 3, 4), order, [-1])
        c("linalg_norm.default", c.f(3, 4), order, [0], True)
    c("linalg_norm.default", c.f(2, 3, 4))
    c("linalg_norm.default", c.f(2, 3, 4), None, [0, 2])
    c("trace.default", c.f(3, 4))
    c("trace.default", c.i(9, 3, 2))


def triangles(c):
    def regular(*shape):
        return c.f(*shape) + 2 * torch.eye(shape[-1], dtype=F64)

    for upper in (True, False):
        for unit in (True, False):
            c("linalg_solve_triangular.default", regular(3, 3), c.f(3, 2), upper=upper, unitriangular=unit)
        c("linalg_solve_triangular.default", regular(2, 1, 3, 3), c.f(4, 2, 3), upper=upper, left=False)
        for transpose in (True, False):
            c("triangular_solve.default", c.f(2, 3, 2), regular(2, 3, 3), upper, transpose)
        c("cholesky_solve.default", c.f(2, 3, 2), c.fixed(regular(2, 3, 3)), upper)


def orthogonal(c):
    """Factorizations by orthogonal matrices. Of vectors that have a sign by choice only the values are compared."""

    def even(*shape):
        x = c.f(*shape)
        return x + x.mT

    for shape in ((3, 3), (4, 2), (2, 4), (2, 3, 3), (2, 4, 2)):
        c("linalg_qr.default", c.f(*shape))
    c("linalg_qr.default", c.f(2, 4), "complete")
    c("linalg_qr.default", c.fixed(c.f(4, 2)), "complete")
    c("linalg_qr.default", c.fixed(c.f(3, 2)), "r")
    c("linalg_qr.default", torch.tensor([[2.0, 1.0], [0.0, 3.0]], dtype=F64))  # nothing to reflect
    for side in ("L", "U"):
        c("linalg_eigvalsh.default", even(3, 3), side)
        c("linalg_eigvalsh.default", even(2, 4, 4), side)
    for shape in ((3, 3), (4, 2), (2, 2, 3)):
        c("linalg_pinv.default", c.f(*shape), 1e-12)
        c("linalg_pinv.atol_rtol_float", c.f(*shape))
        c("linalg_lstsq.default", c.f(*shape), c.f(*shape[:-1], 2))
    c("linalg_pinv.atol_rtol_float", c.f(3, 1) @ c.f(1, 4), rtol=1e-10)  # of rank 1
    c("linalg_pinv.atol_rtol_float", even(3, 3), atol=0.01, hermitian=True)
    c("pinverse.default", c.f(3, 2))
    c("linalg_householder_product.default", c.f(4, 3), c.u(0.2, 1.5, 3))
    c("linalg_householder_product.default", c.f(2, 4, 3), c.u(0.2, 1.5, 2, 2))


def factors(c):
    for shape in (3, 3), (2, 3, 3), (4, 2), (2, 4):
        c("linalg_lu.default", c.f(*shape))
        c("linalg_lu_factor.default", c.f(*shape))
    c("linalg_lu_factor_ex.default", c.f(3, 3))
    lu = lambda n: torch.eye(n, dtype=F64) * 2 + torch.arange(n * n, dtype=F64).view(n, n) / 20
    pivots = torch.tensor([3, 2, 3], dtype=torch.int32)
    c("lu_unpack.default", lu(3), pivots)
    for left in (True, False):
        for adjoint in (False, True):
            c("linalg_lu_solve.default", lu(3), pivots, c.f(3, 2) if left else c.f(2, 3), left=left, adjoint=adjoint)
    c("lu_solve.default", c.f(3, 2), lu(3), pivots)
    even = lambda n: (lambda a: a @ a.mT + n * torch.eye(n, dtype=F64))(c.f(n, n))
    c("linalg_cholesky_ex.default", even(3))
    c("linalg_cholesky_ex.default", even(3), upper=True)
    c("linalg_inv_ex.default", even(3))
    c("linalg_solve_ex.default", even(3), c.f(3, 2))
    c("geqrf.default", c.fixed(c.f(4, 3)))
    c("geqrf.default", c.fixed(c.f(2, 2, 3)))
    for left in (True, False):
        for transpose in (False, True):
            c("ormqr.default", c.f(4, 3), c.u(0.2, 1.5, 3), c.f(4, 2) if left else c.f(2, 4), left, transpose)
    c("linalg_tensorinv.default", c.f(2, 2, 4))
    c("linalg_tensorsolve.default", c.f(2, 2, 4), c.f(2, 2))
    c("linalg_tensorsolve.default", c.f(2, 4, 2), c.f(4), [0])


def conditions(c):
    for p in (None, 2, -2):
        c("linalg_cond.default", c.f(2, 3, 3), p)
    for p in (1, INF):  # PyTorch writes over the inverse, and then cannot differentiate
        c("linalg_cond.default", c.fixed(c.f(2, 3, 3)), p)
    c("linalg_cond.p_str", c.fixed(c.f(3, 3)), "fro")
    c("linalg_cond.default", c.f(2, 4))
    flat = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=F64)
    c("linalg_matrix_rank.default", c.f(2, 3, 3), 0.1)
    c("linalg_matrix_rank.atol_rtol_float", torch.stack([flat, flat + torch.eye(2, dtype=F64)]))
    c("linalg_matrix_rank.atol_rtol_float", flat, atol=6.0)
    c("linalg_matrix_rank.atol_rtol_tensor", torch.stack([flat, flat]), atol=torch.tensor([0.1, 9.0], dtype=F64))
    c("linalg_matrix_rank.tol_tensor", flat, torch.tensor(0.1, dtype=F64))
