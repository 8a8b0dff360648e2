// Gathers the elements of the windows that find_windows.cu found, with many blocks a row, and sums the weights of those
// before the windows.

#include "common/dependent_launch.cuh"
#include "common/window_gather.cuh"

// ranks[rows, capacity]: the elements of the windows of every row.
extern "C" __global__ void __launch_bounds__(aether::kGatherWarps* aether::kWarpSize, 5)
    gather_windows(aether::Windows* windows, unsigned long long* ranks, const float* logits, const float* temperatures,
                   const unsigned* maxima, int size, int segment, int num_segments, int capacity) {
  aether::begin_kernel();
  __shared__ aether::FastPowers powers;
  const int64_t index = blockIdx.x;
  const aether::RowState state = windows[index].state;
  if (state != aether::RowState::kTop && state != aether::RowState::kDeep) {
    return;
  }
  const aether::Row row{logits + index * size, size};
  const aether::WindowGather gather(windows[index], ranks + index * capacity, capacity, row,
                                    maxima + index * num_segments, segment, num_segments);
  if (state == aether::RowState::kTop) {
    gather.read_top();
    return;
  }
  powers.fill();
  const aether::FastWeights softmax(powers, aether::SoftmaxScale(temperatures[index]), windows[index].largest,
                                    aether::weight_bits(size));
  gather.read_deep(softmax);
}
