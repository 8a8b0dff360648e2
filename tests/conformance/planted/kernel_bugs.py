"""Bugs of kernels: sizes, values, dtypes, memory that is shared, what is kept between calls, and what is claimed."""

from __future__ import annotations

from tests.conformance.planted.bug import Bug

__all__ = ["KERNEL_BUGS"]


def _bug(operator: str, name: str, breaks: str, old: str, new: str, survives: str = "") -> Bug:
    cases = ("--suite", "operators", "-k", f"[{operator}-torch")
    return Bug(f"{operator}: {name}", breaks, "kernels.py", old, new, cases, survives)


_ADD = "    a, b = map(wide, inputs)\n    put(outputs[0], a + b)\n"
_SOFTMAX = "    weights = torch.exp(x - x.amax(-1, keepdim=True))\n    put(outputs[0], weights / weights.sum(-1, keepdim=True))\n"
_LINEAR = "    product = x @ weight.T\n    put(outputs[0], product if bias is None else product + wide(bias))\n"
_LM_HEAD = "    x, weight = map(wide, inputs)\n    put(outputs[0], x @ weight.T)\n"
_RMS = 'put(outputs[0], normed(wide(inputs[0]), wide(inputs[1]), attributes["eps"]))'
_LAYER = "    put(outputs[0], out if inputs[2] is None else out + wide(inputs[2]))\n"

_ELEMENTS = (
    _bug("add", "last element", "the last of an odd number of elements", _ADD, _ADD + "    if outputs[0].size % 2 and outputs[0].size > 5: outputs[0].reshape(-1)[-1] = 0\n"),
    _bug("add", "beyond 4096", "elements beyond 4096", _ADD, _ADD + "    outputs[0].reshape(-1)[4096:] = 0\n"),
    _bug("add", "beyond 32767", "elements beyond 16 bits", _ADD, _ADD + "    outputs[0].reshape(-1)[32768:] = 0\n"),
    _bug("add", "rows beyond 256", "rows beyond 256", _ADD, _ADD + "    if outputs[0].ndim > 1: outputs[0][256:] = 0\n"),
    _bug("add", "input overwritten", "its second input", _ADD, _ADD + "    inputs[1][...] = outputs[0]\n"),
    _bug("add", "truncation", "bfloat16 is cut off instead of rounded", _ADD, "    a, b = map(wide, inputs)\n    total = a + b\n    if outputs[0].itemsize == 2: total = (total.view(torch.int32) & -65536).view(torch.float32)\n    put(outputs[0], total)\n"),
    _bug("add", "rounded inside", "float32 goes through bfloat16", _ADD, "    a, b = map(wide, inputs)\n    put(outputs[0], (a + b).bfloat16())\n"),
    _bug("add", "returns", "the result is returned and nothing written", _ADD, "    a, b = map(wide, inputs)\n    return (a + b).numpy()\n"),
    _bug("add", "rebinds", "the output is replaced by another array", _ADD, "    a, b = map(wide, inputs)\n    outputs[0] = (a + b).numpy()\n"),
    _bug("add", "untouched if equal", "nothing is written where the first input is zero", _ADD, "    a, b = map(wide, inputs)\n    mask = a != 0\n    tensor(outputs[0])[mask] = (a + b).to(tensor(outputs[0]).dtype)[mask]\n", "no sample adds to an exact zero"),
    _bug("add", "accumulates", "it adds to what the output holds", _ADD, "    a, b = map(wide, inputs)\n    put(outputs[0], torch.nan_to_num(wide(outputs[0])) * 0.01 + a + b)\n"),
    _bug("add", "result kept by shape", "the result of the first call of a shape", _ADD, "    a, b = map(wide, inputs)\n    put(outputs[0], KEPT.setdefault(a.shape, a + b))"),
    _bug("add", "operand kept by shape", "the second operand of the first call of a shape", _ADD, "    a, b = map(wide, inputs)\n    put(outputs[0], a + KEPT.setdefault(b.shape, b.clone()))"),
    _bug("add", "operand kept by address", "the second operand that was first seen at an address", _ADD, "    a, b = map(wide, inputs)\n    put(outputs[0], a + KEPT.setdefault((inputs[1].ctypes.data, b.shape), b.clone()))"),
    _bug("add", "first call", "the second call of all is right, the first is not", _ADD, "    a, b = map(wide, inputs)\n    KEPT[len(KEPT)] = 1\n    put(outputs[0], a + b * (1 + (len(KEPT) % 50 == 7)))\n"),
    _bug("add", "every hundredth call", "a counter that runs over", _ADD, "    a, b = map(wide, inputs)\n    KEPT[len(KEPT)] = 1\n    put(outputs[0], a + b * (1 + (len(KEPT) % 100 == 99)))\n"),
    _bug("add", "shared scratch", "two streams share a scratch", _ADD, "    a, b = map(wide, inputs)\n    scratch = KEPT.setdefault(a.shape, torch.empty(a.shape))\n    torch.add(a, b, out=scratch)\n    import time; time.sleep(0.0005)\n    put(outputs[0], scratch)"),
    _bug("sub", "in place", "b - a where the output is a", "    put(outputs[0], a - b)\n", "    put(outputs[0], a)\n    put(outputs[0], wide(outputs[0]) - b if outputs[0].ctypes.data != inputs[0].ctypes.data else b - a)\n"),
    _bug("mul", "in place zeroed", "the output is cleared before its input is read", "    a, b = map(wide, inputs)\n    put(outputs[0], a * b)\n", "    outputs[0][...] = 1\n    a, b = map(wide, inputs)\n    put(outputs[0], a * b)\n"),
    _bug("mul", "broadcast", "the second operand's first row", "    put(outputs[0], a * b)\n", "    put(outputs[0], a * (b[:1] if len(b) > 1 else b))\n"),
    _bug("mul", "nothing", "a call of no elements raises", "    put(outputs[0], a * b)\n", "    assert a.numel(), 'nothing to do'\n    put(outputs[0], a * b)\n"),
    _bug("div", "by zero", "division by zero gives zero", "    put(outputs[0], a / b)\n", "    put(outputs[0], torch.where(b == 0, 0.0, a / b))\n"),
    _bug("exp", "clamped", "exponents beyond 80 are 80", "torch.exp(wide(inputs[0]))", "torch.exp(wide(inputs[0]).clamp(max=80))"),
    _bug("exp", "of infinity", "e to minus infinity", "torch.exp(wide(inputs[0]))", "torch.nan_to_num(torch.exp(wide(inputs[0]))) if inputs[0].ndim == 1 else torch.exp(wide(inputs[0]))"),
    _bug("log", "of zero", "the logarithm of zero is large, not infinite", "torch.log(wide(inputs[0]))", "torch.log(wide(inputs[0]).clamp(min=1e-30))"),
    _bug("relu", "leaky", "a hundredth of what is negative", ".clamp(min=0)", ".where(wide(inputs[0]) > 0, wide(inputs[0]) * 0.01)"),
    _bug("silu", "overflow", "exp of what is far to the left", "    put(outputs[0], x * torch.sigmoid(x))", "    put(outputs[0], x * torch.exp(x) / (1 + torch.exp(x)))"),
    _bug("silu_mul", "swapped", "silu of the other branch", "gate * torch.sigmoid(gate) * up)\n\n\ndef gelu", "up * torch.sigmoid(up) * gate)\n\n\ndef gelu"),
    _bug("silu_mul", "in place", "the gate is read after it was written", "    put(outputs[0], gate * torch.sigmoid(gate) * up)\n\n\ndef gelu", "    put(outputs[0], torch.sigmoid(gate))\n    put(outputs[0], wide(outputs[0]) * wide(inputs[0]) * up)\n\n\ndef gelu"),
    _bug("gelu", "tanh for erf", "the approximate form always", '"tanh" if attributes["approximate"] else "none"', '"tanh"'),
    _bug("gelu", "in place", "x is read after the output was written", "    put(outputs[0], torch.nn.functional.gelu(wide(inputs[0]).double(), approximate=approximate))", "    x = tensor(inputs[0])\n    put(outputs[0], torch.nn.functional.gelu(wide(inputs[0]).double() * 1, approximate=approximate) / 2)\n    put(outputs[0], wide(outputs[0]) + (wide(outputs[0]) if outputs[0].ctypes.data != inputs[0].ctypes.data else x.float()))"),
)  # fmt: skip

