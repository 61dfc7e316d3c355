"""requantise.py FROM TO [q8_0|q4_0]: a GGUF file's tensors in that type, by llama.cpp itself; every rival that reads GGUF takes Q8_0."""
import ctypes
import os
import sys

import engine

api = engine.load()
types = {"q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": api.LLAMA_FTYPE_MOSTLY_Q4_0}
given = [*sys.argv[1:], "q8_0"][:3]
if len(given) != 3 or given[2] not in types:
    sys.exit(f"requantise.py FROM TO [{'|'.join(types)}], not {sys.argv[1:]}")
source, into, kind = given
params = api.llama_model_quantize_default_params()
params.ftype = types[kind]
params.allow_requantize = True
params.nthread = 1
if api.llama_model_quantize(source.encode(), (into + ".part").encode(), ctypes.byref(params)) != 0:
    sys.exit(f"requantise.py: llama.cpp can't requantise {source}")
os.replace(into + ".part", into)
