// Kernels of float32 by the native ABI, written out plainly so that each line can be broken.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "aethermind/kernel_abi.h"

namespace {

using Tensors = const am_tensor*;
using Attrs = const am_attr*;
using Team = const am_team*;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float* floats(const am_tensor& tensor) { return static_cast<float*>(tensor.data); }
const int32_t* ints(const am_tensor& tensor) { return static_cast<const int32_t*>(tensor.data); }

int64_t count(const am_tensor& tensor, int from = 0, int to = AM_MAX_DIMS) {
  int64_t product = 1;
  for (int dim = from; dim < std::min<int>(tensor.ndim, to); ++dim) product *= tensor.shape[dim];
  return product;
}

int64_t columns(const am_tensor& tensor) { return tensor.shape[tensor.ndim - 1]; }
int64_t rows(const am_tensor& tensor) { return count(tensor, 0, tensor.ndim - 1); }

// This worker's even share of `total`.
int64_t first_of(int64_t total, Team team) { return total * team->worker / team->num_workers; }
int64_t end_of(int64_t total, Team team) { return total * (team->worker + 1) / team->num_workers; }

void add(Tensors in, Tensors out, Attrs, Team team) {
  const float *a = floats(in[0]), *b = floats(in[1]);
  const int64_t total = count(out[0]);
  for (int64_t i = first_of(total, team); i < end_of(total, team); ++i) floats(out[0])[i] = a[i] + b[i];
}

void mul(Tensors in, Tensors out, Attrs, Team team) {
  const float *a = floats(in[0]), *b = floats(in[1]);
  const int64_t total = count(out[0]);
  for (int64_t i = first_of(total, team); i < end_of(total, team); ++i) floats(out[0])[i] = a[i] * b[i];
}

void silu(Tensors in, Tensors out, Attrs, Team team) {
  const float* x = floats(in[0]);
  const int64_t total = count(out[0]);
  for (int64_t i = first_of(total, team); i < end_of(total, team); ++i) {
    floats(out[0])[i] = x[i] / (1 + std::exp(-x[i]));
  }
}

void rms_norm(Tensors in, Tensors out, Attrs attrs, Team team) {
  const int64_t num_rows = rows(in[0]), width = columns(in[0]);
  for (int64_t row = first_of(num_rows, team); row < end_of(num_rows, team); ++row) {
    const float* x = floats(in[0]) + row * width;
    float squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
    const float factor = 1 / std::sqrt(squares / width + static_cast<float>(attrs[0].f));
    for (int64_t i = 0; i < width; ++i) floats(out[0])[row * width + i] = x[i] * factor * floats(in[1])[i];
  }
}

void softmax(Tensors in, Tensors out, Attrs, Team team) {
  const int64_t num_rows = rows(in[0]), width = columns(in[0]);
  for (int64_t row = first_of(num_rows, team); row < end_of(num_rows, team); ++row) {
    const float* x = floats(in[0]) + row * width;
    float* y = floats(out[0]) + row * width;
    float largest = -kInfinity, sum = 0;
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, x[i]);
    for (int64_t i = 0; i < width; ++i) sum += y[i] = std::exp(x[i] - largest);
    for (int64_t i = 0; i < width; ++i) y[i] /= sum;
  }
}

// Every worker finds the largest of its columns; the first one compares what they found.
void argmax(Tensors in, Tensors out, Attrs, Team team) {
  const int64_t num_rows = rows(in[0]), width = columns(in[0]);
  int64_t* found = static_cast<int64_t*>(team->scratch);
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* x = floats(in[0]) + row * width;
    int64_t best = first_of(width, team);
    for (int64_t i = best; i < end_of(width, team); ++i) {
      if (x[i] > x[best]) best = i;
    }
    found[row] = best;
  }
  team->barrier(team);
  if (team->worker != 0) return;
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* x = floats(in[0]) + row * width;
    int64_t best = 0;
    for (int worker = 0; worker < team->num_workers; ++worker) {
      const int64_t other = static_cast<const int64_t*>(team->scratch_of(team, worker))[row];
      if (other < width && x[other] > x[best]) best = other;
    }
    static_cast<int32_t*>(out[0].data)[row] = static_cast<int32_t>(best);
  }
}

