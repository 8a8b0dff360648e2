"""A model's tokenizer: the `tokenizers` library with the model's special tokens and chat templates.

`tokenizers` is imported when the first tokenizer is read, so importing this module is cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from aethermind.errors import InvalidArgumentError, TokenizerError
from aethermind.text.chat_templates import DEFAULT_TEMPLATE
from aethermind.text.mapped_bpe import BYTE_OF_CHAR

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

    from aethermind.text.mapped_bpe import MappedBpe

__all__ = ["MAX_END_TOKENS", "Tokenizer"]

_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_END_TOKEN_ROLES = ("eos_token", "eot_token", "eom_token")
MAX_END_TOKENS = len(_END_TOKEN_ROLES)
"""The maximum number of ids in `Tokenizer.end_token_ids`."""


class Tokenizer:
    """Encodes text to token ids and decodes them. Immutable but for caches; safe to share between threads."""

    def __init__(
        self,
        fast: FastTokenizer | MappedBpe,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a loaded `tokenizers.Tokenizer`; use `from_directory` to read one from disk.

        Args:
            fast: the library's tokenizer or a `MappedBpe`. Its truncation and padding are switched off.
            special_tokens: texts by role (`bos_token`, `eos_token`, `pad_token`, …).
            chat_template: Jinja source for `render_chat`, if the model has one, or several by name.

        Raises:
            TokenizerError: the `eos_token` is not in the vocabulary.
        """
        if fast.truncation is not None:
            fast.no_truncation()
        if fast.padding is not None:
            fast.no_padding()
        self._fast = fast
        self._special_tokens = MappingProxyType(dict(special_tokens or {}))
        named = {DEFAULT_TEMPLATE: chat_template} if isinstance(chat_template, str) else chat_template
        # An empty template would render every conversation to an empty prompt.
        self._chat_templates = MappingProxyType(
            {name: template for name, template in (named or {}).items() if template.strip()}
        )
        added = fast.get_added_tokens_decoder()
        self._special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._eos_token_id: int | None = None
        if (eos_token := self._special_tokens.get("eos_token")) is not None:
            self._eos_token_id = fast.token_to_id(eos_token)
            if self._eos_token_id is None:
                raise TokenizerError(
                    f"The tokenizer's eos_token {eos_token!r} is not in its vocabulary of {self.vocab_size} "
                    "tokens. Make tokenizer.json and tokenizer_config.json come from the same model."
                )
        self._decoder_kinds = _decoder_kinds(fast)
        self._token_bytes: dict[int, bytes] = {}

    def __repr__(self) -> str:
        templates = f", chat templates {', '.join(self._chat_templates)}" if self._chat_templates else ""
        return f"<Tokenizer of {self.vocab_size:,} tokens{templates}>"

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Read the tokenizer of a model directory in the Hugging Face layout.

        Reads `tokenizer.json` (or, with transformers, other vocabulary files), `tokenizer_config.json` (special tokens,
        chat templates; without it there are neither), and the files that may have further special tokens and templates.

        Raises:
            TokenizerError: a file is missing, unreadable or corrupt.
        """
        from aethermind.text.tokenizer_files import read_tokenizer_files

        path = Path(path)
        try:
            fast, special_tokens, templates = read_tokenizer_files(path)
            return cls(fast, special_tokens=special_tokens, chat_template=templates)
        except TokenizerError as error:
            raise TokenizerError(str(error) if str(path) in str(error) else f"{path}: {error}") from error

    def with_chat_template(self, template: str) -> Tokenizer:
        """Return the tokenizer with this chat template (Jinja source) and no other."""
        return Tokenizer(self._fast, special_tokens=self._special_tokens, chat_template=template)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included. A model's embedding may have more rows, as padding."""
        return self._fast.get_vocab_size(with_added_tokens=True)

    @property
    def special_token_ids(self) -> frozenset[int]:
        """The ids of special tokens, which `decode` skips by default."""
        return self._special_token_ids

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """The texts of special tokens by role, as templates use them: `{"eos_token": "<|im_end|>", ...}`."""
        return self._special_tokens

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends an answer, None if the tokenizer's config has none."""
        return self._eos_token_id

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The ids of all tokens whose roles end an answer: end of text, turn and message."""
        texts = (self._special_tokens.get(role) for role in _END_TOKEN_ROLES)
        ids = (self._fast.token_to_id(text) for text in texts if text is not None)
        return frozenset(token_id for token_id in ids if token_id is not None)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the default chat template, or None."""
        return self._chat_templates.get(DEFAULT_TEMPLATE)

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """The model's chat templates by name; `chat_template` is `default`."""
        return self._chat_templates

    @property
    def is_byte_level(self) -> bool:
        """Whether text is the concatenation of the tokens' bytes, decoded as UTF-8 (GPT-2, Llama 3, Qwen)."""
        return self._decoder_kinds[:1] == ("ByteLevel",) and set(self._decoder_kinds) <= {"ByteLevel", "Fuse"}

    @property
    def decoder_kinds(self) -> tuple[str, ...]:
        """The types of the steps of the library's decoder, such as `("Replace", "ByteFallback", "Fuse")`."""
        return self._decoder_kinds

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the token ids of `text`; special tokens written out in the text become their ids.

        Args:
            text: any valid Unicode.
            add_special_tokens: also add the tokens that the tokenizer adds to a sequence (such as BOS).

        Raises:
            InvalidArgumentError: the text has lone surrogates, which are not Unicode text.
        """
        if not isinstance(text, str):  # two texts in a tuple would be taken as a pair
            raise InvalidArgumentError(_text_error(text))
        try:
            # This method of the library releases the interpreter's lock: megabytes take seconds.
            (encoded,) = self._fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return encoded.ids
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(_text_error(text)) from error

    def encode_continuation(self, text: str) -> list[int]:
        """Return the token ids of `text` as the continuation of another text.

        SentencePiece's encoders prepend a space to the first word of a text, which does not begin a text here.
        """
        return self._without_first_space.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD, unknown ids are skipped.

        Raises:
            InvalidArgumentError: an id is negative or does not fit in 32 bits.
        """
        try:
            return self._fast.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except OverflowError as error:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < 2**32)
            raise InvalidArgumentError(
                f"Token id {wrong} is not in the vocabulary of {self.vocab_size} tokens."
            ) from error

    @cached_property
    def anchor(self) -> tuple[int, ...]:
        """A token to decode before others, because decoders treat the first token of a text differently (they strip its
        space); empty for decoders that do not.
        """
        if not {"Strip", "Metaspace"}.intersection(self._decoder_kinds):
            return ()
        plain = (
            token_id
            for token_id in range(self.vocab_size)
            if token_id not in self._special_token_ids and self.byte_of(token_id) is None
        )
        anchor = next((token_id for token_id in plain if self.decode([token_id], skip_special_tokens=False)), None)
        return () if anchor is None else (anchor,)

    @cached_property
    def _without_first_space(self) -> Tokenizer:
        """The tokenizer that adds no space before a text and strips none."""
        if not self.anchor:
            return self
        from tokenizers import Tokenizer as FastTokenizer

        from aethermind.text.bpe_vocabularies import without_first_space

        return Tokenizer(without_first_space(FastTokenizer.from_str(self.as_json())))

    def load_library_tokenizer(self) -> None:
        """Read the library's tokenizer now, instead of after much text has been encoded (see `text.mapped_bpe`)."""
        from aethermind.text.mapped_bpe import MappedBpe

        if isinstance(self._fast, MappedBpe):
            self._fast = self._fast.library_tokenizer

    def as_json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json, for libraries that read that."""
        return str(self._fast.to_str())

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token by its exact name in the vocabulary, or None."""
        return self._fast.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """Return a token's exact name in the vocabulary (`"Ġthe"`), None for an unknown id."""
        return self._fast.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def token_text(self, token_id: int, *, is_first: bool = False) -> str:
        """Return what one token adds to a text, special tokens included; a part of a character is U+FFFD.

        SentencePiece's decoders strip the space of a text's first token; with `is_first`, the result is so stripped.
        """
        anchor = () if is_first else self.anchor
        text = self.decode(anchor, skip_special_tokens=False) if anchor else ""
        return self.decode([*anchor, token_id], skip_special_tokens=False)[len(text) :]

    def byte_of(self, token_id: int) -> int | None:
        """Return the byte of a byte-fallback token such as `<0xC3>`, None for other tokens."""
        if "ByteFallback" not in self._decoder_kinds:
            return None
        match = _BYTE_TOKEN.fullmatch(self.id_to_token(token_id) or "")
        return None if match is None else int(match[1], 16)

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that a token adds to the text, empty for an unknown id.

        None if only the text of the token is known: for tokens of more than a byte unless `is_byte_level`.
        """
        cached = self._token_bytes.get(token_id)
        if cached is not None:
            return cached
        if not self.is_byte_level:
            byte = self.byte_of(token_id)
            return None if byte is None else bytes([byte])
        token = self.id_to_token(token_id) or ""
        try:
            value = bytes([BYTE_OF_CHAR[char] for char in token])
        except KeyError:  # an added token is its own text, unless all its characters are in the byte alphabet
            value = token.encode()
        self._token_bytes[token_id] = value
        return value


def _decoder_kinds(fast: FastTokenizer | MappedBpe) -> tuple[str, ...]:
    """Return the types of the steps of the library's decoder."""
    if fast.decoder is None:
        return ()
    state = json.loads(fast.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return tuple(step["type"] for step in steps)


def _text_error(text: object) -> str:
    """Return a sentence that says why a value cannot be encoded."""
    if not isinstance(text, str):
        return f"A prompt must be a string, not {type(text).__name__}."
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"The text has a lone surrogate U+{ord(text[error.start]):04X} at character {error.start} of "
            f"{len(text)}, which is not Unicode text. Decode the input as UTF-8, with errors='replace' if need be."
        )
    return "The tokenizer refused the text."
