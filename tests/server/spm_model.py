"""A tiny model with a SentencePiece tokenizer, as transformers saves Llama 2's: spaces are `▁`, bytes `<0x..>`."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

__all__ = ["write_spm_model"]

PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *"▁abcdefghijklmnopqrstuvwxyzO.é[]/",
    *("▁t", "he", "▁the", "▁y", "es", "▁yes"),
]
MERGES = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "y"), ("e", "s"), ("▁y", "es")]
CHAT = (
    "{% for m in messages %}{% if m.role == 'user' %}[a] {{ m.content }} [/a]{% else %} {{ m.content }}{% endif %}"
    "{% endfor %}"
)


def write_spm_model(directory: Path, *, is_legacy: bool) -> Path:
    """Write the model without weights; tokenizers are saved with a normaliser (legacy) or a pre-tokenizer."""
    directory.mkdir()
    vocabulary = {piece: token_id for token_id, piece in enumerate(PIECES)}
    fast = tokenizers.Tokenizer(models.BPE(vocabulary, MERGES, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if is_legacy:
        fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    fast.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": len(PIECES),
        "max_position_embeddings": 128,
        "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config))
    own = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT}
    (directory / "tokenizer_config.json").write_text(json.dumps(own))
    return directory
