// The kernels that nvcc put into a program: their PTX, found by the host function that launches them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/ptx/instruction.hpp"

namespace ptx {

/// The PTX texts in what nvcc embeds.
/// @throws std::invalid_argument where it holds none, or a compressed one
std::vector<std::string_view> texts_in(void const* fat_binary);

/// The PTX of all kernels of this program.
std::vector<std::string_view> all_texts();

/// The kernel of a host function, decoded at its first use.
/// @throws std::invalid_argument where there is none, or it can't be executed here
kernel const& kernel_of(void const* host_function);

}  // namespace ptx
