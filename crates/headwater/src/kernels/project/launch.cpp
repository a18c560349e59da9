// Loading and launching by ACL, the C interface of CANN's runtime. Its functions are looked up by name, because
// versions differ in what they have: the project needs no header and no library of CANN's.

#include "launch.h"

#include "kernels.h"

#include <c10/core/DeviceGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <dlfcn.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

namespace headwater {
namespace {

// aclrtBinaryLoadOption: the option LAZY_MAGIC says which cores a binary is for.
struct LoadOption {
    uint32_t kind;
    uint32_t value[4];
};
constexpr uint32_t LAZY_MAGIC = 2;

// aclrtBinaryLoadOptions
struct LoadOptions {
    LoadOption *first;
    size_t count;
};

// Functions of ACL. A function that the installed version lacks is null.
struct Acl {
    // CANN 8.1 and later: binaries from files, arguments in a list.
    int (*load_file)(const char *path, LoadOptions *options, void **binary);
    int (*list_begin)(void *function, void **list);
    int (*list_append)(void *list, void *value, size_t bytes, void **entry);
    int (*list_end)(void *list);
    int (*launch_list)(void *function, uint32_t blocks, void *stream, void *config, void *list, void *reserved);
    // CANN 8.0: binaries from memory, arguments in device memory.
    void *(*describe)(const void *data, size_t bytes);
    int (*load_described)(void *described, void **binary);
    int (*launch_block)(void *function, uint32_t blocks, const void *arguments, size_t bytes, void *stream);
    // Both.
    int (*function_of)(void *binary, const char *name, void **function);
    const char *(*last_message)();

    bool lists() const
    {
        return load_file && list_begin && list_append && list_end && launch_list && function_of;
    }

    bool blocks() const
    {
        return describe && load_described && launch_block && function_of;
    }

    void check(const char *call, const char *kernel, int status) const
    {
        const char *text = status == 0 || last_message == nullptr ? nullptr : last_message();
        TORCH_CHECK(status == 0, call, " failed with ", status, " for the kernel ", kernel, ": ",
                    text == nullptr ? "" : text);
    }
};

template <typename F> void look_up(void *library, const char *name, F *&function)
{
    function = reinterpret_cast<F *>(dlsym(library, name));
}

Acl open_acl()
{
    // torch_npu has loaded it already; this gives the same library.
    void *library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_LOCAL);
    TORCH_CHECK(library != nullptr, "libascendcl.so is not found: source CANN's set_env.sh (", dlerror(), ")");
    Acl acl{};
    look_up(library, "aclrtBinaryLoadFromFile", acl.load_file);
    look_up(library, "aclrtKernelArgsInit", acl.list_begin);
    look_up(library, "aclrtKernelArgsAppend", acl.list_append);
    look_up(library, "aclrtKernelArgsFinalize", acl.list_end);
    look_up(library, "aclrtLaunchKernelWithConfig", acl.launch_list);
    look_up(library, "aclrtCreateBinary", acl.describe);
    look_up(library, "aclrtBinaryLoad", acl.load_described);
    look_up(library, "aclrtLaunchKernel", acl.launch_block);
    look_up(library, "aclrtBinaryGetFunction", acl.function_of);
    look_up(library, "aclGetRecentErrMsg", acl.last_message);
    TORCH_CHECK(acl.lists() || acl.blocks(),
                "libascendcl.so has no function that launches a kernel; CANN 8.0 or later is needed");
    return acl;
}

const Acl &acl()
{
    static const Acl functions = open_acl();
    return functions;
}

// The folder that this library lies in.
std::string folder()
{
    Dl_info info{};
    const bool found = dladdr(reinterpret_cast<const void *>(&open_acl), &info) != 0 && info.dli_fname != nullptr;
    TORCH_CHECK(found, "the folder of the kernels is not found");
    const std::string path = info.dli_fname;
    return path.substr(0, path.find_last_of('/'));
}

// Loads a kernel onto the current device. Binaries stay loaded as long as the process.
void *load(const Kernel &kernel)
{
    const std::string path = folder() + "/kernels/" + kernel.name + ".o";
    void *binary = nullptr;
    if (acl().lists()) {
        LoadOption option{LAZY_MAGIC, {MAGIC, 0, 0, 0}};
        LoadOptions options{&option, 1};
        acl().check("aclrtBinaryLoadFromFile", kernel.name, acl().load_file(path.c_str(), &options, &binary));
    } else {
        std::ifstream file(path, std::ios::binary);
        // ACL goes on reading the bytes, so they are never freed.
        auto *bytes = new std::string(std::istreambuf_iterator<char>(file), {});
        TORCH_CHECK(!bytes->empty(), path, " cannot be read");
        void *described = acl().describe(bytes->data(), bytes->size());
        TORCH_CHECK(described != nullptr, "aclrtCreateBinary refused ", path);
        acl().check("aclrtBinaryLoad", kernel.name, acl().load_described(described, &binary));
    }
    void *function = nullptr;
    acl().check("aclrtBinaryGetFunction", kernel.name, acl().function_of(binary, kernel.name, &function));
    return function;
}

// The kernel on the current device, loaded when it is first needed.
void *loaded(const Kernel &kernel, c10::DeviceIndex device)
{
    static std::mutex mutex;
    static std::map<std::pair<const char *, c10::DeviceIndex>, void *> functions;
    const std::lock_guard<std::mutex> lock(mutex);
    void *&function = functions[{kernel.name, device}];
    if (function == nullptr) {
        function = load(kernel);
    }
    return function;
}

// A dtype as Python calls it.
const char *dtype_name(at::ScalarType dtype)
{
    switch (dtype) {
    case at::ScalarType::Half:
        return "float16";
    case at::ScalarType::Float:
        return "float32";
    case at::ScalarType::Int:
        return "int32";
    case at::ScalarType::Long:
        return "int64";
    default:
        return c10::toString(dtype);
    }
}

std::string described(at::ScalarType dtype, at::ScalarType index, const std::array<int64_t, 3> &shape)
{
    std::ostringstream text;
    text << dtype_name(dtype);
    if (index != at::ScalarType::Undefined) {
        text << " by " << dtype_name(index);
    }
    for (size_t i = 0; i < SIZES; i++) {
        text << (i == 0 ? ' ' : 'x') << shape[i];
    }
    return text.str();
}

} // namespace

