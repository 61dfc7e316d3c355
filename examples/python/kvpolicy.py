"""kvpolicy.h through ctypes. Tensors are anything with __dlpack__ (NumPy, PyTorch) and are never copied."""
import ctypes as c
import os

KEYS, VALUES, QUERIES, OBSERVATION_QUERIES, ROTATION, LOGITS, TOKEN_IDS = (1 << bit for bit in range(7))  # a policy's needs
REASONS = "sink", "scored", "recent", "open"
_lib = c.CDLL(os.environ.get("KVPOLICY_LIBRARY", "libkvpolicy.so.0"))


class Error(RuntimeError):
    """A call that was refused; its text is kvpolicy_message()."""


class _Range(c.Structure):
    _fields_ = [("begin", c.c_int32), ("end", c.c_int32), ("why", c.c_uint8)]


class _Shape(c.Structure):
    _fields_ = [(name, c.c_int64) for name in ("layers", "q_heads", "kv_heads", "head_dim", "max_tokens")] + [("type", c.c_int32)]


class _Prompt(c.Structure):
    _fields_ = [("first", c.c_int64), ("queries", c.c_void_p), ("scale", c.c_float), ("pairing", c.c_int32),
                ("inverse_frequencies", c.c_void_p), ("token_ids", c.c_void_p)]


def _declare(name, result, *arguments):
    function = getattr(_lib, "kvpolicy_" + name)
    function.restype, function.argtypes = result, arguments
    if result is c.c_int:
        function.errcheck = _must
    return function


def _must(status, *_):
    if status != 0:
        raise Error(_message().decode())


_p, _i64, _i32 = c.c_void_p, c.c_int64, c.c_int32
_out = c.POINTER(_p)
_list_arguments = (_p, _i64, _i64, c.POINTER(c.POINTER(_Range)), c.POINTER(_i64))
_message = _declare("message", c.c_char_p)
_parse = _declare("policy_parse", c.c_int, c.c_char_p, c.c_char_p, _i64, _out)
_policy_free = _declare("policy_free", None, _p)
_needs = _declare("policy_needs", c.c_uint32, _p)
_observation_queries = _declare("observation_queries", _i64, _p)
_start = _declare("start", c.c_int, _p, c.POINTER(_Shape), _out)
_start_cuda = _declare("start_cuda", c.c_int, _p, c.POINTER(_Shape), _i32, _p, _out)
_state_free = _declare("state_free", None, _p)
_bind = _declare("bind", c.c_int, _p, _i64, _p, _p, _p)
_prefill = _declare("prefill", c.c_int, _p, _i64, _i64, c.POINTER(_Prompt))
_choose = _declare("choose", c.c_int, _p, _i64, _i64, _p, c.c_float, _i32)
_list = _declare("list", c.c_int, *_list_arguments)
_retained = _declare("retained", c.c_int, *_list_arguments)
_attend = _declare("attend", c.c_int, _p, _i64, _p, c.c_float, _p)
_observe = _declare("observe", c.c_int, _p, _p)
_capsule_pointer = c.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = _p, (c.py_object, c.c_char_p)


class _Tensor:
    """A DLPack capsule that is not consumed: what it points to begins with a DLTensor, and lives as long as this."""

    def __init__(self, array):
        self.capsule = None if array is None else array.__dlpack__()
        self.pointer = None if array is None else _capsule_pointer(self.capsule, b"dltensor")


class Policy:
    """From text as on the command line. `boundary`: a byte for each vocabulary id, not 0 where it ends a sentence."""

    def __init__(self, text, boundary=b""):
        self._handle = _p()
        _parse(text.encode(), boundary or None, len(boundary), c.byref(self._handle))
        self.needs, self.observation_queries = _needs(self._handle), _observation_queries(self._handle)

    def __del__(self, free=_policy_free):
        free(self._handle)


class Sequence:
    """One sequence's state; kvpolicy.h says what each call takes. With cuda=(device, stream) its tensors are on that device."""

    def __init__(self, policy, layers, q_heads, kv_heads, head_dim, max_tokens, dtype="f32", cuda=None):
        self._handle, self._bound = _p(), {}
        shape = _Shape(layers, q_heads, kv_heads, head_dim, max_tokens, ("f32", "f16", "bf16").index(dtype))
        if cuda is None:
            _start(policy._handle, c.byref(shape), c.byref(self._handle))
        else:
            _start_cuda(policy._handle, c.byref(shape), *cuda, c.byref(self._handle))

    def __del__(self, free=_state_free):
        free(self._handle)

    def bind(self, layer, keys, values=None, pages=None):
        tensors = _Tensor(keys), _Tensor(values), _Tensor(pages)
        _bind(self._handle, layer, *(t.pointer for t in tensors))
        self._bound[layer] = tensors  # borrowed by the library until the next bind

    def prefill(self, layer, tokens, first=0, queries=None, scale=1.0, inverse_frequencies=None, neighbours=False, token_ids=None):
        tensors = _Tensor(queries), _Tensor(inverse_frequencies), _Tensor(token_ids)
        prompt = _Prompt(first, tensors[0].pointer, scale, neighbours, tensors[1].pointer, tensors[2].pointer)
        _prefill(self._handle, layer, tokens, c.byref(prompt))

    def choose(self, layer, tokens, queries=None, scale=1.0, token_id=-1):
        _choose(self._handle, layer, tokens, (tensor := _Tensor(queries)).pointer, scale, token_id)

    def ranges(self, layer, kv_head, retained=False):
        """[(begin, end, why)]: what this step reads of the head; or what is there at all."""
        ranges, count = c.POINTER(_Range)(), _i64()
        (_retained if retained else _list)(self._handle, layer, kv_head, c.byref(ranges), c.byref(count))
        return [(r.begin, r.end, REASONS[r.why]) for r in ranges[:count.value]]

    def tokens(self, layer, kv_head, retained=False):
        return [t for begin, end, _ in self.ranges(layer, kv_head, retained) for t in range(begin, end)]

    def attend(self, layer, queries, scale, out):
        tensors = _Tensor(queries), _Tensor(out)
        _attend(self._handle, layer, tensors[0].pointer, scale, tensors[1].pointer)

    def observe(self, logits=None):
        _observe(self._handle, (tensor := _Tensor(logits)).pointer)
