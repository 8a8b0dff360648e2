"""How each field of a published model's JSON files is handled: used, ignored on purpose, not applied, or refused.

The tables are for the loader, which checks a model's files against them, and for the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from aethermind.errors import ConfigError
from aethermind.log import get_logger
from aethermind.plugins.compatibility import deprecated_names
from aethermind.sampling.params import SAMPLING_FIELDS

__all__ = [
    "CONFIG_FIELDS",
    "Field",
    "FieldTable",
    "GENERATION_FIELDS",
    "Handling",
    "KnowsFields",
    "QUANTIZATION_FIELDS",
    "TOKENIZER_FIELDS",
    "check_fields",
    "config_fields",
    "ignored",
    "not_applied",
    "refused",
    "used",
]

logger = get_logger(__name__)


class Handling(StrEnum):
    """How a field of a model's file is handled."""

    USED = "used"
    """The value changes what is computed."""
    IGNORED = "ignored"
    """No value changes the model's output."""
    NOT_APPLIED = "not applied"
    """The field asks for something unsupported; the model runs without it, after a warning."""
    REFUSED = "refused"
    """The field asks for something unsupported without which the model's output would be wrong."""


__getattr__ = deprecated_names(__name__, {"Fate": ("Handling", Handling)})


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a file. `text` says how it is used, why it is ignored, or what to do instead.

    `neutral` are the values that have no effect, such as the default.
    """

    handling: Handling
    text: str
    neutral: tuple[Any, ...] = (None,)

    def has_effect(self, value: Any) -> bool:
        """Whether a value has an effect."""
        return not any(value == neutral and type(value) is type(neutral) for neutral in self.neutral)


FieldTable = Mapping[str, Field]
"""Fields of one file by name."""


def used(text: str, *names: str) -> dict[str, Field]:
    """Return table entries of fields that are used."""
    return {name: Field(Handling.USED, text) for name in names}


def ignored(text: str, *names: str) -> dict[str, Field]:
    """Return table entries of fields of which no value changes the output."""
    return {name: Field(Handling.IGNORED, text) for name in names}


def not_applied(text: str, **neutral: Any) -> dict[str, Field]:
    """Return table entries of fields that are not applied.

    Neutral values are null and those given (one, or a tuple).
    """
    return {name: Field(Handling.NOT_APPLIED, text, (None, *_as_tuple(value))) for name, value in neutral.items()}


def refused(text: str, **neutral: Any) -> dict[str, Field]:
    """Return table entries of fields that are refused unless the value is neutral.

    Neutral values are null and those given (one, or a tuple).
    """
    return {name: Field(Handling.REFUSED, text, (None, *_as_tuple(value))) for name, value in neutral.items()}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


_TRAINING = "matters while a model is trained"
_MODEL_OUTPUT = "says what transformers' own code returns"
_ORIGIN = "says where the file comes from"
_GENERATION = "is read from generation_config.json, where today's files have it"
_TOKENIZERS = "is the tokenizer's; nothing is padded here"
_HEADS = "is about heads that classify, which are not computed"

CONFIG_FIELDS: FieldTable = {
    **used("chooses the package that computes the model", "architectures", "model_type"),
    **used("are sizes of the graph", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    **used("are sizes of the graph", "num_key_value_heads", "head_dim", "vocab_size"),
    **used("is the longest context", "max_position_embeddings"),
    **used("is the epsilon of norms", "rms_norm_eps"),
    **used(
        "are frequencies of the rotary embedding and their scaling", "rope_theta", "rope_scaling", "rope_parameters"
    ),
    **used("is the context before scaling (yarn, llama3)", "original_max_position_embeddings"),
    **used("says which layers see a window, and how long it is", "sliding_window", "use_sliding_window"),
    **used("says which layers see a window, and how long it is", "max_window_layers", "layer_types"),
    **used("says whether embeddings are the output matrix", "tie_word_embeddings"),
    **used("is what `--dtype auto` computes in", "dtype", "torch_dtype"),
    **used("ends an answer, with those of generation_config.json and the tokenizer", "eos_token_id"),
    **used("is the activation; another one than the architecture's is refused", "hidden_act"),
    **used("says how weights are stored, see the table of its fields", "quantization_config", "compression_config"),
    **ignored(_TRAINING, "attention_dropout", "hidden_dropout", "initializer_range", "router_aux_loss_coef"),
    **ignored(_TRAINING, "gradient_checkpointing", "use_bfloat16", "tf_legacy_loss", "output_router_logits"),
    **ignored(_TRAINING, "unsloth_fixed", "unsloth_version", "unsloth_training_args", "neftune_noise_alpha"),
    **ignored(_MODEL_OUTPUT, "output_attentions", "output_hidden_states", "return_dict", "torchscript"),
    **ignored("keys and values are always kept", "use_cache"),
    **ignored("chooses among kernels of transformers", "_attn_implementation", "attn_implementation"),
    **ignored("chooses among kernels of transformers", "_flash_attn_2_enabled", "_attn_implementation_autoset"),
    **ignored("splits products of matrices without changing them", "pretraining_tp", "chunk_size_feed_forward"),
    **ignored(_ORIGIN, "_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "model_name"),
    **ignored("code that comes with a model is never run", "auto_map", "custom_pipelines"),
    **ignored("the tokenizer says it", "tokenizer_class", "bos_token_id", "unk_token_id"),
    **ignored(_TOKENIZERS, "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
    **ignored(_HEADS, "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    **ignored(_HEADS, "classifier_dropout", "classifier_activation"),
    **ignored("is for pipelines of transformers", "task_specific_params", "prefix"),
    **ignored("is for encoder-decoder models", "decoder_start_token_id", "tie_encoder_decoder"),
    **ignored("is for encoder-decoder models", "cross_attention_hidden_size"),
    **ignored(_GENERATION, "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty"),
    **ignored(_GENERATION, "max_length", "min_length", "num_beams", "num_beam_groups", "diversity_penalty"),
    **ignored(_GENERATION, "early_stopping", "length_penalty", "no_repeat_ngram_size", "num_return_sequences"),
    **ignored(_GENERATION, "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
    **ignored(_GENERATION, "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    **ignored(_GENERATION, "remove_invalid_values", "exponential_decay_length_penalty", "output_scores"),
    **ignored(_GENERATION, "return_dict_in_generate", "max_new_tokens"),
    **not_applied("whole heads are computed, also those that were pruned to zeros", pruned_heads={}),
    **refused(
        "rotary embeddings of a part of each head are not computed; take another model", partial_rotary_factor=(1.0, 1)
    ),
    **refused("attention in both directions is not computed by decoders; take another model", is_causal=True),
    **refused("encoder-decoder models are not computed; take a decoder", is_encoder_decoder=False),
    **refused("cross attention is not computed; take a decoder", add_cross_attention=False),
    **refused("layers of experts are not computed; take a dense model", num_experts=(0, 1), num_local_experts=(0, 1)),
    **refused(
        "weights in MLX's layout are not read; take the model itself with --quantization, or as .gguf", quantization={}
    ),
}


_GENERATE_OUTPUT = "says what transformers' generate returns"
_CACHE = "is about transformers' own cache and compiler"
_DRAFTS = "is about speculative decoding, which options of the engine turn on"
_BEAMS = "beam search is not done: one token at a time is sampled"
_PENALTY = "give repetition_penalty, presence_penalty or frequency_penalty with a request"
_SAMPLER = "give temperature, top_k, top_p or min_p with a request"
_TOKEN_LISTS = "give logit_bias, bad_words or allowed_token_ids with a request"
_ENCODER = "is about encoders"

GENERATION_FIELDS: FieldTable = {
    **used("is a default of the request's parameter", *SAMPLING_FIELDS),
    **used("false is temperature 0", "do_sample"),
    **used("ends an answer, with those of config.json and the tokenizer", "eos_token_id"),
    **ignored("the tokenizer says it", "bos_token_id"),
    **ignored("nothing is padded", "pad_token_id"),
    **ignored("counts the prompt, too; the context bounds both together", "max_length"),
    **ignored(_GENERATE_OUTPUT, "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    **ignored(_GENERATE_OUTPUT, "return_dict_in_generate", "num_return_sequences", "return_legacy_cache"),
    **ignored("keys and values are always kept", "use_cache"),
    **ignored(_CACHE, "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
    **ignored(_CACHE, "low_memory", "prefill_chunk_size", "continuous_batching_config"),
    **ignored(_DRAFTS, "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "use_mtp"),
    **ignored(_DRAFTS, "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind"),
    **ignored(_DRAFTS, "assistant_ensemble_weight", "target_lookbehind", "prompt_lookup_num_tokens"),
    **ignored(_DRAFTS, "max_matching_ngram_size", "speculation_type"),
    **ignored("a step that yields no number ends its request", "remove_invalid_values"),
    **ignored("probabilities always sum to one", "renormalize_logits"),
    **ignored("says where the file comes from", "transformers_version", "_from_model_config", "_commit_hash"),
    **ignored("is what old versions of Qwen's own code read", "chat_format", "max_window_size", "trust_remote_code"),
    **ignored("counts for several beams only", "length_penalty", "early_stopping", "diversity_penalty"),
    **not_applied(_BEAMS, num_beams=1, num_beam_groups=1, constraints=[], force_words_ids=[]),
    **not_applied(_PENALTY, no_repeat_ngram_size=0, exponential_decay_length_penalty=[], penalty_alpha=(0, 0.0)),
    **not_applied(_SAMPLER, typical_p=(1, 1.0), epsilon_cutoff=(0, 0.0), eta_cutoff=(0, 0.0), top_h=(1, 1.0)),
    **not_applied(_TOKEN_LISTS, bad_words_ids=[], suppress_tokens=[], begin_suppress_tokens=[], sequence_bias={}),
    **not_applied("an answer begins and ends as the model writes it", forced_bos_token_id=[], forced_eos_token_id=[]),
    **not_applied("min_new_tokens counts the answer alone; write that", min_length=0),
    **not_applied("classifier-free guidance is not done", guidance_scale=(1, 1.0)),
    **not_applied("answers bear no watermark", watermarking_config={}),
    **not_applied("prompts are not healed at their end; end them with a whole word", token_healing=False),
    **not_applied("give a deadline with a request", max_time=[]),
    **not_applied("contrasting layers (DoLa) is not done", dola_layers=[]),
    **not_applied(_ENCODER, encoder_no_repeat_ngram_size=0, encoder_repetition_penalty=(1, 1.0)),
    **ignored(_ENCODER, "decoder_start_token_id"),
}


_ROUNDING = "mattered while weights were rounded"
_KERNELS = "chooses among other engines' kernels"
_PLAIN = "modules that are left out are known by their tensors"
_IN_TENSORS = "tensors say it for each matrix"
_QUANTIZED_ORIGIN = "says where the file comes from"

QUANTIZATION_FIELDS: FieldTable = {
    **used(
        "is one of those that are read; others are refused by name",
        "quant_method",
        "load_in_8bit",
        "load_in_4bit",
    ),
    **used("is the block of FP8 values that share a scale", "weight_block_size"),
    **used("says how weights are quantised", "config_groups", "quant_algo"),
    **used("is refused where weights are sparse, or activations transformed", "sparsity_config", "transform_config"),
    **used("is how many bits a weight has", "bits", "w_bit"),
    **used("is how many weights share a scale", "group_size", "q_group_size"),
    **used("says that zero points are the middle, which tells layouts apart that have the wrong name", "sym"),
    **used("is the layout; those that are not read are refused", "checkpoint_format", "format", "version"),
    **used("is the layout", "packing_format"),
    **used("is refused where it means another layout", "backend", "is_marlin_format"),
    **used("says that modules differ; tensors say how", "dynamic", "extra_config"),
    **ignored("g_idx says it for each matrix", "desc_act", "static_groups", "act_group_aware"),
    **ignored("zero points say it for each matrix", "zero_point"),
    **ignored(_ROUNDING, "damp_percent", "damp_auto_increment", "true_sequential", "dataset", "batch_size", "mse"),
    **ignored(_ROUNDING, "tokenizer", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block"),
    **ignored(_ROUNDING, "cache_block_outputs", "pad_token_id", "hyb_act", "lm_head_dtype", "calib_data", "act_sort"),
    **ignored(_PLAIN, "modules_to_not_convert", "modules_in_block_to_quantize", "lm_head", "modules_to_fuse"),
    **ignored(_KERNELS, "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "max_input_length"),
    **ignored("--quantization dense dequantises weights", "dequantize"),
    **ignored("each token's scale is computed", "activation_scheme", "activation_scale_ub", "kv_cache_scheme"),
    **ignored(_PLAIN, "ignore", "ignored_layers"),
    **ignored("only float8_e4m3fn is read", "fmt", "quantization_status", "global_compression_ratio"),
    **ignored(_KERNELS, "do_fuse", "fuse_max_seq_len", "pack_dtype", "use_cuda_fp8", "use_triton"),
    **ignored(
        _QUANTIZED_ORIGIN,
        "meta",
        "model_name_or_path",
        "model_file_base_name",
        "quantizer",
        "checkpoint_format_version",
    ),
    **ignored(_IN_TENSORS, "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
    **ignored(_IN_TENSORS, "bnb_4bit_quant_storage", "llm_int8_skip_modules"),
    **ignored(_KERNELS, "bnb_4bit_compute_dtype", "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload"),
    **ignored(_KERNELS, "llm_int8_has_fp16_weight"),
    **ignored(_PLAIN, "exclude_modules", "quantized_layers", "moe_sparsity_config"),
    **ignored(
        _IN_TENSORS,
        "quant_config",
        "skip_modules",
        "quant_type",
        "quant_type_kwargs",
        "include_input_output_embeddings",
    ),
    **ignored(_PLAIN, "untie_embedding_weights", "weight_config", "activation_config"),
    **ignored(_IN_TENSORS, "data_type", "super_bits", "super_group_size", "quant_nontext_module"),
    **ignored(_ROUNDING, "iters", "lr", "minmax_lr", "nsamples", "seqlen", "low_gpu_mem_usage", "enable_quanted_input"),
    **ignored(
        _ROUNDING, "gradient_accumulate_steps", "amp", "scale_dtype", "enable_minmax_tuning", "low_cpu_mem_usage"
    ),
    **ignored(_ROUNDING, "to_quant_block_names", "supported_types", "enable_alg_ext"),
    **refused("activations are not rotated; take the model quantised without rotations", rotation_config={}),
    **ignored(
        "each token's scale is computed", "act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym"
    ),
    **ignored(_QUANTIZED_ORIGIN, "autoround_version"),
    **ignored("the cache has a format of its own, --kv-cache-dtype", "kv_cache_quant_algo"),
    **ignored(_QUANTIZED_ORIGIN, "producer", "version_info"),
}


_ROLE = "is a special token by its role, for templates and ends"
_WRITTEN = "tokenizer.json says it, as in transformers"
_PADDING = "texts are neither padded nor cut by the tokenizer"
_TOKENIZER_ORIGIN = "says where the file comes from"
_PIECES = "was about SentencePiece's own code; tokenizer.json says what came of it"

TOKENIZER_FIELDS: FieldTable = {
    **used(_ROLE, "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    **used("are further special tokens", "additional_special_tokens", "extra_special_tokens"),
    **used("are tokens that may be missing in tokenizer.json", "added_tokens_decoder"),
    **used("turns messages into a prompt; one, or several by name", "chat_template"),
    **used("says whether a space is put before a text (byte-level BPE; Llama's class)", "add_prefix_space"),
    **used("is BERT's normaliser", "do_lower_case", "strip_accents", "tokenize_chinese_chars"),
    **used("says whether special tokens in a text are read as text", "split_special_tokens"),
    **used("is where sentence encoders cut texts, unless sentence_bert_config.json says so", "model_max_length"),
    **used(
        "chooses how add_prefix_space is read, and the class that reads files without tokenizer.json", "tokenizer_class"
    ),
    **ignored(_WRITTEN, "add_bos_token", "add_eos_token", "legacy", "trim_offsets", "from_slow"),
    **ignored(_WRITTEN, "do_basic_tokenize", "never_split", "wordpieces_prefix", "use_regex"),
    **ignored("text is decoded as it is", "clean_up_tokenization_spaces", "spaces_between_special_tokens"),
    **ignored("bytes that are not UTF-8 become U+FFFD", "errors"),
    **ignored(_PIECES, "sp_model_kwargs", "vocab_file", "merges_file", "vocab_type"),
    **ignored("the template says whether there is a system prompt", "use_default_system_prompt"),
    **ignored(_PADDING, "padding_side", "truncation_side", "padding", "truncation", "truncation_strategy", "stride"),
    **ignored(_PADDING, "max_length", "pad_to_multiple_of", "pad_token_type_id", "max_len", "return_tensors"),
    **ignored("says what transformers' tokenizers return", "model_input_names", "return_token_type_ids"),
    **ignored(_TOKENIZER_ORIGIN, "name_or_path", "special_tokens_map_file", "tokenizer_file", "transformers_version"),
    **ignored(_TOKENIZER_ORIGIN, "is_local", "backend", "local_files_only", "device_map", "full_tokenizer_file"),
    **ignored("is for images", "processor_class", "image_processor_type"),
    **ignored("code that comes with a model is never run", "auto_map", "trust_remote_code"),
    **ignored("answers are parsed by the package's format", "response_schema"),
}


# The check


_TABLES: Mapping[str, FieldTable] = {
    "generation_config.json": GENERATION_FIELDS,
    "tokenizer_config.json": TOKENIZER_FIELDS,
    "quantization_config": QUANTIZATION_FIELDS,
}


@runtime_checkable
class KnowsFields(Protocol):
    """An architecture with a table of the fields of config.json that it handles."""

    known_fields: FieldTable


def config_fields(architecture: object) -> FieldTable | None:
    """Return the table of config.json for an architecture; None if the architecture has none."""
    return {**CONFIG_FIELDS, **architecture.known_fields} if isinstance(architecture, KnowsFields) else None


def check_fields(path: Path, files: Mapping[str, Mapping[str, Any]], architecture: object) -> None:
    """Check the contents of a model's files, by file name; warn of fields that are unknown or not applied.

    ConfigError for a field that asks for something unsupported without which the model's output would be wrong.
    """
    for file, contents in files.items():
        table = config_fields(architecture) if file == "config.json" else _TABLES[file]
        if table is None:
            continue
        _refuse_fields(path, file, contents, table)
        for sentence in _warnings(file, contents, table):
            logger.warning("%s: %s", path, sentence)


def _refuse_fields(path: Path, file: str, contents: Mapping[str, Any], table: FieldTable) -> None:
    """Raise ConfigError for the first refused field."""
    for name, value in contents.items():
        field = table.get(name)
        if field is not None and field.handling is Handling.REFUSED and field.has_effect(value):
            raise ConfigError(f"{name} is {value!r:.80} in {file} of {str(path)!r}: {field.text}.")


def _warnings(file: str, contents: Mapping[str, Any], table: FieldTable) -> list[str]:
    """Return a sentence about the fields that are not applied, and one about unknown fields."""
    effective = {name: value for name, value in contents.items() if name in table and table[name].has_effect(value)}
    reasons = [
        f"{name} is {value!r:.40} ({table[name].text})"
        for name, value in effective.items()
        if table[name].handling is Handling.NOT_APPLIED
    ]
    unknown = [name for name, value in contents.items() if value is not None and not _is_known(file, name, table)]
    sentences = []
    if reasons:
        sentences.append(f"{file} asks for what is not supported here: {'; '.join(reasons)}.")
    if unknown:
        sentences.append(f"{file} has fields that are not known here and are ignored: {', '.join(map(str, unknown))}.")
    return sentences


def _is_known(file: str, name: str, table: FieldTable) -> bool:
    """Whether a field needs no warning: it is in the table, a special token, or a comment.

    In tokenizer_config.json the names of special tokens end in `_token`; names of comments begin with an underscore.
    """
    is_special_token = file == "tokenizer_config.json" and name.endswith("_token")
    return name in table or is_special_token or name.startswith("_")
