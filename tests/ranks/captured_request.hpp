// Keys of a real model, in a file: what capture.cpp writes and mpi_test.cpp splits.
#pragma once

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "split_request.hpp"

namespace kvpolicy_test::ranks {

/// The file, in the machine's own numbers: layers, KV heads, channels, tokens and steps as int64; keys `[layers, kv_heads,
/// tokens, head_dim]` as float; the entropy after each of the last `steps` tokens as float.
struct captured_keys {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t tokens = 0;
  std::int64_t steps = 0;
  std::vector<float> keys;
  std::vector<float> entropies;

  void write(std::string const& path) const {
    std::ofstream file(path, std::ios::binary);
    for (std::int64_t const x : {layers, kv_heads, head_dim, tokens, steps})
      file.write(reinterpret_cast<char const*>(&x), sizeof x);
    for (auto const* const all : {&keys, &entropies}) {
      file.write(reinterpret_cast<char const*>(all->data()), static_cast<std::streamsize>(all->size() * sizeof(float)));
    }
    if (!file) throw std::runtime_error(path + " could not be written");
  }

  static captured_keys read(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    captured_keys made;
    for (std::int64_t* const x : {&made.layers, &made.kv_heads, &made.head_dim, &made.tokens, &made.steps})
      file.read(reinterpret_cast<char*>(x), sizeof *x);
    if (!file) throw std::runtime_error(path + " is not there, or no file of captured keys");
    made.keys.resize(static_cast<std::size_t>(made.layers * made.kv_heads * made.tokens * made.head_dim));
    made.entropies.resize(static_cast<std::size_t>(made.steps));
    for (auto* const all : {&made.keys, &made.entropies}) {
      file.read(reinterpret_cast<char*>(all->data()), static_cast<std::streamsize>(all->size() * sizeof(float)));
    }
    if (!file) throw std::runtime_error(path + " is cut");
    return made;
  }
};

/// The model's request under chess's own settings and the paper's, its heads, layers, and both over `ranks`: wherever there are
/// enough of them.
inline std::vector<request> captured_requests(std::string const& path, std::int64_t ranks) {
  captured_keys const captured = captured_keys::read(path);
  std::vector<float> sorted = captured.entropies;
  std::ranges::sort(sorted);
  random_source random(7);
  std::vector<request> made;
  for (std::int64_t groups = 1; groups <= ranks; ++groups) {
    if (ranks % groups != 0 || groups > captured.kv_heads || ranks / groups > captured.layers) continue;
    for (std::int32_t depth = 1; depth <= 3; ++depth) {
      request r;
      r.shape = {captured.layers, captured.kv_heads, captured.kv_heads, captured.head_dim, captured.tokens, element_type::f32};
      r.cells = captured.keys;
      r.frequencies.clear();
      for (std::int64_t i = 0; i < captured.head_dim / 2; ++i)
        r.frequencies.push_back(std::pow(100000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(captured.head_dim)));
      r.policy = depth == 1 ? presets::chess{.fractions = {.tokens = 128}} : presets::chess::aggressive();
      r.policy.units = {.page = 8, .pages_per_chunk = 4, .chunks_per_grid = 4};
      r.policy.recent_pages = 2;
      r.policy.depth = depth;
      r.policy.entropy = sorted[sorted.size() / 2];
      r.policy.varentropy = 9;
      r.prompt = captured.tokens - captured.steps;
      for (std::int64_t i = 0; i < captured.steps; ++i) {
        r.steps.push_back(r.prompt + i + 1);
        r.entropies.push_back(captured.entropies[static_cast<std::size_t>(i)]);
      }
      r.parts = split(r.shape, ranks / groups, groups, false, random);
      made.push_back(std::move(r));
    }
  }
  if (made.empty()) throw std::runtime_error("there is no way to split this model over " + std::to_string(ranks) + " ranks");
  return made;
}

}  // namespace kvpolicy_test::ranks
