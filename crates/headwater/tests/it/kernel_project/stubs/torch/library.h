#pragma once

#include <ATen/ATen.h>

namespace torch {

struct Library {
    template <typename F> Library &impl(const char *name, F function);
};

struct Registration {
    explicit Registration(void (*)(Library &));
    ~Registration();
};

} // namespace torch

#define TORCH_LIBRARY_IMPL(space, key, m)                                                                              \
    static void space##_##key(::torch::Library &);                                                                     \
    static const ::torch::Registration space##_##key##_registration(&space##_##key);                                   \
    static void space##_##key(::torch::Library &m)
