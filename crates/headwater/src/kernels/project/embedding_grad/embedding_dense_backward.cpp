// The dense gradient of an embedding's table.

#include "kernels.h"
#include "launch.h"

#include <torch/library.h>

#include <tuple>

namespace headwater {

// The gradient of the table, and the kernel's report on indices that are outside of it: 8 words of int32, their
// number, the position of the first or -1, that index as int64, then zeros. Parameters of the kernel: indices,
// grad_output, the gradient, the report.
std::tuple<at::Tensor, at::Tensor> embedding_dense_backward(const at::Tensor &grad_output, const at::Tensor &indices,
                                                            int64_t num_weights, int64_t padding_idx)
{
    TORCH_CHECK(grad_output.dim() >= 1 && grad_output.numel() == indices.numel() * grad_output.size(-1),
                "embedding_dense_backward: grad_output is ", grad_output.sizes(), " and indices are ", indices.sizes(),
                "; grad_output must have one row for each index");
    TORCH_CHECK(indices.device() == grad_output.device(), "embedding_dense_backward: grad_output is on ",
                grad_output.device(), ", indices are on ", indices.device());
    TORCH_CHECK(num_weights >= 0, "embedding_dense_backward: a table of ", num_weights, " rows");
    const int64_t dim = grad_output.size(-1);
    if (grad_output.numel() == 0 || num_weights == 0) {
        TORCH_CHECK(num_weights > 0 || indices.numel() == 0, "embedding_dense_backward: indices into no rows");
        at::Tensor report = at::zeros({8}, grad_output.options().dtype(at::kInt));
        report.narrow(0, 1, 1).fill_(-1);
        return {at::zeros({num_weights, dim}, grad_output.options()), report};
    }
    const Kernel &kernel = find("embedding_dense_backward", EMBEDDING_GRAD, grad_output.scalar_type(),
                                indices.scalar_type(), {indices.numel(), num_weights, dim});
    at::Tensor table = writable(grad_output, {num_weights, dim}, grad_output.scalar_type(), kernel.bytes[2]);
    at::Tensor report = writable(grad_output, {8}, at::kInt, kernel.bytes[3]);
    launch(kernel, {readable(indices, kernel.bytes[0]), readable(grad_output, kernel.bytes[1]), table, report});
    if (padding_idx >= 0 && padding_idx < num_weights) {
        table.narrow(0, padding_idx, 1).zero_();
    }
    return {table, report};
}

TORCH_LIBRARY_IMPL(headwater_OPERATOR, PrivateUse1, m)
{
    m.impl("embedding_dense_backward", &embedding_dense_backward);
}

} // namespace headwater
