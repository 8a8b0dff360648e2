"""Train the demo model: stories and dialogues in, a Hugging Face directory (Qwen2 architecture, bf16) out.

    python train.py --out DIR --minutes 30
    python train.py --out DIR --steps 2000        # the same schedule on a machine of any speed

No story is repeated and none of the held-out stories and questions is used, so the loss printed is that of unseen text.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
from rows import Rows
from safetensors.torch import save_file
from stories import INVENTED_NAMES, stories
from tokenizers import Tokenizer
from tokens import END_OF_TEXT, IM_END, save_tokenizer, train_tokenizer
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

FIRST_TRAIN_SEED = 1_000_000
MAX_POSITIONS = 2048
ROPE_THETA = 10000.0


def build_model(options: argparse.Namespace, tokenizer: Tokenizer) -> Qwen2ForCausalLM:
    """A freshly initialised model of the chosen shape."""
    torch.manual_seed(options.seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=options.hidden_size,
            num_hidden_layers=options.layers,
            intermediate_size=options.intermediate_size,
            num_attention_heads=options.hidden_size // 32,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id(END_OF_TEXT),
            use_sliding_window=False,
        )
    )


def learning_rate(progress: float, peak: float) -> float:
    """Linear warm-up over the first 3 % of the run, then a cosine down to 2 % of the peak."""
    if progress < 0.03:
        return peak * progress / 0.03
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - 0.03) / 0.97)))


def next_token_loss(model: Qwen2ForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy of predicting each of `ids` [rows, length + 1] from those before it."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1], use_cache=False).logits
    losses = cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def train(model: Qwen2ForCausalLM, rows: Rows, options: argparse.Namespace) -> dict[str, object]:
    """Run AdamW until the minutes or the steps are used up; returns what was done."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
        fused=True,
    )
    began, step, tokens, smooth = time.monotonic(), 0, 0, None
    while True:
        elapsed = (time.monotonic() - began) / 60
        progress = max(
            elapsed / options.minutes if options.minutes else 0.0, step / options.steps if options.steps else 0.0
        )
        if progress >= 1:
            break
        length = options.lengths[step % len(options.lengths)]
        ids, weights = rows.batch(options.step_tokens // length, length)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(max(progress, 1e-4), options.learning_rate)
        loss = next_token_loss(model, ids, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        tokens += weights.numel()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % 100 == 0:
            print(
                f"step {step}  {progress:.0%}  loss {smooth:.4f}  {tokens / 1e6:.2f} M tokens  "
                f"{tokens / (elapsed * 60 + 1e-9):.0f} tokens/s",
                flush=True,
            )
    return {
        "steps": step,
        "tokens": tokens,
        "stories": rows.story - rows.first_story,
        "dialogues": rows.dialogue - rows.first_dialogue,
        "loss": round(smooth or 0.0, 4),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def save_model(model: Qwen2ForCausalLM, tokenizer: Tokenizer, folder: Path, runs: list[dict[str, object]]) -> None:
    """Write the Hugging Face directory; the config uses the spelling that old and new readers share."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    end, im_end = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(IM_END)
    written = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": MAX_POSITIONS,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }
    generation = {
        "bos_token_id": None,
        "eos_token_id": [end, im_end],
        "pad_token_id": end,
        "do_sample": True,
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
    }
    for name, content in (("config", written), ("generation_config", generation), ("training", runs)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    weights = {
        name: weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, folder, MAX_POSITIONS)


def main() -> None:
    """Read the options, train, save."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--minutes", type=float, default=0, help="stop after this long (0: no limit)")
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps (0: no limit)")
    parser.add_argument("--init", type=Path, help="continue from this folder, with stories it has not seen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--invented-names", type=float, default=INVENTED_NAMES, help="share of such names")
    parser.add_argument("--dialogues", type=float, default=0.5, help="share of rows that hold dialogues")
    parser.add_argument("--question-weight", type=float, default=0.1, help="a question's tokens in the loss")
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--intermediate-size", type=int, default=704)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[192, 192, 192, 512],
        help="row lengths, taken in turn: short rows hold one story, long ones several",
    )
    parser.add_argument("--step-tokens", type=int, default=1024, help="tokens in a step")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not (options.minutes or options.steps):
        parser.error("give --minutes or --steps")
    torch.set_num_threads(options.threads)
    first = first_dialogue = FIRST_TRAIN_SEED + 100_000_000 * options.seed
    runs: list[dict[str, object]] = []
    if options.init:
        runs = json.loads((options.init / "training.json").read_text(encoding="utf-8"))
        first = max(int(run["first_story"]) + int(run["stories"]) for run in runs)
        first_dialogue = max(
            (run["first_dialogue"] + run["dialogues"] for run in runs if "dialogues" in run), default=first_dialogue
        )
        tokenizer = Tokenizer.from_file(str(options.init / "tokenizer.json"))
        model = Qwen2ForCausalLM.from_pretrained(options.init, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(stories(first, 20_000), options.vocab_size)
        model = build_model(options, tokenizer)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    rows = Rows(tokenizer, first, first_dialogue, options.invented_names, options.dialogues, options.question_weight)
    done = train(model, rows, options)
    run = {
        "seed": options.seed,
        "first_story": first,
        "invented_names": options.invented_names,
        "first_dialogue": first_dialogue,
        **done,
    }
    save_model(model, tokenizer, options.out, [*runs, run])
    print(f"saved {options.out}: {done}")


if __name__ == "__main__":
    main()
