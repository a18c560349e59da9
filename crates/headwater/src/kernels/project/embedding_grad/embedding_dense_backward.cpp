// The dense gradient of an embedding's table.

#include "kernels.h"
#include "launch.h"

#include <torch/library.h>

#include <tuple>

namespace headwater {

// The most bytes that an operand must have in a sequence of launches.
int64_t room(const Kernel &first, int64_t operand)
{
    int64_t most = 0;
    for (const Kernel *kernel = &first; kernel != &first + first.launches; ++kernel) {
        for (size_t i = 0; i < kernel->bytes.size(); ++i) {
            if (kernel->operands[i] == operand && kernel->bytes[i] > most) {
                most = kernel->bytes[i];
            }
        }
    }
    return most;
}

// One report of several: the number of all wrong indices, and the first report that has some.
at::Tensor together(const at::Tensor &reports)
{
    const at::Tensor numbers = reports.select(1, 0);
    at::Tensor report = reports.index_select(0, numbers.gt(0).to(at::kFloat).argmax().view({1})).view({8});
    report.narrow(0, 0, 1).copy_(numbers.sum().view({1}));
    return report;
}

// The gradient of the table, and the report on indices that are outside of it: 8 words of int32, their number, the
// position of the first or -1, that index as int64, then zeros. The launches share a workspace.
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
    const at::Tensor index = readable(indices, room(kernel, INDICES));
    const at::Tensor gradients = readable(grad_output, room(kernel, GRADIENTS));
    const at::Tensor table =
        writable(grad_output, {num_weights, dim}, grad_output.scalar_type(), room(kernel, TABLE));
    const at::Tensor reports = writable(grad_output, {room(kernel, REPORTS) / 32, 8}, at::kInt, 0);
    const at::Tensor workspace = at::empty({kernel.workspace}, grad_output.options().dtype(at::kByte));
    for (const Kernel *step = &kernel; step != &kernel + kernel.launches; ++step) {
        std::vector<at::Tensor> operands;
        for (size_t i = 0; i < step->bytes.size() && step->bytes[i] > 0; ++i) {
            switch (step->operands[i]) {
            case INDICES: operands.push_back(index); break;
            case GRADIENTS: operands.push_back(gradients); break;
            case TABLE: operands.push_back(table); break;
            case REPORTS: operands.push_back(reports); break;
            default: operands.push_back(workspace.narrow(0, step->operands[i], step->bytes[i]));
            }
        }
        launch(*step, operands);
    }
    const at::Tensor report = together(reports);
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
