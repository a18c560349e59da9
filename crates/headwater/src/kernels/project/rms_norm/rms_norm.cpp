// RMS norm of rows.

#include "kernels.h"
#include "launch.h"

#include <torch/library.h>

#include <tuple>

namespace headwater {

// y and rstd; parameters of the kernel: x, weight, y, rstd.
std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor &x, const at::Tensor &weight, double eps)
{
    TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && weight.size(0) == x.size(-1), "rms_norm: weight is ",
                weight.sizes(), " and x is ", x.sizes(), "; weight must have one dimension, the last of x");
    TORCH_CHECK(weight.scalar_type() == x.scalar_type() && weight.device() == x.device(), "rms_norm: x is ",
                x.scalar_type(), " on ", x.device(), ", weight is ", weight.scalar_type(), " on ", weight.device(),
                "; both must be alike");
    TORCH_CHECK(static_cast<float>(eps) == EPS, "rms_norm: the kernels are built for eps ", EPS, ", not for ", eps,
                "; `headwater kernels --eps` builds others");
    std::vector<int64_t> rows(x.sizes().begin(), x.sizes().end());
    rows.back() = 1;
    if (x.numel() == 0) {
        return {at::empty(x.sizes(), x.options()), at::empty(rows, x.options().dtype(at::kFloat))};
    }
    const int64_t dim = x.size(-1);
    const Kernel &kernel =
        find("rms_norm", RMS_NORM, x.scalar_type(), at::ScalarType::Undefined, {x.numel() / dim, dim, 1});
    at::Tensor y = writable(x, x.sizes(), x.scalar_type(), kernel.bytes[2]);
    at::Tensor rstd = writable(x, rows, at::kFloat, kernel.bytes[3]);
    launch(kernel, {readable(x, kernel.bytes[0]), readable(weight, kernel.bytes[1]), y, rstd});
    return {y, rstd};
}

TORCH_LIBRARY_IMPL(headwater_OPERATOR, PrivateUse1, m)
{
    m.impl("rms_norm", &rms_norm);
}

} // namespace headwater
