#include "tiny_model.hpp"

#include "gguf_writer.hpp"

namespace kvpolicy::llama::testing {

model_owner tiny_llama(tiny_shape const& shape) {
  gguf_writer out("llama", shape.seed);
  write_sizes(out, shape);
  write_ends(out, shape, 1);
  write_layers(out, shape);
  out.matrix("output.weight", width_of(shape), tiny_vocabulary, 1);
  return out.load(false, shape.gpu_layers);
}

model_owner tiny_sliding_window() {
  gguf_writer out("gemma2", 2);
  write_sizes(out, {});
  out.number("attention.sliding_window", 64);
  write_ends(out, {}, 1);
  write_gemma_layers(out, {});
  return out.load();
}

model_owner header_of(std::string const& architecture) {
  gguf_writer out(architecture, 1);
  write_sizes(out, {});
  return out.load(true);
}

model_owner load_model(std::string const& path) {
  silence_engine();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  return model_owner(llama_model_load_from_file(path.c_str(), params));
}

}  // namespace kvpolicy::llama::testing
