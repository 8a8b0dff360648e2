"""Fields of generation_config.json."""

from __future__ import annotations

from aethermind.model.known_fields.field import FieldTable, ignored, not_applied, used
from aethermind.sampling.generation_config import SAMPLING_FIELDS

__all__ = ["GENERATION_FIELDS"]

_OUTPUT = "says what transformers' generate returns"
_CACHE = "is about transformers' own cache and compiler"
_DRAFTS = "is about speculative decoding, which options of the engine turn on"
_BEAMS = "beam search is not done: one token at a time is sampled"
_PENALTY = "give repetition_penalty, presence_penalty or frequency_penalty with a request"
_SAMPLER = "give temperature, top_k, top_p or min_p with a request"
_TOKENS = "give logit_bias, bad_words or allowed_token_ids with a request"
_ENCODER = "is about encoders"

GENERATION_FIELDS: FieldTable = {
    **used("is a default of the request's parameter", *SAMPLING_FIELDS),
    **used("false is temperature 0", "do_sample"),
    **used("ends an answer, with those of config.json and the tokenizer", "eos_token_id"),
    **ignored("the tokenizer says it", "bos_token_id"),
    **ignored("nothing is padded", "pad_token_id"),
    **ignored("counts the prompt, too; the context bounds both together", "max_length"),
    **ignored(_OUTPUT, "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    **ignored(_OUTPUT, "return_dict_in_generate", "num_return_sequences", "return_legacy_cache"),
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
    **not_applied(_TOKENS, bad_words_ids=[], suppress_tokens=[], begin_suppress_tokens=[], sequence_bias={}),
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
