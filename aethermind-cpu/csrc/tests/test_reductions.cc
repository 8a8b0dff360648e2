// Tests of softmax, layer_norm, alibi, transpose and permute_heads.
#include <algorithm>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

const std::vector<std::vector<int64_t>> kShapes = {{0, 8},     {1, 1},   {1, 15},   {3, 16}, {2, 17}, {7, 100},
                                                   {5, 3, 33}, {2, 896}, {1, 5000}, {40, 3}, {9000}};

using Row = std::vector<double>;

Row row_of(const Tensor& x, int64_t r, int64_t size) {
  Row row;
  for (int64_t i = r * size; i < (r + 1) * size; ++i) row.push_back(x.get(i));
  return row;
}

double sum(const Row& row) {
  double total = 0.0;
  for (double value : row) total += value;
  return total;
}
double mean(const Row& row) { return sum(row) / static_cast<double>(row.size()); }
double max_of(const Row& row) { return *std::max_element(row.begin(), row.end()); }

void test_softmax(const KernelEntry& entry) {
  for (const auto& shape : kShapes) {
    const int64_t size = shape.back();
    const Tensor x = random(entry.dtype, shape, 1, 4.0), out(entry.dtype, shape, 3);
    if (size > 1) {
      for (int64_t i = 0; i < x.size(); i += 5) {
        if (i % size > 0) x.set(i, -INFINITY);  // keeps the first value of a row finite
      }
    }
    run_with_teams(entry, {x.abi()}, {out}, {}, "");
    for (int64_t r = 0; r < x.size() / size; ++r) {
      const Row row = row_of(x, r, size);
      const double row_max = max_of(row);
      double total = 0.0;
      for (double value : row) total += std::exp(value - row_max);
      for (int64_t i = 0; i < size; ++i) {
        const double want = std::exp(row[static_cast<size_t>(i)] - row_max) / total;
        // relative tolerance of 3e-6
        check_close(out.get(r * size + i), want, 0.3 * want, entry.dtype, entry, "softmax");
      }
    }
    const Tensor expected(entry.dtype, shape);
    std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
    run(*entry.kernel, {x.abi()}, {x.abi()}, {}, 2);
    check(std::memcmp(x.bytes(), expected.bytes(), x.num_bytes()) == 0, entry, "in place");
  }
}

void test_layer_norm(const KernelEntry& entry) {
  for (const auto& shape : kShapes) {
    for (bool has_bias : {false, true}) {
      const int64_t size = shape.back();
      const Tensor x = random(entry.dtype, shape, 1), weight = random(entry.dtype, {size}, 2),
                   bias = has_bias ? random(entry.dtype, {size}, 3) : Tensor(), out(entry.dtype, shape, 1);
      x.fill([&](int64_t i) { return x.get(i) + 5.0; });
      run_with_teams(entry, {x.abi(), weight.abi(), bias.abi()}, {out}, {attr(1e-5)}, "");
      for (int64_t r = 0; r < x.size() / size; ++r) {
        const Row row = row_of(x, r, size);
        const double row_mean = mean(row);
        double variance = 0.0;
        for (double value : row) variance += (value - row_mean) * (value - row_mean) / static_cast<double>(size);
        const double factor = 1.0 / std::sqrt(variance + 1e-5);
        for (int64_t i = 0; i < size; ++i) {
          const double value = row[static_cast<size_t>(i)], bias_value = has_bias ? bias.get(i) : 0.0;
          const double magnitude = (std::fabs(value) + std::fabs(row_mean)) * factor * std::fabs(weight.get(i));
          check_close(out.get(r * size + i), (value - row_mean) * factor * weight.get(i) + bias_value,
                      magnitude + std::fabs(bias_value), entry.dtype, entry, "layer_norm");
        }
      }
      const Tensor expected(entry.dtype, shape);
      std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
      run(*entry.kernel, {x.abi(), weight.abi(), bias.abi()}, {x.abi()}, {attr(1e-5)}, 2);
      check(std::memcmp(x.bytes(), expected.bytes(), x.num_bytes()) == 0, entry, "in place");
    }
  }
}

void test_alibi(const KernelEntry& entry) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {1, 1, 1}, {4, 3, 7}, {3, 1, 33}, {2, 0, 5}, {2, 3, 17, 19}, {2, 5, 4, 100}, {2, 9, 4}}) {
    const size_t n = shape.size();
    const int64_t heads = shape[n - 3], queries = shape[n - 2], keys = shape[n - 1];
    const Tensor scores = random(entry.dtype, shape, 1), slopes = random(AM_FLOAT32, {heads}, 1),
                 out(entry.dtype, shape, 3);
    run_with_teams(entry, {scores.abi(), slopes.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < scores.size(); ++i) {
      const int64_t distance = i % keys - (i / keys % queries + keys - queries);
      const double bias = slopes.get(i / (keys * queries) % heads) * static_cast<double>(distance);
      check_close(out.get(i), scores.get(i) + bias, std::fabs(scores.get(i)) + std::fabs(bias), entry.dtype, entry,
                  "alibi");
    }
  }
}

void test_transpose(const KernelEntry& entry) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {3, 7}, {1, 33}, {33, 1}, {0, 8}, {70, 33}, {32, 64}, {2, 3, 17}, {2, 0, 3, 4}}) {
    const size_t n = shape.size();
    std::vector<int64_t> out_shape = shape;
    std::swap(out_shape[n - 2], out_shape[n - 1]);
    const int64_t rows = shape[n - 2], columns = shape[n - 1];
    const Tensor x = random(entry.dtype, shape, 1), out(entry.dtype, out_shape, 3);
    run_with_teams(entry, {x.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
      check(out.get(matrix * rows * columns + column * rows + row) == x.get(i), entry, "transpose");
    }
  }
}

void test_permute_heads(const KernelEntry& entry) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3, 2, 8}, {1, 7, 64}, {0, 4, 16}, {5, 1, 7}, {2, 5, 3, 9}}) {
    const size_t n = shape.size();
    std::vector<int64_t> out_shape = shape;
    std::swap(out_shape[n - 3], out_shape[n - 2]);
    const int64_t tokens = shape[n - 3], heads = shape[n - 2], size = shape[n - 1];
    const Tensor x = random(entry.dtype, shape, 1), out(entry.dtype, out_shape, 3);
    run_with_teams(entry, {x.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t matrix = i / (tokens * heads * size), token = i / (heads * size) % tokens, head = i / size % heads;
      check(out.get(((matrix * heads + head) * tokens + token) * size + i % size) == x.get(i), entry, "permute_heads");
    }
  }
}

}  // namespace

int main() {
  for_each_kernel("softmax", test_softmax);
  for_each_kernel("layer_norm", test_layer_norm);
  for_each_kernel("alibi", test_alibi);
  for_each_kernel("transpose", test_transpose);
  for_each_kernel("permute_heads", test_permute_heads);
  return report();
}
