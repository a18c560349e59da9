// Declarations of the calls that Headwater emits, for checking the syntax and types of emitted sources on any
// machine:
//
//     g++ -std=c++17 -fsyntax-only -D__NPU_ARCH__=2201 -isystem crates/ascend/check kernel.cpp
//
// Not the vendor's header: written from the documented interface, and nothing in it can run. Names and the
// order of parameters are the interface's; what a chip does not have is not declared for it.
#pragma once

#include <cstdint>

#define __global__
#define __aicore__
#define __gm__
#define GM_ADDR uint8_t *
#define KERNEL_TASK_TYPE_DEFAULT(kind) (void)AscendC::KernelKind::kind
#define ASCEND_IS_AIV (AscendC::runs_on_vector_core())
#define ASCEND_IS_AIC (AscendC::runs_on_cube_core())

// Half precision: made from numbers explicitly only.
struct half {
    half() = default;
    template <typename T> explicit half(T);
    explicit operator float() const;
};

struct bfloat16_t {
    bfloat16_t() = default;
};

enum event_t : int {};
enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
void set_ffts_base_addr(uint64_t);
float sqrt(float);

namespace AscendC {

enum class KernelKind {
    KERNEL_TYPE_AIV_ONLY,
    KERNEL_TYPE_AIC_ONLY,
    KERNEL_TYPE_MIX_AIV_1_0,
    KERNEL_TYPE_MIX_AIC_1_2,
};
bool runs_on_vector_core();
bool runs_on_cube_core();

template <typename T, typename U> struct same { static constexpr bool value = false; };
template <typename T> struct same<T, T> { static constexpr bool value = true; };
// True if T is one of the types that follow.
template <typename T, typename... Us> constexpr bool one_of = (same<T, Us>::value || ...);
template <typename T> constexpr bool is_float = one_of<T, half, float>;
template <typename T> constexpr bool is_arithmetic = one_of<T, half, float, int16_t, int32_t>;

template <typename T> class LocalTensor {
public:
    LocalTensor operator[](uint32_t offset) const;
    template <typename U> LocalTensor<U> ReinterpretCast() const;
    T GetValue(uint32_t index) const;
    void SetValue(uint32_t index, T value) const;
};

enum class CacheMode { CACHE_MODE_DISABLE, CACHE_MODE_NORMAL };

template <typename T> class GlobalTensor {
public:
    void SetGlobalBuffer(__gm__ T *buffer, uint64_t size);
    GlobalTensor operator[](uint64_t offset) const;
    T GetValue(uint64_t index) const;
    void SetValue(uint64_t index, T value);
#if __NPU_ARCH__ == 2201
    void SetL2CacheHint(CacheMode mode);
#endif
};

enum class TPosition { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC };
template <TPosition position> class TBuf {
public:
    template <typename T> LocalTensor<T> Get() const;
};
class TPipe {
public:
    template <TPosition position> bool InitBuffer(TBuf<position> &buffer, uint32_t length);
};

int64_t GetBlockIdx();
int64_t GetBlockNum();
int64_t GetSubBlockIdx();
float ToFloat(const bfloat16_t &);
bfloat16_t ToBfloat16(const float &);

// Order within a core and between cores.
enum class HardEvent {
    MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3, M_V, V_M, V_V, MTE3_MTE1, MTE1_MTE3, MTE1_V,
    MTE2_M, M_MTE2, V_MTE1, M_FIX, FIX_M, MTE3_MTE2, MTE2_MTE3, S_V, V_S, S_MTE2, MTE2_S, S_MTE3, MTE3_S, MTE2_FIX,
    FIX_MTE2, FIX_S, M_S, FIX_MTE3, MTE1_FIX, FIX_MTE1, FIX_V, V_FIX,
};
template <HardEvent event> void SetFlag(int32_t id);
template <HardEvent event> void WaitFlag(int32_t id);
template <pipe_t pipe> void PipeBarrier();
void SyncAll(const GlobalTensor<int32_t> &workspace, const LocalTensor<int32_t> &room, int32_t cores);
#if __NPU_ARCH__ == 2201
void SyncAll();
template <uint8_t mode, pipe_t pipe> void CrossCoreSetFlag(uint16_t id);
template <uint8_t mode, pipe_t pipe> void CrossCoreWaitFlag(uint16_t id);
#endif

// Copies.
template <typename T> void SetAtomicAdd();
#if __NPU_ARCH__ == 2201
template <typename T> void SetAtomicMax();
template <typename T> void SetAtomicMin();
#endif
void SetAtomicNone();
struct DataCopyParams {
    DataCopyParams(uint16_t blockCount, uint16_t blockLen, uint16_t srcGap, uint16_t dstGap);
};
template <typename T> void DataCopy(const LocalTensor<T> &, const GlobalTensor<T> &, const DataCopyParams &);
template <typename T> void DataCopy(const GlobalTensor<T> &, const LocalTensor<T> &, const DataCopyParams &);
template <typename T> void DataCopy(const LocalTensor<T> &, const LocalTensor<T> &, const DataCopyParams &);
enum class BlockMode { BLOCK_MODE_NORMAL, BLOCK_MODE_MATRIX };
enum class CacheLine { SINGLE_CACHE_LINE, ENTIRE_DATA_CACHE };
#if __NPU_ARCH__ == 2201
enum class DcciDst { CACHELINE_ALL, CACHELINE_UB, CACHELINE_OUT };
template <typename T, CacheLine line, DcciDst destination> void DataCacheCleanAndInvalid(const GlobalTensor<T> &);
struct DataCopyExtParams {
    DataCopyExtParams(uint16_t blockCount, uint32_t blockLen, uint32_t srcStride, uint32_t dstStride, uint32_t);
};
template <typename T> struct DataCopyPadExtParams {
    DataCopyPadExtParams(bool isPad, uint8_t left, uint8_t right, T value);
};
template <typename T>
void DataCopyPad(const LocalTensor<T> &, const GlobalTensor<T> &, const DataCopyExtParams &,
                 const DataCopyPadExtParams<T> &);
template <typename T> void DataCopyPad(const GlobalTensor<T> &, const LocalTensor<T> &, const DataCopyExtParams &);
struct Nd2NzParams {
    uint16_t ndNum, nValue, dValue, srcNdMatrixStride, srcDValue, dstNzC0Stride, dstNzNStride, dstNzMatrixStride;
};
template <typename T> void DataCopy(const LocalTensor<T> &, const GlobalTensor<T> &, const Nd2NzParams &);
#else
template <typename T, CacheLine line> void DataCacheCleanAndInvalid(const GlobalTensor<T> &);
struct DataCopyEnhancedParams {
    BlockMode blockMode;
    bool isRelu;
};
template <typename T, typename U>
void DataCopy(const LocalTensor<T> &, const LocalTensor<U> &, const DataCopyParams &, const DataCopyEnhancedParams &);
#endif

// The vector unit. Each call has a form for a number of elements, one for the first of each repeat, one for
// bits.
struct UnaryRepeatParams {
    UnaryRepeatParams(uint16_t dstBlkStride, uint16_t srcBlkStride, uint8_t dstRepStride, uint8_t srcRepStride);
};
struct BinaryRepeatParams {
    BinaryRepeatParams(uint8_t dstBlk, uint8_t src0Blk, uint8_t src1Blk, uint8_t dstRep, uint8_t src0Rep,
                       uint8_t src1Rep);
};

#define UNARY(name, types)                                                                                            \
    template <typename T> void name(const LocalTensor<T> &, const LocalTensor<T> &, const int32_t &)                  \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, uint64_t mask, uint8_t, const UnaryRepeatParams &)      \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, uint64_t mask[], uint8_t, const UnaryRepeatParams &)    \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }
