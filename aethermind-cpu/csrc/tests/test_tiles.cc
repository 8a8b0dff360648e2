// Tests of products on the tile unit: the model against arithmetic by other means, and the hardware, where there is
// one, against the model bit by bit.
#include <cfloat>
#include <cinttypes>

#include "kernel_testing.h"
#include "tile_model.h"
#include "tile_unit.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace aether::cpu;
using namespace aether::cpu::testing;

namespace {

int64_t num_compared = 0;

void expect(bool ok, const std::string& what) {
  ++num_compared;
  if (ok || ++num_failures > 50) return;
  std::printf("FAIL %s\n", what.c_str());
}

std::mt19937_64 bits(20240917);

uint32_t word_of(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

float float_of(uint32_t word) {
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// The same bits, or two NaNs.
bool is_same(float x, float y) { return word_of(x) == word_of(y) || (std::isnan(x) && std::isnan(y)); }

// Kinds of random bfloat16 numbers: near one, around the smallest normal number's square root, subnormal, any bits.
constexpr int kNumKinds = 4;
uint16_t random_bfloat16(int kind) {
  const auto word = static_cast<uint16_t>(bits());
  const auto with_exponent = [&](int least, int range) {
    return static_cast<uint16_t>((word & 0x807f) | ((least + static_cast<int>(bits() % range)) << 7));
  };
  if (kind == 0) return with_exponent(124, 6);
  if (kind == 1) return with_exponent(56, 16);
  if (kind == 2) return with_exponent(0, 3);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("fma"), noinline)) float hardware_fma(float x, float y, float z) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ
  volatile float a = x, b = y, c = z;
  volatile float result = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
  _mm_setcsr(before);
  return result;
}

// The model's multiply-add against the CPU's, which also flushes after rounding.
void test_multiply_add() {
  if (!cpu_features().fma) return;
  const auto compare = [](float x, float y, float z) {
    const float got = fused_multiply_add_flushed(x, y, z), want = hardware_fma(x, y, z);
    char what[160];
    std::snprintf(what, sizeof what, "%a * %a + %a is %a, not %a", static_cast<double>(x), static_cast<double>(y),
                  static_cast<double>(z), static_cast<double>(want), static_cast<double>(got));
    expect(is_same(got, want), what);
  };
  for (int i = 0; i < 200'000; ++i) {
    const float x = from_bfloat16(random_bfloat16(i % kNumKinds)),
                y = from_bfloat16(random_bfloat16(i / 4 % kNumKinds));
    const auto word = static_cast<uint32_t>(bits());
    compare(x, y, float_of(i % 3 == 0 ? word : (word & 0x80ffffff)));
    compare(x, y, -x * y);
  }
  // Results about the smallest normal number, where rounding decides whether they are subnormal.
  for (int exponent = -160; exponent < -140; ++exponent) {
    for (float factor : {1.0f, 1.5f, 1.0078125f, 1.9921875f}) {
      for (float sign : {1.0f, -1.0f}) {
        compare(std::ldexp(factor, exponent / 2), sign * std::ldexp(1.0f, exponent - exponent / 2), FLT_MIN);
        compare(std::ldexp(factor, exponent / 2), sign * std::ldexp(1.0f, exponent - exponent / 2), -FLT_MIN);
      }
    }
  }
}
#endif

// A product with operands and accumulators of its own.
struct Case {
  std::vector<uint16_t> x, panels;
  std::vector<float> c;
  int num_rows, num_panels;
  int64_t num_steps, x_stride;  // words

  Case(int num_rows, int num_panels, int64_t num_steps, int64_t gap)
      : num_rows(num_rows), num_panels(num_panels), num_steps(num_steps), x_stride(num_steps + gap) {
    x.resize(static_cast<size_t>(2 * (num_rows - 1) * x_stride + 2 * num_steps));
    panels.resize(static_cast<size_t>(32 * num_panels * num_steps));
    c.resize(static_cast<size_t>(16 * num_rows * num_panels));
  }

  // c after the steps [begin, end).
  void run(const TileUnit& unit, int64_t begin, int64_t end, bool is_first) {
    const char* w[kMaxProductPanels];
    for (int p = 0; p < num_panels; ++p) {
      w[p] = reinterpret_cast<const char*>(panels.data() + 32 * (p * num_steps + begin));
    }
    const char* rows = reinterpret_cast<const char*>(x.data() + 2 * begin);
    const int64_t tail = (end - begin) / kTileSteps * kTileSteps, tail_steps = end - begin - tail;
    unit.configure(num_rows, static_cast<int>(tail_steps));
    unit.multiply_bfloat16({rows, 4 * x_stride, rows + 4 * tail, 4 * x_stride, w, num_rows, num_panels, tail,
                            tail_steps, c.data(), 64 * num_panels, 64, is_first, 0});
    unit.release();
  }

