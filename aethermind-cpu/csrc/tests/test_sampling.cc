// Tests of sample_tokens, token_logprobs and the logits processors against a full sort in float64.
#include <algorithm>
#include <numeric>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

struct Params {
  double temperature, top_k, top_p, min_p;
};

const std::vector<Params> kParams = {
    {0, 0, 1, 0},       {1, 0, 1, 0},     {0.3, 0, 1, 0},      {1, 1, 1, 0},        {1, 5, 1, 0},
    {2, 50, 1, 0},      {1, 0, 0.9, 0},   {1, 0, 0.0, 0},      {1, 0, 0.3, 0},      {1, 0, 1, 0.1},
    {1, 0, 1, 1.0},     {5, 0, 0.99, 0},  {1, 20, 0.8, 0},     {1, 20, 0.95, 0.05}, {1, 100000, 1, 0},
    {0.01, 40, 0.9, 0}, {100, 0, 0.5, 0}, {50, 300, 0.7, 0.9}, {1, 0, 0.95, 1e-9},  {3, 0, 0.9999, 0},
};

// Sampling parameters of the rows.
std::vector<std::vector<double>> columns_of_params() {
  std::vector<std::vector<double>> columns(4);
  for (const Params& p : kParams) {
    columns[0].push_back(p.temperature);
    columns[1].push_back(p.top_k);
    columns[2].push_back(p.top_p);
    columns[3].push_back(p.min_p);
  }
  return columns;
}

// The kept tokens in the order of the inverse CDF, with cumulated probability.
std::vector<std::pair<int, double>> kept_tokens(const Tensor& logits, int64_t row, const Params& params) {
  const int64_t vocab = logits.dim(1);
  double greatest = -INFINITY;
  for (int64_t i = 0; i < vocab; ++i) greatest = std::max(greatest, logits.get(row * vocab + i));
  std::vector<double> p(static_cast<size_t>(vocab));
  for (int64_t i = 0; i < vocab; ++i)
    p[static_cast<size_t>(i)] = std::exp((logits.get(row * vocab + i) - greatest) / params.temperature);
  std::vector<int> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const bool is_cut = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  if (is_cut) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)]; });
    size_t count = params.top_k > 0 ? std::min(order.size(), static_cast<size_t>(params.top_k)) : order.size();
    double mass = 0.0, sum = 0.0;
    for (size_t i = 0; i < count; ++i) mass += p[static_cast<size_t>(order[i])];
    if (params.top_p < 1) {
      size_t kept = 0;
      while (kept < count) {
        sum += p[static_cast<size_t>(order[kept++])];
        if (sum >= static_cast<double>(static_cast<float>(params.top_p)) * mass) break;
      }
      count = kept;
    }
    while (count > 1 &&
           p[static_cast<size_t>(order[count - 1])] < static_cast<double>(static_cast<float>(params.min_p)))
      --count;
    order.resize(count);
  }
  std::vector<std::pair<int, double>> kept;
  double sum = 0.0;
  for (int token : order) kept.emplace_back(token, sum += p[static_cast<size_t>(token)]);
  for (auto& item : kept) item.second /= sum;
  return kept;
}

void test_sample_tokens(const KernelEntry& entry) {
  for (int64_t vocab : {1, 3, 16, 100, 1500, 5003}) {
    const auto num_rows = static_cast<int64_t>(kParams.size());
    for (double u : {0.0, 0.07, 0.5, 0.93, 0.9999999}) {
      const Tensor logits = random(AM_FLOAT32, {num_rows, vocab}, 1, 3.0);
      for (int64_t r = 0; r < num_rows; ++r) {
        if (vocab < 3) continue;
        logits.set(r * vocab + 1, -INFINITY);
        logits.set(r * vocab + vocab - 1, logits.get(r * vocab));  // a tie
      }
      const auto columns = columns_of_params();
      const Tensor out(AM_INT32, {num_rows});
      run_with_teams(entry,
                     {logits.abi(), of(AM_FLOAT32, columns[0]).abi(), of(AM_INT32, columns[1]).abi(),
                      of(AM_FLOAT32, columns[2]).abi(), of(AM_FLOAT32, columns[3]).abi(),
                      of(AM_FLOAT32, std::vector<double>(kParams.size(), u)).abi()},
                     {out}, {}, "");
      for (int64_t r = 0; r < num_rows; ++r) {
        const Params& p = kParams[static_cast<size_t>(r)];
        const auto token = static_cast<int>(out.get(r));
        const std::string what =
            "V=" + std::to_string(vocab) + " params " + std::to_string(r) + " u=" + std::to_string(u);
        if (p.temperature == 0) {
          int best = 0;
          for (int64_t i = 0; i < vocab; ++i)
            best = logits.get(r * vocab + i) > logits.get(r * vocab + best) ? static_cast<int>(i) : best;
          check(token == best, entry, "greedy " + what);
          continue;
        }
        // The chosen token's interval must hold u, up to the rounding of float32 weights.
        const auto kept = kept_tokens(logits, r, p);
        const double uniform = static_cast<float>(u);
        double before = 0.0;
        bool is_found = false;
        for (const auto& [candidate, after] : kept) {
          if (candidate == token) is_found = before <= uniform + 1e-5 && uniform <= after + 1e-5 && after > before;
          before = after;
        }
        check(is_found, entry, what + " chose " + std::to_string(token));
      }
    }
  }
}

