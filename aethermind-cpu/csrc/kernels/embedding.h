// Rows of a table of embeddings: by token id, or by position.
#pragma once

#include "kernels/gather_rows.h"

namespace aether::cpu::AETHER_ISA {

template <class T>
void embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T>(in[1], in[0], out[0], team);
}

template <class T>
void position_embedding(const am_tensor* in, const am_tensor* out, const am_attr*, const am_team* team) {
  copy_rows<T, int64_t>(in[1], in[0], out[0], team);
}

}  // namespace aether::cpu::AETHER_ISA
