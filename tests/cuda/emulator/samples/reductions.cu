// Sums of rows in the usual ways, and the same with the mistakes that are usual.
#include "emulation.h"

namespace samples {

__device__ __forceinline__ float warp_sum(float value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

enum class Mistake { kNone, kNoBarrier, kNoSecondBarrier, kTail, kDivergentBarrier, kEarlyExit, kMask, kIndex };

template <Mistake kMistake>
__device__ void row_sums(float *out, const float *x, int width) {
    __shared__ float partial[8];
    __shared__ float total;
    const int thread = threadIdx.x;
    const float *row = x + blockIdx.x * width;
    if (kMistake == Mistake::kEarlyExit && thread >= width) return;
    float sum = 0.0f;
    for (int i = thread; i < width + (kMistake == Mistake::kTail ? 1 : 0); i += blockDim.x) sum += row[i];
    sum = kMistake == Mistake::kMask && thread % 32 == 31 ? sum : warp_sum(sum);
    if (thread % 32 == 0) partial[thread / 32 + (kMistake == Mistake::kIndex ? 4 : 0)] = sum;
    if (kMistake == Mistake::kDivergentBarrier) {
        if (thread < 32) __syncthreads();
    } else if (kMistake != Mistake::kNoBarrier) {
        __syncthreads();
    }
    if (thread == 0) {
        total = 0.0f;
        for (int i = 0; i < blockDim.x / 32; ++i) total += partial[i];
    }
    if (kMistake != Mistake::kNoSecondBarrier) __syncthreads();
    if (thread == blockDim.x - 1) out[blockIdx.x] = total;
}

}  // namespace samples

#define ROW_SUMS(name, mistake)                                                                       \
    extern "C" __global__ void __launch_bounds__(256) name(float *out, const float *x, int width) {   \
        samples::row_sums<samples::Mistake::mistake>(out, x, width);                                  \
    }
ROW_SUMS(row_sums, kNone)
ROW_SUMS(no_barrier, kNoBarrier)
ROW_SUMS(no_second_barrier, kNoSecondBarrier)
ROW_SUMS(tail, kTail)
ROW_SUMS(divergent_barrier, kDivergentBarrier)
ROW_SUMS(early_exit, kEarlyExit)
ROW_SUMS(mask, kMask)
ROW_SUMS(index_beyond, kIndex)

extern "C" __global__ void vector_copy(float *out, const float *x) {
    reinterpret_cast<float4 *>(out)[threadIdx.x] = reinterpret_cast<const float4 *>(x)[threadIdx.x];
}

extern "C" __global__ void write_before(float *out) { out[-1] = 1.0f; }

extern "C" __global__ void count_by_atomics(int *counts, const int *values, int size) {
    __shared__ int local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < size) atomicAdd(&local[values[i]], 1);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

// Neighbours exchange through shared memory, with and without what makes that right.
template <bool kIsOrdered>
__device__ void exchange_neighbours(int *out) {
    __shared__ int values[32];
    values[threadIdx.x] = threadIdx.x;
    if (kIsOrdered) __syncwarp();
    const int other = values[threadIdx.x ^ 1];
    out[threadIdx.x] = other;
}

extern "C" __global__ void exchange(int *out) { exchange_neighbours<true>(out); }
extern "C" __global__ void exchange_unordered(int *out) { exchange_neighbours<false>(out); }

extern "C" __global__ void votes(unsigned *out, const int *x) {
    const int lane = threadIdx.x;
    out[lane] = __ballot_sync(0xffffffffu, x[lane]);
    out[32 + lane] = __any_sync(0xffffffffu, x[lane] > 2) + 2 * __all_sync(0xffffffffu, x[lane] >= 0);
    out[64 + lane] = __shfl_up_sync(0xffffffffu, lane, 3, 8);
    out[96 + lane] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
    out[128 + lane] = __shfl_sync(0xffffffffu, lane, 9, 16);
    out[160 + lane] = __syncthreads_count(x[lane] > 0);
    out[192 + lane] = __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(lane) << 40, 5) >> 40;
}

extern "C" __global__ void round_halves(__half *halves, __nv_bfloat16 *bfloats, float *back, const float *x, int size) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    halves[i] = __float2half_rn(x[i]);
    bfloats[i] = __float2bfloat16_rn(x[i]);
    back[i] = __half2float(halves[i]);
    back[size + i] = __bfloat162float(bfloats[i]);
}
