#pragma once

#include <ATen/ATen.h>

namespace at_npu {
namespace native {

struct OpCommand {
    static void RunOpApi(const std::string &name, std::function<int()> call, bool sync = false);
};

} // namespace native
} // namespace at_npu
