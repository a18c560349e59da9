// A stand-in for torch_npu's header: what an extension of a project uses, over the stand-in for CANN.
#pragma once

#include <c10/core/Device.h>

namespace c10_npu {

struct NPUStream {
    void *handle;
    void *stream(bool) const { return handle; }
};
NPUStream getCurrentNPUStream(c10::DeviceIndex index = -1);

} // namespace c10_npu