#define BINARY(name, types)                                                                                           \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<T> &, const int32_t &)                \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<T> &, uint64_t mask, uint8_t,         \
              const BinaryRepeatParams &)                                                                             \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<T> &, uint64_t mask[], uint8_t,       \
              const BinaryRepeatParams &)                                                                             \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }
#define SCALED(name, types)                                                                                           \
    template <typename T> void name(const LocalTensor<T> &, const LocalTensor<T> &, const T &, const int32_t &)       \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, const T &, uint64_t mask, uint8_t,                      \
              const UnaryRepeatParams &)                                                                              \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }                                                                                                                 \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, const T &, uint64_t mask[], uint8_t,                    \
              const UnaryRepeatParams &)                                                                              \
    {                                                                                                                 \
        static_assert(types<T>);                                                                                      \
    }

template <typename T> constexpr bool is_16_bits = one_of<T, int16_t, uint16_t>;
template <typename T> constexpr bool can_shift = one_of<T, int16_t, uint16_t, int32_t, uint32_t>;
template <typename T> constexpr bool can_relu = one_of<T, half, float, int32_t>;
UNARY(Abs, is_float)
UNARY(Exp, is_float)
UNARY(Ln, is_float)
UNARY(Sqrt, is_float)
UNARY(Rsqrt, is_float)
UNARY(Reciprocal, is_float)
UNARY(Relu, can_relu)
UNARY(Not, is_16_bits)
BINARY(Add, is_arithmetic)
BINARY(Sub, is_arithmetic)
BINARY(Mul, is_arithmetic)
BINARY(Max, is_arithmetic)
BINARY(Min, is_arithmetic)
BINARY(Div, is_float)
BINARY(MulAddDst, is_float)
BINARY(And, is_16_bits)
BINARY(Or, is_16_bits)
SCALED(Adds, is_arithmetic)
SCALED(Muls, is_arithmetic)
SCALED(Maxs, is_arithmetic)
SCALED(Mins, is_arithmetic)
SCALED(LeakyRelu, is_float)
#if __NPU_ARCH__ == 2201
SCALED(ShiftLeft, can_shift)
SCALED(ShiftRight, can_shift)
#endif
#undef UNARY
#undef BINARY
#undef SCALED

