// Who reads and writes a cache's rows without a graph: a state that is saved or restored, a cache that is cleared.
#pragma once

#include <ggml-backend.h>

#include <cstddef>
#include <span>

namespace kvpolicy::ggml {

/// Is told, from the thread that does it.
class row_observer {
 public:
  /// Somebody has got these bytes, which lie at `from` on the device.
  virtual void read(char const* from, std::span<std::byte const> bytes) = 0;
  /// Somebody writes these bytes to `to` on the device; or so many, that come from elsewhere (`bytes` null).
  virtual void written(char const* to, std::size_t count, std::byte const* bytes) = 0;
  /// Somebody copies so many bytes on the device.
  virtual void copied(char const* from, char const* to, std::size_t count) = 0;

 protected:
  ~row_observer() = default;
};

/// From now on, `by` is told of reads and writes of this buffer's tensors.
void watch(ggml_backend_buffer_t buffer, row_observer& by);
/// No more of any buffer.
void leave(row_observer const& by);

}  // namespace kvpolicy::ggml
