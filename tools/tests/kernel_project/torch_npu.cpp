// A stand-in for libtorch_npu.so on a machine without NPU: the memory of PyTorch's CPU tensors is device
// memory of the stand-in for CANN, so an extension may pass their addresses to kernels, which the simulator
// runs.
#include "torch_npu/csrc/core/npu/NPUStream.h"
#include "torch_npu/csrc/framework/OpCommand.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <thread>

extern "C" {
int aclInit(const char *);
int aclrtSetDevice(int32_t);
int aclrtMalloc(void **, size_t, uint32_t);
int aclrtFree(void *);
int aclrtCreateStream(void **);
int aclrtSynchronizeStreamWithTimeout(void *, int32_t);
const char *aclGetRecentErrMsg();
}

namespace {

// A device is current on each thread for itself.
void enter()
{
    thread_local const int status = aclrtSetDevice(0);
    TORCH_CHECK(status == 0, "aclrtSetDevice failed with ", status);
}

void give_back(void *address)
{
    enter();
    aclrtFree(address);
}

struct DeviceAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override
    {
        void *address = nullptr;
        enter();
        const int status = bytes == 0 ? 0 : aclrtMalloc(&address, bytes, 0);
        TORCH_CHECK(status == 0, "aclrtMalloc failed with ", status, " for ", bytes, " bytes");
        return {address, address, bytes == 0 ? &c10::detail::deleteNothing : &give_back, c10::DeviceType::CPU};
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return &give_back;
    }

    void copy_data(void *to, const void *from, std::size_t bytes) const override
    {
        std::memcpy(to, from, bytes);
    }
};

void *stream()
{
    static void *const made = [] {
        void *stream = nullptr;
        enter();
        TORCH_CHECK(aclrtCreateStream(&stream) == 0, "aclrtCreateStream failed");
        return stream;
    }();
    return made;
}

const int INSTALLED = [] {
    static DeviceAllocator allocator;
    aclInit(nullptr);
    c10::SetCPUAllocator(&allocator, 255);
    return 0;
}();

} // namespace

namespace c10_npu {

NPUStream getCurrentNPUStream(c10::DeviceIndex)
{
    return {stream()};
}

} // namespace c10_npu

namespace at_npu {
namespace native {

void OpCommand::RunOpApi(const std::string &name, std::function<int()> call, bool)
{
    // On another thread, as torch_npu does; and waited for, because a CPU does not.
    std::string failure;
    std::thread([&] {
        enter();
        int status = call();
        status = status != 0 ? status : aclrtSynchronizeStreamWithTimeout(stream(), 600000);
        if (status != 0) {
            const char *text = aclGetRecentErrMsg();
            failure = std::to_string(status) + ": " + (text == nullptr ? "" : text);
        }
    }).join();
    TORCH_CHECK(failure.empty(), name, " failed with ", failure);
}

} // namespace native
} // namespace at_npu
