// What a session knows of sequences whose state the program has put somewhere: in memory, or in a file.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>

namespace kvpolicy::preload {

/// By the engine's bytes of them. The oldest are forgotten when they take too much: such a sequence is left to the engine.
class kept_prompts {
 public:
  void keep(std::span<std::byte const> state, llama::saved_prompt prompt);
  /// Null where it is not known.
  llama::saved_prompt const* find(std::span<std::byte const> state) const noexcept;

 private:
  struct kept {
    std::size_t hash;
    std::size_t bytes;
    llama::saved_prompt prompt;
  };
  static constexpr std::size_t most = std::size_t{256} << 20;
  std::deque<kept> all_;
  std::size_t bytes_ = 0;
};

/// A file beside the engine's: "FILE.kvpolicy". Written whole, or not at all; throws error then.
void write_beside(std::string const& path, llama::saved_prompt prompt);
/// None where there is no such file, or it is damaged or of another version.
std::optional<llama::saved_prompt> read_beside(std::string const& path);

}  // namespace kvpolicy::preload
