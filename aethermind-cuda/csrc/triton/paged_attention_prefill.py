"""Paged attention of sequences with many queries: FlashAttention-2 (Dao 2023) in Triton, compiled ahead of time.

Computes the same part of the operator as common/paged_attention_prefill.cuh, by tcgen05, which mma.sync does
not use. A program computes ROWS rows of one kv head, where row r is head r % group of query r / group, so that
each key is read once for all heads that share it.
"""

import triton
import triton.language as tl


@triton.jit
def _num_tiles(cu_seqlens_q, base, num_sequences, group, decode_rows, ROWS: tl.constexpr, SPAN: tl.constexpr):
    """Tiles of each of the SPAN sequences from `base` on; 0 for those of the decode kernel."""
    sequence = base + tl.arange(0, SPAN)
    exists = sequence < num_sequences
    begin = tl.load(cu_seqlens_q + sequence, mask=exists, other=0)
    end = tl.load(cu_seqlens_q + sequence + 1, mask=exists, other=0)
    rows = (end - begin) * group
    return tl.where(rows <= decode_rows, 0, (rows + (ROWS - 1)) // ROWS)


@triton.jit
def _rows_of_keys(table, start, keys_end, log2_block_size, KEYS: tl.constexpr):
    """Cache block and slot of KEYS keys from `start` on; keys beyond the end repeat the last one."""
    key = tl.minimum(start + tl.arange(0, KEYS), keys_end - 1)
    return tl.load(table + (key >> log2_block_size)), key & ((1 << log2_block_size) - 1)


@triton.jit
def paged_attention_prefill(
    out,
    q,
    k_cache,
    v_cache,
    cu_seqlens_q,
    seqlens_k,
    block_tables,
    scale_log2,
    num_sequences,
    num_heads,
    num_kv_heads,
    log2_block_size,
    blocks_per_sequence,
    window,
    decode_rows,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Program x computes tile x / K of the batch for kv head x % K. Programs beyond the last tile do nothing.

    out, q [T, H, HEAD_DIM]; k_cache, v_cache [N, K, P, HEAD_DIM]; int32 cu_seqlens_q [S + 1], seqlens_k [S],
    block_tables [S, M]. P is a power of two. Sequences of up to `decode_rows` rows belong to the decode kernel.
    """
    SPAN: tl.constexpr = 128
    group = num_heads // num_kv_heads
    kv_head = tl.program_id(0) % num_kv_heads
    wanted = tl.program_id(0) // num_kv_heads

    # Find the tile's sequence: SPAN sequences at a time, then among them.
    base = 0
    tiles = _num_tiles(cu_seqlens_q, base, num_sequences, group, decode_rows, ROWS, SPAN)
    in_span = tl.sum(tiles)
    while (wanted >= in_span) & (base + SPAN < num_sequences):
        wanted -= in_span
        base += SPAN
        tiles = _num_tiles(cu_seqlens_q, base, num_sequences, group, decode_rows, ROWS, SPAN)
        in_span = tl.sum(tiles)
    if wanted >= in_span:
        return
    up_to = tl.cumsum(tiles)
    is_before = up_to <= wanted
    sequence = base + tl.sum(is_before.to(tl.int32))
    wanted -= tl.max(tl.where(is_before, up_to, 0))

    # Tiles with the most keys come first, so that programs that start late are short.
    first_token = tl.load(cu_seqlens_q + sequence)
    num_queries = tl.load(cu_seqlens_q + sequence + 1) - first_token
    first_row = ((num_queries * group + (ROWS - 1)) // ROWS - 1 - wanted) * ROWS
    context = tl.load(seqlens_k + sequence) - num_queries
    last_query = tl.minimum((first_row + ROWS - 1) // group, num_queries - 1)
    first_position = context + first_row // group
    last_position = context + last_query
    row = first_row + tl.arange(0, ROWS)
    query = row // group
    position = context + tl.minimum(query, num_queries - 1)
    # Offsets within a tile have 32 bits.
    first_query = first_row // group
    corner = ((first_token + first_query).to(tl.int64) * num_heads + kv_head * group) * HEAD_DIM
    head = (query - first_query) * num_heads + row % group
    dim = tl.arange(0, HEAD_DIM)
    tile = head[:, None] * HEAD_DIM + dim[None, :]
    is_row = (query < num_queries)[:, None]
    queries = tl.load(q + corner + tile, mask=is_row, other=0.0)

    table = block_tables + sequence.to(tl.int64) * blocks_per_sequence
    slots_per_block = num_kv_heads << log2_block_size
    k_head = k_cache + (kv_head << log2_block_size).to(tl.int64) * HEAD_DIM
    v_head = v_cache + (kv_head << log2_block_size).to(tl.int64) * HEAD_DIM

    keys_begin = 0
    if window > 0:
        keys_begin = tl.maximum(0, first_position - window + 1)
    keys_end = last_position + 1

    # Online softmax in powers of two. Block table entries are loaded a tile ahead of the copy.
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    block, slot = _rows_of_keys(table, keys_begin, keys_end, log2_block_size, KEYS)
    for start in range(keys_begin, keys_end, KEYS):
        next_block, next_slot = _rows_of_keys(table, start + KEYS, keys_end, log2_block_size, KEYS)
        element = (block.to(tl.int64) * slots_per_block + slot)[:, None] * HEAD_DIM + dim[None, :]
        k, v = tl.load(k_head + element), tl.load(v_head + element)
        scores = tl.dot(queries, k.T)
        if (start + KEYS - 1 > first_position) | ((window > 0) & (start <= last_position - window)):
            key = start + tl.arange(0, KEYS)
            is_seen = key[None, :] <= position[:, None]
            is_seen &= (window <= 0) | (key[None, :] > position[:, None] - window)
            scores = tl.where(is_seen, scores, float("-inf"))
        grown = tl.maximum(largest, tl.max(scores, 1) * scale_log2)
        # For a row without a visible key so far, exp2(-inf - 0) is 0.
        reference = tl.where(grown == float("-inf"), 0.0, grown)
        weights = tl.exp2(scores * scale_log2 - reference[:, None])
        shrink = tl.exp2(largest - reference)
        total = total * shrink + tl.sum(weights, 1)
        largest = grown
        acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None])
        block, slot = next_block, next_slot
    tl.store(out + corner + tile, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_row)
