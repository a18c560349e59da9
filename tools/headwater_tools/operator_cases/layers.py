"""Cases: layers of networks: convolutions, pooling, resampling, attention, recurrences, losses; random numbers."""

import torch

from .types import F64, INF


def convolutions(c):
    c("conv1d.default", c.f(2, 3, 7), c.f(4, 3, 3), c.f(4))
    c("conv1d.default", c.f(2, 4, 8), c.f(4, 1, 3), None, [1], [2], [1], 4)  # depthwise
    c("conv1d.default", c.f(3, 7), c.f(2, 3, 2), c.f(2), [2], [1], [2])  # without batch
    c("conv1d.padding", c.f(1, 2, 5), c.f(3, 2, 4), None, [1], "same")  # more padding on the right
    c("conv2d.default", c.f(2, 3, 5, 6), c.f(4, 3, 3, 2), c.f(4))
    c("conv2d.default", c.f(2, 3, 6, 6), c.f(4, 3, 3, 3), None, [2, 2], [1, 1])
    c("conv2d.default", c.f(1, 4, 5, 5), c.f(6, 2, 3, 3), c.f(6), [1, 2], [2, 1], [2, 1], 2)
    c("conv2d.default", c.f(2, 4, 5, 5), c.f(8, 1, 3, 3), c.f(8), [1], [1], [1], 4)  # depthwise, two outputs a channel
    c("conv2d.default", c.f(2, 3, 4, 4), c.f(5, 3, 1, 1), c.f(5))
    c("conv2d.default", c.f(1, 3, 8, 8), c.f(5, 3, 4, 4), c.f(5), [4, 4])  # patches
    c("conv2d.default", c.f(1, 2, 5, 5), c.f(3, 2, 2, 2), None, [3, 3])  # the last rows and columns are not read
    c("conv2d.default", c.f(3, 5, 5), c.f(2, 3, 3, 3), c.f(2))
    c("conv2d.default", c.f(0, 3, 5, 5), c.f(2, 3, 3, 3), c.f(2))
    for padding in ("same", "valid"):
        c("conv2d.padding", c.f(1, 2, 5, 6), c.f(3, 2, 2, 3), c.f(3), [1, 1], padding)
        c("conv2d.padding", c.f(1, 2, 6, 6), c.f(2, 1, 3, 3), None, [1, 1], padding, [2, 1], 2)
    c("conv3d.default", c.f(1, 2, 3, 4, 4), c.f(3, 2, 2, 3, 2), c.f(3), [1, 2, 1], [1, 0, 1])
    c("conv_transpose1d.default", c.f(2, 3, 4), c.f(3, 2, 3), c.f(2), [2], [1], [1])
    c("conv_transpose2d.input", c.f(1, 4, 3, 3), c.f(4, 2, 3, 3), c.f(4), [2, 2], [1, 1], [1, 1], 2, [1, 2])
    c("conv_transpose2d.input", c.f(1, 2, 3, 3), c.f(2, 3, 2, 2), None, [2, 2])
    c("convolution.default", c.f(2, 3, 5, 5), c.f(4, 3, 3, 3), c.f(4), [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    c("convolution.default", c.f(1, 4, 3, 3), c.f(4, 2, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    c("convolution.default", c.f(1, 4, 6), c.f(4, 2, 3), c.f(4), [1], [1], [2], False, [0], 2)


def volumes(c):
    for name in ("max_pool3d.default", "max_pool3d_with_indices.default"):
        c(name, c.d(1, 2, 2, 4, 6), [2, 2, 3])
        c(name, c.d(2, 4, 5, 5), [3, 3, 2], [2, 1, 2], [1, 1, 0])
        c(name, c.d(1, 1, 6, 5, 5), [2, 2, 2], [1, 2, 1], [1, 0, 1], [3, 2, 2])
        c(name, c.d(1, 2, 5, 3, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], True)
    c("avg_pool3d.default", c.f(1, 2, 4, 4, 3), [2, 2, 2])
    c("avg_pool3d.default", c.f(2, 5, 4, 4), [3, 3, 2], [2, 1, 2], [1, 1, 0])
    c("avg_pool3d.default", c.f(1, 1, 5, 4, 4), [3, 2, 3], [2, 2, 2], [1, 1, 1], False, False)  # padding is not counted
    c("avg_pool3d.default", c.f(1, 1, 5, 6, 4), [2, 3, 3], [2, 2, 2], [1, 0, 1], True, True)
    c("avg_pool3d.default", c.f(1, 1, 3, 4, 4), [2, 2, 2], [1, 2, 2], [0, 0, 0], True, True, 5)
    for size in ([1, 1, 1], [3, 2, 2], [2, 5, 3]):
        c("adaptive_avg_pool3d.default", c.f(1, 2, 4, 5, 3), size)
    c("_adaptive_avg_pool3d.default", c.f(1, 2, 3, 4, 5), [2, 3, 2])


def pooling(c):
    for name in ("max_pool2d.default", "max_pool2d_with_indices.default"):
        c(name, c.d(2, 2, 4, 6), [2, 2])
        c(name, c.d(1, 2, 5, 5), [3, 3], [2, 2], [1, 1])
        c(name, c.d(1, 1, 5, 5), [2, 2], [2, 2], [0, 0], [1, 1], True)  # ceil_mode
        c(name, c.d(1, 1, 6, 6), [2, 3], [1, 2], [1, 0], [2, 1])
        c(name, torch.zeros(1, 1, 3, 3, dtype=F64), [2, 2], [1, 1])  # the first of equals takes the gradient
        c(name, c.d(2, 4, 4), [2, 2])
    c("max_pool1d.default", c.d(2, 3, 7), [3], [2], [1])
    c("avg_pool2d.default", c.f(2, 2, 4, 6), [2, 2])
    c("avg_pool2d.default", c.f(1, 2, 5, 5), [3, 3], [2, 2], [1, 1])
    c("avg_pool2d.default", c.f(1, 2, 5, 5), [3, 3], [2, 2], [1, 1], False, False)  # padding is not counted
    c("avg_pool2d.default", c.f(1, 1, 6, 6), [3, 3], [2, 2], [1, 1], True, True)
    c("avg_pool2d.default", c.f(1, 1, 5, 5), [2, 2], [2, 2], [0, 0], True, True, 3)
    c("avg_pool1d.default", c.f(2, 3, 7), [3], [2], [1])
    for size in ([1, 1], [2, 3], [3, 2]):  # windows overlap when the sizes do not divide
        c("adaptive_avg_pool2d.default", c.f(2, 2, 4, 5), size)
    c("_adaptive_avg_pool2d.default", c.f(1, 2, 4, 5), [2, 2])
    c("adaptive_avg_pool1d.default", c.f(2, 3, 7), [3])
    c("adaptive_avg_pool1d.default", c.f(2, 3, 4), [1])
    c("adaptive_max_pool2d.default", c.d(1, 2, 5, 5), [2, 3])
    c("upsample_nearest2d.vec", c.f(1, 2, 3, 4), None, [2.0, 2.0])
    c("upsample_nearest2d.vec", c.f(1, 2, 3, 4), [5, 3], None)
    c("upsample_nearest2d.default", c.f(1, 2, 3, 4), [5, 7])
    c("upsample_nearest1d.vec", c.f(1, 2, 5), None, [2.0])
    for corners in (False, True):
        c("upsample_bilinear2d.vec", c.f(1, 2, 3, 4), [5, 7], corners, None)
        c("upsample_bilinear2d.vec", c.f(1, 1, 6, 4), [3, 2], corners, None)
        c("upsample_bilinear2d.vec", c.f(1, 1, 3, 3), None, corners, [2.0, 1.5])
        c("upsample_bilinear2d.default", c.f(1, 1, 3, 3), [1, 4], corners)
        c("upsample_bicubic2d.vec", c.f(1, 1, 4, 4), [6, 3], corners, None)


def losses(c):
    targets = torch.tensor([0, 2, -100, 1])
    for reduction in (0, 1, 2):
        c("cross_entropy_loss.default", c.f(4, 3), torch.tensor([0, 2, 1, 1]), None, reduction)
        c("cross_entropy_loss.default", c.f(4, 3), targets, c.fixed(c.u(0.5, 2, 3)), reduction, -100, 0.1)
        c("cross_entropy_loss.default", c.f(4, 3), torch.softmax(c.f(4, 3), 1), None, reduction)
        c("nll_loss_nd.default", c.f(4, 3), targets, None, reduction)
        c("nll_loss.default", c.f(4, 3), targets, c.fixed(c.u(0.5, 2, 3)), reduction)
        c("nll_loss_forward.default", c.f(4, 3), targets, None, reduction, -100)
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            c(f"{name}.default", c.f(2, 3), c.f(2, 3), reduction)
        c("binary_cross_entropy_with_logits.default", 3 * c.f(2, 3), c.u(0, 1, 2, 3), None, None, reduction)
        c("binary_cross_entropy.default", c.u(0.05, 0.95, 2, 3), c.u(0, 1, 2, 3), None, reduction)
        c("kl_div.default", torch.log_softmax(c.f(2, 3), 1), torch.softmax(c.f(2, 3), 1), reduction)
    c("cross_entropy_loss.default", c.f(4, 3), targets)
    c("cross_entropy_loss.default", c.f(2, 3, 4), c.i(3, 2, 4))  # classes are dimension 1
    c("cross_entropy_loss.default", c.f(2, 3, 2, 2), c.i(3, 2, 2, 2), None, 1, 1)
    c("cross_entropy_loss.default", c.f(3), torch.tensor(2))
    c("cross_entropy_loss.default", c.f(4, 3), torch.softmax(c.f(4, 3), 1), c.u(0.5, 2, 3), 1, -100, 0.2)
    c("cross_entropy_loss.default", c.f(4, 3), torch.full((4,), -100))  # nothing is left: 0 / 0
    c("cross_entropy_loss.default", torch.tensor([[1000.0, -1000.0, 0.0]], dtype=F64), torch.tensor([2]))
    c("nll_loss_nd.default", c.f(2, 3, 4), c.i(3, 2, 4))
    c("smooth_l1_loss.default", c.f(6), c.f(6), 1, 0.5)
    c("huber_loss.default", c.f(6), c.f(6), 1, 0.5)
    c("mse_loss.default", torch.zeros(0, 2, dtype=F64), torch.zeros(0, 2, dtype=F64), 2)
    c("binary_cross_entropy_with_logits.default", c.f(2, 3), c.u(0, 1, 2, 3), c.fixed(c.u(0.5, 2, 3)), c.fixed(c.u(0.5, 2, 3)))
    extreme = torch.tensor([-800.0, 800.0], dtype=F64)
    c("binary_cross_entropy_with_logits.default", extreme, torch.tensor([1.0, 0.0], dtype=F64))
    c("kl_div.default", torch.log_softmax(c.f(2, 3), 1), torch.log_softmax(c.f(2, 3), 1), 1, log_target=True)


def attention(c):
    name = "scaled_dot_product_attention.default"

    def qkv(batch=(2, 2), queries=3, keys=4, width=4, values=4, key_batch=None):
        key_batch = key_batch or batch
        return c.f(*batch, queries, width), c.f(*key_batch, keys, width), c.f(*key_batch, keys, values)

    c(name, *qkv())
    c(name, *qkv(batch=(2,), values=3))
    c(name, *qkv(batch=()))
    c(name, *qkv(keys=3), None, 0.0, True)
    c(name, *qkv(queries=3, keys=5), None, 0.0, True)  # the causal mask is aligned at the upper left
    c(name, *qkv(queries=5, keys=3), None, 0.0, True)
    c(name, *qkv(), c.f(2, 2, 3, 4))
    c(name, *qkv(), c.f(3, 4))
    c(name, *qkv(), torch.tensor([[True, False, True, True]] * 3))
    c(name, *qkv(), torch.tensor([True, False, True, True]).view(1, 1, 1, 4).expand(2, 1, 3, 4))
    c(name, *qkv(), torch.tensor([[True] * 4, [False] * 4, [True, False, True, False]]))  # a query that sees nothing
    c(name, *qkv(), None, 0.0, False, scale=0.3)
    c(name, *qkv(batch=(2, 4), key_batch=(2, 2)), None, 0.0, False, enable_gqa=True)
    c(name, *qkv(batch=(1, 4), key_batch=(1, 1), keys=3), None, 0.0, True, scale=1.0, enable_gqa=True)
    c(name, *qkv(queries=1, keys=1))


def recurrent(c):
    def parameters(gates, inputs, hidden, layers, directions, biases):
        for layer in range(layers):
            for _ in range(directions):
                yield c.f(gates * hidden, inputs if layer == 0 else hidden * directions)
                yield c.f(gates * hidden, hidden)
                yield from (c.f(gates * hidden) for _ in range(2 * biases))

    for name, gates in ("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1):
        for layers, directions, biases, batch_first, train in (
            (1, 1, True, False, True),
            (2, 1, True, True, True),
            (1, 2, False, False, True),
            (2, 2, True, True, False),
        ):
            steps, batch, inputs, hidden = 4, 3, 5, 2
            states = [c.f(layers * directions, batch, hidden) for _ in range(2 if name == "lstm" else 1)]
            weights = list(parameters(gates, inputs, hidden, layers, directions, biases))
            x = c.f(batch, steps, inputs) if batch_first else c.f(steps, batch, inputs)
            state = states if name == "lstm" else states[0]
            dropout = 0.0 if train else 0.3  # random numbers differ, so that dropout is active in no case
            c(f"{name}.input", x, state, weights, biases, layers, dropout, train, directions == 2, batch_first)
        one = list(parameters(gates, 3, 4, 1, 1, True))
        states = [c.f(1, 2, 4) for _ in range(2 if name == "lstm" else 1)]
        c(f"{name}.input", c.f(1, 2, 3), states if name == "lstm" else states[0], one, True, 1, 0.0, True, False, False)
        states = [c.f(3, 2) for _ in range(2 if name == "lstm" else 1)]
        state = states if name == "lstm" else states[0]
        w = (c.f(2 * gates, 4), c.f(2 * gates, 2))
        c(f"{name}_cell.default", c.f(3, 4), state, *w, c.f(2 * gates), c.f(2 * gates))
        c(f"{name}_cell.default", c.f(3, 4), state, *w)


def sampling(c):
    for name in ("grid_sampler.default", "grid_sampler_2d.default"):
        for padding in range(3):
            for corners in (False, True):
                c(name, c.f(2, 2, 3, 4), c.u(-1.6, 1.6, 2, 3, 2, 2), 0, padding, corners)
    edges = torch.tensor([-3.5, -1.0, -0.5, 0.0, 0.5, 1.0, 3.5], dtype=F64)  # borders and pixels' centres exactly
    edges = torch.stack(torch.meshgrid(edges, edges, indexing="xy"), -1)[None]
    for padding in range(3):
        for corners in (False, True):
            c("grid_sampler_2d.default", c.f(1, 1, 3, 3), c.fixed(edges), 0, padding, corners)
            c("grid_sampler_2d.default", c.f(1, 2, 3, 4), c.fixed(c.u(-1.6, 1.6, 1, 2, 3, 2)), 1, padding, corners)
            c("grid_sampler_3d.default", c.f(1, 2, 2, 3, 4), c.u(-1.6, 1.6, 1, 2, 1, 3, 3), 0, padding, corners)
            c("grid_sampler_3d.default", c.f(1, 1, 2, 3, 4), c.fixed(c.u(-1.6, 1.6, 1, 2, 2, 2, 3)), 1, padding, corners)
    for padding in (1, 2):  # a place at the border gets no gradient
        c("grid_sampler_2d.default", c.f(1, 1, 3, 3), edges[:, ::6, ::6], 0, padding, True)


def margins(c):
    signs = torch.tensor([1, -1, -1, 1])
    for reduction in (0, 1, 2):
        c("cosine_embedding_loss.default", c.f(4, 3), c.f(4, 3), signs, -0.5, reduction)
        c("hinge_embedding_loss.default", c.d(4, 3), signs.view(4, 1), 1.3, reduction)
        c("margin_ranking_loss.default", c.d(4), c.d(4), signs, 0.3, reduction)
        c("soft_margin_loss.default", 5 * c.f(4, 3), c.fixed(signs.view(4, 1).double()), reduction)
        c("multi_margin_loss.default", c.d(4, 3), torch.tensor([0, 2, 1, 1]), 1, 1.1, None, reduction)
        for full in (False, True):
            c("poisson_nll_loss.default", c.f(2, 3), c.fixed(c.i(6, 2, 3).double()), True, full, 1e-8, reduction)
            c("poisson_nll_loss.default", c.u(0.1, 3, 2, 3), c.fixed(c.i(6, 2, 3).double()), False, full, 1e-8, reduction)
    c("cosine_embedding_loss.default", c.f(3), c.f(3), torch.tensor(1))
    c("cosine_embedding_loss.default", torch.zeros(2, 3, dtype=F64), c.f(2, 3), torch.tensor([1, -1]), -0.5)
    c("multi_margin_loss.default", c.d(4, 3), torch.tensor([0, 2, 1, 1]), 2, 1.1, c.fixed(c.u(0.5, 2, 3)))
    c("multi_margin_loss.default", c.d(3), torch.tensor(2))
    for p in (2.0, 1.0, 3.0, INF):
        c("pairwise_distance.default", c.f(4, 3), c.f(4, 3), p)
        c("dist.default", c.f(4, 3), c.f(3), p)
    c("pairwise_distance.default", c.f(4, 1, 3), c.f(2, 3), 2.0, 0.0, True)


def geometry(c):
    c("cross.default", c.f(2, 3), c.f(2, 3))
    c("cross.default", c.f(3, 2, 3), c.f(3, 1, 3))  # the first dimension of size 3
    c("linalg_cross.default", c.f(2, 1, 3), c.f(1, 4, 3))
    c("linalg_cross.default", c.f(3, 2), c.f(3, 2), dim=0)
    c("tensordot.default", c.f(2, 3, 4), c.f(4, 3, 5), [1, 2], [1, 0])
    c("tensordot.default", c.f(2, 3), c.f(1, 2), [1], [0])
    c("tensordot.default", c.f(2), c.f(3), [], [])
    c("inner.default", c.f(2, 3), c.f(2, 4, 3))
    c("inner.default", c.f(3), c.f(3))
    c("inner.default", c.f(), c.f(2, 3))
    c("linalg_matmul.default", c.f(2, 3), c.f(3, 4))
    for corners in (False, True):
        c("affine_grid_generator.default", c.f(2, 2, 3), [2, 1, 3, 4], corners)
        c("affine_grid_generator.default", c.f(1, 2, 3), [1, 3, 1, 2], corners)
        c("affine_grid_generator.default", c.f(2, 3, 4), [2, 1, 2, 3, 4], corners)
    for offset in (0, 2, -1):
        c("diag_embed.default", c.f(2, 3), offset)
        c("diag_embed.default", c.f(2, 3), offset, 2, 0)
        c("diag.default", c.f(3), offset)
        c("diag.default", c.f(3, 4), offset)
    c("hypot.default", c.f(2, 3), c.f(3))
    c("hypot.default", torch.tensor([3e200, 0.0, INF], dtype=F64), c.fixed(torch.tensor([4e200, 2.0, 1.0], dtype=F64)))
    c("deg2rad.default", c.f(3))
    c("rad2deg.default", c.f(3))
    c("sinc.default", c.f(3, 4))
    c("sinc.default", torch.tensor([0.0, 1e-9, 1.0, -2.5], dtype=F64))


def volumes_resampled(c):
    for name in ("upsample_nearest3d", "_upsample_nearest_exact3d"):
        c(f"{name}.vec", c.f(1, 2, 2, 3, 4), None, [2.0, 2.0, 1.5])
        c(f"{name}.vec", c.f(1, 2, 2, 3, 4), [5, 2, 7], None)
        c(f"{name}.default", c.f(2, 1, 3, 2, 2), [2, 5, 3])
    for corners in (False, True):
        c("upsample_trilinear3d.vec", c.f(1, 2, 2, 3, 4), [3, 5, 2], corners, None)
        c("upsample_trilinear3d.vec", c.f(1, 1, 3, 2, 3), None, corners, [2.0, 1.5, 1.0])
        c("upsample_trilinear3d.default", c.f(1, 1, 2, 3, 3), [1, 4, 6], corners)
