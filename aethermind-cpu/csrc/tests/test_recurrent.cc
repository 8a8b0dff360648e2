// Tests of the operators of recurrent layers: causal_conv1d, gated_delta_rule, ssd_scan and gated_rms_norm, on batches
// of new and older sequences, with and without tokens.
#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

using Matrix = std::vector<double>;

struct Sequence {
  int64_t first, count, length, slot;

  bool is_new() const { return count == length; }
};

// Of five slots, those of new sequences hold NaN, and slot 1 belongs to none.
const std::vector<Sequence> kSequences = {{0, 3, 9, 4}, {3, 0, 6, 0}, {3, 5, 5, 2}, {8, 1, 4, 3}};
constexpr int64_t kTokens = 9, kSlots = 5;

std::vector<Tensor> tables() {
  return {of(AM_INT32, {0, 3, 3, 8, 9}), of(AM_INT32, {9, 6, 5, 4}), of(AM_INT32, {4, 0, 2, 3})};
}

Tensor states(std::vector<int64_t> shape) {
  shape.insert(shape.begin(), kSlots);
  Tensor state = random(AM_FLOAT32, shape, 3);
  const int64_t size = state.size() / kSlots;
  for (const Sequence& s : kSequences) {
    for (int64_t i = 0; s.is_new() && i < size; ++i) state.set(s.slot * size + i, NAN);
  }
  return state;
}

// Inputs of a call, and its outputs: results of the dtype of the kernel, and the states, changed in place.
std::vector<am_tensor> abi(const std::vector<Tensor>& tensors) {
  std::vector<am_tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.abi());
  return result;
}

Matrix initial(const Tensor& state, const Sequence& s) {
  const int64_t size = state.size() / kSlots;
  Matrix own(static_cast<size_t>(size), 0.0);
  for (int64_t i = 0; !s.is_new() && i < size; ++i) own[static_cast<size_t>(i)] = state.get(s.slot * size + i);
  return own;
}

double& at(Matrix& values, int64_t i) { return values[static_cast<size_t>(i)]; }

void check_states(const KernelEntry& entry, const Tensor& before, const Tensor& after, const Sequence& s,
                  const Matrix& want, double magnitude) {
  const int64_t size = before.size() / kSlots;
  for (int64_t i = 0; s.count > 0 && i < size; ++i) {
    check_close(after.get(s.slot * size + i), want[static_cast<size_t>(i)], magnitude, AM_FLOAT32, entry, "state");
  }
  for (const int64_t slot : {0, 1}) {  // without tokens, and of no sequence
    check(std::memcmp(after.bytes() + slot * size * 4, before.bytes() + slot * size * 4,
                      static_cast<size_t>(size) * 4) == 0,
          entry, "another state is unchanged");
  }
}

Tensor copy_of(const Tensor& tensor, std::vector<int64_t> shape) {
  Tensor copy(tensor.dtype(), std::move(shape));
  std::memcpy(copy.bytes(), tensor.bytes(), tensor.num_bytes());
  return copy;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }

void test_convolution(const KernelEntry& entry) {
  for (const int64_t channels : {1, 17, 300}) {
    for (const int64_t before : {1, 3}) {
      const Tensor x = random(entry.dtype, {kTokens, channels}, 1), w = random(entry.dtype, {before + 1, channels}, 5);
      const Tensor bias = random(entry.dtype, {channels}, 7), state = states({before, channels});
      const Tensor out(entry.dtype, {kTokens, channels}, 2), changed = copy_of(state, {kSlots, before, channels});
      const std::vector<Tensor> cuts = tables();
      run_with_teams(entry, abi({x, w, bias, changed, cuts[0], cuts[1], cuts[2]}), {out, changed}, {attr(1)}, "conv");
      if (!is_compared()) continue;
      for (const Sequence& s : kSequences) {
        Matrix window = initial(state, s);
        for (int64_t i = 0; i < s.count * channels; ++i) window.push_back(x.get(s.first * channels + i));
        for (int64_t i = 0; i < s.count * channels; ++i) {
          double total = bias.get(i % channels), magnitude = std::fabs(total);
          for (int64_t j = 0; j <= before; ++j) {
            const double term = w.get(j * channels + i % channels) * at(window, i + j * channels);
            total += term;
            magnitude += std::fabs(term);
          }
          check_close(out.get(s.first * channels + i), silu(total), 1.1 * magnitude, entry.dtype, entry, "conv");
        }
        check_states(entry, state, changed, s, Matrix(window.end() - before * channels, window.end()), 0.0);
      }
    }
  }
}

