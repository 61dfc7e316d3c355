// A tiny model of each family that people run, with random weights: the engine itself says which tensors it has.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {

struct family {
  char const* architecture;  ///< llama.cpp's name
  char const* models;        ///< what people call them
};

/// Those that docs/llama.md has a row of, in its order.
std::span<family const> families();

/// The same architecture gives the same weights. Attention is neither flat nor one-hot.
model_owner tiny_model_of(std::string const& architecture);

}  // namespace kvpolicy::llama::testing
