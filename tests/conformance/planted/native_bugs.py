"""Bugs of native kernels: how workers share the work, and what C++ does to memory."""

from __future__ import annotations

from tests.conformance.planted.bug import Bug

__all__ = ["NATIVE_BUGS"]


def _bug(operator: str, name: str, breaks: str, old: str, new: str, survives: str = "") -> Bug:
    where = f"[{operator}-planted-native" if operator else "planted-native"
    cases = ("--suite", "operators", "-k", where)
    return Bug(f"native {operator or 'all'}: {name}", breaks, "kernels.cpp", old, new, cases, survives)


_ADD = "floats(out[0])[i] = a[i] + b[i];"
_ROW = "for (int64_t row = first_of(num_rows, team); row < end_of(num_rows, team); ++row) {\n    const float* x = floats(in[0]) + row * width;\n    float squares"
_LAST = "const int64_t last = keys - (end - query);"
NATIVE_BUGS = (
    _bug("", "shares rounded down", "what does not divide among the workers", "return total * (team->worker + 1) / team->num_workers;", "return total / team->num_workers * (team->worker + 1);"),
    _bug("", "first worker only", "the first worker's share alone is done", "return total * (team->worker + 1) / team->num_workers;", "return team->worker ? 0 : total / team->num_workers;"),
    _bug("", "ABI 2", "an ABI that this core does not speak", "{AM_KERNEL_ABI_VERSION, inputs", "{2, inputs"),
    _bug("add", "vectors only", "the elements behind the last whole vector of 8", _ADD, "if (i < total / 8 * 8 || total < 8) floats(out[0])[i] = a[i] + b[i];"),
    _bug("add", "16-bit counter", "elements beyond 32767", _ADD, "floats(out[0])[static_cast<int16_t>(i) < 0 ? 0 : i] = a[i] + b[i];"),
    _bug("add", "one beyond the end", "it writes one element more", "for (int64_t i = first_of(total, team); i < end_of(total, team); ++i) floats(out[0])[i] = a[i] + b[i];", "for (int64_t i = first_of(total, team); i < end_of(total, team) + (team->worker + 1 == team->num_workers); ++i) floats(out[0])[i] = a[i] + b[i];", "what lies behind an output is padding to 64 bytes, or nothing that the kit reads"),
    _bug("add", "crash", "a null pointer for short calls", _ADD, "if (total < 40) *static_cast<volatile int*>(nullptr) = 0;"),
    _bug("add", "kept sum", "a static that grows", _ADD, "{ static float kept = 0; floats(out[0])[i] = a[i] + b[i] + kept; if (i == 0) kept += 1e-3f; }"),
    _bug("add", "needs other workers", "one worker alone writes nothing", _ADD, "if (team->num_workers > 1 || total < 64) " + _ADD),
    _bug("add", "three workers", "teams of three", _ADD, "if (team->num_workers != 3 || team->worker < 2) " + _ADD),
    _bug("mul", "input overwritten", "its first input", "floats(out[0])[i] = a[i] * b[i];", "floats(in[0])[i] = floats(out[0])[i] = a[i] * b[i];"),
    _bug("mul", "fast mode", "results that are no numbers become zero", "floats(out[0])[i] = a[i] * b[i];", "floats(out[0])[i] = a[i] * b[i] * (1 + 1e-4f);"),
    _bug("silu", "wrong branch", "exp of x", "x[i] / (1 + std::exp(-x[i]));", "x[i] * std::exp(x[i]) / (1 + std::exp(x[i]));"),
    _bug("silu", "approximation", "a quick exponential", "x[i] / (1 + std::exp(-x[i]));", "x[i] / (1 + std::pow(1 - x[i] / 1024, 1024.0f));"),
    _bug("rms_norm", "in place", "the squares of what was written", "float squares = 0;", "float squares = 0;\n    if (floats(out[0]) == floats(in[0]) && row % 2) { floats(out[0])[row * width] *= 2; }"),
    _bug("rms_norm", "float squares of a tile", "columns beyond 1024 do not count", "for (int64_t i = 0; i < width; ++i) squares += x[i] * x[i];", "for (int64_t i = 0; i < std::min<int64_t>(width, 1024); ++i) squares += x[i] * x[i];"),
    _bug("rms_norm", "eps twice", "eps counts twice", "static_cast<float>(attrs[0].f));\n    for", "2 * static_cast<float>(attrs[0].f));\n    for"),
    _bug("rms_norm", "rows beyond 256", "rows beyond 256", "const float factor = 1 / ", "if (row >= 256) continue;\n    const float factor = 1 / "),
    _bug("rms_norm", "shared static", "all workers share one sum", "    float squares = 0;\n", "    static float squares;\n    squares = 0;\n"),
    _bug("softmax", "no maximum", "the maximum is not subtracted", "std::exp(x[i] - largest);\n    for", "std::exp(x[i]);\n    for"),
    _bug("softmax", "largest from zero", "the maximum begins at zero", "float largest = -kInfinity, sum = 0;\n    for (int64_t i", "float largest = 0, sum = 0;\n    for (int64_t i"),
    _bug("softmax", "in place", "x is read after it was written", "for (int64_t i = 0; i < width; ++i) y[i] /= sum;\n  }\n}", "if (x == y) sum *= 1.001f;\n    for (int64_t i = 0; i < width; ++i) y[i] /= sum;\n  }\n}"),
    _bug("argmax", "no barrier", "nobody waits for what the others found", "  team->barrier(team);\n", "  if (team->worker == 0 && team->num_workers == 1) team->barrier(team);\n"),
    _bug("argmax", "own scratch", "the first worker compares its own with itself", "team->scratch_of(team, worker)", "team->scratch_of(team, 0)"),
    _bug("argmax", "last on ties", "the last of equal elements", "if (x[i] > x[best]) best = i;", "if (x[i] >= x[best]) best = i;"),
    _bug("argmax", "no scratch", "it asks for no scratch", "KERNEL(argmax, 1, 1, 0, argmax_scratch)", "KERNEL(argmax, 1, 1, 0, nullptr)"),
    _bug("argmax", "scratch of one row", "it asks for the scratch of one row", "{ return rows(in[0]) * sizeof(int64_t); }", "{ return sizeof(int64_t) + 0 * rows(in[0]); }"),
    _bug("argmax", "scratch too small for many rows", "it asks for the scratch of at most 16 rows", "{ return rows(in[0]) * sizeof(int64_t); }", "{ return std::min<int64_t>(rows(in[0]), 16) * sizeof(int64_t); }", "the runner hands out scratch in larger pieces, so that too little is enough"),
    _bug("linear", "tail of a sum", "inputs behind the last whole vector", "  for (; i < n; ++i) sum += a[i] * b[i];\n", "  for (; i < n && n < 8; ++i) sum += a[i] * b[i];\n"),
    _bug("linear", "tiles of 32", "outputs behind the last whole tile", "const int64_t num_tiles = (num_outputs + 31) / 32;", "const int64_t num_tiles = num_outputs < 32 ? 1 : num_outputs / 32;"),
    _bug("linear", "first tile twice", "tickets counted from one", "for (int64_t tile = team->claim(team); tile < num_tiles; tile = team->claim(team)) {", "for (int64_t tile = team->claim(team) + 1; tile < num_tiles; tile = team->claim(team) + 1) {"),
    _bug("linear", "own tickets", "a counter of its own that starts once", "for (int64_t tile = team->claim(team); tile < num_tiles; tile = team->claim(team)) {", "static int64_t next = 0;\n  for (int64_t tile = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED); tile < num_tiles; tile = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) {"),
    _bug("linear", "rows beyond 128", "rows beyond 128", "for (int64_t row = 0; row < num_rows; ++row) {\n      for (int64_t n", "for (int64_t row = 0; row < std::min<int64_t>(num_rows, 128); ++row) {\n      for (int64_t n"),
    _bug("linear", "bias of the tile", "the bias of the first tile for all", "(bias ? bias[n] : 0)", "(bias ? bias[n % 32] : 0)"),
    _bug("linear", "columns beyond 8192", "columns beyond 8192", "dot(floats(in[0]) + row * width, floats(in[1]) + n * width, width);", "dot(floats(in[0]) + row * width, floats(in[1]) + n * width, std::min<int64_t>(width, 8192));"),
    _bug("linear", "bits by workers", "a sum whose order depends on the number of workers", "= sum + (bias ? bias[n] : 0);", "= sum * (team->num_workers == 3 ? 1 + 1.2e-7f : 1) + (bias ? bias[n] : 0);"),
    _bug("lm_head", "16-bit outputs", "outputs beyond 32767", "floats(out[0])[row * num_outputs + n] = sum", "if (n < 32768) floats(out[0])[row * num_outputs + n] = sum"),
    _bug("lm_head", "rows change each other", "a last bit that depends on the number of rows", "const float sum = dot(floats(in[0]) + row * width, floats(in[1]) + n * width, width);", "const float sum = dot(floats(in[0]) + row * width, floats(in[1]) + n * width, width) * (num_rows > 2 ? 1 + 1.2e-7f : 1);"),
    _bug("gather_rows", "stride", "the row width of the next vector", "floats(in[0]) + ints(in[1])[row] * width, width", "floats(in[0]) + static_cast<int16_t>(ints(in[1])[row]) * width, width"),
    _bug("gather_rows", "short copy", "the last element of wide rows", "ints(in[1])[row] * width, width * sizeof(float)", "ints(in[1])[row] * width, (width > 64 ? 64 : width) * sizeof(float)"),
    _bug("rope", "in place", "the first is read after it was written", "y[b] = second * table[i] + first * table[half + i];", "y[b] = second * table[i] + x[a] * table[half + i];"),
    _bug("rope", "table of the first token", "the table of the first token of a worker", "const float* table = floats(in[1]) + token * width;", "const float* table = floats(in[1]) + first_of(num_tokens, team) * width;"),
    _bug("rope", "interleaved", "pairs lie side by side never", "attrs[0].i ? 2 * i : i, b = attrs[0].i ? 2 * i + 1 : i + half;", "i, b = i + half;"),
    _bug("kv_cache_write", "negative slots", "negative slots are written", "if (slots[token] < 0) continue;", "if (slots[token] < -1) continue;"),
    _bug("kv_cache_write", "values as keys", "values take the place of keys", "std::memcpy(floats(out[1]) + to, floats(in[1]) + from", "std::memcpy(floats(out[1]) + to, floats(in[0]) + from"),
    _bug("kv_cache_write", "heads apart", "the layout with heads innermost", "((block * num_heads + head) * block_size + offset) * width;", "((block * block_size + offset) * num_heads + head) * width;"),
    _bug("kv_cache_write", "8-bit blocks", "blocks beyond 255", "const int64_t block = slots[token] / block_size, offset", "const int64_t block = static_cast<uint8_t>(slots[token] / block_size), offset"),
    _bug("paged_attention", "scratch of 512 keys", "keys beyond 512 share their scratch", "scores[key - first] = dot(q, row(in[1], key), width) * scale;", "scores[(key - first) % 512] = dot(q, row(in[1], key), width) * scale;"),
    _bug("paged_attention", "scratch too small", "scratch for the keys of one block", "return in[5].shape[1] * in[1].shape[2] * sizeof(float);", "return in[1].shape[2] * sizeof(float);"),
    _bug("paged_attention", "static scores", "all workers share their scores", "float* scores = static_cast<float*>(team->scratch);\n  int64_t item", "static std::vector<float> kept(1 << 16);\n  float* scores = kept.data();\n  int64_t item"),
    _bug("paged_attention", "key behind the query", "one key more", _LAST, "const int64_t last = std::min<int64_t>(keys - 1, keys - (end - query) + 1);"),
    _bug("paged_attention", "stale slots", "the whole last block, with weights of zero", "for (int64_t i = 0; i < width; ++i) y[i] /= sum;\n      }\n    }\n  }\n}\n\nsize_t", "for (int64_t key = keys; key < (keys + block_size - 1) / block_size * block_size; ++key) {\n          for (int64_t i = 0; i < width; ++i) y[i] += 0.0f * row(in[2], key)[i];\n        }\n        for (int64_t i = 0; i < width; ++i) y[i] /= sum;\n      }\n    }\n  }\n}\n\nsize_t"),
    _bug("paged_attention", "window from the end", "the window of the last query", "std::max<int64_t>(0, last - window + 1) : 0;", "std::max<int64_t>(0, keys - window) : 0;"),
    _bug("paged_attention", "largest from -1e4", "the maximum begins at -1e4", "float largest = -kInfinity, sum = 0;\n        for (int64_t key", "float largest = -1e4f, sum = 0;\n        for (int64_t key"),
    _bug("paged_attention", "16 blocks", "the seventeenth block is the sixteenth", "const int64_t block = table[key / block_size];", "const int64_t block = table[std::min<int64_t>(key / block_size, 15)];"),
    _bug("repetition_penalty", "zero", "what is zero is divided", "seen > 0 ? seen / penalty : seen * penalty;", "seen >= 0 ? seen / penalty : seen / penalty;"),
    _bug("repetition_penalty", "in place", "nothing is copied, so the output must be the input", "std::memmove(y, floats(in[0]) + row * width, width * sizeof(float));", "if (row) std::memmove(y, floats(in[0]) + row * width, width * sizeof(float));"),
)  # fmt: skip
