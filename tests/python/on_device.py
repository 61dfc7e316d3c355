"""Memory of a device as PyTorch would export it, for tests over a library whose device is an interpreter of PTX."""
import ctypes as c


class _Tensor(c.Structure):  # DLManagedTensor
    _fields_ = [("data", c.c_void_p), ("where", c.c_int32 * 2), ("ndim", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
                ("shape", c.c_void_p), ("strides", c.c_void_p), ("offset", c.c_uint64), ("context", c.c_void_p), ("deleter", c.c_void_p)]


_make_capsule = c.pythonapi.PyCapsule_New
_make_capsule.restype, _make_capsule.argtypes = c.py_object, (c.c_void_p, c.c_char_p, c.c_void_p)


class Exported:
    """Elements (code, bits) of DLPack's types at an address on device 0; strides in elements."""

    def __init__(self, address, element, shape, strides):
        code, bits = element
        self._shape, self._strides = ((c.c_int64 * len(numbers))(*numbers) for numbers in (shape, strides))
        self._tensor = _Tensor(address, (c.c_int32 * 2)(2, 0), len(shape), code, bits, 1, c.addressof(self._shape), c.addressof(self._strides))

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        assert stream == -1, "it would wait for another stream"
        return _make_capsule(c.byref(self._tensor), b"dltensor", None)
