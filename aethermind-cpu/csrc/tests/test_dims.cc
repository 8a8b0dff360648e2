// Tests of the operators over any dims: sum, mean, prod, max, min, argmax, permute, expand, and broadcasting.
#include <algorithm>

#include "kernel_testing.h"

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

using Shape = std::vector<int64_t>;
using Row = std::vector<double>;

struct DimsCase {
  Shape shape;
  Shape dims;
  bool keepdim = false;
};

const std::vector<DimsCase> kReductions = {
    {{0, 8}, {-1}},          {{1, 1}, {1}},          {{1, 15}, {-1}},
    {{3, 16}, {-1}},         {{2, 17}, {1}, true},   {{7, 100}, {-1}},
    {{5, 3, 33}, {2}},       {{2, 896}, {-1}},       {{40, 3}, {-1}},
    {{9000}, {0}},           {{3, 7}, {0}},          {{5, 3, 33}, {1}, true},
    {{5, 3, 33}, {0, 2}},    {{5, 3, 33}, {0, 1}},   {{4, 5, 6, 7}, {1, -2}},
    {{4, 5, 6, 7}, {0, 2}},  {{4, 5, 6, 7}, {1, 3}}, {{2, 3, 2, 3, 2, 3}, {0, 2, 4}},
    {{3, 1, 40}, {1}},       {{600, 70}, {0}},       {{2, 300, 530}, {1}},
    {{3000, 30}, {0}, true}, {{1, 70000}, {-1}},     {{600, 3, 40}, {0, 2}},
    {{3, 150, 151}, {}},     {{2, 5000, 7}, {0, 1}}, {{0, 5}, {0}, true},
};

std::vector<int64_t> list_of(const Shape& values) {
  std::vector<int64_t> list = {static_cast<int64_t>(values.size())};
  list.insert(list.end(), values.begin(), values.end());
  return list;
}

am_attr attr(const std::vector<int64_t>& list) { return {.list = list.data()}; }

// The index of an element in every dim.
Shape index_in(const Shape& shape, int64_t element) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

// The position of an index in a tensor that is broadcast: dims are aligned at the end, and those of 1 are repeated.
int64_t element_at(const Shape& shape, const Shape& index) {
  int64_t element = 0;
  const size_t num_new = index.size() - shape.size();
  for (size_t d = 0; d < shape.size(); ++d) element = element * shape[d] + (shape[d] == 1 ? 0 : index[num_new + d]);
  return element;
}

// The elements of each result, in order.
std::vector<Row> terms_of(const Tensor& x, const DimsCase& given, Shape* out_shape) {
  std::vector<bool> is_reduced(given.shape.size(), given.dims.empty());
  for (int64_t dim : given.dims) {
    is_reduced[static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(given.shape.size()) : dim)] = true;
  }
  Shape kept = given.shape;
  int64_t count = 1;
  for (size_t d = 0; d < kept.size(); ++d) {
    if (is_reduced[d]) kept[d] = 1;
    count *= kept[d];
    if (given.keepdim || !is_reduced[d]) out_shape->push_back(kept[d]);
  }
  std::vector<Row> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < x.size(); ++i) {
    rows[static_cast<size_t>(element_at(kept, index_in(given.shape, i)))].push_back(x.get(i));
  }
  return rows;
}

double sum_of_magnitudes(const Row& row) {
  double total = 0.0;
  for (double value : row) total += std::fabs(value);
  return total;
}