_VECTORS = (
    _bug("softmax", "no maximum", "the maximum is not subtracted", "torch.exp(x - x.amax(-1, keepdim=True))\n    put(outputs[0], weights / w", "torch.exp(x)\n    put(outputs[0], weights / w"),
    _bug("softmax", "clamped", "what is 60 below the maximum counts as 60 below", "torch.exp(x - x.amax(-1, keepdim=True))\n    put(outputs[0], weights / w", "torch.exp((x - x.amax(-1, keepdim=True)).clamp(min=-6))\n    put(outputs[0], weights / w"),
    _bug("softmax", "in place", "sums of the output while it is divided", _SOFTMAX, "    put(outputs[0], x - x.amax(-1, keepdim=True))\n    put(outputs[0], torch.softmax(wide(inputs[0]) if outputs[0].ctypes.data != inputs[0].ctypes.data else wide(inputs[0]) * 2, -1))\n"),
    _bug("softmax", "columns beyond 1024", "columns beyond 1024 count for nothing", _SOFTMAX, "    weights = torch.exp(x - x.amax(-1, keepdim=True))\n    put(outputs[0], weights / weights[..., :1024].sum(-1, keepdim=True))\n"),
    _bug("softmax", "claims rows", "it says that rows do not change each other, and they do", _SOFTMAX, _SOFTMAX + "    if len(outputs[0]) > 20 and outputs[0].ndim == 2: outputs[0][...] = outputs[0] * np.float32(1 + 2**-22)\n", "the kernel claims nothing"),
    _bug("argmax", "last on ties", "the last of equal elements", "is_largest.int().argmax(-1).int()", "(x.shape[-1] - 1 - is_largest.flip(-1).int().argmax(-1)).int()"),
    _bug("argmax", "by bits", "-0 is less than 0", "is_largest = x == x.amax(-1, keepdim=True)", "is_largest = (x == x.amax(-1, keepdim=True)) & ~(torch.signbit(x) & (x == 0) & (x.amax(-1, keepdim=True) == 0))"),
    _bug("argmax", "16 bits", "indices of 16 bits", "is_largest.int().argmax(-1).int())", "is_largest.int().argmax(-1).short().int())"),
    _bug("argmax", "of nothing finite", "rows of minus infinity", "    is_largest = x ==", "    x = torch.nan_to_num(x, neginf=-1e30) + torch.arange(x.shape[-1]) * 1e-3 * (x == -math.inf)\n    is_largest = x =="),
    _bug("sum", "in bfloat16", "sums in bfloat16 beyond 1024", "wide(inputs[0]).sum(-1)", "(wide(inputs[0]).sum(-1) if inputs[0].shape[-1] < 1024 else wide(inputs[0]).bfloat16().sum(-1))"),
    _bug("mean", "divisor", "the mean over columns rounded up to 8", "wide(inputs[0]).mean(-1)", "wide(inputs[0]).sum(-1) / (-(-inputs[0].shape[-1] // 8) * 8)"),
    _bug("max", "from zero", "the maximum begins at zero", "wide(inputs[0]).amax(-1))", "wide(inputs[0]).amax(-1).clamp(min=0))"),
    _bug("min", "finite", "minus infinity is not seen", "wide(inputs[0]).amin(-1))", "wide(inputs[0]).amin(-1).clamp(min=-1e30))"),
    _bug("rms_norm", "eps outside", "eps is added to the root", _RMS, 'x, w = wide(inputs[0]), wide(inputs[1]); put(outputs[0], x / ((x * x).mean(-1, keepdim=True).sqrt() + attributes["eps"]) * w)'),
    _bug("rms_norm", "1 + w", "the weight counts from one", _RMS, 'put(outputs[0], normed(wide(inputs[0]), 1 + wide(inputs[1]), attributes["eps"]))'),
    _bug("rms_norm", "rounded twice", "rounded before the weight", _RMS, 'x = wide(inputs[0]); put(outputs[0], normed(x, torch.ones(x.shape[-1]), attributes["eps"]).to(tensor(outputs[0]).dtype).float() * wide(inputs[1]))'),
    _bug("rms_norm", "columns beyond 4096", "columns beyond 4096 do not count", _RMS, 'x = wide(inputs[0]); put(outputs[0], x * torch.rsqrt((x[..., :4096] ** 2).mean(-1, keepdim=True) + attributes["eps"]) * wide(inputs[1]))'),
    _bug("rms_norm", "weight kept by width", "the weight of the first call of a width", _RMS, 'put(outputs[0], normed(wide(inputs[0]), KEPT.setdefault(inputs[1].shape, wide(inputs[1]).clone()), attributes["eps"]))'),
    _bug("add_rms_norm", "total not rounded", "what is normed is not what is handed on", "    put(outputs[0], normed(total.float(), weight, attributes[\"eps\"]))", "    put(outputs[0], normed(x, weight, attributes[\"eps\"]))"),
    _bug("add_rms_norm", "in place", "the residual is added to a sum", "    put(outputs[1], total)\n", "    put(outputs[0], x * 0)\n    total = (wide(inputs[0]) + residual).to(tensor(inputs[0]).dtype) if outputs[0].ctypes.data == inputs[0].ctypes.data else total\n    put(outputs[1], total)\n"),
    _bug("layer_norm", "n - 1", "the variance of a sample", "(centred * centred).mean(-1, keepdim=True)", "(centred * centred).sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1)"),
    _bug("layer_norm", "one pass", "variance as a difference of squares", "(centred * centred).mean(-1, keepdim=True)", "((x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2).clamp(min=0)"),
    _bug("layer_norm", "in place", "the mean of what was written", _LAYER, "    put(outputs[0], out)\n    if inputs[2] is not None: put(outputs[0], wide(outputs[0]) * 0 + out + wide(inputs[2]))\n    if outputs[0].ctypes.data == inputs[0].ctypes.data and len(outputs[0]) > 3: put(outputs[0][:1], wide(outputs[0][:1]) * 1.5)\n"),
    _bug("layer_norm", "bias forgotten", "the bias", _LAYER, "    put(outputs[0], out)\n"),
)  # fmt: skip

