"""kvpolicy.h through ctypes: where the library is, what its functions take, and errors as exceptions."""
from __future__ import annotations

import ctypes as c
import operator
import os
import pathlib
from typing import Any, Callable

folder = pathlib.Path(__file__).resolve().parent


class Error(RuntimeError):
    """A call that was refused; its text is the library's message, which names the value and the way out."""


class InvalidError(Error, ValueError):
    """A value that no engine could serve, or a call out of order."""


class UnsupportedError(Error, NotImplementedError):
    """Refused by name by this version."""


class OutOfMemoryError(Error, MemoryError):
    """There was no memory for it."""


_errors = {1: InvalidError, 2: UnsupportedError, 3: OutOfMemoryError}


class Range(c.Structure):
    _fields_ = [("begin", c.c_int32), ("end", c.c_int32), ("why", c.c_uint8)]


class Shape(c.Structure):
    _fields_ = [*((name, c.c_int64) for name in ("layers", "q_heads", "kv_heads", "head_dim", "max_tokens")), ("type", c.c_int32),
                ("value_dim", c.c_int64)]


class Prompt(c.Structure):
    _fields_ = [("first", c.c_int64), ("queries", c.c_void_p), ("scale", c.c_float), ("pairing", c.c_int32),
                ("inverse_frequencies", c.c_void_p), ("token_ids", c.c_void_p), ("repeats_begin", c.c_int64),
                ("repeats_end", c.c_int64)]


class DecoderOptions(c.Structure):
    _fields_ = [("sequences", c.c_int64), ("rows", c.c_int64), ("workspace", c.c_int64), ("stream", c.c_void_p), ("device", c.c_int32),
                ("step_tokens", c.c_int32)]


class DeviceLists(c.Structure):
    _fields_ = ([(name, c.c_void_p) for name in ("units", "named", "tail", "tokens")] +
                [("stride", c.c_int64), ("tail_of_all", c.c_int64), ("lists", c.c_int32), ("unit_size", c.c_int32),
                 ("tails", c.c_int32)])


Sum = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_float), c.c_int64)


class Terms(c.Structure):
    _fields_ = [("soft_cap", c.c_float), ("slopes", c.c_void_p), ("sinks", c.c_void_p)]


class Ranks(c.Structure):
    _fields_ = [("rank", c.c_int32), ("size", c.c_int32), ("sum", Sum), ("user", c.c_void_p)]


class Threads(c.Structure):
    _fields_ = [("run", c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_void_p)), ("user", c.c_void_p)]


def _load() -> c.CDLL:
    named = os.environ.get("KVPOLICY_LIBRARY")
    beside = folder / "lib" / "libkvpolicy.so"
    path = named or (str(beside) if beside.exists() else "libkvpolicy.so.0.2")
    try:
        return c.CDLL(path)
    except OSError as why:
        raise ImportError(f"kvpolicy: '{path}' can't be loaded ({why}); install the wheel, or name a libkvpolicy in KVPOLICY_LIBRARY") from why


_library = _load()


handle, i64, i32 = c.c_void_p, c.c_int64, c.c_int32


def _must(status: int, *_: Any) -> None:
    if status != 0:
        raise _errors.get(status, Error)(message().decode())


def integer(value: Any, bits: int = 64) -> int:
    """The value, where it is an integer of so many bits: ctypes would cut others off. Raises InvalidError, TypeError."""
    number = operator.index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise InvalidError(f"{number} is no integer of {bits} bits")
    return number


