// Launches of this project's kernels on torch_npu's current stream.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headwater {

// A kernel that is built: for one dtype and one shape.
struct Kernel {
    const char *name;               // its symbol; the file kernels/NAME.o beside this library holds it
    at::ScalarType dtype;           // of the elements
    at::ScalarType index;           // of the indices; Undefined where there are none
    std::array<int64_t, 3> shape;   // as in find()
    uint32_t blocks;                // cores that share the work
    std::array<int64_t, 6> bytes;   // that the memory of each operand must have, in the order of the parameters
    uint32_t launches;              // in a sequence for one dtype and shape, from this one on: they stand behind it
    int64_t workspace;              // bytes that the launches of a sequence share
    std::array<int64_t, 6> operands; // of a sequence: bytes into the workspace, or one of the names below
};

// Operands of a launch that are not in the workspace.
inline constexpr int64_t INDICES = -1, GRADIENTS = -2, TABLE = -3, REPORTS = -4;

// The kernel for a dtype and a shape, among those that are built for an operator; an error that lists them where
// there is none.
const Kernel &find(const char *operation, const Kernel *first, size_t count, at::ScalarType dtype, at::ScalarType index,
                   const std::array<int64_t, 3> &shape);

template <size_t N>
const Kernel &find(const char *operation, const Kernel (&built)[N], at::ScalarType dtype, at::ScalarType index,
                   const std::array<int64_t, 3> &shape)
{
    return find(operation, built, N, dtype, index, shape);
}

// The tensor's elements in order, in memory of which a kernel may read `bytes` bytes. A kernel for 310P reads whole
// blocks of 32 bytes, and so may reach behind the last element.
at::Tensor readable(const at::Tensor &tensor, int64_t bytes);

// A new tensor on the device of `like`, in memory of which a kernel may write `bytes` bytes.
at::Tensor writable(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType dtype, int64_t bytes);

// Queues a kernel with its operands, in the order of its parameters. They stay alive until it has been launched.
void launch(const Kernel &kernel, const std::vector<at::Tensor> &operands);

} // namespace headwater
