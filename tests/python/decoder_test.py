"""Decoder, and State, over a library whose device is an interpreter of PTX: what its steps read and give is what states in host memory do. 77 where
NumPy is missing."""
import ctypes as c
import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("no NumPy here: the decoder is not tested")
    sys.exit(77)

import kvpolicy
from kvpolicy import _abi
from on_device import Exported

cuda = _abi._library
sizes = kvpolicy.Shape(layers=2, q_heads=4, kv_heads=2, head_dim=8, max_tokens=160)
scale = sizes.head_dim ** -.5
room, page = 160, 8


class There(Exported):
    """An array on the device, as PyTorch would give it."""

    def __init__(self, values):
        self.host, self.at = np.ascontiguousarray(values), c.c_void_p()
        cuda.cudaMalloc(c.byref(self.at), c.c_size_t(self.host.nbytes))
        element = 2 if self.host.dtype.kind == "f" else 0, self.host.itemsize * 8
        super().__init__(self.at.value, element, self.host.shape, [n // self.host.itemsize for n in self.host.strides])
        self.put()

    def first(self, channels):
        """The first channels of each row, in their place."""
        return Exported(self.at.value, (2, self.host.itemsize * 8), (*self.host.shape[:-1], channels),
                        [n // self.host.itemsize for n in self.host.strides])

    def put(self):
        cuda.cudaMemcpy(self.at, self.host.ctypes.data_as(c.c_void_p), c.c_size_t(self.host.nbytes), 1)

    def get(self):
        cuda.cudaMemcpy(self.host.ctypes.data_as(c.c_void_p), self.at, c.c_size_t(self.host.nbytes), 2)
        return self.host


def read(address, count):
    found = (c.c_int32 * count)()
    cuda.cudaMemcpy(found, c.c_void_p(address), c.c_size_t(4 * count), 2)
    return list(found)


def listed(lists, slot, head):
    at = slot * lists.lists + (head if lists.lists > 1 else 0)
    named = 0 if lists.named is None else read(lists.named + 4 * at, 1)[0]
    units = read(lists.units + 4 * at * lists.stride, -(-named // lists.unit_size)) if named else []
    tail = lists.tail_of_all if lists.tail is None else read(lists.tail + 4 * slot, 1)[0]
    tokens = read(lists.tokens + 4 * slot, 1)[0]
    return [units[i // lists.unit_size] * lists.unit_size + i % lists.unit_size for i in range(named)] + list(range(tail, tokens))


class Decodes(unittest.TestCase):
    def beside_states(self, text, paged, sizes=sizes, queries_of=np.float32, **terms):
        """Where values are narrower, they are the keys' first channels."""
        draw = np.random.default_rng(3)
        floats = lambda *shape: draw.integers(-2, 3, size=shape).astype(np.float32)  # exact: equal scores are equal on both sides
        policy, slots = kvpolicy.Policy(text), 2
        stored = np.float16 if sizes.dtype == "f16" else np.float32
        width = sizes.value_dim or sizes.head_dim
        decoder = kvpolicy.Decoder(policy, sizes, slots, cuda=(0, 0))
        states = [kvpolicy.State(policy, sizes) for _ in range(slots)]
        rows = (slots * room // page, sizes.kv_heads, page, sizes.head_dim) if paged else (slots, sizes.kv_heads, room, sizes.head_dim)
        table = draw.permutation(slots * room // page).reshape(slots, -1).astype(np.int32)
        for layer in range(sizes.layers):
            keys = floats(*rows).astype(stored)
            values = keys[..., :width] if sizes.value_dim else floats(*rows).astype(stored)
            there = There(keys)
            decoder.bind(layer, there, there.first(width) if sizes.value_dim else There(values), There(table) if paged else None)
            for slot, state in enumerate(states):
                if paged:
                    state.bind(layer, keys, values, table[slot])
                else:
                    state.bind(layer, keys[slot], values[slot])
        if terms:
            slopes, sinks = floats(sizes.q_heads), floats(sizes.q_heads)
            decoder.bind_terms(0, slopes=There(slopes), sinks=There(sinks), **terms)
            for state in states:
                state.bind_terms(0, slopes=slopes, sinks=sinks, **terms)
        tokens = [90, 121]
        for slot, state in enumerate(states):
            queries = floats(tokens[slot], sizes.q_heads, sizes.head_dim)
            for layer in range(sizes.layers):
                for each in (lambda *a, **k: decoder.prefill(slot, *a, **k), state.prefill):
                    each(layer, tokens[slot], queries=queries, scale=scale)
        queries = There(floats(slots, sizes.q_heads, sizes.head_dim).astype(queries_of))
        out = There(floats(slots, sizes.q_heads, width))
        for _ in range(4):
            tokens = [n + 1 for n in tokens]
            queries.host[:] = floats(*queries.host.shape)
            queries.put()
            step = decoder.plan(tokens)
            for layer in range(sizes.layers):
                if step.decides:
                    decoder.decide(layer, queries, scale)
                lists = decoder.standing(layer) if step.idle else decoder.choose(layer, queries, scale)
                decoder.attend(layer, queries, scale, out)
                given = out.get()
                for slot, state in enumerate(states):
                    want, asked = np.zeros((sizes.q_heads, width), np.float32), queries.host[slot].astype(np.float32)
                    state.choose(layer, tokens[slot], asked, scale)
                    state.attend(layer, asked, scale, want)
                    np.testing.assert_allclose(given[slot], want, atol=1e-4 if queries_of == np.float32 else 1e-3)
                    for head in range(sizes.kv_heads):
                        self.assertEqual(listed(lists, slot, head), state.tokens(layer, head))
            decoder.observe()
            for state in states:
                state.observe()

    def test_values_may_be_a_part_of_the_keys_rows(self):
        latent = kvpolicy.Shape(layers=1, q_heads=16, kv_heads=1, head_dim=576, max_tokens=room, dtype="f16", value_dim=512)
        for text in ("full", "quest:tokens=40,page=8", "snapkv:tokens=40,after=0"):
            for queries_of in (np.float32, np.float16):
                with self.subTest(text, queries=queries_of.__name__):
                    self.beside_states(text, True, latent, queries_of)
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "row_norms has no kernel for a head size of 576"):
            self.beside_states("knorm:tokens=40", True, latent)

    def test_pages(self):
        for text in ("quest:paper,tokens=40,page=8", "snapkv:tokens=40,after=0", "snapkv:tokens=40,after=2", "full",
                     "omnikv:tokens=40", "rkv:tokens=40,window=4,every=3", "snapkv:tokens=64,after=2+quest:tokens=40,page=8"):
            with self.subTest(text):
                self.beside_states(text, True)

    def test_what_a_model_adds(self):
        self.beside_states("quest:paper,tokens=40,page=8", True, soft_cap=2.0)

    def test_rows_without_pages(self):
        self.beside_states("quest:paper,tokens=40,page=8", False)

    def test_several_tokens_in_rows_that_move(self):
        """Each slot brings two tokens a step, of which the second stays at every other one; rows swap at every step."""
        draw = np.random.default_rng(4)
        floats = lambda *shape: draw.integers(-2, 3, size=shape).astype(np.float32)
        policy, slots, several = kvpolicy.Policy("quest:paper,tokens=40,page=8"), 2, 2
        decoder = kvpolicy.Decoder(policy, sizes, slots, cuda=(0, 0), step_tokens=several, rows=slots)
        states = [kvpolicy.State(policy, sizes) for _ in range(slots)]
        table = draw.permutation(slots * room // page).reshape(slots, -1).astype(np.int32)
        on_device = There(table.copy())
        for layer in range(sizes.layers):
            keys, values = (floats(slots * room // page, sizes.kv_heads, page, sizes.head_dim) for _ in range(2))
            decoder.bind(layer, There(keys), There(values), on_device)
            for slot, state in enumerate(states):
                state.bind(layer, keys, values, table[slot])
        tokens = [90, 121]
        for slot, state in enumerate(states):
            for layer in range(sizes.layers):
                decoder.prefill(slot, layer, tokens[slot], row=slot)
                state.prefill(layer, tokens[slot])
        queries, out = There(floats(slots, several, sizes.q_heads, sizes.head_dim)), There(floats(slots, several, sizes.q_heads, sizes.head_dim))
        order, unsettled = [0, 1], 0
        for turn in range(4):
            order.reverse()
            on_device.host[:] = table[order]
            on_device.put()
            queries.host[:] = floats(*queries.host.shape)
            queries.put()
            step = decoder.plan([tokens[slot] + several for slot in order], [several] * slots, order)
            unsettled += step.unsettled
            if step.unsettled:
                decoder.settle(scale)
            for layer in range(sizes.layers):
                lists = decoder.choose(layer, queries, scale)
                decoder.attend(layer, queries, scale, out)
                given = out.get()
                for row, slot in enumerate(order):
                    want = np.zeros((sizes.q_heads, sizes.head_dim), np.float32)
                    states[slot].choose(layer, tokens[slot] + 1, queries.host[row, 0], scale)
                    states[slot].attend(layer, queries.host[row, 0], scale, want)
                    np.testing.assert_allclose(given[row, 0], want, atol=1e-4)
                    for head in range(sizes.kv_heads):
                        self.assertEqual(listed(lists, slot, head), states[slot].tokens(layer, head) + [tokens[slot] + 1])
            stays = 1 + turn % 2
            for row, slot in enumerate(order):
                for layer in range(sizes.layers if stays == 2 else 0):
                    states[slot].choose(layer, tokens[slot] + 2, queries.host[row, 1], scale)
                tokens[slot] += stays
        self.assertEqual(unsettled, 1)  # the last step's are settled by the next
        decoder.end(0)
        decoder.plan([tokens[1] + 1], slots=[1])
        with self.assertRaisesRegex(kvpolicy.InvalidError, "both have slot 1"):
            decoder.plan([tokens[1] + 1] * 2, slots=[1, 1])
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "learns from steps"):
            decoder.cut(1, tokens[1])

    def test_states(self):
        for text in ("quest:paper,tokens=40,page=8", "snapkv:tokens=40,after=0", "infllm:tokens=64"):
            draw = np.random.default_rng(5)
            floats = lambda *shape: draw.integers(-2, 3, size=shape).astype(np.float32)
            states = [kvpolicy.State(kvpolicy.Policy(text), sizes, cuda=cuda) for cuda in ((0, 0), None)]
            queries, outs = floats(90, sizes.q_heads, sizes.head_dim), [np.zeros((sizes.q_heads, sizes.head_dim), np.float32) for _ in states]
            for layer in range(sizes.layers):
                keys, values = floats(sizes.kv_heads, room, sizes.head_dim), floats(sizes.kv_heads, room, sizes.head_dim)
                states[0].bind(layer, There(keys), There(values))
                states[1].bind(layer, keys, values)
                for state, given in zip(states, (There(queries), queries)):
                    state.prefill(layer, 90, queries=given, scale=scale, inverse_frequencies=np.float32([1, .3, .1, .03]))
            for layer in range(sizes.layers):
                for state, out in zip(states, outs):
                    state.choose(layer, 91, queries[0], scale)
                    state.attend(layer, queries[0], scale, out)
                np.testing.assert_allclose(*outs, atol=1e-4)
                for head in range(sizes.kv_heads):
                    self.assertEqual(states[0].tokens(layer, head), states[1].tokens(layer, head))

    def test_refusals(self):
        with self.assertRaisesRegex(kvpolicy.UnsupportedError, "has no decoder"):
            kvpolicy.Decoder(kvpolicy.Policy("h2o:tokens=64+quest:tokens=40"), sizes, 1, cuda=(0, 0))
        decoder = kvpolicy.Decoder(kvpolicy.Policy("full"), sizes, 2, cuda=(0, 0))
        with self.assertRaisesRegex(kvpolicy.InvalidError, "1 numbers of tokens; there are 2 slots"):
            decoder.plan([0])
        with self.assertRaisesRegex(kvpolicy.InvalidError, "CUDA device 0"):
            decoder.bind(0, np.zeros((2, 2, room, 8), np.float32), np.zeros((2, 2, room, 8), np.float32))


if __name__ == "__main__":
    unittest.main()