class _Integer:
    """As an argument's type."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.bits = kind, 8 * c.sizeof(kind)

    def from_param(self, value: Any) -> Any:
        return self.kind(integer(value, self.bits))


def _declare(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    function = getattr(_library, "kvpolicy_" + name)
    function.restype, function.argtypes = result, [_Integer(kind) if kind in (i64, i32) else kind for kind in arguments]
    if result is c.c_int:
        function.errcheck = _must
    return function  # type: ignore[no-any-return]


_status, _out = c.c_int, c.POINTER(handle)
_list_arguments = (handle, i64, i64, c.POINTER(c.POINTER(Range)), c.POINTER(i64))

version = _declare("version", c.c_char_p)
message = _declare("message", c.c_char_p)
policies = _declare("policies", c.POINTER(c.c_char_p))
plugin_load = _declare("plugin_load", _status, c.c_char_p)
policy_parse = _declare("policy_parse", _status, c.c_char_p, c.c_char_p, i64, _out)
ends_sentence = _declare("ends_sentence", c.c_uint8, c.c_char_p, i64)
sentence_mark = _declare("sentence_mark", c.c_uint8, c.c_char_p, i64)
policy_free = _declare("policy_free", None, handle)
policy_needs = _declare("policy_needs", c.c_uint32, handle)
observation_queries = _declare("observation_queries", i64, handle)
start = _declare("start", _status, handle, c.POINTER(Shape), _out)
start_cuda = _declare("start_cuda", _status, handle, c.POINTER(Shape), i32, handle, _out)
start_ranked = _declare("start_ranked", _status, handle, c.POINTER(Shape), c.POINTER(Ranks), _out)
state_copy = _declare("state_copy", _status, handle, _out)
state_free = _declare("state_free", None, handle)
cut = _declare("cut", _status, handle, i64)
bind = _declare("bind", _status, handle, i64, handle, handle, handle)
bind_terms = _declare("bind_terms", _status, handle, i64, c.POINTER(Terms))
observed_from = _declare("observed_from", _status, handle, i64)
prefill = _declare("prefill", _status, handle, i64, i64, c.POINTER(Prompt))
choose = _declare("choose", _status, handle, i64, i64, handle, c.c_float, i32)
choose_several = _declare("choose_several", _status, handle, i64, i64, i64, handle, c.c_float, c.POINTER(i32))
list_ = _declare("list", _status, *_list_arguments)
retained = _declare("retained", _status, *_list_arguments)
page_table = _declare("page_table", _status, handle, i64, i64, c.POINTER(i32), i64, c.POINTER(i64), c.POINTER(i32))
attend = _declare("attend", _status, handle, i64, handle, c.c_float, handle)
attend_prompt = _declare("attend_prompt", _status, handle, i64, i64, handle, c.c_float, handle)
observe = _declare("observe", _status, handle, handle)
decoder_start = _declare("decoder_start", _status, handle, c.POINTER(Shape), c.POINTER(DecoderOptions), _out)
decoder_free = _declare("decoder_free", None, handle)
decoder_on = _declare("decoder_on", _status, handle, handle)
decoder_bind = _declare("decoder_bind", _status, handle, i64, handle, handle, handle)
decoder_bind_terms = _declare("decoder_bind_terms", _status, handle, i64, c.POINTER(Terms))
decoder_prefill = _declare("decoder_prefill", _status, handle, i64, i64, i64, i64, c.POINTER(Prompt))
decoder_plan = _declare("decoder_plan", _status, handle, i64, c.POINTER(i32), c.POINTER(i32), c.POINTER(i32), c.POINTER(i32))
decoder_settle = _declare("decoder_settle", _status, handle, c.c_float)
decoder_cut = _declare("decoder_cut", _status, handle, i64, i64)
decoder_end = _declare("decoder_end", _status, handle, i64)
decoder_decide = _declare("decoder_decide", _status, handle, i64, handle, c.c_float)
decoder_standing = _declare("decoder_standing", _status, handle, i64, c.POINTER(DeviceLists))
decoder_choose = _declare("decoder_choose", _status, handle, i64, handle, c.c_float, handle, c.POINTER(DeviceLists))
decoder_renew = _declare("decoder_renew", _status, handle, i64, handle, c.c_float)
decoder_attend = _declare("decoder_attend", _status, handle, i64, handle, c.c_float, handle)
decoder_observe = _declare("decoder_observe", _status, handle, handle)
arena_start = _declare("arena_start", _status, c.POINTER(Shape), i64, _out)
arena_free = _declare("arena_free", None, handle)
arena_bytes = _declare("arena_bytes", i64, handle)
store_start = _declare("store_start", _status, handle, c.POINTER(Shape), _out)
store_free = _declare("store_free", None, handle)
store_fork = _declare("store_fork", _status, handle, i64, _out)
bind_store = _declare("bind_store", _status, handle, handle)
store_append = _declare("store_append", _status, handle, i64, handle, handle)
store_retain = _declare("store_retain", _status, handle, i64, handle)
step = _declare("step", _status, c.POINTER(handle), i64, i64, handle, handle, handle, c.c_float, handle, handle, c.POINTER(i64),
                i32, c.POINTER(Threads))
store_truncate = _declare("store_truncate", _status, handle, i64)
store_released = _declare("store_released", i64, handle)
store_rows = _declare("store_rows", i64, handle)