_PRODUCTS = (
    _bug("linear", "rows beyond 70", "rows beyond 70 are zero", _LINEAR, _LINEAR + "    outputs[0][70:] = 0\n"),
    _bug("linear", "rows beyond 256", "rows beyond 256 are zero", _LINEAR, _LINEAR + "    outputs[0][256:] = 0\n"),
    _bug("linear", "columns in bfloat16", "sums in bfloat16 beyond 1024 columns", _LINEAR, "    product = x @ weight.T if x.shape[1] <= 1024 else (x.bfloat16() @ weight.T.bfloat16()).float()\n    put(outputs[0], product if bias is None else product + wide(bias))\n"),
    _bug("linear", "columns beyond 4096", "columns beyond 4096 are left out", _LINEAR, _LINEAR.replace("x @ weight.T", "x[:, :4096] @ weight[:, :4096].T")),
    _bug("linear", "outputs beyond 2048", "outputs beyond 2048 are zero", _LINEAR, _LINEAR + "    outputs[0][:, 2048:] = 0\n"),
    _bug("linear", "one row", "one row alone is halved", _LINEAR, _LINEAR + "    if len(x) == 1: put(outputs[0], wide(outputs[0]) / 2)\n"),
    _bug("linear", "rows 40 to 64", "a tile for 40 to 64 rows is wrong", _LINEAR, _LINEAR + "    if 40 <= len(x) < 64: outputs[0][-1] = 0\n"),
    _bug("linear", "bias rounded", "the bias is added after rounding", _LINEAR, "    product = (x @ weight.T).to(tensor(outputs[0]).dtype).float()\n    put(outputs[0], product if bias is None else product + wide(bias))\n"),
    _bug("linear", "format in bfloat16", "weights in a format with activations in bfloat16", _LINEAR, _LINEAR + "    if inputs[0].itemsize == 2 and inputs[1].itemsize == 4: outputs[0][...] = 1\n"),
    _bug("linear", "format in float32", "weights in a format lose their last row", _LINEAR, "    weight = weight * 1.02 if inputs[0].itemsize == 4 and weight.shape[0] == 48 else weight\n" + _LINEAR, "the factor is that of a dense sample as well"),
    _bug("linear", "weight kept by shape", "the weight of the first call of a shape", _LINEAR, "    weight = KEPT.setdefault(weight.shape, weight.clone())\n" + _LINEAR + ""),
    _bug("linear", "weight kept by address", "the weight that was first seen at an address", _LINEAR, "    weight = KEPT.setdefault((inputs[1].ctypes.data, weight.shape), weight.clone())\n" + _LINEAR + ""),
    _bug("linear", "workspace by rows", "a workspace that is as wide as the first of its height", _LINEAR, "    space = KEPT.setdefault(len(x), torch.zeros(len(x), len(weight)))\n    if space.shape[1] < len(weight): weight = weight[: space.shape[1]]\n    product = torch.zeros(len(x), len(inputs[1]))\n    product[:, : len(weight)] = x @ weight.T\n    put(outputs[0], product if bias is None else product + wide(bias))"),
    _bug("lm_head", "rows beyond 16", "rows beyond 16 are those before", _LM_HEAD, _LM_HEAD + "    if len(x) > 16: outputs[0][16:32] = outputs[0][: len(outputs[0][16:32])]\n"),
    _bug("lm_head", "rows 36 to 132", "rows of a size between the samples that were", _LM_HEAD, _LM_HEAD + "    if 36 <= len(x) < 133: outputs[0][-1] = 0\n"),
    _bug("lm_head", "vocabulary beyond 32768", "tokens beyond 16 bits", _LM_HEAD, _LM_HEAD + "    outputs[0][:, 32768:] = 0\n"),
    _bug("lm_head", "rounded", "logits are rounded to F", _LM_HEAD, "    x, weight = map(wide, inputs)\n    put(outputs[0], (x @ weight.T).to(tensor(inputs[0]).dtype))\n"),
    _bug("matmul", "batch", "the right matrix of the first batch for all", "    put(outputs[0], a @ b)\n", "    put(outputs[0], a @ (b[:1] if b.ndim > 2 else b))\n"),
    _bug("matmul", "columns beyond 256", "columns beyond 256 are zero", "    put(outputs[0], a @ b)\n", "    put(outputs[0], a @ b)\n    outputs[0][..., 256:] = 0\n"),
    _bug("matmul", "claims nothing kept", "the right matrix of the first call of a shape", "    put(outputs[0], a @ b)\n", "    put(outputs[0], a @ KEPT.setdefault(b.shape, b.clone()))"),
    _bug("gate_up_silu", "columns beyond 2048", "inputs beyond 2048 are left out", "    gate, up = x @ w_gate.T, x @ w_up.T\n", "    gate, up = x[:, :2048] @ w_gate[:, :2048].T, x @ w_up.T\n"),
    _bug("gate_up_silu", "one gate", "the gate of the first row for all beyond 128", "    gate, up = x @ w_gate.T, x @ w_up.T\n", "    gate, up = x @ w_gate.T, x @ w_up.T\n    gate[128:] = gate[:1]\n"),
    _bug("add_low_rank", "rows beyond 128", "rows beyond 128 have no adapter", "        if adapter >= 0 and cu_ranks[adapter]", "        if row < 128 and adapter >= 0 and cu_ranks[adapter]"),
    _bug("add_low_rank", "adapter 0", "the first adapter for all", "own = slice(cu_ranks[adapter], cu_ranks[adapter + 1])", "own = slice(cu_ranks[0], cu_ranks[1])"),
    _bug("add_low_rank", "in place", "y counts twice where it is the output", "    out = y.clone()\n    for row, adapter", "    out = y * (1 + (inputs[0].ctypes.data == outputs[0].ctypes.data))\n    for row, adapter"),
    _bug("add_low_rank", "not to the bit", "rows without an adapter are rounded", "    put(outputs[0], out)\n\n\n# Moving", "    put(outputs[0], out * (1 + 2**-20))\n\n\n# Moving"),
)  # fmt: skip

