// All that generated kernels use besides plain arithmetic. NVRTC gets the first half of the middle part; a
// C++ compiler gets simt.h in its place. Kernels touch memory only through hw_ld and hw_st, and know no other
// intrinsic than those of the middle part, so that a dialect of CUDA C is this part alone.
#pragma once
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef long long i64;
typedef unsigned long long u64;
template <int N> struct HwArgs { u8* p[N]; };
template <class T, int N> struct alignas(sizeof(T) * N) HwPack { T x[N]; };

#ifdef HW_STANDIN
#include "simt.h"
#else
#define HW_FN static __device__ __forceinline__
#define HW_TABLE static __device__ const
#define HW_KERNEL(name, threads, n) \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ HwArgs<n> hw_a)
extern __shared__ __align__(16) u8 hw_shared_bytes[];
HW_FN u8* hw_shared() { return hw_shared_bytes; }
HW_FN i32 hw_thread() { return (i32)threadIdx.x; }
HW_FN i64 hw_block() { return (i64)blockIdx.x; }
HW_FN void hw_sync() { __syncthreads(); }
template <class T> HW_FN T hw_ld(const T* p, i64 i) { return p[i]; }
template <class T> HW_FN void hw_st(T* p, i64 i, T v) { p[i] = v; }
template <class T> HW_FN T hw_lane_xor(T x, i32 m) { return __shfl_xor_sync(0xffffffffu, x, m); }
HW_FN float hw_float(u32 b) { return __uint_as_float(b); }
HW_FN u32 hw_bits(float x) { return __float_as_uint(x); }
HW_FN double hw_double(u64 b) { return __longlong_as_double((i64)b); }
HW_FN u64 hw_bits64(double x) { return (u64)__double_as_longlong(x); }
HW_FN float hw_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
HW_FN u16 hw_f16_bits(float x) { u16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
HW_FN float hw_from_f16(u16 h) { float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h)); return x; }
#endif

// Several neighbours at once.
template <class T, int N> HW_FN HwPack<T, N> hw_ldn(const T* p, i64 i) { return hw_ld((const HwPack<T, N>*)(p + i), 0); }
template <class T, int N> HW_FN void hw_stn(T* p, i64 i, HwPack<T, N> v) { hw_st((HwPack<T, N>*)(p + i), 0, v); }

