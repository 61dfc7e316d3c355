"""The Python package: what it chooses and attends to, against NumPy; refusals; threads; stores. 77 where NumPy is missing."""
import copy
import ctypes as c
import gc
import os
import pickle
import pathlib
import re
import sys
import threading
import unittest
import weakref

try:
    import numpy as np
except ImportError:
    print("no NumPy here: the Python package is not tested")
    sys.exit(77)

import kvpolicy
from kvpolicy import _abi
from on_device import Exported

sizes = kvpolicy.Shape(layers=2, q_heads=4, kv_heads=2, head_dim=8, max_tokens=400)
scale = sizes.head_dim ** -.5
group = sizes.q_heads // sizes.kv_heads


class Engine:
    """Random rows of every layer, and a sequence on them."""

    def __init__(self, text, seed=0):
        self.draw = np.random.default_rng(seed)
        rows = (sizes.layers, sizes.kv_heads, sizes.max_tokens, sizes.head_dim)
        self.keys, self.values = self.floats(*rows), self.floats(*rows)
        self.state = kvpolicy.State(kvpolicy.Policy(text), sizes)
        self.tokens = 0

    def floats(self, *shape):
        return self.draw.normal(size=shape).astype(np.float32)

    def bind(self):
        for layer in range(sizes.layers):
            self.state.bind(layer, self.keys[layer], self.values[layer])
        return self

    def prompt(self, tokens):
        self.tokens += tokens
        for layer in range(sizes.layers):
            self.state.prefill(layer, self.tokens, first=self.tokens - tokens, queries=self.floats(tokens, sizes.q_heads, sizes.head_dim),
                               scale=scale)
        return self

    def step(self):
        """[layers, q_heads, head_dim]: attention of the next token."""
        self.tokens += 1
        out = np.zeros((sizes.layers, sizes.q_heads, sizes.head_dim), np.float32)
        self.queries = self.floats(*out.shape)
        for layer in range(sizes.layers):
            self.state.choose(layer, self.tokens, self.queries[layer], scale)
            self.state.attend(layer, self.queries[layer], scale, out[layer])
        self.state.observe()
        return out

    def attention(self, layer, head, tokens):
        """[group, head_dim] by NumPy."""
        logits = self.queries[layer, head * group:(head + 1) * group] @ self.keys[layer, head, tokens].T * scale
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ self.values[layer, head, tokens]


def overlapping(array):  # every entry of its first axis is the first one
    return np.lib.stride_tricks.as_strided(array, strides=(0, *array.strides[1:]))


