// rope_table: float32 [cos(p · f) · scale | sin(p · f) · scale] of every position p and frequency f, once per step.

#include "common/dependent_launch.cuh"
#include "common/types.cuh"

namespace aether {

// float32 represents positions up to here exactly, and models are trained with float32 products.
constexpr int64_t kMaxFloat32Position = int64_t{1} << 24;

// Range reduction is in float64: the angles of large positions exceed float32 precision.
__device__ __forceinline__ void write_angles(float* table, const int64_t* positions, const float* inv_freq,
                                             int num_frequencies, float scale) {
  const int64_t position = positions[blockIdx.x];
  float* row = table + static_cast<int64_t>(blockIdx.x) * 2 * num_frequencies;
  const bool is_exact_in_float32 = position <= kMaxFloat32Position && position >= -kMaxFloat32Position;
  for (int i = static_cast<int>(threadIdx.x); i < num_frequencies; i += static_cast<int>(blockDim.x)) {
    const double angle = is_exact_in_float32 ? static_cast<double>(__fmul_rn(static_cast<float>(position), inv_freq[i]))
                                             : static_cast<double>(position) * static_cast<double>(inv_freq[i]);
    row[i] = static_cast<float>(cos(angle)) * scale;
    row[num_frequencies + i] = static_cast<float>(sin(angle)) * scale;
  }
}

}  // namespace aether

extern "C" __global__ void rope_table(float* table, const int64_t* positions, const float* inv_freq,
                                      int num_frequencies, float scale) {
  aether::begin_kernel();
  aether::write_angles(table, positions, inv_freq, num_frequencies, scale);
}