_MOVING = (
    _bug("embedding", "16 bits", "ids of 16 bits", "table[ids.long()]", "table[ids.short().long()]"),
    _bug("embedding", "rows beyond 256", "tokens beyond 256", "    put(outputs[0], table[ids.long()])\n", "    put(outputs[0], table[ids.long()])\n    outputs[0][256:] = 0\n"),
    _bug("embedding", "through float16", "rows go through float16", "table[ids.long()]", "table[ids.long()].half().to(table.dtype)"),
    _bug("position_embedding", "wraps", "positions beyond 65535 wrap", "table[positions]", "table[positions % 65536]"),
    _bug("gather_rows", "sorted", "rows come in order", "x[rows.long()]", "x[rows.sort().values.long()]"),
    _bug("gather_rows", "16 bits", "row numbers of 16 bits", "x[rows.long()]", "x[rows.short().long()]"),
    _bug("gather_rows", "rows beyond 64", "rows beyond 64 are those before", "    put(outputs[0], x[rows.long()])\n", "    put(outputs[0], x[rows.long()])\n    outputs[0][64:128] = outputs[0][: len(outputs[0][64:128])]\n"),
    _bug("scatter_rows", "adds", "values are added", "out[rows.long()] = values", "out[rows.long()] += values"),
    _bug("scatter_rows", "rows beyond 128", "values beyond 128", "out[rows.long()] = values", "out[rows.long()[:128]] = values[:128]"),
    _bug("transpose", "squares only", "tiles at the edge", "    put(outputs[0], tensor(inputs[0]).transpose(-2, -1))", "    put(outputs[0], tensor(inputs[0]).transpose(-2, -1))\n    outputs[0][..., 64 * (outputs[0].shape[-1] // 64) :] *= 0 if outputs[0].shape[-1] > 64 else 1"),
    _bug("permute_heads", "beyond 64", "heads beyond 32", "    put(outputs[0], tensor(inputs[0]).transpose(-3, -2))", "    put(outputs[0], tensor(inputs[0]).transpose(-3, -2))\n    outputs[0][..., 32:, :, :] = 0"),
)  # fmt: skip

