// Matrix operators and embedding over quantised weights in plain C++, for any CPU.
#define AETHER_ISA portable
#include "kernels/isa_tables.h"
#include "simd/portable.h"

namespace aether::cpu::AETHER_ISA {

inline constexpr int kPriority = 0;
inline constexpr auto kIsSupported = runs_anywhere;

}  // namespace aether::cpu::AETHER_ISA

#include "kernels/quantized_embedding.h"
#include "kernels/quantized_entries.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
inline constexpr am_kernel kQuantizedEmbedding =
    make_kernel("quantized_embedding/portable", 2, 1, 0, quantized_embedding<T>);

// All instruction set levels use these kernels of embedding.
inline constexpr KernelEntry kQuantizedRowEntries[] = {
    quantized_entry("embedding", AM_FLOAT32, kQuantizedEmbedding<float>, 1, 1),
    quantized_entry("embedding", AM_BFLOAT16, kQuantizedEmbedding<BFloat16>, 1, 1),
    quantized_entry("embedding", AM_FLOAT16, kQuantizedEmbedding<Float16>, 1, 1)};

}  // namespace aether::cpu::AETHER_ISA

namespace aether::cpu {

const std::span<const KernelEntry> kPortableQuantized = AETHER_ISA::kQuantizedEntries;
const std::span<const KernelEntry> kQuantizedRows = AETHER_ISA::kQuantizedRowEntries;

}  // namespace aether::cpu
