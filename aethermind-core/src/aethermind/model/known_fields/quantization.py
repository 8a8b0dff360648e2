"""Fields of quantization_config in config.json, and of quantize_config.json and quant_config.json beside it."""

from __future__ import annotations

from aethermind.model.known_fields.field import FieldTable, ignored, used

__all__ = ["QUANTIZATION_FIELDS"]

_ROUNDING = "mattered while weights were rounded"
_KERNELS = "chooses among other engines' kernels"
_PLAIN = "modules that are left out are known by their tensors"
_ORIGIN = "says where the file comes from"

QUANTIZATION_FIELDS: FieldTable = {
    **used("is gptq or awq; others are refused by name", "quant_method", "load_in_8bit", "load_in_4bit"),
    **used("is how many bits a weight has", "bits", "w_bit"),
    **used("is how many weights share a scale", "group_size", "q_group_size"),
    **used("says that zero points are the middle, which tells layouts apart that have the wrong name", "sym"),
    **used("is the layout; others than gptq, gptq_v2 and gemm are refused", "checkpoint_format", "format", "version"),
    **used("is refused where it means another layout", "backend", "is_marlin_format"),
    **used("is refused where modules are quantised in several ways", "dynamic"),
    **ignored("g_idx says it for each matrix", "desc_act", "static_groups", "act_group_aware"),
    **ignored("zero points say it for each matrix", "zero_point"),
    **ignored(_ROUNDING, "damp_percent", "damp_auto_increment", "true_sequential", "dataset", "batch_size", "mse"),
    **ignored(_ROUNDING, "tokenizer", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block"),
    **ignored(_ROUNDING, "cache_block_outputs", "pad_token_id", "hyb_act", "lm_head_dtype", "calib_data", "act_sort"),
    **ignored(_PLAIN, "modules_to_not_convert", "modules_in_block_to_quantize", "lm_head", "modules_to_fuse"),
    **ignored(_KERNELS, "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "max_input_length"),
    **ignored(_KERNELS, "do_fuse", "fuse_max_seq_len", "pack_dtype", "use_cuda_fp8", "use_triton"),
    **ignored(_ORIGIN, "meta", "model_name_or_path", "model_file_base_name", "quantizer", "checkpoint_format_version"),
    **ignored("bitsandbytes is refused by its name", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type"),
    **ignored("bitsandbytes is refused by its name", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant"),
    **ignored("bitsandbytes is refused by its name", "bnb_4bit_quant_storage", "llm_int8_threshold"),
    **ignored("bitsandbytes is refused by its name", "llm_int8_enable_fp32_cpu_offload", "llm_int8_skip_modules"),
    **ignored("bitsandbytes is refused by its name", "llm_int8_has_fp16_weight"),
}