const Kernel &find(const char *operation, const Kernel *first, size_t count, at::ScalarType dtype, at::ScalarType index,
                   const std::array<int64_t, 3> &shape)
{
    std::string built;
    for (const Kernel *kernel = first; kernel != first + count; kernel++) {
        if (kernel->dtype == dtype && kernel->index == index && kernel->shape == shape) {
            return *kernel;
        }
        built += (built.empty() ? "" : ", ") + described(kernel->dtype, kernel->index, kernel->shape);
    }
    std::ostringstream sizes;
    for (size_t i = 0; i < SIZES; i++) {
        sizes << (i == 0 ? "" : "x") << shape[i];
    }
    TORCH_CHECK(false, operation, ": no kernel is built for ", described(dtype, index, shape), " (", MEANING,
                "). Built are: ", built, ". This writes the project with one shape more, to be built anew: ", COMMAND,
                " --shape ", sizes.str(), " --project --out DIR");
}

at::Tensor readable(const at::Tensor &tensor, int64_t bytes)
{
    const at::Tensor whole = tensor.contiguous();
    const auto size = static_cast<int64_t>(whole.element_size());
    const int64_t room = static_cast<int64_t>(whole.storage().nbytes()) - whole.storage_offset() * size;
    if (room >= bytes) {
        return whole;
    }
    at::Tensor wider = at::empty({bytes / size}, whole.options());
    wider.narrow(0, 0, whole.numel()).copy_(whole.view({whole.numel()}));
    return wider;
}

at::Tensor writable(const at::Tensor &like, at::IntArrayRef sizes, at::ScalarType dtype, int64_t bytes)
{
    const at::Tensor exact = at::empty(sizes, like.options().dtype(dtype));
    const auto size = static_cast<int64_t>(exact.element_size());
    if (exact.numel() * size >= bytes) {
        return exact;
    }
    // The part in front of a longer tensor, not tracked as a view of it.
    const at::AutoDispatchBelowADInplaceOrView untracked;
    return at::empty({bytes / size}, exact.options()).narrow(0, 0, exact.numel()).view(sizes);
}

void launch(const Kernel &kernel, const std::vector<at::Tensor> &operands)
{
    const c10::DeviceGuard guard(operands.front().device());
    void *const function = loaded(kernel, operands.front().device().index());
    void *const stream = c10_npu::getCurrentNPUStream().stream(false);
    const uint32_t blocks = kernel.blocks;
    std::function<int()> call;
    if (acl().lists()) {
        // torch_npu calls this on a thread of its own, behind what was queued before. The list is that thread's.
        call = [operands, function, stream, blocks]() -> int {
            void *list = nullptr;
            int status = acl().list_begin(function, &list);
            for (const at::Tensor &operand : operands) {
                void *address = operand.data_ptr();
                void *entry = nullptr;
                status = status != 0 ? status : acl().list_append(list, &address, sizeof(address), &entry);
            }
            status = status != 0 ? status : acl().list_end(list);
            return status != 0 ? status : acl().launch_list(function, blocks, stream, nullptr, list, nullptr);
        };
    } else {
        std::vector<int64_t> addresses;
        for (const at::Tensor &operand : operands) {
            addresses.push_back(reinterpret_cast<int64_t>(operand.data_ptr()));
        }
        const at::Tensor block = at::tensor(addresses, at::kLong).to(operands.front().device());
        call = [operands, block, function, stream, blocks]() -> int {
            return acl().launch_block(function, blocks, block.data_ptr(), operands.size() * sizeof(int64_t), stream);
        };
    }
    at_npu::native::OpCommand::RunOpApi(kernel.name, call);
}

} // namespace headwater
