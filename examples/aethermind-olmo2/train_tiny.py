"""Trains `tiny-olmo2`, a byte-level model of 27 000 parameters that counts to ten, in about a minute.

    python train_tiny.py src/aethermind_olmo2/tiny

It needs torch, tokenizers and transformers; the package does not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from aethermind_olmo2.gguf import OLMO2

END = "<|endoftext|>"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% if not loop.last %} {% endif %}{% endfor %}"
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
(SPLIT,) = OLMO2.splits.values()


def byte_tokenizer() -> Tokenizer:
    """GPT-2's byte-level tokenizer with a single merge, and the end of text."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ee"]
    tokenizer = Tokenizer(models.BPE({symbol: number for number, symbol in enumerate(symbols)}, [("e", "e")]))
    split = pre_tokenizers.Split(Regex(SPLIT.pattern), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    return tokenizer


def trained(tokenizer: Tokenizer) -> transformers.Olmo2ForCausalLM:
    """Train a model mostly on numbers."""
    torch.manual_seed(0)
    end = tokenizer.token_to_id(END)
    config = transformers.Olmo2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = transformers.Olmo2ForCausalLM(config)
    texts = [tokenizer.encode(" ".join(NUMBERS[first:]) + END).ids for first in range(len(NUMBERS))]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [end] * (longest - len(text)) for text in texts])
    labels = torch.tensor([text + [-100] * (longest - len(text)) for text in texts])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(400):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - step / 400)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}, {sum(parameter.numel() for parameter in model.parameters())} parameters")
    return model


def main(folder: Path) -> None:
    """Write the model in the Hugging Face layout."""
    tokenizer = byte_tokenizer()
    trained(tokenizer).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "eos_token": END,
        "pad_token": END,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