// T is U, or float where U is half.
template <typename T, typename U>
void Axpy(const LocalTensor<T> &, const LocalTensor<U> &, const U &, const int32_t &);
template <typename T, typename U>
void Axpy(const LocalTensor<T> &, const LocalTensor<U> &, const U &, uint64_t mask, uint8_t, const UnaryRepeatParams &);
template <typename T, typename U>
void Axpy(const LocalTensor<T> &, const LocalTensor<U> &, const U &, uint64_t mask[], uint8_t,
          const UnaryRepeatParams &);

template <typename T> void Duplicate(const LocalTensor<T> &, const T &, const int32_t &);
template <typename T> void Duplicate(const LocalTensor<T> &, const T &, uint64_t mask, uint8_t, uint16_t, uint8_t);
template <typename T> void Duplicate(const LocalTensor<T> &, const T &, uint64_t mask[], uint8_t, uint16_t, uint8_t);

enum class RoundMode { CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };
void SetDeqScale(half scale);
template <typename T, typename U> void Cast(const LocalTensor<T> &, const LocalTensor<U> &, const RoundMode &, uint32_t);
template <typename T, typename U>
void Cast(const LocalTensor<T> &, const LocalTensor<U> &, const RoundMode &, uint64_t mask, uint8_t,
          const UnaryRepeatParams &);
template <typename T, typename U>
void Cast(const LocalTensor<T> &, const LocalTensor<U> &, const RoundMode &, uint64_t mask[], uint8_t,
          const UnaryRepeatParams &);

enum class CMPMODE { LT, GT, EQ, LE, GE, NE };
template <typename T>
void Compare(const LocalTensor<uint8_t> &, const LocalTensor<T> &, const LocalTensor<T> &, CMPMODE, uint32_t);
template <typename T>
void Compare(const LocalTensor<uint8_t> &, const LocalTensor<T> &, const LocalTensor<T> &, CMPMODE, uint64_t mask,
             uint8_t, const BinaryRepeatParams &);