// A fine grid of uniforms: the frequencies equal the distribution.
void test_frequencies(const KernelEntry& entry) {
  const int64_t rows = 2000, vocab = 40;
  const Tensor logits(AM_FLOAT32, {rows, vocab}), uniform(AM_FLOAT32, {rows});
  logits.fill([&](int64_t i) { return std::sin(static_cast<double>(i % vocab) * 1.7) * 2; });
  uniform.fill([&](int64_t i) { return (static_cast<double>(i) + 0.5) / static_cast<double>(rows); });
  for (const Params& p : {Params{1, 0, 1, 0}, Params{1, 7, 1, 0}, Params{0.7, 0, 0.8, 0}}) {
    const auto all = [&](am_dtype dtype, double value) {
      return of(dtype, std::vector<double>(static_cast<size_t>(rows), value));
    };
    const Tensor out(AM_INT32, {rows});
    run(*entry.kernel,
        {logits.abi(), all(AM_FLOAT32, p.temperature).abi(), all(AM_INT32, p.top_k).abi(),
         all(AM_FLOAT32, p.top_p).abi(), all(AM_FLOAT32, p.min_p).abi(), uniform.abi()},
        {out.abi()}, {}, 2);
    std::vector<int> counts(static_cast<size_t>(vocab));
    for (int64_t r = 0; r < rows; ++r) ++counts[static_cast<size_t>(out.get(r))];
    double before = 0.0;
    for (const auto& [token, after] : kept_tokens(logits, 0, p)) {
      check(std::fabs(counts[static_cast<size_t>(token)] - (after - before) * rows) <= 2.0, entry, "frequency");
      before = after;
    }
  }
}

// With NaN logits, any token of the vocabulary is valid.
void test_no_numbers(const KernelEntry& entry) {
  const auto rows = static_cast<int64_t>(kParams.size()), vocab = int64_t{48};
  const auto columns = columns_of_params();
  for (double value : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    const Tensor logits(AM_FLOAT32, {rows, vocab}), out(AM_INT32, {rows});
    logits.fill([&](int64_t) { return value; });
    run(*entry.kernel,
        {logits.abi(), of(AM_FLOAT32, columns[0]).abi(), of(AM_INT32, columns[1]).abi(),
         of(AM_FLOAT32, columns[2]).abi(), of(AM_FLOAT32, columns[3]).abi(),
         of(AM_FLOAT32, std::vector<double>(kParams.size(), 0.5)).abi()},
        {out.abi()}, {}, 2);
    for (int64_t r = 0; r < rows; ++r) check(out.get(r) >= 0 && out.get(r) < vocab, entry, "no numbers");
  }
}

void test_token_logprobs(const KernelEntry& entry) {
  for (int64_t vocab : {1, 5, 40, 3001}) {
    for (int64_t k : {0, 1, 7, 20}) {
      const int64_t rows = 3;
      const Tensor logits(AM_FLOAT32, {rows, vocab}, 1),
          tokens = of(AM_INT32, {0, static_cast<double>(vocab / 2), static_cast<double>(vocab - 1)});
      logits.fill([](int64_t) { return std::round(normal() * 40) / 8; });  // many ties
      const Tensor logprob(AM_FLOAT32, {rows}), rank(AM_INT32, {rows}), ids(AM_INT32, {rows, k}),
          top(AM_FLOAT32, {rows, k});
      run_with_teams(entry, {logits.abi(), tokens.abi()}, {logprob, rank, ids, top}, {attr(static_cast<int>(k))}, "");
      for (int64_t r = 0; r < rows; ++r) {
        const auto logit = [&](int64_t i) { return logits.get(r * vocab + i); };
        double sum = 0.0;
        for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logit(i));
        std::vector<int> order(static_cast<size_t>(vocab));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logit(a) > logit(b); });
        const auto token = static_cast<int64_t>(tokens.get(r));
        int64_t want_rank = 1;
        for (int64_t i = 0; i < vocab; ++i) want_rank += logit(i) > logit(token) ? 1 : 0;
        check(static_cast<int64_t>(rank.get(r)) == want_rank, entry, "rank");
        check_close(logprob.get(r), logit(token) - std::log(sum), 1.0, AM_FLOAT32, entry, "logprob");
        for (int64_t i = 0; i < k; ++i) {
          const bool is_there = i < vocab;
          const int want = is_there ? order[static_cast<size_t>(i)] : -1;
          check(static_cast<int>(ids.get(r * k + i)) == want, entry, "top id");
          if (is_there) {
            check_close(top.get(r * k + i), logit(want) - std::log(sum), 1.0, AM_FLOAT32, entry, "top logprob");
          } else {
            check(top.get(r * k + i) == -INFINITY, entry, "absent top logprob");
          }
        }
      }
    }
  }
}

