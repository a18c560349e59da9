// Declarations of what the extension of a project uses of PyTorch and torch_npu, for checking its syntax and
// types on a machine without them. Written from their public documentation; nothing in it can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace c10 {

enum class ScalarType : int8_t { Byte, Int, Long, Half, Float, Undefined };
const char *toString(ScalarType);

using DeviceIndex = int8_t;
struct Device {
    DeviceIndex index() const;
    bool operator==(const Device &) const;
};

template <typename T> struct ArrayRef {
    ArrayRef(const std::vector<T> &);
    ArrayRef(const std::initializer_list<T> &);
    const T *begin() const;
    const T *end() const;
    bool operator==(const ArrayRef &) const;
};

struct DeviceGuard {
    explicit DeviceGuard(Device);
    ~DeviceGuard();
};

template <typename... Ts> [[noreturn]] void fail(const Ts &...);

} // namespace c10

#define TORCH_CHECK(condition, ...)                                                                                    \
    if (!(condition)) {                                                                                                \
        ::c10::fail(__VA_ARGS__);                                                                                      \
    }

namespace at {

using c10::Device;
using c10::ScalarType;
using IntArrayRef = c10::ArrayRef<int64_t>;
constexpr ScalarType kByte = ScalarType::Byte, kInt = ScalarType::Int, kLong = ScalarType::Long;
constexpr ScalarType kFloat = ScalarType::Float;

struct AutoDispatchBelowADInplaceOrView {
    AutoDispatchBelowADInplaceOrView();
    ~AutoDispatchBelowADInplaceOrView();
};

struct Scalar {
    Scalar(int64_t);
    Scalar(int);
};

struct TensorOptions {
    TensorOptions(ScalarType);
    TensorOptions dtype(ScalarType) const;
};

struct Storage {
    size_t nbytes() const;
};

struct Tensor {
    Tensor argmax() const;
    Tensor contiguous() const;
    Tensor &copy_(const Tensor &) const;
    void *data_ptr() const;
    Device device() const;
    int64_t dim() const;
    size_t element_size() const;
    Tensor &fill_(const Scalar &) const;
    Tensor gt(const Scalar &) const;
    Tensor index_select(int64_t dim, const Tensor &) const;
    Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
    int64_t numel() const;
    TensorOptions options() const;
    ScalarType scalar_type() const;
    Tensor select(int64_t dim, int64_t index) const;
    int64_t size(int64_t dim) const;
    IntArrayRef sizes() const;
    const Storage &storage() const;
    int64_t storage_offset() const;
    Tensor sum() const;
    Tensor to(Device) const;
    Tensor to(ScalarType) const;
    Tensor view(IntArrayRef) const;
    Tensor &zero_() const;
};

Tensor empty(IntArrayRef, TensorOptions);
Tensor zeros(IntArrayRef, TensorOptions);
Tensor tensor(c10::ArrayRef<int64_t>, const TensorOptions &);

} // namespace at