// The tolerance is `relative` times the sum of magnitudes, or the result if `of_result`.
void test_reduction(const KernelEntry& entry, double (*f)(const Row&), double relative, bool of_result = false) {
  for (const DimsCase& given : kReductions) {
    const Tensor x = random(entry.dtype, given.shape, 1);
    if (of_result) x.fill([&](int64_t) { return (1.0 + 0.01 * normal()) * (normal() < 0 ? -1.0 : 1.0); });
    Shape out_shape;
    const std::vector<Row> rows = terms_of(x, given, &out_shape);
    if (x.size() == 0 && !rows.empty() && std::isnan(f({}))) continue;  // undefined
    const Tensor out(entry.dtype, out_shape, 3);
    const std::vector<int64_t> dims = list_of(given.dims);
    run_with_teams(entry, {x.abi()}, {out}, {attr(dims), testing::attr(given.keepdim ? 1 : 0)}, "reduction");
    for (size_t r = 0; is_compared() && r < rows.size(); ++r) {
      const double want = f(rows[r]), got = out.get(static_cast<int64_t>(r));
      const double magnitude = of_result ? std::fabs(want) : sum_of_magnitudes(rows[r]);
      check_close(got, want, relative * 1e5 * magnitude, entry.dtype, entry, "reduction");
    }
  }
}

double sum(const Row& row) {
  double total = 0.0;
  for (double value : row) total += value;
  return total;
}
double mean(const Row& row) { return sum(row) / static_cast<double>(row.size()); }
double prod(const Row& row) {
  double product = 1.0;
  for (double value : row) product *= value;
  return product;
}
double max_of(const Row& row) { return row.empty() ? NAN : *std::max_element(row.begin(), row.end()); }
double min_of(const Row& row) { return row.empty() ? NAN : *std::min_element(row.begin(), row.end()); }

void test_argmax(const KernelEntry& entry) {
  for (const DimsCase& given : kReductions) {
    if (given.dims.size() != 1) continue;
    for (bool has_ties : {false, true}) {
      const Tensor x = random(entry.dtype, given.shape, 1);
      if (has_ties) x.fill([&](int64_t i) { return i % 3 == 0 ? -INFINITY : static_cast<double>(i * i % 5); });
      Shape out_shape;
      const std::vector<Row> rows = terms_of(x, given, &out_shape);
      if (x.size() == 0) continue;
      const Tensor out(AM_INT32, out_shape, 3);
      run_with_teams(entry, {x.abi()}, {out}, {am_attr{.i = given.dims[0]}, testing::attr(0)}, "argmax");
      for (size_t r = 0; is_compared() && r < rows.size(); ++r) {
        const auto want = std::max_element(rows[r].begin(), rows[r].end()) - rows[r].begin();
        check(out.get(static_cast<int64_t>(r)) == static_cast<double>(want), entry, "argmax");
      }
    }
  }
}

void test_permute(const KernelEntry& entry) {
  for (const auto& [shape, dims, _] : std::vector<DimsCase>{{{3, 7}, {1, 0}},
                                                            {{5, 2, 40}, {1, 0, 2}},
                                                            {{70, 33, 4}, {1, 2, 0}},
                                                            {{2, 3, 4, 5}, {3, -3, 2, 0}},
                                                            {{2, 35, 3, 40}, {0, 3, 2, 1}},
                                                            {{2, 3, 2, 3, 2, 3}, {4, 0, 5, 2, 1, 3}},
                                                            {{4, 1, 33}, {1, 0, 2}},
                                                            {{6, 5}, {0, 1}},
                                                            {{0, 4, 6}, {2, 0, 1}},
                                                            {{}, {}}}) {
    Shape out_shape, order;
    for (int64_t dim : dims) order.push_back(dim < 0 ? dim + static_cast<int64_t>(shape.size()) : dim);
    for (int64_t dim : order) out_shape.push_back(shape[static_cast<size_t>(dim)]);
    const Tensor x = random(entry.dtype, shape, 1), out(entry.dtype, out_shape, 3);
    const std::vector<int64_t> list = list_of(dims);
    run_with_teams(entry, {x.abi()}, {out}, {attr(list)}, "permute");
    for (int64_t i = 0; i < out.size(); ++i) {
      const Shape to = index_in(out_shape, i);
      Shape from(shape.size());
      for (size_t d = 0; d < order.size(); ++d) from[static_cast<size_t>(order[d])] = to[d];
      check(out.get(i) == x.get(element_at(shape, from)), entry, "permute");
    }
  }
}

