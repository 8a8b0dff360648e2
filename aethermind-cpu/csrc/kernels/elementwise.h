// Elementwise operators over contiguous tensors: add, sub, mul, div (with broadcasting), scale, exp, log, cast.
#pragma once

#include "kernels/loops.h"
#include "kernels/team.h"

namespace aether::cpu::AETHER_ISA {

// A multiple of the lanes and of a cache line, so that no two workers write one line.
inline constexpr int64_t kElementwiseGrain = 256;

template <class T, class F, class Out = T>
void map_elements(const am_tensor& x, const am_tensor& out, const am_team* team, F f) {
  const T* source = data<const T>(x);
  Out* target = data<Out>(out);
  const Range range = share(team, num_elements(out), kElementwiseGrain);
  int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(target + i, f(load(source + i)));
  if (i < range.end) store(target + i, f(load(source + i, range.end - i)), range.end - i);
}

template <class T, class F>
void map_elements(const am_tensor& x, const am_tensor& y, const am_tensor& out, const am_team* team, F f) {
  const T* first = data<const T>(x);
  const T* second = data<const T>(y);
  T* target = data<T>(out);
  const Range range = share(team, num_elements(out), kElementwiseGrain);
  int64_t i = range.begin;
  for (; i + kLanes <= range.end; i += kLanes) store(target + i, f(load(first + i), load(second + i)));
  const int64_t n = range.end - i;
  if (n > 0) store(target + i, f(load(first + i, n), load(second + i, n)), n);
}

// f over a row of n elements, where x or y may be one element that is repeated.
template <class T, class F>
AETHER_INLINE void map_row(const T* x, const T* y, bool x_is_one, bool y_is_one, T* target, int64_t n, F f) {
  const auto map = [&](auto load_x, auto load_y) {
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      const Vec first = f(load_x(i, kLanes), load_y(i, kLanes));
      const Vec second = f(load_x(i + kLanes, kLanes), load_y(i + kLanes, kLanes));
      store(target + i, first);
      store(target + i + kLanes, second);
    }
    for (; i + kLanes <= n; i += kLanes) store(target + i, f(load_x(i, kLanes), load_y(i, kLanes)));
    if (i < n) store(target + i, f(load_x(i, n - i), load_y(i, n - i)), n - i);
  };
  const auto of = [](const T* row) {
    return [row](int64_t i, int64_t lanes) { return lanes == kLanes ? load(row + i) : load(row + i, lanes); };
  };
  const auto one = [](const T* element) {
    const Vec value = set1(first_lane(load(element, 1)));
    return [value](int64_t, int64_t) { return value; };
  };
  if (x_is_one) {
    map(one(x), of(y));
  } else if (y_is_one) {
    map(of(x), one(y));
  } else {
    map(of(x), of(y));
  }
}

// f over tensors that are broadcast to the shape of `out`, without copying them.
template <class T, class F>
void map_broadcast(const am_tensor& x, const am_tensor& y, const am_tensor& out, const am_team* team, F f) {
  const int64_t count = num_elements(out);
  if (num_elements(x) == count && num_elements(y) == count) {
    map_elements<T>(x, y, out, team, f);
    return;
  }
  if (count == 0) return;
  int64_t of_x[AM_MAX_DIMS], of_y[AM_MAX_DIMS];
  strides_in(x, out, of_x);
  strides_in(y, out, of_y);
  Loops<2> loops;
  for (int32_t d = 0; d < out.ndim; ++d) loops.add(out.shape[d], {of_x[d], of_y[d]});
  const int32_t last = --loops.count;
  const int64_t size = loops.size[last];
  const bool x_is_one = loops.stride[0][last] == 0, y_is_one = loops.stride[1][last] == 0;
  const Range range = share(team, count, kElementwiseGrain);
  if (range.begin >= range.end) return;
  Position<2> row(loops, range.begin / size);
  for (int64_t i = range.begin; i < range.end; row.next()) {
    const int64_t first = i % size, n = smaller(size - first, range.end - i);
    map_row(data<const T>(x) + row.offset[0] + (x_is_one ? 0 : first),
            data<const T>(y) + row.offset[1] + (y_is_one ? 0 : first), x_is_one, y_is_one, data<T>(out) + i, n, f);
    i += n;
  }
}

