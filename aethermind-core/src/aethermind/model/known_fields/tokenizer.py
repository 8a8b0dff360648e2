"""Fields of tokenizer_config.json."""

from __future__ import annotations

from aethermind.model.known_fields.field import FieldTable, ignored, used

__all__ = ["TOKENIZER_FIELDS"]

_ROLE = "is a special token by its role, for templates and ends"
_WRITTEN = "tokenizer.json says it, as in transformers"
_PADDING = "texts are neither padded nor cut by the tokenizer"
_ORIGIN = "says where the file comes from"
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
    **ignored(_ORIGIN, "name_or_path", "special_tokens_map_file", "tokenizer_file", "transformers_version"),
    **ignored(_ORIGIN, "is_local", "backend", "local_files_only", "device_map", "full_tokenizer_file"),
    **ignored("is for pictures", "processor_class", "image_processor_type"),
    **ignored("code that comes with a model is never run", "auto_map", "trust_remote_code"),
    **ignored("answers are parsed by the package's format", "response_schema"),
}
