// Which of a model's layers policies act on, and what the others are left to the engine for.
#pragma once

#include <llama.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/rows.hpp"

namespace kvpolicy::llama {

class served_layers {
 public:
  served_layers() = default;

  /// Has the engine build a graph of one token, looks at it, and stops it where it would compute. Serves ordinary attention
  /// over all tokens of one shape of heads, the most frequent. Throws unsupported where there is none, or no context.
  /// `anywhere`: their rows may lie where the host can't read them.
  served_layers(llama_context_params params, llama_model const* model, bool anywhere = false);

  std::int64_t count() const noexcept { return std::ssize(served_); }
  /// Which of those that are served it is, by the number that the engine's cache has for it.
  std::optional<std::int64_t> find(std::int64_t layer) const noexcept;
  std::optional<std::int64_t> find(std::optional<std::int64_t> layer) const noexcept {
    return layer ? find(*layer) : std::nullopt;
  }
  /// Layers whose tokens the model's own indexer chooses, by the number that the engine's cache has for them. No policy has a
  /// say.
  std::span<std::int64_t const> chosen() const noexcept { return chosen_; }
  cache_shape const& chosen_shape() const noexcept { return chosen_shape_; }
  /// Their heads, or those of chosen layers if there are no others; no tokens.
  cache_shape const& shape() const noexcept { return shape_; }
  /// What is left to the engine: a line for each reason.
  std::vector<std::string> const& left() const noexcept { return left_; }
  /// The first of these lines that is not of sliding windows; empty: none.
  std::string const& left_besides_windows() const noexcept { return besides_windows_; }
  /// Those of them that are the context's doing, not the model's; empty: none.
  std::string const& avoidable() const noexcept { return avoidable_; }

 private:
  std::vector<std::int64_t> served_;  ///< ascending
  std::vector<std::int64_t> chosen_;  ///< ascending
  cache_shape shape_{};
  cache_shape chosen_shape_{};
  std::vector<std::string> left_;
  std::string besides_windows_;
  std::string avoidable_;
};

}  // namespace kvpolicy::llama