// x + y.
template <class T>
void add(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_broadcast<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return x + y; });
}

// x - y.
template <class T>
void sub(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_broadcast<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return x - y; });
}

// x · y.
template <class T>
void mul(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_broadcast<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return x * y; });
}

// x / y.
template <class T>
void div(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_broadcast<T>(in[0], in[1], out[0], team, [](const Vec& x, const Vec& y) { return x / y; });
}

// factor · x.
template <class T>
void scale(const am_tensor* in, const am_tensor* out, const am_attr* attrs, const am_team* team) {
  const float factor = static_cast<float>(attrs[0].f);
  map_elements<T>(in[0], out[0], team, [&](const Vec& x) { return x * set1(factor); });
}

// e^x.
template <class T>
void exp(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) { return exp_or_infinity(x); });
}

// Vectors for integer arithmetic on lanes; the compiler splits them into registers.
using FloatLanes [[gnu::vector_size(4 * kLanes)]] = float;
using IntLanes [[gnu::vector_size(4 * kLanes)]] = int32_t;
using BitLanes [[gnu::vector_size(4 * kLanes)]] = uint32_t;

// Within 1 unit in the last place. x = 2^e · (1 + f) with √½ ≤ 1 + f < √2; the polynomial is a minimax fit of
// (log(1 + f) - f + f^2 / 2) / f^3 there, 7e-9 of the result.
AETHER_INLINE Vec log_of(const Vec& value) {
  constexpr uint32_t kRootOfHalf = 0x3f3504f3, kOne = 0x3f800000;
  FloatLanes x;
  std::memcpy(&x, &value, sizeof x);
  const IntLanes is_subnormal = x < 0x1p-126f;
  const FloatLanes normal = is_subnormal ? x * 0x1p23f : x;
  // Adding the distance from √½ to 1 makes the exponent field change at √½ instead of at powers of two.
  const BitLanes bits = reinterpret_cast<BitLanes>(normal) + (kOne - kRootOfHalf);
  const FloatLanes exponent =
      __builtin_convertvector(reinterpret_cast<IntLanes>(bits >> 23) - 127 + is_subnormal * 23, FloatLanes);
  const FloatLanes f = reinterpret_cast<FloatLanes>((bits & 0x007fffff) + kRootOfHalf) - 1.0f;
  FloatLanes p = f * -0x1.404c90p-4f + 0x1.07acfcp-3f;
  p = p * f - 0x1.0d1eeap-3f;
  p = p * f + 0x1.227682p-3f;
  p = p * f - 0x1.5472bcp-3f;
  p = p * f + 0x1.99a51ap-3f;
  p = p * f - 0x1.000236p-2f;
  p = p * f + 0x1.55554ap-2f;
  // ln 2 in two parts; the exponent times the first is exact.
  const FloatLanes square = f * f;
  const FloatLanes low = exponent * -2.12194440e-4f + square * f * p - 0.5f * square;
  const FloatLanes result = exponent * 0.693359375f + (low + f);
  const FloatLanes infinity = FloatLanes{} + __builtin_inff(), nan = FloatLanes{} + __builtin_nanf("");
  const FloatLanes at_edges = x == 0.0f ? -infinity : x == infinity ? infinity : nan;
  const FloatLanes all = (x > 0.0f) & (x < infinity) ? result : at_edges;
  Vec out;
  std::memcpy(&out, &all, sizeof out);
  return out;
}

template <class T>
void log(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  map_elements<T>(in[0], out[0], team, [](const Vec& x) { return log_of(x); });
}

// x in the dtype of `out`.
template <class T>
void cast(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  const auto same = [](const Vec& x) { return x; };
  switch (out[0].dtype) {
    case AM_BFLOAT16:
      map_elements<T, decltype(same), BFloat16>(in[0], out[0], team, same);
      break;
    case AM_FLOAT16:
      map_elements<T, decltype(same), Float16>(in[0], out[0], team, same);
      break;
    default:
      map_elements<T, decltype(same), float>(in[0], out[0], team, same);
  }
}

}  // namespace aether::cpu::AETHER_ISA