size_t argmax_scratch(Tensors in, Tensors, Attrs, int32_t) { return rows(in[0]) * sizeof(int64_t); }

float dot(const float* a, const float* b, int64_t n) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  float sum = 0;
  for (float one : sums) sum += one;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Workers take tiles of 32 outputs in turn.
void product(Tensors in, Tensors out, const float* bias, Team team) {
  const int64_t num_rows = in[0].shape[0], width = in[0].shape[1], num_outputs = in[1].shape[0];
  const int64_t num_tiles = (num_outputs + 31) / 32;
  for (int64_t tile = team->claim(team); tile < num_tiles; tile = team->claim(team)) {
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t n = tile * 32; n < std::min(num_outputs, tile * 32 + 32); ++n) {
        const float sum = dot(floats(in[0]) + row * width, floats(in[1]) + n * width, width);
        floats(out[0])[row * num_outputs + n] = sum + (bias ? bias[n] : 0);
      }
    }
  }
}

void linear(Tensors in, Tensors out, Attrs, Team team) { product(in, out, floats(in[2]), team); }
void lm_head(Tensors in, Tensors out, Attrs, Team team) { product(in, out, nullptr, team); }

void gather_rows(Tensors in, Tensors out, Attrs, Team team) {
  const int64_t num_rows = out[0].shape[0], width = out[0].shape[1];
  for (int64_t row = first_of(num_rows, team); row < end_of(num_rows, team); ++row) {
    std::memcpy(floats(out[0]) + row * width, floats(in[0]) + ints(in[1])[row] * width, width * sizeof(float));
  }
}

void rope(Tensors in, Tensors out, Attrs attrs, Team team) {
  const int64_t num_tokens = in[0].shape[0], num_heads = in[0].shape[1], size = in[0].shape[2];
  const int64_t width = in[1].shape[1], half = width / 2;
  for (int64_t token = first_of(num_tokens, team); token < end_of(num_tokens, team); ++token) {
    const float* table = floats(in[1]) + token * width;
    for (int64_t head = 0; head < num_heads; ++head) {
      const float* x = floats(in[0]) + (token * num_heads + head) * size;
      float* y = floats(out[0]) + (token * num_heads + head) * size;
      for (int64_t i = 0; i < half; ++i) {
        const int64_t a = attrs[0].i ? 2 * i : i, b = attrs[0].i ? 2 * i + 1 : i + half;
        const float first = x[a], second = x[b];
        y[a] = first * table[i] - second * table[half + i];
        y[b] = second * table[i] + first * table[half + i];
      }
      for (int64_t i = width; i < size; ++i) y[i] = x[i];
    }
  }
}

void kv_cache_write(Tensors in, Tensors out, Attrs, Team team) {
  const int64_t num_tokens = in[0].shape[0], num_heads = in[0].shape[1], width = in[0].shape[2];
  const int64_t block_size = out[0].shape[2];
  const int64_t* slots = static_cast<const int64_t*>(in[2].data);
  for (int64_t token = first_of(num_tokens, team); token < end_of(num_tokens, team); ++token) {
    if (slots[token] < 0) continue;
    const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
    for (int64_t head = 0; head < num_heads; ++head) {
      const int64_t from = (token * num_heads + head) * width;
      const int64_t to = ((block * num_heads + head) * block_size + offset) * width;
      std::memcpy(floats(out[0]) + to, floats(in[0]) + from, width * sizeof(float));
      std::memcpy(floats(out[1]) + to, floats(in[1]) + from, width * sizeof(float));
    }
  }
}