template <typename T>
void CompareScalar(const LocalTensor<uint8_t> &, const LocalTensor<T> &, const T, CMPMODE, uint32_t);
template <typename T>
void CompareScalar(const LocalTensor<uint8_t> &, const LocalTensor<T> &, const T, CMPMODE, uint64_t mask, uint8_t,
                   const UnaryRepeatParams &);
enum class SELMODE { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
#define SELECT(other)                                                                                                 \
    template <typename T>                                                                                             \
    void Select(const LocalTensor<T> &, const LocalTensor<uint8_t> &, const LocalTensor<T> &, other, SELMODE,         \
                uint32_t);                                                                                            \
    template <typename T>                                                                                             \
    void Select(const LocalTensor<T> &, const LocalTensor<uint8_t> &, const LocalTensor<T> &, other, SELMODE,         \
                uint64_t mask, uint8_t, const BinaryRepeatParams &);                                                  \
    template <typename T>                                                                                             \
    void Select(const LocalTensor<T> &, const LocalTensor<uint8_t> &, const LocalTensor<T> &, other, SELMODE,         \
                uint64_t mask[], uint8_t, const BinaryRepeatParams &);
SELECT(const LocalTensor<T> &)
SELECT(T)
#undef SELECT

enum class ReduceOrder { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
#define REDUCE(name, first, second, ...)                                                                              \
    template <typename T>                                                                                             \
    void name(const LocalTensor<T> &, const LocalTensor<T> &, first, second, int32_t dstRepStride,                    \
              int32_t srcBlkStride, int32_t srcRepStride __VA_ARGS__)                                                 \
    {                                                                                                                 \
        static_assert(is_float<T>);                                                                                   \
    }
#define WHOLE(name, ...)                                                                                              \
    REDUCE(name, int32_t mask, int32_t repeat, __VA_ARGS__)                                                           \
    REDUCE(name, uint64_t mask[], int32_t repeat, __VA_ARGS__)
#define BLOCK(name)                                                                                                   \
    REDUCE(name, int32_t repeat, int32_t mask)                                                                        \
    REDUCE(name, int32_t repeat, uint64_t mask[])
WHOLE(WholeReduceSum)
WHOLE(WholeReduceMax, , ReduceOrder order)
WHOLE(WholeReduceMin, , ReduceOrder order)
BLOCK(BlockReduceSum)
BLOCK(BlockReduceMax)
BLOCK(BlockReduceMin)
BLOCK(PairReduceSum)
#undef REDUCE
#undef WHOLE
#undef BLOCK

template <typename T>
void Gather(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<uint32_t> &, uint32_t base, uint32_t);
struct GatherMaskParams {
    GatherMaskParams(uint8_t src0BlockStride, uint16_t repeatTimes, uint16_t src0RepeatStride, uint8_t);
};
template <typename T>
void GatherMask(const LocalTensor<T> &, const LocalTensor<T> &, uint8_t pattern, bool, uint32_t mask,
                const GatherMaskParams &, uint64_t &count);
struct BrcbRepeatParams {
    BrcbRepeatParams(uint16_t dstBlkStride, uint16_t dstRepStride);
};
template <typename T> void Brcb(const LocalTensor<T> &, const LocalTensor<T> &, uint8_t, const BrcbRepeatParams &);
template <typename T> void CreateVecIndex(LocalTensor<T>, const T &first, uint32_t count);
template <typename T> void Transpose(const LocalTensor<T> &, const LocalTensor<T> &);
struct TransDataTo5HDParams {
    bool dstHighHalf, srcHighHalf;
    uint8_t repeatTimes;
    uint16_t dstRepStride, srcRepStride;
};
template <typename T>
void TransDataTo5HD(const LocalTensor<T> (&)[16], const LocalTensor<T> (&)[16], const TransDataTo5HDParams &);
#if __NPU_ARCH__ == 2201
template <typename T>
void Sort32(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<uint32_t> &, int32_t);
template <typename T> struct MrgSortSrcList {
    MrgSortSrcList(const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<T> &, const LocalTensor<T> &);
};
struct MrgSort4Info {
    MrgSort4Info(const uint16_t lengths[4], bool, uint16_t validBit, uint16_t repeatTimes);
};
template <typename T> void MrgSort(const LocalTensor<T> &, const MrgSortSrcList<T> &, const MrgSort4Info &);
#endif

// The cube unit.
struct LoadData2DParams {
    uint16_t startIndex;
    uint8_t repeatTimes;
    uint16_t srcStride, dstGap;
    bool ifTranspose;
};
template <typename T> void LoadData(const LocalTensor<T> &, const LocalTensor<T> &, const LoadData2DParams &);
template <typename T> void LoadData(const LocalTensor<T> &, const GlobalTensor<T> &, const LoadData2DParams &);
template <typename T> struct LoadData3DParamsV2 {
    uint8_t padList[4];
    uint16_t l1H, l1W, channelSize, kExtension, mExtension, kStartPt, mStartPt;
    uint8_t strideW, strideH, filterW, filterH, dilationFilterW, dilationFilterH;
    bool enTranspose;
    T padValue;
};
template <typename T> void LoadData(const LocalTensor<T> &, const LocalTensor<T> &, const LoadData3DParamsV2<T> &);
struct LoadData3DParamsV2Pro {
    uint16_t channelSize;
    bool enTranspose;
    uint64_t extConfig, filterConfig;
};
template <typename T> void LoadData(const LocalTensor<T> &, const LocalTensor<T> &, const LoadData3DParamsV2Pro &);
enum class FmatrixMode : uint8_t { FMATRIX_LEFT, FMATRIX_RIGHT };
void SetFmatrix(uint16_t l1H, uint16_t l1W, const uint8_t padList[4], const FmatrixMode &);
template <typename T> void SetLoadDataPaddingValue(const T);
struct MmadParams {
    uint16_t m, n, k;
    bool cmatrixInitVal;
    uint8_t unitFlag;
};
template <typename T, typename U>
void Mmad(const LocalTensor<T> &, const LocalTensor<U> &, const LocalTensor<U> &, const MmadParams &);
#if __NPU_ARCH__ == 2201
struct LoadData2dTransposeParams {
    uint16_t startIndex;
    uint8_t repeatTimes;
    uint16_t srcStride, dstGap, dstFracGap;
};
template <typename T>
void LoadDataWithTranspose(const LocalTensor<T> &, const LocalTensor<T> &, const LoadData2dTransposeParams &);
template <typename T> struct InitConstValueParams {
    uint16_t repeatTimes, blockNum, dstGap;
    T initValue;
};
template <typename T> void InitConstValue(const LocalTensor<T> &, const InitConstValueParams<T> &);
template <typename T, typename U>
void Mmad(const LocalTensor<T> &, const LocalTensor<U> &, const LocalTensor<U> &, const LocalTensor<T> &,
          const MmadParams &);
void SetHF32Mode(bool);
enum class QuantMode_t { NoQuant, F322F16, F322BF16 };
struct FixpipeParamsV220 {
    uint16_t nSize, mSize, srcStride;
    uint32_t dstStride;
    QuantMode_t quantPre;
    bool reluEn;
    uint8_t unitFlag;
};
enum FixpipeLayout { CFG_ROW_MAJOR, CFG_NZ };
template <typename T, typename U, FixpipeLayout layout>
void Fixpipe(const GlobalTensor<T> &, const LocalTensor<U> &, const FixpipeParamsV220 &);
template <typename T, typename U, FixpipeLayout layout>
void Fixpipe(const LocalTensor<T> &, const LocalTensor<U> &, const FixpipeParamsV220 &);
#endif

} // namespace AscendC
