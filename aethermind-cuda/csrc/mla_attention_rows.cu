// mla_attention of any sizes, and in float32: a block computes one row of q. Its warps take keys in turn, each with an
// online softmax of its own in float32, which are merged at the end.

#include "common/attention_call.cuh"
#include "common/dependent_launch.cuh"
#include "common/memory.cuh"
#include "common/reduce.cuh"

namespace aether {

constexpr int kLatentRowWarps = 4;

// Dynamic shared memory: float32 [key_dim] of the query, then [warps, value_dim] of sums.
template <class T>
__device__ __forceinline__ void attend_latent_row(const AttentionCall& call, int value_dim) {
  constexpr float kMinusInfinity = -__builtin_huge_valf();
  AETHER_DYNAMIC_SHARED(float, query);
  __shared__ float bases[kLatentRowWarps], weights[kLatentRowWarps];
  const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int lane = lane_index(), warp = warp_index();
  if (token < call.cu_seqlens_q[0] || token >= call.cu_seqlens_q[call.num_sequences]) return;
  const Queries queries = Queries::of_token(call, token);
  const PagedRows rows = call.rows(queries.sequence, head / call.group);
  const int64_t row = static_cast<int64_t>(token) * call.num_heads + head;
  const T* const q = static_cast<const T*>(call.q) + row * call.head_dim;
  for (int dim = static_cast<int>(threadIdx.x); dim < call.head_dim; dim += static_cast<int>(blockDim.x)) {
    query[dim] = to_float(q[dim]);
  }
  float* const all_sums = query + call.head_dim;
  float* const sums = all_sums + warp * value_dim;
  for (int dim = lane; dim < value_dim; dim += kWarpSize) sums[dim] = 0.0f;
  __syncthreads();
  float base = kMinusInfinity, weight = 0.0f;
  for (int key = warp; key <= queries.first_position; key += kLatentRowWarps) {
    const T* const cached = static_cast<const T*>(call.k_cache) + rows(key) * call.head_dim;
    float score = 0.0f;
    for (int dim = lane; dim < call.head_dim; dim += kWarpSize) score += query[dim] * to_float(cached[dim]);
    score = warp_reduce<Sum>(score) * call.scale * kLog2E;
    const float larger = fmaxf(base, score);
    const float factor = exp2f(base - larger), own = exp2f(score - larger);
    base = larger;
    weight = weight * factor + own;
    for (int dim = lane; dim < value_dim; dim += kWarpSize)
      sums[dim] = sums[dim] * factor + own * to_float(cached[dim]);
  }
  if (lane == 0) {
    bases[warp] = base;
    weights[warp] = weight;
  }
  __syncthreads();
  float largest = kMinusInfinity, total = 0.0f, factors[kLatentRowWarps];
#pragma unroll
  for (int other = 0; other < kLatentRowWarps; ++other) largest = fmaxf(largest, bases[other]);
#pragma unroll
  for (int other = 0; other < kLatentRowWarps; ++other) {
    factors[other] = exp2f(bases[other] - largest);  // 0 for a warp without keys
    total += factors[other] * weights[other];
  }
  T* const out = static_cast<T*>(call.out) + row * value_dim;
  for (int dim = static_cast<int>(threadIdx.x); dim < value_dim; dim += static_cast<int>(blockDim.x)) {
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < kLatentRowWarps; ++other) sum += factors[other] * all_sums[other * value_dim + dim];
    out[dim] = from_float<T>(sum / total);
  }
}

}  // namespace aether

#define AETHER_LATENT_ROWS(dtype)                                             \
  extern "C" __global__ void __launch_bounds__(128)                           \
      mla_attention_rows_##dtype(aether::AttentionCall call, int value_dim) { \
    aether::begin_kernel();                                                   \
    aether::attend_latent_row<aether::dtype>(call, value_dim);                \
  }
AETHER_FOR_EACH_FLOAT(AETHER_LATENT_ROWS)
