"""Fields of config.json that all architectures share; packages know those of their own."""

from __future__ import annotations

from aethermind.model.known_fields.field import FieldTable, ignored, not_applied, refused, used

__all__ = ["CONFIG_FIELDS"]

_TRAINING = "matters while a model is trained"
_OUTPUT = "says what transformers' own code returns"
_ORIGIN = "says where the file comes from"
_GENERATION = "is read from generation_config.json, where today's files have it"
_TOKENS = "is the tokenizer's; nothing is padded here"
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
    **used("says how weights are stored, see the table of its fields", "quantization_config"),
    **ignored(_TRAINING, "attention_dropout", "hidden_dropout", "initializer_range", "router_aux_loss_coef"),
    **ignored(_TRAINING, "gradient_checkpointing", "use_bfloat16", "tf_legacy_loss", "output_router_logits"),
    **ignored(_TRAINING, "unsloth_fixed", "unsloth_version", "unsloth_training_args", "neftune_noise_alpha"),
    **ignored(_OUTPUT, "output_attentions", "output_hidden_states", "return_dict", "torchscript"),
    **ignored("keys and values are always kept", "use_cache"),
    **ignored("chooses among kernels of transformers", "_attn_implementation", "attn_implementation"),
    **ignored("chooses among kernels of transformers", "_flash_attn_2_enabled", "_attn_implementation_autoset"),
    **ignored("splits products of matrices without changing them", "pretraining_tp", "chunk_size_feed_forward"),
    **ignored(_ORIGIN, "_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "model_name"),
    **ignored("code that comes with a model is never run", "auto_map", "custom_pipelines"),
    **ignored("the tokenizer says it", "tokenizer_class", "bos_token_id", "unk_token_id"),
    **ignored(_TOKENS, "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
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
    **refused(
        "compressed-tensors is not read; take the model itself with --quantization, or as .gguf", compression_config={}
    ),
}
