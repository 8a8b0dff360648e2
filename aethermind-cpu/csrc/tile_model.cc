#include "tile_model.h"

#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aether::cpu {
namespace {

struct Tile {
  alignas(64) char bytes[kMaxTileRows][kTileRowBytes];
};

// The tile registers of a thread.
struct State {
  bool is_configured = false;
  TileConfig config;
  Tile tiles[8];
};

thread_local State state;

void require(bool condition, const char* what) noexcept {
  if (condition) return;
  std::fprintf(stderr, "tile unit: %s\n", what);
  std::abort();
}

int rows_of(int tile) noexcept { return state.config.rows[tile]; }
int row_bytes_of(int tile) noexcept { return state.config.row_bytes[tile]; }

void require_valid(int tile) noexcept {
  require(state.is_configured, "not configured");
  require(rows_of(tile) > 0 && row_bytes_of(tile) > 0, "a register without rows");
}

void require_product(int c, int a, int b) noexcept {
  for (int tile : {c, a, b}) {
    require_valid(tile);
    require(row_bytes_of(tile) % 4 == 0, "rows of whole words");
  }
  require(c != a && c != b && a != b, "three registers");
  require(rows_of(c) == rows_of(a), "rows of C and A");
  require(row_bytes_of(c) == row_bytes_of(b), "columns of C and B");
  require(row_bytes_of(a) / 4 == rows_of(b), "columns of A and rows of B");
}

template <class T>
T element(int tile, int row, int index) noexcept {
  T value;
  std::memcpy(&value, state.tiles[tile].bytes[row] + index * static_cast<int>(sizeof(T)), sizeof value);
  return value;
}

float bfloat16_element(int tile, int row, int index) noexcept {
  const uint32_t word = uint32_t{element<uint16_t>(tile, row, index)} << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

float flushed(float x) noexcept { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

// Whether a result that was rounded to the smallest normal number in magnitude is subnormal when it is rounded to 24
// bits with an unbounded exponent. The exact sum of two doubles is compared, by its rounded value and the error.
bool rounds_below_normal(double x, double y) noexcept {
  const double sum = x + y, part = sum - x, error = (x - (sum - part)) + (y - part);
  const double sign = sum < 0 ? -1.0 : 1.0, threshold = 0x1p-126 - 0x1p-151;
  return sign * sum < threshold || (sign * sum == threshold && sign * error < 0);
}

float flush_result(float result, double x, double y) noexcept {
  if (std::fabs(result) == FLT_MIN && rounds_below_normal(x, y)) return std::copysign(0.0f, result);
  return flushed(result);
}

}  // namespace

float fused_multiply_add_flushed(float x, float y, float z) noexcept {
  const float a = flushed(x), b = flushed(y), c = flushed(z);
  return flush_result(std::fma(a, b, c), static_cast<double>(a) * static_cast<double>(b), c);
}

float add_flushed(float x, float y) noexcept {
  const float a = flushed(x), b = flushed(y);
  return flush_result(a + b, a, b);
}

void TileModel::configure(const TileConfig& config) noexcept {
  require(config.palette == 1 && config.start_row == 0, "palette 1 from row 0");
  for (uint8_t byte : config.reserved) require(byte == 0, "reserved bytes of zero");
  for (int tile = 0; tile < 16; ++tile) {
    const bool is_used = config.rows[tile] > 0;
    require(is_used == (config.row_bytes[tile] > 0), "rows with columns");
    require(config.rows[tile] <= kMaxTileRows && config.row_bytes[tile] <= kTileRowBytes, "16 rows of 64 bytes");
    require(tile < 8 || !is_used, "eight registers");
  }
  state = State{};
  state.is_configured = true;
  state.config = config;
}

void TileModel::release() noexcept { state = State{}; }

void TileModel::load(int tile, const void* address, int64_t stride) noexcept {
  zero(tile);
  for (int row = 0; row < rows_of(tile); ++row) {
    std::memcpy(state.tiles[tile].bytes[row], static_cast<const char*>(address) + row * stride,
                static_cast<size_t>(row_bytes_of(tile)));
  }
}

void TileModel::store(int tile, void* address, int64_t stride) noexcept {
  require_valid(tile);
  for (int row = 0; row < rows_of(tile); ++row) {
    std::memcpy(static_cast<char*>(address) + row * stride, state.tiles[tile].bytes[row],
                static_cast<size_t>(row_bytes_of(tile)));
  }
}

void TileModel::zero(int tile) noexcept {
  require_valid(tile);
  std::memset(&state.tiles[tile], 0, sizeof state.tiles[tile]);
}

void TileModel::dot_bfloat16(int c, int a, int b) noexcept {
  require_product(c, a, b);
  const int num_columns = row_bytes_of(c) / 4, num_pairs = row_bytes_of(a) / 4;
  for (int row = 0; row < rows_of(c); ++row) {
    for (int column = 0; column < num_columns; ++column) {
      float even = 0.0f, odd = 0.0f;
      for (int k = 0; k < num_pairs; ++k) {
        even = fused_multiply_add_flushed(bfloat16_element(a, row, 2 * k), bfloat16_element(b, k, 2 * column), even);
        odd = fused_multiply_add_flushed(bfloat16_element(a, row, 2 * k + 1), bfloat16_element(b, k, 2 * column + 1),
                                         odd);
      }
      const float sum = add_flushed(element<float>(c, row, column), add_flushed(even, odd));
      std::memcpy(state.tiles[c].bytes[row] + column * 4, &sum, sizeof sum);
    }
  }
}

void TileModel::dot_int8(int c, int a, int b) noexcept {
  require_product(c, a, b);
  const int num_columns = row_bytes_of(c) / 4, num_words = row_bytes_of(a) / 4;
  for (int row = 0; row < rows_of(c); ++row) {
    for (int column = 0; column < num_columns; ++column) {
      auto sum = element<uint32_t>(c, row, column);  // wraps around
      for (int k = 0; k < num_words; ++k) {
        for (int i = 0; i < 4; ++i) {
          sum += static_cast<uint32_t>(element<int8_t>(a, row, 4 * k + i) * element<int8_t>(b, k, 4 * column + i));
        }
      }
      std::memcpy(state.tiles[c].bytes[row] + column * 4, &sum, sizeof sum);
    }
  }
}

constinit const TileUnit kTileModel = kTileUnitOf<TileModel>;

}  // namespace aether::cpu