void test_listed_tokens(const KernelEntry& entry) {
  const bool is_penalty = std::string(entry.operator_name) == "repetition_penalty";
  const bool is_bias = std::string(entry.operator_name) == "bias_tokens";
  const int64_t vocab = 37;
  const Tensor logits = random(AM_FLOAT32, {3, vocab}, 1), out(AM_FLOAT32, {3, vocab}, 3);
  const Tensor tokens = of(AM_INT32, {0, 36, 5, 7}), cu = of(AM_INT32, {0, 2, 2, 4}),
               penalty = of(AM_FLOAT32, {1.5, 2.0, 0.5}), bias = of(AM_FLOAT32, {-1.5, 2.0, 0.5, -100.0});
  std::vector<am_tensor> inputs = {logits.abi(), tokens.abi(), cu.abi()};
  if (is_penalty) inputs.push_back(penalty.abi());
  if (is_bias) inputs.push_back(bias.abi());
  run_with_teams(entry, inputs, {out}, {}, "");
  for (int64_t i = 0; i < out.size(); ++i) {
    const int64_t r = i / vocab, token = i % vocab;
    const bool is_listed = (r == 0 && (token == 0 || token == 36)) || (r == 2 && (token == 5 || token == 7));
    const double logit = logits.get(i), p = penalty.get(r);
    const int64_t place = r == 0 ? (token == 0 ? 0 : 1) : (token == 5 ? 2 : 3);
    const double penalised = logit > 0 ? logit / p : logit * p;
    const double changed = is_penalty ? penalised : is_bias ? logit + bias.get(place) : -INFINITY;
    check(out.get(i) == static_cast<double>(static_cast<float>(is_listed ? changed : logit)), entry, "listed");
  }
  const Tensor expected(AM_FLOAT32, {3, vocab});
  std::memcpy(expected.bytes(), out.bytes(), out.num_bytes());
  run(*entry.kernel, inputs, {logits.abi()}, {}, 2);
  check(std::memcmp(logits.bytes(), expected.bytes(), expected.num_bytes()) == 0, entry, "in place");
}

void test_mask_tokens(const KernelEntry& entry) {
  for (int64_t vocab : {1, 31, 32, 33, 100}) {
    const int64_t rows = 3, words = (vocab + 31) / 32 + 1;
    const Tensor logits = random(AM_FLOAT32, {rows, vocab}, 1), out(AM_FLOAT32, {rows, vocab}, 3);
    const Tensor mask(AM_INT32, {rows, words});
    // Every token in the first row, none in the second, some in the third.
    mask.fill([&](int64_t i) { return i / words == 0 ? -1.0 : i / words == 1 ? 0.0 : -1431655766.0; });
    run_with_teams(entry, {logits.abi(), mask.abi()}, {out}, {}, "");
    for (int64_t i = 0; i < out.size(); ++i) {
      const bool is_allowed = i / vocab == 0 || (i / vocab == 2 && i % vocab % 2 == 1);
      check(out.get(i) == (is_allowed ? logits.get(i) : -INFINITY), entry, "mask");
    }
  }
}

}  // namespace

int main() {
  for_each_kernel("sample_tokens", test_sample_tokens);
  for_each_kernel("sample_tokens", test_frequencies);
  for_each_kernel("sample_tokens", test_no_numbers);
  for_each_kernel("token_logprobs", test_token_logprobs);
  for_each_kernel("suppress_tokens", test_listed_tokens);
  for_each_kernel("repetition_penalty", test_listed_tokens);
  for_each_kernel("bias_tokens", test_listed_tokens);
  for_each_kernel("mask_tokens", test_mask_tokens);
  return report();
}
