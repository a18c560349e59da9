// Gradients of an RMS norm of rows.

#include "kernels.h"
#include "launch.h"

#include <torch/library.h>

#include <tuple>

namespace headwater {

// Gradients of x and weight, by two kernels: grad_output, x, rstd, weight, grad_x and sums over ranges of rows; then
// these sums and grad_weight.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor &grad_output, const at::Tensor &x,
                                                     const at::Tensor &rstd, const at::Tensor &weight)
{
    TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "rms_norm_backward: weight is ",
                weight.sizes(), " and x is ", x.sizes(), "; weight must have one dimension, the last of x");
    TORCH_CHECK(grad_output.sizes() == x.sizes(), "rms_norm_backward: grad_output is ", grad_output.sizes(),
                " and x is ", x.sizes(), "; both must be alike");
    for (const at::Tensor *other : {&grad_output, &weight}) {
        TORCH_CHECK(other->scalar_type() == x.scalar_type() && other->device() == x.device(),
                    "rms_norm_backward: x is ", x.scalar_type(), " on ", x.device(), ", grad_output or weight is ",
                    other->scalar_type(), " on ", other->device(), "; all must be alike");
    }
    if (x.numel() == 0) {
        return {at::empty(x.sizes(), x.options()), at::zeros(weight.sizes(), weight.options())};
    }
    const int64_t dim = x.size(-1);
    const int64_t rows = x.numel() / dim;
    TORCH_CHECK(rstd.numel() == rows && rstd.scalar_type() == at::kFloat && rstd.device() == x.device(),
                "rms_norm_backward: rstd is ", rstd.sizes(), " of ", rstd.scalar_type(), "; it must have ", rows,
                " elements of float32 on ", x.device());
    const auto none = at::ScalarType::Undefined;
    const Kernel &rowwise = find("rms_norm_backward", RMS_NORM_GRAD, x.scalar_type(), none, {rows, dim, 1});
    const Kernel &summing = find("rms_norm_backward", RMS_NORM_GRAD_GAMMA, x.scalar_type(), none, {rows, dim, 1});
    at::Tensor grad_x = writable(x, x.sizes(), x.scalar_type(), rowwise.bytes[4]);
    at::Tensor sums = at::empty({rowwise.bytes[5]}, x.options().dtype(at::kByte));
    at::Tensor grad_weight = writable(weight, weight.sizes(), weight.scalar_type(), summing.bytes[1]);
    launch(rowwise, {readable(grad_output, rowwise.bytes[0]), readable(x, rowwise.bytes[1]),
                     readable(rstd, rowwise.bytes[2]), readable(weight, rowwise.bytes[3]), grad_x, sums});
    launch(summing, {sums, grad_weight});
    return {grad_x, grad_weight};
}

TORCH_LIBRARY_IMPL(headwater_OPERATOR, PrivateUse1, m)
{
    m.impl("rms_norm_backward", &rms_norm_backward);
}

} // namespace headwater
