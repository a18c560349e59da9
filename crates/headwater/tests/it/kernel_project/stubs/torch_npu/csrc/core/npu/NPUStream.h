#pragma once

#include <ATen/ATen.h>

namespace c10_npu {

struct NPUStream {
    void *stream(bool need_empty) const;
};
NPUStream getCurrentNPUStream(c10::DeviceIndex index = -1);

} // namespace c10_npu
