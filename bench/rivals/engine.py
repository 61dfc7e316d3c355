"""llama.cpp's C API by the declarations that llama-cpp-python brought to build/engine, without its Python half, whose requirements
bootstrap does not install. For scripts that run in any Python of the version that build/engine has."""
import ctypes
import importlib
import pathlib
import sys
import types
import typing

ERROR = 4  # GGML_LOG_LEVEL_ERROR


def load():
    """The module of declarations; the engine prints errors alone."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "build/engine/prefix/llama_cpp"
    if not folder.is_dir():
        sys.exit(f"{sys.argv[0]}: there is no {folder}; run cmake/bootstrap.sh engine")
    sys.modules.setdefault("typing_extensions", typing)  # asked for TypeAlias
    package = types.ModuleType("llama_cpp")  # stands in for __init__.py, which imports everything
    package.__path__ = [str(folder)]
    sys.modules["llama_cpp"] = package
    api = importlib.import_module("llama_cpp.llama_cpp")

    @api.llama_log_callback
    def log(level, text, _):
        if level == ERROR:
            sys.stderr.write(text.decode(errors="replace"))

    api.kept_log = log  # the engine holds no reference
    api.llama_log_set(log, None)
    api.llama_backend_init()
    return api


def load_model(api, path):
    params = api.llama_model_default_params()
    params.n_gpu_layers = 0
    model = api.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        sys.exit(f"{sys.argv[0]}: llama.cpp can't load {path}")
    return model


def tokens_of(api, model, text):
    """As kvpolicy-run without --chat: the first token that the model wants, and no special ones out of the text."""
    data = text.encode()
    room = (api.llama_token * (len(data) + 8))()
    count = api.llama_tokenize(api.llama_model_get_vocab(model), data, len(data), room, len(room), True, False)
    if count < 1:
        sys.exit(f"{sys.argv[0]}: the prompt can't be tokenised")
    return room[:count]


def text_of(api, model, tokens):
    room = ctypes.create_string_buffer(256)
    vocab = api.llama_model_get_vocab(model)
    pieces = b""
    for token in tokens:
        size = api.llama_token_to_piece(vocab, token, room, len(room), 0, False)
        pieces += room.raw[:max(0, size)]
    return pieces.decode(errors="replace")