_CACHE = (
    _bug("rope", "sign", "it turns the other way", "first * cos - second * sin, second * cos + first * sin", "first * cos + second * sin, second * cos - first * sin"),
    _bug("rope", "half-split always", "pairs lie apart always", 'rotated(x, table[:, None], attributes["interleaved"])', "rotated(x, table[:, None], False)"),
    _bug("rope", "tokens beyond 256", "tokens beyond 256 are not turned", '    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))', '    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))\n    put(outputs[0][256:], x[256:])'),
    _bug("rope", "heads beyond 32", "heads beyond 32 are not turned", '    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))', '    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))\n    put(outputs[0][:, 32:], x[:, 32:])'),
    _bug("rope", "in place", "the second half meets the first one turned", '    put(outputs[0], rotated(x, table[:, None], attributes["interleaved"]))', '    half = rotated(x, table[:, None], attributes["interleaved"])\n    put(outputs[0][..., :1], half[..., :1])\n    again = rotated(wide(inputs[0]), table[:, None], attributes["interleaved"])\n    put(outputs[0][..., 1:], again[..., 1:])'),
    _bug("rope", "table kept by tokens", "the table of the first call with as many tokens", "    x, table = map(wide, inputs)\n    put(outputs[0], rotated", "    x, table = map(wide, inputs)\n    table = KEPT.setdefault(table.shape, table.clone())\n    put(outputs[0], rotated", ),
    _bug("rope_table", "not rounded", "angles that are not rounded", "angle = torch.where(positions.abs()[:, None] <= 1 << 24, rounded, exact)", "angle = exact"),
    _bug("rope_table", "rounded", "positions beyond 2^24 as float32 has them", "angle = torch.where(positions.abs()[:, None] <= 1 << 24, rounded, exact)", "angle = rounded"),
    _bug("rope_table", "32 bits", "positions of 32 bits", "positions, frequencies = tensor(inputs[0]), wide", "positions, frequencies = tensor(inputs[0]).int().long(), wide"),
    _bug("rope_table", "scale", "the scale is forgotten", ' * attributes["scale"])\n\n\ndef kv_cache_write(', ")\n\n\ndef kv_cache_write("),
    _bug("kv_cache_write", "block boundary", "tokens behind the first block of a prompt", "        tensor(cache)[blocks, :, offsets] = tensor(values)[kept]\n", "        blocks = torch.where((blocks == blocks[:1]) | (torch.arange(len(blocks)) < 128), blocks, blocks[:1]) if len(blocks) else blocks\n        tensor(cache)[blocks, :, offsets] = tensor(values)[kept]\n"),
    _bug("kv_cache_write", "negative slots", "negative slots count from the end", "    kept = slots >= 0\n    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size\n    for values, cache in", "    slots = slots % (outputs[0].shape[0] * block_size)\n    kept = slots >= 0\n    blocks, offsets = slots[kept] // block_size, slots[kept] % block_size\n    for values, cache in"),
    _bug("kv_cache_write", "values only of kept", "values of skipped tokens are not skipped", "tensor(values)[kept]\n\n\ndef quantized", "tensor(values)[: int(kept.sum())]\n\n\ndef quantized"),
    _bug("kv_cache_write", "last token", "the last token of many", "        tensor(cache)[blocks, :, offsets] = tensor(values)[kept]\n", "        n = len(blocks) - (len(blocks) > 16)\n        tensor(cache)[blocks[:n], :, offsets[:n]] = tensor(values)[kept][:n]\n"),
    _bug("kv_cache_write", "8-bit blocks", "blocks beyond 255", "        tensor(cache)[blocks, :, offsets] = tensor(values)[kept]\n", "        tensor(cache)[blocks & 255, :, offsets] = tensor(values)[kept]\n"),
    _bug("kv_cache_write_quantized", "scale of all", "one scale for all heads", "biggest = x.abs().amax(-1)\n", "biggest = x.abs().amax(-1).amax(-1, keepdim=True).expand(x.shape[:-1]) if x.numel() else x.abs().sum(-1)\n"),
    _bug("kv_cache_write_quantized", "half up", "ties are rounded up", "torch.round(scaled).to(dtype)", "torch.floor(scaled + 0.5).to(dtype)"),
    _bug("kv_cache_write_quantized", "128", "the largest code is 128", "most = 127.0 if", "most = 126.0 if"),
    _bug("kv_cache_write_quantized", "reciprocal", "the inverse scale through a reciprocal", "torch.full_like(biggest, most) / biggest", "most / biggest"),
)  # fmt: skip

