// CUDA's execution model for a C++ compiler. Threads of a block are fibers of the library that loads this
// code; barriers and exchanges between lanes switch between them. hw_ld and hw_st ask it, and it checks
// bounds, unwritten bytes and races.
#pragma once
struct HwMachine {
    i32 thread;
    i64 block;
    u8* shared;
    void (*sync)(i32 line);
    u64 (*lane_xor)(u64, i32, i32 line);
    i32 (*touch)(const void*, u32 bytes, u32 unit, i32 write, i32 line);  // null where nothing is checked
};
extern "C" HwMachine* hw_machine;
#define HW_FN static inline __attribute__((always_inline))
#define HW_TABLE static const
#define HW_KERNEL(name, threads, n)                                       \
    extern "C" { i32 name##_threads = threads; i32 name##_pointers = n; } \
    extern "C" void name(const HwArgs<n>& hw_a)
#define HW_DECLARE(name) extern "C" { float name##f(float); double name(double); }
HW_DECLARE(fabs) HW_DECLARE(sqrt) HW_DECLARE(floor) HW_DECLARE(ceil) HW_DECLARE(trunc) HW_DECLARE(rint) HW_DECLARE(expm1)
HW_DECLARE(log1p) HW_DECLARE(sin) HW_DECLARE(cos) HW_DECLARE(tan) HW_DECLARE(atan) HW_DECLARE(exp) HW_DECLARE(log)
HW_DECLARE(tanh) HW_DECLARE(erf) HW_DECLARE(erfc)
#define HW_DECLARE2(name) extern "C" { float name##f(float, float); double name(double, double); }
HW_DECLARE2(fmod) HW_DECLARE2(copysign) HW_DECLARE2(pow) HW_DECLARE2(atan2)
HW_FN u8* hw_shared() { return hw_machine->shared; }
HW_FN i32 hw_thread() { return hw_machine->thread; }
HW_FN i64 hw_block() { return hw_machine->block; }
HW_FN void hw_sync(i32 line = __builtin_LINE()) { hw_machine->sync(line); }
template <class T> HW_FN T hw_ld(const T* p, i64 i, i32 line = __builtin_LINE()) {
    if (hw_machine->touch && !hw_machine->touch(p + i, sizeof(T), alignof(T), 0, line)) return T{};
    return p[i];
}
template <class T> HW_FN void hw_st(T* p, i64 i, T v, i32 line = __builtin_LINE()) {
    if (hw_machine->touch && !hw_machine->touch(p + i, sizeof(T), alignof(T), 1, line)) return;
    p[i] = v;
}
template <class T> HW_FN T hw_lane_xor(T x, i32 m, i32 line = __builtin_LINE()) {
    u64 b = 0;
    __builtin_memcpy(&b, &x, sizeof x);
    b = hw_machine->lane_xor(b, m, line);
    __builtin_memcpy(&x, &b, sizeof x);
    return x;
}
HW_FN float hw_float(u32 b) { float x; __builtin_memcpy(&x, &b, 4); return x; }
HW_FN u32 hw_bits(float x) { u32 b; __builtin_memcpy(&b, &x, 4); return b; }
HW_FN double hw_double(u64 b) { double x; __builtin_memcpy(&x, &b, 8); return x; }
HW_FN u64 hw_bits64(double x) { u64 b; __builtin_memcpy(&b, &x, 8); return b; }
HW_FN float hw_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HW_FN u16 hw_f16_bits(float x) { _Float16 h = (_Float16)x; u16 b; __builtin_memcpy(&b, &h, 2); return b; }
HW_FN float hw_from_f16(u16 b) { _Float16 h; __builtin_memcpy(&h, &b, 2); return (float)h; }