void test_expand(const KernelEntry& entry) {
  for (const auto& [shape, out_shape, _] : std::vector<DimsCase>{{{7}, {3, 7}},
                                                                 {{3, 1}, {3, 33}},
                                                                 {{2, 1, 17}, {2, 5, 17}},
                                                                 {{4, 1, 3, 1}, {4, 6, 3, 20}},
                                                                 {{1, 2, 1, 3, 1, 5}, {3, 2, 2, 3, 2, 5}},
                                                                 {{}, {2, 9}},
                                                                 {{1, 8}, {0, 8}},
                                                                 {{3, 16}, {3, 16}}}) {
    const Tensor x = random(entry.dtype, shape, 1), out(entry.dtype, out_shape, 3);
    run_with_teams(entry, {x.abi()}, {out}, {}, "expand");
    for (int64_t i = 0; i < out.size(); ++i) {
      check(out.get(i) == x.get(element_at(shape, index_in(out_shape, i))), entry, "expand");
    }
  }
}

void test_broadcasting(const KernelEntry& entry, double (*f)(double, double)) {
  struct Pair {
    Shape a, b, out;
  };
  for (const auto& [a_shape, b_shape, out_shape] : std::vector<Pair>{
           {{3, 7}, {7}, {3, 7}},
           {{70, 1}, {1, 33}, {70, 33}},
           {{2, 3, 17}, {3, 1}, {2, 3, 17}},
           {{5}, {}, {5}},
           {{1, 1}, {4, 33}, {4, 33}},
           {{2, 1, 5, 1, 3}, {4, 1, 6, 3}, {2, 4, 5, 6, 3}},
           {{3, 2, 1, 2, 1, 20}, {1, 2, 3, 1, 1, 20}, {3, 2, 3, 2, 1, 20}},
           {{1, 3001}, {3, 1}, {3, 3001}},
           {{1, 8}, {0, 1}, {0, 8}},
       }) {
    const Tensor a = random(entry.dtype, a_shape, 1), b = random(entry.dtype, b_shape, 2),
                 out(entry.dtype, out_shape, 3);
    b.fill([&](int64_t i) { return b.get(i) + (b.get(i) < 0 ? -0.5 : 0.5); });
    run_with_teams(entry, {a.abi(), b.abi()}, {out}, {}, "broadcasting");
    for (int64_t i = 0; i < out.size(); ++i) {
      const Shape index = index_in(out_shape, i);
      const double x = a.get(element_at(a_shape, index)), y = b.get(element_at(b_shape, index));
      check_close(out.get(i), f(x, y), 0.02 * (std::fabs(x) + std::fabs(y)) + 0.01 * std::fabs(f(x, y)), entry.dtype,
                  entry, "broadcasting");
    }
  }
}

}  // namespace

int main() {
  for_each_kernel("sum", [](const KernelEntry& entry) { test_reduction(entry, sum, 5e-7); });
  for_each_kernel("mean", [](const KernelEntry& entry) { test_reduction(entry, mean, 5e-7); });
  for_each_kernel("prod", [](const KernelEntry& entry) { test_reduction(entry, prod, 5e-5, true); });
  for_each_kernel("max", [](const KernelEntry& entry) { test_reduction(entry, max_of, 0.0); });
  for_each_kernel("min", [](const KernelEntry& entry) { test_reduction(entry, min_of, 0.0); });
  for_each_kernel("argmax", test_argmax);
  for_each_kernel("permute", test_permute);
  for_each_kernel("expand", test_expand);
  for_each_kernel("add", [](const KernelEntry& e) { test_broadcasting(e, [](double x, double y) { return x + y; }); });
  for_each_kernel("sub", [](const KernelEntry& e) { test_broadcasting(e, [](double x, double y) { return x - y; }); });
  for_each_kernel("mul", [](const KernelEntry& e) { test_broadcasting(e, [](double x, double y) { return x * y; }); });
  for_each_kernel("div", [](const KernelEntry& e) { test_broadcasting(e, [](double x, double y) { return x / y; }); });
  return report();
}