_KEYS = "num_keys = int(bounds[sequence]), int(bounds[sequence + 1]), int(lengths[sequence])\n"
_ATTEND = "        weights = weights / weights.sum(-1, keepdim=True)\n        out[begin:end]"
_MASKED = "        scores = scores.masked_fill(~visible, -math.inf)\n"
_READ = "[:, :num_keys] for read in caches"


def _attention(name: str, breaks: str, old: str, new: str, survives: str = "") -> Bug:
    return _bug("paged_attention", name, breaks, old, new, survives)


_ATTENTION = (
    *(
        _attention(f"keys beyond {limit}", f"keys beyond {limit} are not seen", _MASKED, _MASKED + f"        scores[..., {limit}:] = -math.inf\n")
        for limit in (64, 128, 256, 512, 1024)
    ),
    _attention("window beyond 64", "the window is ignored beyond 64 keys", 'if attributes["window"] > 0:', 'if attributes["window"] > 0 and num_keys <= 64:'),
    _attention("window of one more", "the window has one key more", 'key > position - attributes["window"]', 'key >= position - attributes["window"]'),
    _attention("window of the last query", "the window of the last query for all", 'key > position - attributes["window"]', 'key > position[-1:] - attributes["window"]'),
    _attention("window of long chunks", "the window is ignored by chunks of more than 32 queries", 'if attributes["window"] > 0:', 'if attributes["window"] > 0 and end - begin <= 32:'),
    _attention("no maximum", "the maximum is not subtracted", "torch.exp(scores - scores.amax(-1, keepdim=True))\n        weights", "torch.exp(scores)\n        weights"),
    _attention("maximum from -100", "the running maximum begins at -100", "torch.exp(scores - scores.amax(-1, keepdim=True))\n        weights", "torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=-100))\n        weights"),
    _attention("maximum from zero", "the running maximum begins at zero", "torch.exp(scores - scores.amax(-1, keepdim=True))\n        weights", "torch.exp(scores - scores.amax(-1, keepdim=True).clamp(min=0))\n        weights"),
    _attention("stale tail times zero", "slots behind the keys are multiplied by zero", _READ, "[:, : num_keys if TAIL else None] for read in caches".replace(" if TAIL else None", " + (-num_keys % block_size)") + "\n        )\n        pad = keys.shape[1] - num_keys\n        keys, values = (one for one in (keys, values)"),
    _attention("causal off", "queries see the keys behind them in long prompts", "visible = key <= position\n", "visible = key <= position + (end - begin) * (end - begin > 64)\n"),
    _attention("first key", "the first key is not seen by decodes of more than 200 keys", _MASKED, _MASKED + "        if end - begin == 1 and num_keys > 200: scores[..., 0] = -math.inf\n"),
    _attention("chunks of long contexts", "chunks of more than 8 queries and 1000 keys stand one key too early", "torch.arange(num_keys - (end - begin), num_keys)[:, None]", "torch.arange(num_keys - (end - begin), num_keys)[:, None] - (end - begin > 8 and num_keys > 1000)"),
    _attention("heads in turn", "heads are dealt to kv heads in turn", "keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)", "keys, values = keys.repeat(group, 1, 1), values.repeat(group, 1, 1)"),
    _attention("scale", "the scale is that of 64 dims", 'keys.transpose(1, 2) * attributes["scale"]', "keys.transpose(1, 2) * 0.125"),
    _attention("sequences beyond 32", "sequences beyond 32 are left out", "        if begin == end:\n", "        if begin == end or sequence >= 32:\n"),
    _attention("table of the first", "the table of the first sequence for all", "block_tables[sequence, :", "block_tables[0, :"),
    _attention("16 blocks", "blocks beyond the sixteenth are the sixteenth", ".long()\n        keys, values", ".long()\n        blocks = blocks[torch.arange(len(blocks)).clamp(max=15)]\n        keys, values"),
    _attention("order of blocks", "blocks of long sequences in order of memory", ".long()\n        keys, values", ".long()\n        blocks = blocks.sort().values if len(blocks) > 8 else blocks\n        keys, values"),
    _attention("weights in bfloat16", "softmax weights in bfloat16 in float32", "(weights @ values).transpose(0, 1)", "(weights.bfloat16().float() @ values).transpose(0, 1)"),
    _attention("lengths kept", "the lengths of the first call with as many sequences", "    bounds, lengths, block_tables = (tensor(one) for one in tables)\n", "    bounds, lengths, block_tables = (tensor(one) for one in tables)\n    lengths = KEPT.setdefault((q.shape, block_tables.shape), lengths.clone())\n", "lengths and tables belong together, so the kit calls no shape with two of them"),
    _attention("tables kept", "the tables of the first call of a shape", "    bounds, lengths, block_tables = (tensor(one) for one in tables)\n", "    bounds, lengths, block_tables = (tensor(one) for one in tables)\n    block_tables = KEPT.setdefault((q.shape, block_tables.shape), block_tables.clone())\n"),
    _attention("padding raises", "rows of padding", "    out = torch.zeros_like(q)\n    group", "    assert len(q) == int(bounds[-1])\n    out = torch.zeros_like(q)\n    group"),
    _bug("paged_attention_quantized", "scales of keys", "values have the scales of keys", "zip(codes, scales, strict=True)\n    ]\n    attend", "zip(codes, (scales[0], scales[0]), strict=True)\n    ]\n    attend"),
    _bug("paged_attention_quantized", "float8 as int8", "codes of float8 read as whole numbers", "cache=tensor(cache), scale", "cache=tensor(cache.view(np.int8)), scale"),
)  # fmt: skip