// Conversions: to nearest, ties to even. A NaN of bf16 keeps its sign.
HW_FN float hw_from_bf16(u16 h) { return hw_float((u32)h << 16); }
HW_FN u16 hw_bf16_bits(float x) {
    const u32 b = hw_bits(x);
    return (u16)(x != x ? b >> 16 | 0x40u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}
// The nearest f32 towards zero with its last bit set, if x is no f32: rounding that to a narrower type rounds
// x once.
HW_FN float hw_odd(double x) {
    const float f = (float)x;
    if ((double)f == x || x != x) return f;
    const u32 b = hw_bits(f), magnitude = b & 0x7fffffffu;
    const double a = x < 0.0 ? -x : x;
    const u32 down = (double)hw_float(magnitude) > a ? magnitude - 1u : magnitude;
    return hw_float(b & 0x80000000u | down | 1u);
}
HW_FN i64 hw_int(double x) {
    return x != x ? 0 : x >= 9223372036854775808.0 ? 0x7fffffffffffffffll : x < -9223372036854775808.0 ? -0x7fffffffffffffffll - 1 : (i64)x;
}

// Functions of floats as the CPU has them. Rounding functions and remainders are exact everywhere.
#define HW_FLOATS(F, s)                                                                                     \
    HW_FN F hw_sign(F x) { return x > (F)0 ? (F)1 : x < (F)0 ? (F)-1 : (F)0; }                              \
    HW_FN F hw_abs(F x) { return fabs##s(x); }                                                              \
    HW_FN F hw_sqrt(F x) { return sqrt##s(x); }                                                             \
    HW_FN F hw_rsqrt(F x) { return (F)1 / sqrt##s(x); }                                                     \
    HW_FN F hw_recip(F x) { return (F)1 / x; }                                                              \
    HW_FN F hw_floor(F x) { return floor##s(x); }                                                           \
    HW_FN F hw_ceil(F x) { return ceil##s(x); }                                                             \
    HW_FN F hw_trunc(F x) { return trunc##s(x); }                                                           \
    HW_FN F hw_round(F x) { return rint##s(x); }                                                            \
    HW_FN F hw_fmod(F a, F b) { return fmod##s(a, b); }                                                     \
    HW_FN F hw_rem(F a, F b) { const F r = fmod##s(a, b); return r != (F)0 && (r < (F)0) != (b < (F)0) ? r + b : r; } \
    HW_FN F hw_floor_div(F a, F b) {                                                                        \
        if (b == (F)0) return a / b;                                                                        \
        const F rest = fmod##s(a, b), q = (a - rest) / b - (rest != (F)0 && (b < (F)0) != (rest < (F)0) ? (F)1 : (F)0); \
        const F down = floor##s(q);                                                                         \
        return q == (F)0 ? copysign##s((F)0, a / b) : q - down > (F)0.5 ? down + (F)1 : down;               \
    }                                                                                                       \
    HW_FN F hw_max(F a, F b) { return b > a || b != b ? b : a; }                                            \
    HW_FN F hw_min(F a, F b) { return b < a || b != b ? b : a; }                                            \
    HW_FN F hw_add(F a, F b) { return a + b; }                                                              \
    HW_FN F hw_mul(F a, F b) { return a * b; }                                                              \
    HW_FN bool hw_is_nan(F x) { return x != x; }                                                            \
    HW_FN bool hw_is_inf(F x) { return x == x && x - x != (F)0; }                                            \
    HW_FN F hw_expm1(F x) { return expm1##s(x); }                                                           \
    HW_FN F hw_log1p(F x) { return log1p##s(x); }                                                           \
    HW_FN F hw_sin(F x) { return sin##s(x); }                                                               \
    HW_FN F hw_cos(F x) { return cos##s(x); }                                                               \
    HW_FN F hw_tan(F x) { return tan##s(x); }                                                               \
    HW_FN F hw_atan(F x) { return atan##s(x); }                                                             \
    HW_FN F hw_pow(F a, F b) { return pow##s(a, b); }                                                       \
    HW_FN F hw_atan2(F a, F b) { return atan2##s(a, b); }
HW_FLOATS(float, f)
HW_FLOATS(double, )
HW_FN double hw_exp(double x) { return exp(x); }
HW_FN double hw_expnonpos(double x) { return exp(x); }
HW_FN double hw_log(double x) { return log(x); }
HW_FN double hw_tanh(double x) { return tanh(x); }
HW_FN double hw_erf(double x) { return erf(x); }
HW_FN double hw_ndtr(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
HW_FN double hw_sigmoid(double x) { const double e = exp(-fabs(x)); return x < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e); }

// Functions of integers.
HW_FN i64 hw_sign(i64 x) { return (x > 0) - (x < 0); }
HW_FN i64 hw_abs(i64 x) { return x < 0 ? (i64)(0 - (u64)x) : x; }
HW_FN i64 hw_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
HW_FN i64 hw_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
HW_FN i64 hw_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
HW_FN i64 hw_max(i64 a, i64 b) { return a > b ? a : b; }
HW_FN i64 hw_min(i64 a, i64 b) { return a < b ? a : b; }
HW_FN bool hw_lone(i64 a, i64 b) { return b == -1 && a == -0x7fffffffffffffffll - 1; }
HW_FN i64 hw_div(i64 a, i64 b) { return b == 0 || hw_lone(a, b) ? 0 : a / b; }
HW_FN i64 hw_fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
HW_FN i64 hw_rem(i64 a, i64 b) { const i64 r = hw_fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
HW_FN i64 hw_floor_div(i64 a, i64 b) { const i64 q = hw_div(a, b); return b != 0 && hw_fmod(a, b) != 0 && (a < 0) != (b < 0) ? q - 1 : q; }
HW_FN i64 hw_pow(i64 a, i64 b) {
    if (b < 0 || b > 0xffffffffll) return a == 1 ? 1 : a == -1 ? 1 - 2 * (b & 1) : 0;
    u64 y = 1, x = (u64)a;
    for (u64 n = (u64)b; n; n >>= 1, x *= x) if (n & 1) y *= x;
    return (i64)y;
}

// A reduction over the 32 lanes of a warp: the upper half is combined with the lower one until one is left.
#define HW_WARP(name, T, op) \
    HW_FN T hw_warp_##name(T x) { for (i32 m = 16; m; m >>= 1) x = op(x, hw_lane_xor(x, m)); return x; }
#define HW_WARPS(T) HW_WARP(sum, T, hw_add) HW_WARP(prod, T, hw_mul) HW_WARP(max, T, hw_max) HW_WARP(min, T, hw_min)
HW_WARPS(float)
HW_WARPS(double)
HW_WARPS(i64)
HW_FN float hw_init(i32 kind, float) { return kind == 0 ? 0.0f : kind == 1 ? 1.0f : hw_float(kind == 2 ? 0xff800000u : 0x7f800000u); }
HW_FN double hw_init(i32 kind, double) { return kind == 0 ? 0.0 : kind == 1 ? 1.0 : (double)hw_float(kind == 2 ? 0xff800000u : 0x7f800000u); }
HW_FN i64 hw_init(i32 kind, i64) { return kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? -0x7fffffffffffffffll - 1 : 0x7fffffffffffffffll; }