class Binding(unittest.TestCase):
    def test_every_function_of_the_header_is_called_with_its_types(self):
        header = pathlib.Path(os.environ.get("KVPOLICY_HEADER") or _abi.folder / "include" / "kvpolicy.h").read_text()
        declared = re.findall(r"KVPOLICY_API [\w\s*]*?\bkvpolicy_(\w+)\(([^;]*)\);", header)
        self.assertGreater(len(declared), 25)
        for name, arguments in declared:
            function = getattr(_abi, {"list": "list_"}.get(name, name))
            wanted = 0 if arguments.strip() == "void" else arguments.count(",") + 1
            self.assertEqual(len(function.argtypes), wanted, name)

    def test_what_is_attended_to_is_what_the_ranges_say(self):
        for text in ("full", "snapkv:tokens=40,after=0", "quest:tokens=32,page=4", "adakv:tokens=40,after=0", "tova:tokens=40",
                     "snapkv:tokens=80,after=0+quest:tokens=32,page=4"):
            engine = Engine(text).bind().prompt(150)
            for _ in range(5):
                out = engine.step()
                for layer in range(sizes.layers):
                    for head in range(sizes.kv_heads):
                        kept = engine.state.tokens(layer, head)
                        self.assertEqual(len(kept) < engine.tokens, text != "full", text)
                        expected = engine.attention(layer, head, kept)
                        np.testing.assert_allclose(out[layer, head * group:(head + 1) * group], expected, atol=2e-5, err_msg=text)

    def test_a_step_of_several_tokens_reads_what_the_first_one_chooses(self):
        for text in ("snapkv:tokens=40,after=0", "quest:tokens=32,page=4", "tova:tokens=40"):
            engine, alone = Engine(text).bind().prompt(150), Engine(text).bind().prompt(150)
            for brought, stay in ((4, 2), (1, 1), (3, 3)):
                queries = engine.floats(sizes.layers, brought, sizes.q_heads, sizes.head_dim)
                out = np.zeros_like(queries)
                first = engine.tokens + 1
                for layer in range(sizes.layers):
                    engine.state.choose_several(layer, engine.tokens + brought, brought, queries[layer], scale)
                    engine.state.attend(layer, queries[layer], scale, out[layer])
                    alone.state.choose(layer, first, queries[layer, 0], scale)
                    for head in range(sizes.kv_heads):
                        drafts = list(range(first, first + brought - 1))
                        self.assertEqual(engine.state.tokens(layer, head), alone.state.tokens(layer, head) + drafts, text)
                        engine.queries = queries[:, 0]
                        seen = alone.state.tokens(layer, head)
                        np.testing.assert_allclose(out[layer, 0, head * group:(head + 1) * group], engine.attention(layer, head, seen), atol=2e-5)
                for token in range(first + 1, first + stay):
                    for layer in range(sizes.layers):
                        alone.state.choose(layer, token, queries[layer, token - first], scale)
                engine.tokens += stay
        with self.assertRaisesRegex(kvpolicy.InvalidError, "it can have 1 to 16"):
            engine.state.choose_several(0, engine.tokens + 17, 17)

    def test_prompts_attend_to_all_before_each_token(self):
        engine = Engine("snapkv:tokens=40,after=0").bind()
        engine.queries = engine.floats(sizes.layers, sizes.q_heads, sizes.head_dim)
        queries, out = engine.floats(30, sizes.q_heads, sizes.head_dim), np.zeros((30, sizes.q_heads, sizes.head_dim), np.float32)
        engine.state.attend_prompt(1, 70, queries, scale, out)
        for i in range(30):
            engine.queries[1] = queries[i]
            for head in range(sizes.kv_heads):
                np.testing.assert_allclose(out[i, head * group:(head + 1) * group], engine.attention(1, head, range(41 + i)), atol=.02)

    def test_attention_adds_what_a_model_adds(self):
        engine = Engine("full").bind().prompt(40)
        slopes, sinks = engine.floats(sizes.q_heads), engine.floats(sizes.q_heads)
        for layer in range(sizes.layers):
            engine.state.bind_terms(layer, soft_cap=1.5, slopes=slopes, sinks=sinks)
        out = engine.step()
        for head in range(sizes.q_heads):
            logits = self.scaled(engine, head)
            logits = 1.5 * np.tanh(logits / 1.5) + slopes[head] * (np.arange(41) - 40)
            weights = np.exp(logits)
            want = weights @ engine.values[0, head // group, :41] / (weights.sum() + np.exp(sinks[head]))
            np.testing.assert_allclose(out[0, head], want, atol=2e-5)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "soft cap of -1"):
            engine.state.bind_terms(0, soft_cap=-1)

    def test_values_may_be_a_part_of_the_keys_rows(self):
        latent = kvpolicy.Shape(layers=1, q_heads=4, kv_heads=1, head_dim=12, max_tokens=200, value_dim=8)
        draw = np.random.default_rng(3)
        floats = lambda *shape: draw.normal(size=shape).astype(np.float32)
        keys = floats(1, latent.max_tokens, latent.head_dim)
        values = keys[..., :latent.value_dim]

        def attention(queries, tokens):
            weights = np.exp(queries @ keys[0, tokens].T * scale)
            return weights / weights.sum(-1, keepdims=True) @ values[0, tokens]

        for text in ("full", "snapkv:tokens=40,after=0", "quest:tokens=32,page=4", "streaming_llm:tokens=40"):
            state, stored = kvpolicy.State(kvpolicy.Policy(text), latent), kvpolicy.State(kvpolicy.Policy(text), latent)
            store = kvpolicy.Store(kvpolicy.Arena(latent, 1 << 22))
            state.bind(0, keys, values)
            stored.bind_store(store)
            store.append(0, keys[:, :150], values[:, :150])
            window, out = floats(150, latent.q_heads, latent.head_dim), np.zeros((150, latent.q_heads, latent.value_dim), np.float32)
            state.attend_prompt(0, 150, window, scale, out)
            np.testing.assert_allclose(out[-1], attention(window[-1], range(150)), atol=.02)
            for each in (state, stored):
                each.prefill(0, 150, queries=window, scale=scale)
            for tokens in range(151, 155):
                queries, one, two = floats(latent.q_heads, latent.head_dim), out[0].copy(), out[:1].copy()
                state.choose(0, tokens, queries, scale)
                state.attend(0, queries, scale, one)
                np.testing.assert_allclose(one, attention(queries, state.tokens(0, 0)), atol=2e-5, err_msg=text)
                kvpolicy.Batch([stored]).step(0, keys[:, tokens - 1:tokens], values[:, tokens - 1:tokens], queries[None], scale, two)
                np.testing.assert_array_equal(two[0], one)
        for wrong, why in ((dict(values=keys), "value_dim.* 12 .*8"), (dict(values=keys[..., :7]), "value_dim.* 7 .*8")):
            with self.assertRaisesRegex(kvpolicy.InvalidError, why):
                state.bind(0, keys, **wrong)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "value_dim"):
            state.attend(0, queries, scale, np.zeros((4, 12), np.float32))
        with self.assertRaisesRegex(kvpolicy.InvalidError, "value_dim is -1"):
            kvpolicy.State(kvpolicy.Policy("full"), latent._replace(value_dim=-1))

    def scaled(self, engine, head):
        """Logits of a query head in layer 0."""
        return engine.keys[0, head // group, :engine.tokens] @ engine.queries[0, head] * scale

    def test_prompt_queries_may_have_16_bits(self):
        narrow = np.random.default_rng(5).normal(size=(60, sizes.q_heads, sizes.head_dim)).astype(np.float16)
        kept = []
        for queries in (narrow, narrow.astype(np.float32)):
            engine = Engine("snapkv:tokens=20,after=0").bind()
            for layer in range(sizes.layers):
                engine.state.prefill(layer, 60, queries=queries, scale=scale)
            kept.append([engine.state.retained(layer, head) for layer in range(sizes.layers) for head in range(sizes.kv_heads)])
        self.assertEqual(*kept)

    def test_ranges_say_why(self):
        engine = Engine("streaming_llm:tokens=20,sinks=4").bind().prompt(100)
        engine.step()
        ranges = engine.state.ranges(0, 1)
        self.assertEqual(ranges, [(0, 4, "sink"), (85, 101, "scored")])
        self.assertEqual(engine.state.retained(0, 1), ranges)
        behind = Engine("snapkv:tokens=20,after=0,window=8").bind().prompt(100)
        behind.step()
        self.assertEqual(behind.state.ranges(0, 1)[-1], (100, 101, "open"))

    def test_a_short_piece_needs_the_queries_of_those_before_it(self):
        engine = Engine("snapkv:tokens=20,after=0,window=8").bind().prompt(100)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "of 3 tokens; the policy reads those of the prompt's last 8"):
            engine.prompt(3)
        few = engine.floats(3, sizes.q_heads, sizes.head_dim)
        for layer in range(sizes.layers):
            engine.state.prefill(layer, 103, first=100, queries=few, scale=scale, observed_from=100)

    def test_page_tables_name_physical_pages(self):
        shape = sizes._replace(layers=1, max_tokens=64)
        draw = np.random.default_rng(3)
        state = kvpolicy.State(kvpolicy.Policy("quest:tokens=24,page=8"), shape)
        keys, values = (draw.normal(size=(8, 2, 8, 8)).astype(np.float32) for _ in range(2))
        physical = np.array([5, 2, 7, 0, 1, 6, 3, 4], np.int32)
        state.bind(0, keys, values, physical)
        state.prefill(0, 59)
        state.choose(0, 60, draw.normal(size=(4, 8)).astype(np.float32), scale)
        pages, last = state.page_table(0, 1)
        logical = sorted({t // 8 for t in state.tokens(0, 1)})
        self.assertEqual((pages, last), ([physical[page] for page in logical], 4))
        self.assertLess(len(pages), 8)

    def test_states_of_several_threads_choose_as_alone(self):
        def run(seed, into):
            engine = Engine("snapkv:tokens=60,after=0+quest:tokens=24,page=4", seed).bind().prompt(200)
            into[seed] = [engine.step() for _ in range(40)]
            try:
                kvpolicy.Policy(f"no_such_{seed}")
            except kvpolicy.InvalidError as refusal:
                into[seed].append(f"'no_such_{seed}'" in str(refusal))

        alone, together = {}, {}
        for seed in range(6):
            run(seed, alone)
        threads = [threading.Thread(target=run, args=(seed, together)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for seed in range(6):
            np.testing.assert_array_equal(alone[seed][:-1], together[seed][:-1])
            self.assertTrue(alone[seed][-1] and together[seed][-1])

    def test_rows_of_a_store_go_as_the_policy_drops_them(self):
        shape = sizes._replace(dtype="f16")
        arena = kvpolicy.Arena(shape, 1 << 24)
        store = kvpolicy.Store(arena)
        engine = Engine("snapkv:tokens=40,after=0")
        engine.state = kvpolicy.State(engine.state.policy, shape)
        engine.state.bind_store(store)
        keys, values = engine.keys.astype(np.float16), engine.values.astype(np.float16)

        def append(first, last):
            for layer in range(sizes.layers):
                store.append(layer, keys[layer, :, first:last], values[layer, :, first:last])

        append(0, 200)
        self.assertEqual((store.released, store.rows), (200, 200 * 4))
        engine.prompt(200)
        append(200, 201)
        engine.step()
        whole = arena.bytes
        for layer in range(sizes.layers):
            store.retain(layer, engine.state)
        self.assertLess(store.rows, 50 * 4)
        self.assertLess(arena.bytes, whole)
        copy = store.fork(201)
        taken = arena.bytes
        store.truncate(100)
        self.assertLess(store.rows, copy.rows)
        del store, engine
        gc.collect()
        self.assertLessEqual(arena.bytes, taken)
        self.assertGreater(copy.rows, 0)

    def test_sequences_make_their_steps_together(self):
        policy, draw = kvpolicy.Policy("snapkv:tokens=40,after=0"), np.random.default_rng(1)
        floats = lambda *shape: draw.normal(size=shape).astype(np.float32)
        together, alone, prompts = [], [], (100, 150, 120)
        for tokens in prompts:
            rows, window = floats(2, sizes.kv_heads, tokens, sizes.head_dim), floats(32, sizes.q_heads, sizes.head_dim)
            for into in (together, alone):
                state, store = kvpolicy.State(policy, sizes), kvpolicy.Store(kvpolicy.Arena(sizes, 1 << 24))
                state.bind_store(store)
                for layer in range(sizes.layers):
                    store.append(layer, *rows)
                    state.prefill(layer, tokens, queries=window, scale=scale)
                into.append((state, store))
        batch = kvpolicy.Batch([state for state, _ in together])
        for step in range(3):
            for layer in range(sizes.layers):
                keys, values = floats(3, sizes.kv_heads, sizes.head_dim), floats(3, sizes.kv_heads, sizes.head_dim)
                queries, out = floats(3, sizes.q_heads, sizes.head_dim), np.zeros((3, sizes.q_heads, sizes.head_dim), np.float32)
                read = batch.step(layer, keys, values, queries, scale, out)
                for i, (state, store) in enumerate(alone):
                    expected = np.zeros_like(out[i])
                    store.append(layer, keys[i][:, None], values[i][:, None])
                    state.choose(layer, prompts[i] + step + 1, queries[i], scale)
                    state.attend(layer, queries[i], scale, expected)
                    np.testing.assert_array_equal(out[i], expected)
                    self.assertEqual(read[i], sum(len(state.tokens(layer, head)) for head in range(sizes.kv_heads)))
            for (state, store), (_, other) in zip(alone, together):
                state.observe()
                for layer in range(sizes.layers):
                    store.retain(layer, state)
                self.assertEqual(store.rows, other.rows)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "sequences"):
            batch.step(0, keys[:2], values, queries, scale, out)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "choose for layer 1"):
            batch.step(1, keys, values, queries, scale, out)

    def test_a_sequence_without_memory_is_refused_alone(self):
        block = 64 * sizes.head_dim * 2 * 4
        states, draw, policy = [], np.random.default_rng(1), kvpolicy.Policy("full")
        floats = lambda *shape: draw.normal(size=shape).astype(np.float32)
        ran = []

        def on_two_threads(work, argument):
            both = [threading.Thread(target=c.CFUNCTYPE(None, c.c_void_p)(work), args=(argument,)) for _ in range(2)]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
            ran.append(len(both))

        for blocks in (8, 4, 8):
            store, state = kvpolicy.Store(kvpolicy.Arena(sizes, blocks * block)), kvpolicy.State(policy, sizes)
            state.bind_store(store)
            for layer in range(sizes.layers):
                store.append(layer, *floats(2, sizes.kv_heads, 64, sizes.head_dim))
                state.prefill(layer, 64)
            states.append((state, store))
        for threads in (kvpolicy.Threads(on_two_threads), kvpolicy.openmp(), None):
            batch = kvpolicy.Batch([state for state, _ in states], threads)
            keys, queries = floats(3, sizes.kv_heads, sizes.head_dim), floats(3, sizes.q_heads, sizes.head_dim)
            with self.assertRaisesRegex(kvpolicy.StepError, "sequence 1: .*memory is exhausted") as refused:
                batch.step(0, keys, keys, queries, scale, np.zeros_like(queries))
            self.assertEqual(refused.exception.sequences, [1])
            self.assertEqual([store.rows for _, store in states], [64 * 4 + 2, 64 * 4, 64 * 4 + 2])
            for _, store in states:
                store.truncate(64)
        self.assertEqual(ran, [2])

    def test_ranks_choose_for_the_request_together(self):
        text, meet, parts, chosen = "chess:tokens=64,page=8,sink_pages=1,recent_pages=2,pre_rope=0", threading.Barrier(2), {}, {}
        draw = np.random.default_rng(2)
        keys = draw.normal(size=(sizes.layers, sizes.kv_heads, sizes.max_tokens, sizes.head_dim)).astype(np.float32)
        queries = draw.normal(size=(sizes.layers, sizes.q_heads, sizes.head_dim)).astype(np.float32)

        def choose(heads, ranks):
            count = heads.stop - heads.start
            part = sizes._replace(q_heads=count * group, kv_heads=count)
            state = kvpolicy.State(kvpolicy.Policy(text), part, ranks=ranks)
            for layer in range(sizes.layers):
                state.bind(layer, keys[layer, heads])
                state.prefill(layer, 300)
            for layer in range(sizes.layers):
                state.choose(layer, 301, queries[layer, heads.start * group:heads.stop * group], scale)
            return state.tokens(0, 0)

        def rank(index):
            def total(address, count):
                mine = np.ctypeslib.as_array((c.c_float * count).from_address(address))
                parts[index] = mine.copy()
                meet.wait(60)
                mine[:] = parts[0] + parts[1]
                meet.wait(60)

            chosen[index] = choose(slice(index, index + 1), kvpolicy.Ranks(index, 2, total))

        threads = [threading.Thread(target=rank, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        whole = choose(slice(0, 2), None)
        self.assertEqual([chosen[0], chosen[1]], [whole, whole])
        self.assertNotEqual(choose(slice(0, 1), None), choose(slice(1, 2), None))

    def test_bound_arrays_live_as_long_as_they_are_bound(self):
        engine = Engine("knorm:tokens=30").bind().prompt(60)
        memory = weakref.ref(engine.keys)
        engine.keys = None
        gc.collect()
        self.assertIsNotNone(memory())
        for layer in range(sizes.layers):
            engine.state.choose(layer, 61, None, scale)
        engine.state = None
        gc.collect()
        self.assertIsNone(memory())

    def test_refusals_are_exceptions_with_the_library_s_message(self):
        engine = Engine("snapkv:tokens=40,after=0").bind()
        state, good, there = engine.state, engine.keys[0], Exported(0, (2, 32), (1, 1, 1), (1, 1, 1))
        for wrong, why in ((good.astype(np.float64), "float64|f64|64"), (good[:, :, ::-1], "stride"), (good[:1], "keys of layer 0"),
                           (good.astype(np.float16), "keys of layer 0"), (good[0], "keys of layer 0"),
                           (there, "device"), (type("capsule_alone", (), {"__dlpack__": lambda self: there.__dlpack__(-1)})(), "device")):
            with self.assertRaisesRegex(kvpolicy.InvalidError, why):
                state.bind(0, wrong, engine.values[0])
        with self.assertRaisesRegex(TypeError, "keys is a list; give it as something with __dlpack__"):
            state.bind(0, [[1.0]])
        with self.assertRaisesRegex(kvpolicy.InvalidError, "layer"):
            state.choose(1, 1, engine.floats(4, 8), scale)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "queries"):
            state.prefill(0, 100, scale=scale)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "did you mean 'tokens'"):
            kvpolicy.Policy("snapkv:token=1")
        with self.assertRaises(ValueError):  # InvalidError is one
            kvpolicy.State(kvpolicy.Policy("full"), sizes._replace(kv_heads=3))
        with self.assertRaisesRegex(ValueError, "dtype is 'int8'; there are f32, f16, bf16"):
            kvpolicy.State(kvpolicy.Policy("full"), sizes._replace(dtype="int8"))
        with self.assertRaisesRegex(kvpolicy.Error, "CUDA"):  # built without it, or no such device
            kvpolicy.State(kvpolicy.Policy("full"), sizes, cuda=(99, 0))
        with self.assertRaisesRegex(kvpolicy.InvalidError, "no_such.so"):
            kvpolicy.load_plugin("no_such.so")
        engine.prompt(100).step()  # nothing of that left a trace

    def test_a_first_user_s_slips_are_refused(self):
        engine = Engine("quest:tokens=32,page=8").bind().prompt(100)
        queries = engine.floats(sizes.q_heads, sizes.head_dim)
        for tokens, given, words in ((100, (queries, scale), "must be on 101"), (101, (queries,), "scale is 0"),
                                     (101, (queries, float("nan")), "scale is nan")):
            with self.assertRaisesRegex(kvpolicy.InvalidError, words):
                engine.state.choose(0, tokens, *given)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "let elements overlap"):
            engine.state.choose(0, 101, overlapping(queries), scale)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "let elements overlap"):
            engine.state.bind(0, overlapping(engine.keys[0]), engine.values[0])
        for tokens in (2**64 + 101, 101.0):
            with self.assertRaises((c.ArgumentError, TypeError)):
                engine.state.choose(0, tokens, queries, scale)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "no integer of 64 bits"):
            engine.state.prefill(0, 100, first=2**64)
        with self.assertRaisesRegex(kvpolicy.InvalidError, "no integer of 64 bits"):
            kvpolicy.State(kvpolicy.Policy("full"), sizes._replace(head_dim=2**64 + 8))
        with self.assertRaisesRegex(TypeError, "is no list of tokens in the order of ids"):
            kvpolicy.sentence_ends({".": 0})
        with self.assertRaises(AttributeError):
            kvpolicy.Batch([engine.state]).states.append(engine.state)
        engine.step()  # nothing of that left a trace

    def test_removed_tokens_are_said_and_a_state_is_copied(self):
        one, other = (Engine("tova:tokens=40").bind().prompt(100) for _ in range(2))
        for engine in (one, other):
            for _ in range(5):
                engine.step()
        copy = one.state.copy()
        one.state.cut(102)
        one.tokens = 102
        one.step()
        with self.assertRaisesRegex(kvpolicy.InvalidError, "where 103 are known; it must be on 104"):
            one.state.choose(0, 106, one.queries[0], scale)
        one.state, one.tokens = copy, 105
        for layer in range(sizes.layers):
            one.state.bind(layer, one.keys[layer], one.values[layer])
        one.draw = np.random.default_rng(9)
        other.draw = np.random.default_rng(9)
        np.testing.assert_array_equal(one.step(), other.step())

    def test_copies_are_states_and_what_holds_memory_is_not_pickled(self):
        engine = Engine("tova:tokens=40").bind().prompt(100)
        for copied in (copy.copy(engine.state), copy.deepcopy(engine.state)):
            self.assertIsInstance(copied, kvpolicy.State)
            self.assertNotEqual(copied._handle.value, engine.state._handle.value)
            del copied
        engine.step()  # the copies' end is not this one's
        with self.assertRaisesRegex(TypeError, "not pickled"):
            pickle.dumps(engine.state)
        self.assertIs(copy.deepcopy(engine.state.policy), engine.state.policy)
        with self.assertRaisesRegex(TypeError, "boundary is a list; give bytes"):
            kvpolicy.Policy("sentencekv", [0, 1])

    def test_tokens_that_end_sentences_are_told_by_their_text_in_the_order_of_ids(self):
        self.assertEqual(kvpolicy.sentence_ends(["a", ".", " x.", "?", "", "b c"]), bytes([0, 1, 1, 1, 0, 0]))
        for vocabulary in ({"a", "."}, {"a": 0}, "a."):
            with self.assertRaisesRegex(TypeError, "is no list of tokens in the order of ids"):
                kvpolicy.sentence_ends(vocabulary)

    def test_policies_tell_what_they_need(self):
        names = kvpolicy.policies()
        self.assertEqual((names[0], names[-1], len(names)), ("full", "kvzip", 24))  # kvpolicy/presets/all.hpp
        policy = kvpolicy.Policy("snapkv:window=12")
        asks = kvpolicy.Needs.KEYS | kvpolicy.Needs.OBSERVATION_QUERIES
        self.assertEqual(policy.needs, asks | kvpolicy.Needs.QUERIES)  # of the answer's first tokens, too
        self.assertEqual(kvpolicy.Policy("snapkv:window=12,after=0").needs, asks)
        self.assertEqual(policy.observation_queries, 12)
        self.assertEqual(repr(policy), "Policy('snapkv:window=12')")
        self.assertRegex(kvpolicy.__version__, r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    unittest.main()