double softplus(double x) { return std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Takes up a token in a state of one head and returns the results of its columns.
Matrix take_up(double* state, int64_t depth, int64_t width, const Matrix& query, Matrix key, Matrix value, double decay,
               double beta, bool is_delta) {
  Matrix results(static_cast<size_t>(width), 0.0);
  for (int64_t e = 0; e < width; ++e) {
    double predicted = 0.0;
    for (int64_t d = 0; d < depth; ++d) predicted += at(key, d) * decay * state[d * width + e];
    const double update = is_delta ? beta * (at(value, e) - predicted) : at(value, e);
    for (int64_t d = 0; d < depth; ++d) {
      state[d * width + e] = decay * state[d * width + e] + at(key, d) * update;
      at(results, e) += query[static_cast<size_t>(d)] * state[d * width + e];
    }
  }
  return results;
}

// Both scans: rows hold vectors of two heads and one group that they share, in the operator's order.
void test_scan(const KernelEntry& entry, bool is_delta, int64_t depth, int64_t width) {
  const int64_t heads = 2, row = 2 * depth + heads * width;
  const Tensor rows = random(entry.dtype, {kTokens, row}, 1);
  const Tensor gate = random(entry.dtype, {kTokens, heads}), beta = random(entry.dtype, {kTokens, heads});
  const Tensor a_log = random(AM_FLOAT32, {heads}), bias = random(AM_FLOAT32, {heads});
  const Tensor skip = random(AM_FLOAT32, {heads}), state = states({heads, depth, width});
  const Tensor out(entry.dtype, {kTokens, heads, width}, 2), changed = copy_of(state, {kSlots, heads, depth, width});
  const std::vector<Tensor> cuts = tables();
  const double scale = 0.25, eps = 1e-6;
  if (is_delta) {
    run_with_teams(entry, abi({rows, gate, beta, a_log, bias, changed, cuts[0], cuts[1], cuts[2]}), {out, changed},
                   {attr(scale), attr(eps)}, "delta rule");
  } else {
    run_with_teams(entry, abi({rows, gate, a_log, bias, skip, changed, cuts[0], cuts[1], cuts[2]}), {out, changed},
                   {attr(0.0), attr(0.0)}, "scan");
  }
  if (!is_compared()) return;
  const int64_t queries = is_delta ? 0 : heads * width + depth, keys = is_delta ? depth : heads * width;
  for (const Sequence& s : kSequences) {
    Matrix own = initial(state, s);
    for (int64_t t = s.first; t < s.first + s.count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        Matrix query, key, value;
        double squares_of_query = eps, squares_of_key = eps;
        for (int64_t d = 0; d < depth; ++d) {
          query.push_back(rows.get(t * row + queries + d));
          key.push_back(rows.get(t * row + keys + d));
          squares_of_query += query.back() * query.back();
          squares_of_key += key.back() * key.back();
        }
        const double step = softplus(gate.get(t * heads + h) + bias.get(h));
        const int64_t values = t * row + (is_delta ? 2 * depth : 0) + h * width;
        for (int64_t e = 0; e < width; ++e) value.push_back(rows.get(values + e) * (is_delta ? 1.0 : step));
        for (int64_t d = 0; is_delta && d < depth; ++d) {
          at(query, d) *= scale / std::sqrt(squares_of_query);
          at(key, d) /= std::sqrt(squares_of_key);
        }
        const double decay = std::exp(-std::exp(a_log.get(h)) * step);
        const double strength = 1.0 / (1.0 + std::exp(-beta.get(t * heads + h)));
        const Matrix results =
            take_up(own.data() + h * depth * width, depth, width, query, key, value, decay, strength, is_delta);
        for (int64_t e = 0; e < width; ++e) {
          const int64_t i = (t * heads + h) * width + e;
          const double skipped = is_delta ? 0.0 : skip.get(h) * rows.get(values + e);
          // Terms are of order one, and a query has `depth` of them.
          check_close(out.get(i), results[static_cast<size_t>(e)] + skipped, static_cast<double>(depth), entry.dtype,
                      entry, "scan");
        }
      }
    }
    check_states(entry, state, changed, s, own, static_cast<double>(depth));
  }
}

void test_gated_norm(const KernelEntry& entry) {
  const double eps = 1e-5;
  for (const int64_t size : {1, 17, 64}) {
    for (const int groups : {1, 3}) {
      for (const int norm_before_gate : {0, 1}) {
        const std::vector<int64_t> shape = {4, groups * size};
        const Tensor x = random(entry.dtype, shape, 1), gate = random(entry.dtype, shape, 2, 3.0);
        const Tensor weight = random(entry.dtype, {groups * size}, 3), out(entry.dtype, shape, 5);
        run_with_teams(entry, abi({x, gate, weight}), {out}, {attr(eps), attr(groups), attr(norm_before_gate)}, "norm");
        for (int64_t part = 0; is_compared() && part < 4 * groups; ++part) {
          double squares = 0.0;
          for (int64_t i = part * size; i < (part + 1) * size; ++i) {
            squares += std::pow(x.get(i) * (norm_before_gate ? 1.0 : silu(gate.get(i))), 2.0);
          }
          const double factor = 1.0 / std::sqrt(squares / static_cast<double>(size) + eps);
          for (int64_t i = part * size; i < (part + 1) * size; ++i) {
            const double want = x.get(i) * silu(gate.get(i)) * factor * weight.get(i % (groups * size));
            check_close(out.get(i), want, std::fabs(want), entry.dtype, entry, "gated norm");
          }
        }
      }
    }
  }
}

}  // namespace

int main() {
  for_each_kernel("causal_conv1d", test_convolution);
  for (const bool is_delta : {true, false}) {
    for_each_kernel(is_delta ? "gated_delta_rule" : "ssd_scan", [&](const KernelEntry& entry) {
      test_scan(entry, is_delta, 5, 3);
      test_scan(entry, is_delta, 17, 70);
      test_scan(entry, is_delta, 32, 128);
    });
  }
  for_each_kernel("gated_rms_norm", test_gated_norm);
  return report();
}
