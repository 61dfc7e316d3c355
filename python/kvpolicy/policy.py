"""Policies by name."""
from __future__ import annotations

import enum
import re
from typing import Any, Iterator

from kvpolicy import _abi


class Needs(enum.IntFlag):
    """What a policy reads beside the token counts."""

    KEYS = 1
    VALUES = 2
    QUERIES = 4  # of the current token, at choose
    OBSERVATION_QUERIES = 8  # the last Policy.observation_queries of a prompt, at prefill
    ROTATION = 16  # at prefill
    LOGITS = 32  # at observe
    TOKEN_IDS = 64  # at prefill and at choose
    REPETITION = 128  # a repetition of the prompt, at prefill


class Policy:
    """A policy from text: NAME[:key=value,...][+NAME...], "snapkv:tokens=512+quest:tokens=128" for instance. It does not change,
    and threads may share it.

    boundary: for sentencekv, a byte for each id of the vocabulary: sentence_ends(tokenizer).
    Raises InvalidError that says what exists, and suggests the nearest."""

    def __init__(self, text: str, boundary: bytes = b"") -> None:
        if not isinstance(boundary, bytes):
            raise TypeError(f"boundary is a {type(boundary).__name__}; give bytes, one for each token id: sentence_ends(tokenizer)")
        self.text = text
        self._handle = _abi.handle()
        _abi.policy_parse(text.encode(), boundary or None, len(boundary), _abi.c.byref(self._handle))

    def __del__(self, free=_abi.policy_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def __copy__(self) -> Policy:
        return self  # it does not change

    def __deepcopy__(self, memo: dict[int, object]) -> Policy:
        return self

    def __repr__(self) -> str:
        return f"Policy({self.text!r})"

    @property
    def needs(self) -> Needs:
        return Needs(_abi.policy_needs(self._handle))

    @property
    def observation_queries(self) -> int:
        """How many of a prompt's last queries prefill must be given (all, where it is shorter); 2147483647: every one."""
        return int(_abi.observation_queries(self._handle))


def sentence_ends(vocabulary: Any) -> bytes:
    """A boundary table for Policy. vocabulary: a tokenizer of transformers, or the bytes of each token in the order of ids. Where
    a tokenizer splits a mark into bytes, str is not enough: its pieces are no text."""
    if isinstance(vocabulary, (dict, set, frozenset, str, bytes)):
        kind = type(vocabulary).__name__
        raise TypeError(f"a {kind} is no list of tokens in the order of ids; give the tokenizer, or the bytes of each token")
    pieces = _bytes_of_tokens(vocabulary) if hasattr(vocabulary, "convert_ids_to_tokens") else vocabulary
    encoded = (piece.encode() if isinstance(piece, str) else piece for piece in pieces)
    return bytes(_abi.sentence_mark(piece, len(piece)) for piece in encoded)


def _bytes_of_tokens(tokenizer: Any) -> Iterator[bytes]:
    """Of each token. Pieces of characters are named <0xE3>, or by a character for each byte, as GPT-2's vocabulary has them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (b for b in range(256) if b not in printable)
    byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    for token_id in range(len(tokenizer)):
        text = tokenizer.decode([token_id], clean_up_tokenization_spaces=False)
        name = tokenizer.convert_ids_to_tokens(token_id)
        if "\ufffd" not in text or not name:
            yield text.encode()
        elif match := re.fullmatch("<0x([0-9A-Fa-f]{2})>", name):
            yield bytes([int(match[1], 16)])
        else:
            yield bytes(byte_of[character] for character in name if character in byte_of)


def policies() -> list[str]:
    """The names that there are."""
    names = []
    for name in _abi.policies():
        if name is None:
            break
        names.append(name.decode())
    return names


def load_plugin(path: str) -> None:
    """The policies of a shared object that was made with KVPOLICY_PLUGIN have names from here on. Raises InvalidError."""
    _abi.plugin_load(path.encode())
