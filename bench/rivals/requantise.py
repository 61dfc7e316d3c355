"""requantise.py FROM TO: a GGUF file's tensors in Q8_0, which every rival that reads GGUF files takes, by llama.cpp itself."""
import ctypes
import os
import sys

import engine

api = engine.load()
params = api.llama_model_quantize_default_params()
params.ftype = api.LLAMA_FTYPE_MOSTLY_Q8_0
params.allow_requantize = True
params.nthread = 1
source, into = sys.argv[1:]
if api.llama_model_quantize(source.encode(), (into + ".part").encode(), ctypes.byref(params)) != 0:
    sys.exit(f"requantise.py: llama.cpp can't requantise {source}")
os.replace(into + ".part", into)
