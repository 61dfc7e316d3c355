"""random_gguf.py FILE: a llama of Llama-3.1-8B's sizes with random weights in Q4_0, 4.5 GB, for timings alone. Its attention is neither
flat nor one-hot. Needs numpy, and llama.cpp's gguf-py in PYTHONPATH."""
import sys

import gguf
import numpy as np

layers, embed, heads, kv_heads, head_dim, hidden, vocabulary = 32, 4096, 32, 8, 128, 14336, 128256
out = gguf.GGUFWriter(sys.argv[1], "llama")
out.add_name("random")
out.add_context_length(262144)
out.add_embedding_length(embed)
out.add_block_count(layers)
out.add_feed_forward_length(hidden)
out.add_head_count(heads)
out.add_head_count_kv(kv_heads)
out.add_key_length(head_dim)
out.add_value_length(head_dim)
out.add_rope_dimension_count(head_dim)
out.add_layer_norm_rms_eps(1e-5)
out.add_rope_freq_base(500000.0)
out.add_vocab_size(vocabulary)
out.add_tokenizer_model("no_vocab")
out.add_file_type(2)
noise = np.random.default_rng(1).integers(0, 256, 1 << 26, dtype=np.uint8)
begin = 0


def norm(name):
    out.add_tensor(name, np.ones(embed, np.float32))


def matrix(name, rows, columns, deviation=None):
    """Blocks of 32: a scale in half precision, and 16 bytes of random nibbles, whose deviation is 4.6."""
    global begin
    begin = (begin + 7919) % 4096
    scale = np.float16((deviation or columns ** -.5) / 4.6)
    blocks = np.empty((rows * columns // 32, 18), np.uint8)
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    blocks[:, 2:] = np.resize(noise[begin:], (len(blocks), 16))
    out.add_tensor(name, blocks.reshape(rows, columns // 32 * 18), raw_dtype=gguf.GGMLQuantizationType.Q4_0)


matrix("token_embd.weight", vocabulary, embed, 1.0)
norm("output_norm.weight")
matrix("output.weight", vocabulary, embed)
for layer in range(layers):
    of = f"blk.{layer}."
    norm(of + "attn_norm.weight")
    norm(of + "ffn_norm.weight")
    matrix(of + "attn_q.weight", heads * head_dim, embed, 2.5 * embed ** -.5)
    matrix(of + "attn_k.weight", kv_heads * head_dim, embed, 2.5 * embed ** -.5)
    matrix(of + "attn_v.weight", kv_heads * head_dim, embed)
    matrix(of + "attn_output.weight", embed, heads * head_dim, 2 * (heads * head_dim) ** -.5)
    matrix(of + "ffn_gate.weight", hidden, embed)
    matrix(of + "ffn_up.weight", hidden, embed)
    matrix(of + "ffn_down.weight", embed, hidden)
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
