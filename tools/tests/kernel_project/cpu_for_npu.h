// Included before every source of an extension: registers for the CPU what it registers for NPUs.
#include <ATen/ATen.h>
#include <torch/library.h>
#define PrivateUse1 CPU