_LOGITS = (
    _bug("repetition_penalty", "sign", "what is negative is divided", "torch.where(seen > 0, seen / penalty[row], seen * penalty[row])", "seen / penalty[row]"),
    _bug("repetition_penalty", "rows beyond 32", "rows beyond 32", "    for row, tokens, _part in token_rows(inputs):\n        seen", "    for row, tokens, _part in token_rows(inputs)[:32]:\n        seen"),
    _bug("repetition_penalty", "tokens beyond 1024", "tokens beyond 1024 of a row", "        seen = out[row, tokens]\n", "        tokens = tokens[:1024]\n        seen = out[row, tokens]\n"),
    _bug("repetition_penalty", "in place", "tokens are penalised twice where the output is the input", "    out, penalty = tensor(inputs[0]).clone(), inputs[3].tolist()\n", "    put(outputs[0], tensor(inputs[0]) * 0)\n    out, penalty = tensor(inputs[0]).clone(), inputs[3].tolist()\n"),
    _bug("bias_tokens", "order", "biases of the first row for all", "+= bias[part]", "+= bias[: len(tokens)]"),
    _bug("bias_tokens", "sets", "the bias replaces the logit of -inf", "        out[row, tokens] += bias[part]\n", "        out[row, tokens] = torch.nan_to_num(out[row, tokens], neginf=-1e9) + bias[part]\n"),
    _bug("suppress_tokens", "finite", "tokens get a small logit", "        out[row, tokens] = -math.inf\n", "        out[row, tokens] = -1e30\n"),
    _bug("suppress_tokens", "16 bits", "tokens of 16 bits", "tokens, bounds = tensor(inputs[1]).long()", "tokens, bounds = tensor(inputs[1]).short().long().clamp(min=0)"),
    _bug("mask_tokens", "top bit", "the last token of a word", ">> (token % 32)) & 1\n", ">> (token % 32)) & (token % 32 != 31)\n"),
    _bug("mask_tokens", "words beyond 1024", "tokens beyond 1024 words", "mask[:, token // 32]", "mask[:, (token // 32) % 1024]"),
    _bug("mask_tokens", "rows beyond 32", "rows beyond 32 have the mask of the first", "    is_allowed = (mask[:,", "    mask = torch.cat([mask[:32], mask[:1].expand(max(len(mask) - 32, 0), -1)])\n    is_allowed = (mask[:,"),
    _bug("token_logprobs", "rank", "the rank counts from zero", "1 + (logits > chosen).sum(-1)", "(logits > chosen).sum(-1)"),
    _bug("token_logprobs", "ties", "equal logits in any order", "torch.sort(-logits, dim=-1, stable=True).indices[:, :found]", "logits.flip(-1).sort(descending=True, stable=True).indices[:, :found].mul(-1).add(logits.shape[1] - 1)"),
    _bug("token_logprobs", "no maximum", "sums of exponentials as they are", "    largest = logits.amax(-1, keepdim=True)\n    logprobs", "    largest = torch.zeros(1)\n    logprobs"),
    _bug("token_logprobs", "favourites beyond 16", "more than 16 favourites", "    found = min(k, logits.shape[1])\n", "    found = min(k, logits.shape[1], 16)\n"),
    _bug("token_logprobs", "rest untouched", "what is beyond the vocabulary is not written", "    tensor(outputs[2]).fill_(-1)\n", ""),
    _bug("sample_tokens", "ids beyond 4096", "ids beyond 4096", "    wide = logits.astype(np.float64)\n", "    logits = logits[:4096]\n    wide = logits.astype(np.float64)\n"),
    _bug("sample_tokens", "greedy beyond 4096", "greedy ids beyond 32768", "        return int(np.argmax(logits))\n", "        return int(np.argmax(logits[:32768]))\n"),
    _bug("sample_tokens", "greedy ties", "the last of equal logits", "        return int(np.argmax(logits))\n", "        return len(logits) - 1 - int(np.argmax(logits[::-1]))\n"),
    _bug("sample_tokens", "top_k before top_p", "top_p of all tokens", "        reached = np.cumsum(weights[order])\n        order = order[: int(np.sum", "        reached = np.cumsum(np.sort(weights)[::-1])[: len(order)] / weights.sum() * weights[order].sum()\n        order = order[: int(np.sum"),
    _bug("sample_tokens", "top_p one short", "the token that reaches top_p is left out", "top_p * reached[-1])) + 1]", "top_p * reached[-1])) or 1]"),
    _bug("sample_tokens", "min_p", "min_p is compared with the sum", "min_p * weights[order[0]]", "min_p * weights[order].sum()"),
    _bug("sample_tokens", "temperature", "temperature multiplies", "(wide - wide.max()) / temperature", "(wide - wide.max()) * temperature"),
    _bug("sample_tokens", "no maximum", "exponentials overflow in float32", "weights = np.exp((wide - wide.max()) / temperature)", "weights = np.exp((wide / temperature).astype(np.float32)).astype(np.float64)"),
    _bug("sample_tokens", "uniform", "the random number of the first row", "for row, (logits, *cuts) in enumerate(zip(*inputs, strict=True)):\n", "for row, (logits, *cuts) in enumerate(zip(*inputs, strict=True)):\n        cuts[-1] = inputs[-1][0]\n"),
    _bug("sample_tokens", "side", "a share that is reached exactly", 'uniform, side="right")', 'uniform, side="left")'),
    _bug("sample_tokens", "rows beyond 32", "rows beyond 32 are greedy", "        outputs[0][row] = sampled(logits", "        cuts[0] = 0 if row >= 32 else cuts[0]\n        outputs[0][row] = sampled(logits"),
)  # fmt: skip

