"""Policies by name."""
from __future__ import annotations

import enum
from typing import Iterable

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

    boundary: for sentencekv, a byte for each id of the vocabulary, not 0 where it ends a sentence.
    Raises InvalidError that says what exists, and suggests the nearest."""

    def __init__(self, text: str, boundary: bytes = b"") -> None:
        self.text = text
        self._handle = _abi.handle()
        _abi.policy_parse(text.encode(), boundary or None, len(boundary), _abi.c.byref(self._handle))

    def __del__(self, free=_abi.policy_free) -> None:  # type: ignore[no-untyped-def]
        if getattr(self, "_handle", None):
            free(self._handle)

    def __repr__(self) -> str:
        return f"Policy({self.text!r})"

    @property
    def needs(self) -> Needs:
        return Needs(_abi.policy_needs(self._handle))

    @property
    def observation_queries(self) -> int:
        """How many of a prompt's last queries prefill must be given (all, where it is shorter); 2147483647: every one."""
        return int(_abi.observation_queries(self._handle))


def sentence_ends(pieces: Iterable[str]) -> bytes:
    """A boundary table for Policy: of each token of a vocabulary, in the order of ids, what it reads as."""
    encoded = (piece.encode() for piece in pieces)
    return bytes(_abi.ends_sentence(piece, len(piece)) for piece in encoded)


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
