"""Times a request in llama.cpp itself, without kvpolicy; prints one JSON line. Settings are kvpolicy-run's: f16 cache, pieces of 512."""
import time

import engine
import measured

PIECE = 512


class request:
    def __init__(self, api, model, tokens, arguments):
        self.api, self.greedy = api, api.llama_sampler_init_greedy()
        params = api.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = PIECE
        params.n_threads = params.n_threads_batch = arguments.threads
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if arguments.flash == "on" else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = api.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("llama_dense_bench.py: llama.cpp gives no context")

    def decode(self, tokens):
        """Seconds that the engine computes for the next token, and that token."""
        begin = time.perf_counter()
        for at in range(0, len(tokens), PIECE):
            piece = (self.api.llama_token * len(tokens[at:at + PIECE]))(*tokens[at:at + PIECE])
            if self.api.llama_decode(self.context, self.api.llama_batch_get_one(piece, len(piece))) != 0:
                raise SystemExit("llama_dense_bench.py: llama_decode failed")
        seconds = time.perf_counter() - begin
        return seconds, self.api.llama_sampler_sample(self.greedy, self.context, -1)

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)


def main():
    arguments = measured.options(__doc__.splitlines()[0],
                                 lambda parser: parser.add_argument("--flash", choices=("on", "off"), default="on"))
    api = engine.load()
    model = engine.load_model(api, arguments.model)
    prompt = engine.tokens_of(api, model, arguments.prompt_file.read_text())
    run = request(api, model, len(prompt) + arguments.generate, arguments)
    run.decode(prompt[:32])  # warm-up
    run.clear()
    first, token = run.decode(prompt)
    tokens, steps = [token], []
    while len(tokens) < arguments.generate:
        seconds, token = run.decode(tokens[-1:])
        steps.append(seconds)
        tokens.append(token)
    measured.print_line(f"llama.cpp, flash attention {arguments.flash}", arguments.model.name, len(prompt), first, steps,
                        arguments.generate, engine.text_of(api, model, tokens))


if __name__ == "__main__":
    main()
