"""Arrays of other libraries, borrowed where they lie."""
from __future__ import annotations

import ctypes as c
from typing import Any, Protocol

_pointer_of = c.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = c.c_void_p, (c.py_object, c.c_char_p)


class Array(Protocol):
    """What a tensor is given as: a torch.Tensor, a numpy.ndarray, or anything else with DLPack."""

    def __dlpack__(self) -> Any: ...


def _exported(array: Array) -> Any:
    where = getattr(array, "__dlpack_device__", lambda: (1, 0))()
    # -1: no waiting for another stream. The work goes to the stream that the caller named, and may be captured.
    return array.__dlpack__(stream=-1) if where[0] == 2 else array.__dlpack__()  # type: ignore[call-arg]


class borrowed:
    """A DLPack capsule that nobody consumes: what it points to begins with a DLTensor, and lives as long as this.

    Raises TypeError for what is no array, naming it; what an array can't export (a tensor that requires grad, memory that can't
    be written) is its own library's BufferError."""

    def __init__(self, name: str, array: Array | None) -> None:
        if array is not None and not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name} is a {type(array).__name__}; give it as something with __dlpack__, a torch.Tensor or a "
                            "numpy.ndarray")
        self.capsule = None if array is None else _exported(array)
        self.pointer = None if array is None else _pointer_of(self.capsule, b"dltensor")