  double exact(int row, int panel, int column) const {
    double sum = 0;
    for (int64_t k = 0; k < 2 * num_steps; ++k) {
      const auto at = static_cast<size_t>(32 * (panel * num_steps + k / 2) + 2 * column + k % 2);
      sum += static_cast<double>(from_bfloat16(x[static_cast<size_t>(2 * row * x_stride + k)])) *
             static_cast<double>(from_bfloat16(panels[at]));
    }
    return sum;
  }
};

// Small integers, whose sums are exact in any order: every shape against plain loops.
void test_shapes(const TileUnit& unit, const std::string& name) {
  for (int rows = 1; rows <= kMaxTileRows; ++rows) {
    for (int num_panels = 1; num_panels <= kMaxProductPanels; ++num_panels) {
      for (int64_t steps : {0, 1, 7, 15, 16, 17, 33, 48}) {
        Case test(rows, num_panels, steps, rows % 3);
        for (uint16_t& value : test.x) value = to_bfloat16(static_cast<float>(static_cast<int>(bits() % 17) - 8));
        for (uint16_t& value : test.panels) value = to_bfloat16(static_cast<float>(static_cast<int>(bits() % 17) - 8));
        test.run(unit, 0, steps, true);
        bool ok = true;
        const auto compare = [&](double factor) {
          for (int row = 0; row < rows; ++row) {
            for (int p = 0; p < num_panels; ++p) {
              for (int column = 0; column < 16; ++column) {
                const auto at = static_cast<size_t>((row * num_panels + p) * 16 + column);
                ok = ok && static_cast<double>(test.c[at]) == factor * test.exact(row, p, column);
              }
            }
          }
        };
        compare(1.0);
        test.run(unit, 0, steps, false);
        compare(2.0);
        expect(ok, name + ": " + std::to_string(rows) + " rows, " + std::to_string(num_panels) + " panels, " +
                       std::to_string(steps) + " steps");
      }
    }
  }
}

// The order of the sums: even and odd elements apart, then their sum, then the accumulator.
void test_order(const TileUnit& unit, const std::string& name) {
  const auto sum_of = [&](std::vector<float> x, float accumulator) {
    Case test(1, 1, static_cast<int64_t>(x.size()) / 2, 0);
    for (size_t i = 0; i < x.size(); ++i) test.x[i] = to_bfloat16(x[i]);
    for (uint16_t& value : test.panels) value = to_bfloat16(1.0f);
    for (float& value : test.c) value = accumulator;
    test.run(unit, 0, test.num_steps, false);
    return test.c[0];
  };
  const float big = 0x1p24f;
  expect(sum_of({big, 1, 0, 1}, 0) == big + 2, name + ": odd elements have a chain of their own");
  expect(sum_of({1, big, 1, 0}, 0) == big + 2, name + ": even elements have a chain of their own");
  expect(sum_of({big, 0, 1, 0, 1, 0}, 0) == big, name + ": a chain rounds after every element");
  expect(sum_of({1, 0, 1, 0}, big) == big + 2, name + ": the accumulator comes last");
  expect(sum_of({0x1p-126f, 0}, -0x1.8p-126f) == 0.0f, name + ": subnormal results are zero");
}

// Accumulators that leave the registers between products keep their bits.
void test_splits(const TileUnit& unit, const std::string& name) {
  for (int kind = 0; kind < kNumKinds; ++kind) {
    Case whole(5, 2, 75, 1);
    for (uint16_t& value : whole.x) value = random_bfloat16(kind);
    for (uint16_t& value : whole.panels) value = random_bfloat16(kind);
    Case split = whole;
    whole.run(unit, 0, 75, true);
    split.run(unit, 0, 32, true);
    split.run(unit, 32, 48, false);
    split.run(unit, 48, 75, false);
    bool ok = true;
    for (size_t i = 0; i < whole.c.size(); ++i) ok = ok && is_same(whole.c[i], split.c[i]);
    expect(ok, name + ": split products of kind " + std::to_string(kind));
  }
}

void test_hardware_equals_model(const TileUnit& hardware) {
  for (int i = 0; i < 4000; ++i) {
    const int kind = i % kNumKinds;
    Case model(1 + i % kMaxTileRows, 1 + i / 16 % kMaxProductPanels, 1 + static_cast<int64_t>(bits() % 70), i % 5);
    for (uint16_t& value : model.x) value = random_bfloat16(kind);
    for (uint16_t& value : model.panels) value = random_bfloat16(i / 4 % kNumKinds);
    for (float& value : model.c) value = float_of(static_cast<uint32_t>(bits()));
    Case real = model;
    const bool is_first = i % 3 == 0;
    model.run(kTileModel, 0, model.num_steps, is_first);
    real.run(hardware, 0, real.num_steps, is_first);
    bool ok = true;
    for (size_t at = 0; at < model.c.size(); ++at) ok = ok && is_same(model.c[at], real.c[at]);
    expect(ok, "hardware and model differ in product " + std::to_string(i));
  }
}

}  // namespace

int main() {
#if defined(__x86_64__)
  test_multiply_add();
#endif
  test_shapes(kTileModel, "model");
  test_order(kTileModel, "model");
  test_splits(kTileModel, "model");
  if (const TileUnit* hardware = hardware_tile_unit()) {
    test_shapes(*hardware, "hardware");
    test_order(*hardware, "hardware");
    test_splits(*hardware, "hardware");
    test_hardware_equals_model(*hardware);
  } else {
    std::printf("The hardware was not compared with the model: this CPU has no tile unit that this process may use.\n");
  }
  std::printf("tiles: %" PRId64 " checks\n%d failures\n", num_compared, num_failures);
  return num_failures == 0 ? 0 : 1;
}