// One query of one head at a time: scores in scratch, then values.
void paged_attention(Tensors in, Tensors out, Attrs attrs, Team team) {
  const int64_t num_heads = in[0].shape[1], width = in[0].shape[2];
  const int64_t num_kv_heads = in[1].shape[1], block_size = in[1].shape[2];
  const int64_t num_sequences = in[4].shape[0], table_width = in[5].shape[1];
  const float scale = static_cast<float>(attrs[0].f);
  const int64_t window = attrs[1].i;
  float* scores = static_cast<float*>(team->scratch);
  int64_t item = 0;
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    const int32_t begin = ints(in[3])[sequence], end = ints(in[3])[sequence + 1], keys = ints(in[4])[sequence];
    const int32_t* table = ints(in[5]) + sequence * table_width;
    for (int32_t query = begin; query < end; ++query) {
      const int64_t last = keys - (end - query);
      const int64_t first = window > 0 ? std::max<int64_t>(0, last - window + 1) : 0;
      for (int64_t head = 0; head < num_heads; ++head, ++item) {
        if (item % team->num_workers != team->worker) continue;
        const int64_t kv_head = head / (num_heads / num_kv_heads);
        const float* q = floats(in[0]) + (query * num_heads + head) * width;
        float* y = floats(out[0]) + (query * num_heads + head) * width;
        const auto row = [&](const am_tensor& cache, int64_t key) {
          const int64_t block = table[key / block_size];
          return floats(cache) + ((block * num_kv_heads + kv_head) * block_size + key % block_size) * width;
        };
        float largest = -kInfinity, sum = 0;
        for (int64_t key = first; key <= last; ++key) {
          scores[key - first] = dot(q, row(in[1], key), width) * scale;
          largest = std::max(largest, scores[key - first]);
        }
        std::fill_n(y, width, 0.0f);
        for (int64_t key = first; key <= last; ++key) {
          const float weight = std::exp(scores[key - first] - largest);
          sum += weight;
          for (int64_t i = 0; i < width; ++i) y[i] += weight * row(in[2], key)[i];
        }
        for (int64_t i = 0; i < width; ++i) y[i] /= sum;
      }
    }
  }
}

size_t attention_scratch(Tensors in, Tensors, Attrs, int32_t) {
  return in[5].shape[1] * in[1].shape[2] * sizeof(float);
}

void repetition_penalty(Tensors in, Tensors out, Attrs, Team team) {
  const int64_t num_rows = in[0].shape[0], width = in[0].shape[1];
  for (int64_t row = first_of(num_rows, team); row < end_of(num_rows, team); ++row) {
    float* y = floats(out[0]) + row * width;
    std::memmove(y, floats(in[0]) + row * width, width * sizeof(float));
    const float penalty = floats(in[3])[row];
    for (int32_t i = ints(in[2])[row]; i < ints(in[2])[row + 1]; ++i) {
      float& seen = y[ints(in[1])[i]];
      seen = seen > 0 ? seen / penalty : seen * penalty;
    }
  }
}

#define KERNEL(operator, inputs, outputs, attrs, scratch) \
  {AM_KERNEL_ABI_VERSION, inputs, outputs, attrs, #operator "/planted", operator, scratch}

const am_kernel kKernels[] = {
    KERNEL(add, 2, 1, 0, nullptr),
    KERNEL(mul, 2, 1, 0, nullptr),
    KERNEL(silu, 1, 1, 0, nullptr),
    KERNEL(rms_norm, 2, 1, 1, nullptr),
    KERNEL(softmax, 1, 1, 0, nullptr),
    KERNEL(argmax, 1, 1, 0, argmax_scratch),
    KERNEL(linear, 3, 1, 0, nullptr),
    KERNEL(lm_head, 2, 1, 0, nullptr),
    KERNEL(gather_rows, 2, 1, 0, nullptr),
    KERNEL(rope, 2, 1, 1, nullptr),
    KERNEL(kv_cache_write, 5, 2, 0, nullptr),
    KERNEL(paged_attention, 6, 1, 2, attention_scratch),
    KERNEL(repetition_penalty, 4, 1, 0, nullptr),
};

}  // namespace

extern "C" const am_kernel* planted_kernel(size_t index) {
  return index < sizeof(kKernels) / sizeof(kKernels[0]) ? &kKernels[index] : nullptr;
}
