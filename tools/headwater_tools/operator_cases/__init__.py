"""The cases of the operators' goldens: the arguments at which an implementation goes wrong, if it goes wrong."""

import zlib

from . import indexing, layers, linalg, movement, pointwise, reductions

# Cases of one file are in this order.
PARTS = (
    pointwise.unary, pointwise.activations, pointwise.binary, pointwise.comparisons, pointwise.selections, movement.casts,
    movement.creation, movement.views, movement.movement, indexing.indexing, indexing.ordering, reductions.reductions,
    reductions.norms, linalg.products, layers.convolutions, layers.pooling, layers.volumes, layers.losses, layers.attention,
    indexing.embedding_gradients, layers.recurrent, reductions.distances, reductions.order_statistics, linalg.matrices,
    layers.sampling, indexing.bags, linalg.fourier, layers.margins, linalg.matrix_norms, linalg.triangles, layers.geometry,
    movement.windows, layers.volumes_resampled, movement.turns, indexing.without_nan, movement.alignments, indexing.ties,
    linalg.orthogonal, pointwise.powers, reductions.variables, pointwise.special, pointwise.gammas, pointwise.small_functions,
    pointwise.divided, movement.written, linalg.factors, linalg.conditions,
)


def collect(c):
    """Adds every case to `c`, a `Cases`."""
    for part in PARTS:
        c.generator.manual_seed(zlib.crc32(part.__name__.encode()))  # a new case changes its own part's numbers only
        part(c)
