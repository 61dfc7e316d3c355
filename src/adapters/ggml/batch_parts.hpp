// The sequences of a micro-batch, as its graph's inputs on the device tell them apart.
#pragma once

#include <ggml-backend.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "graph.hpp"
#include "token_cells.hpp"

namespace kvpolicy::ggml {

/// Tokens of one sequence, one after the other in a micro-batch. Each sees those before it.
struct batch_part {
  std::int64_t first = 0;                ///< in the micro-batch
  std::vector<std::int64_t> cells;       ///< that its tokens' rows go to, of all streams
  std::vector<cell_range> seen;          ///< cells of the tokens before these, ascending, apart from each other
  std::vector<std::uint64_t> written{};  ///< numbers of those, once they have some
  std::int64_t output = 0;               ///< the last token's row of the logits; -1: it has none

  std::int64_t tokens() const noexcept { return static_cast<std::int64_t>(cells.size()); }
  std::int64_t before() const noexcept;
};

/// Waits until the device has the graph's inputs, and reads them.
/// @param room  gives that many bytes, pinned; what it gave before is not used any more
/// @return the parts, in the micro-batch's order
/// @throws unsupported unless attention is causal, and for outputs of several tokens of a part
std::vector<batch_part> parts_of(attention_graph const& of, ggml_backend_t backend,
                                 std::function<std::span<std::byte>(std::size_t)> const& room);

}  // namespace kvpolicy::ggml