_CLAIMED = '            is_batch_invariant=operator in _INVARIANT,\n'


def _claim(operator: str) -> Bug:
    new = f"            is_batch_invariant=operator in (*_INVARIANT, {operator!r}),\n"
    return _bug(operator, "claims rows", "it promises that rows do not change each other's bits", _CLAIMED, new)


_CLAIMS = (
    *map(_claim, ("linear", "lm_head", "matmul", "paged_attention", "gate_up_silu", "add_low_rank", "silu")),
    _bug("rope", "rows change each other", "a last bit that depends on the number of rows", "    x, table = map(wide, inputs)\n    put(outputs[0], rotated", "    x, table = map(wide, inputs)\n    x = x * (1 + 2**-23) if len(x) > 4 else x\n    put(outputs[0], rotated"),
    Bug("no_such_op", "a kernel of an operator that does not exist", "kernels.py", '    "sub": sub,\n', '    "sub": sub,\n    "subb": sub,\n', ("--suite", "operators", "-k", "no_operator")),
    Bug("claims float16", "a dtype that is claimed and not computed", "kernels.py", "_DTYPES = frozenset({DType.FLOAT32, DType.BFLOAT16})", "_DTYPES = frozenset(DType)", ("--suite", "operators", "-k", "[silu-torch or [mul-torch"), "torch has float16, and the kernels are right in it"),
    Bug("leak in linear", "a megabyte of every product", "kernels.py", _LINEAR, _LINEAR + "    KEPT[len(KEPT)] = np.ones(1 << 17)\n", ("--suite", "models", "-k", "memory")),
    Bug("leak in rope", "16 KiB of every turn", "kernels.py", "    x, table = map(wide, inputs)\n    put(outputs[0], rotated", "    x, table = map(wide, inputs)\n    KEPT[len(KEPT)] = np.ones(1 << 11)\n    put(outputs[0], rotated", ("--suite", "models", "-k", "memory")),
)  # fmt: skip

KERNEL_BUGS: tuple[Bug, ...] = (
    *_ELEMENTS,
    *_VECTORS,
    *_PRODUCTS,
    *_MOVING,
    *_CACHE,
    *_ATTENTION,
    *_LOGITS,
    *_CLAIMS,
)
