#include "kernels/pack.h"

#include <cstring>

namespace aether::cpu {
namespace {

// A panel's columns are rows of the source. A step along K is one 32-bit word of each: a float, or two 16-bit elements.
using Word = uint32_t;
constexpr int64_t kBlockSteps = 16;

int64_t num_panels(int64_t rows) { return (rows + kPanelColumns - 1) / kPanelColumns; }

template <int64_t ElementBytes>
int64_t num_steps(int64_t cols) {
  constexpr int64_t kPerWord = static_cast<int64_t>(sizeof(Word)) / ElementBytes;
  return (cols + kPerWord - 1) / kPerWord;
}

template <int64_t ElementBytes>
size_t packed_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(num_panels(rows) * num_steps<ElementBytes>(cols) * kStepBytes);
}

// Writes a step of words; or all low halves of the words, then all high halves.
void put_step(const Word (&words)[kPanelColumns], Word* step) { std::memcpy(step, words, sizeof words); }
void put_split_step(const Word (&words)[kPanelColumns], Word* step) {
  uint16_t halves[2][kPanelColumns];
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    halves[0][c] = static_cast<uint16_t>(words[c]);
    halves[1][c] = static_cast<uint16_t>(words[c] >> 16);
  }
  std::memcpy(step, halves, sizeof halves);
}

template <int64_t ElementBytes, void (*PutStep)(const Word (&)[kPanelColumns], Word*) = put_step>
void pack(const void* source, int64_t rows, int64_t cols, void* destination) {
  const int64_t steps = num_steps<ElementBytes>(cols);
  const int64_t row_bytes = cols * ElementBytes;
  auto* out = static_cast<Word*>(destination);
  for (int64_t first = 0; first < rows; first += kPanelColumns) {
    const int64_t columns = rows - first < kPanelColumns ? rows - first : kPanelColumns;
    const char* panel = static_cast<const char*>(source) + first * row_bytes;
    for (int64_t step = 0; step < steps; step += kBlockSteps) {
      // Transposed in a small block, so that reads and writes are whole cache lines.
      Word block[kPanelColumns][kBlockSteps] = {};
      Word words[kPanelColumns];
      const int64_t offset = step * static_cast<int64_t>(sizeof(Word));
      const int64_t remaining = row_bytes - offset;
      const int64_t bytes =
          remaining < static_cast<int64_t>(sizeof block[0]) ? remaining : static_cast<int64_t>(sizeof block[0]);
      for (int64_t c = 0; c < columns; ++c)
        std::memcpy(block[c], panel + c * row_bytes + offset, static_cast<size_t>(bytes));
      const int64_t count = steps - step < kBlockSteps ? steps - step : kBlockSteps;
      for (int64_t s = 0; s < count; ++s) {
        for (int64_t c = 0; c < kPanelColumns; ++c) words[c] = block[c][s];
        PutStep(words, out);
        out += kPanelColumns;
      }
    }
  }
}

}  // namespace

const PackEntry kPanelsFloat32 = {"panels16_float32", packed_bytes<4>, pack<4>};
const PackEntry kPanelsBFloat16 = {"panels16_bfloat16", packed_bytes<2>, pack<2>};
const PackEntry kPanelsFloat16 = {"panels16_float16", packed_bytes<2>, pack<2, put_split_step>};

}  // namespace aether::cpu
