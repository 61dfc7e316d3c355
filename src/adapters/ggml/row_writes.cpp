#include "row_writes.hpp"

#include <ggml-backend-impl.h>

#include <map>
#include <mutex>

namespace kvpolicy::ggml {
namespace {

struct watched {
  ggml_backend_buffer_i before{};
  std::uint64_t writes = 0;
};
struct watch {
  std::mutex changing;
  std::map<ggml_backend_buffer_t, watched> buffers;
};
watch& all() {
  static watch& one = *new watch;  // buffers may end after static objects
  return one;
}

/// The buffer's own functions, and one write more.
ggml_backend_buffer_i written(ggml_backend_buffer_t buffer) {
  std::lock_guard const lock(all().changing);
  watched& mine = all().buffers.at(buffer);
  ++mine.writes;
  return mine.before;
}

void memset_tensor(ggml_backend_buffer_t b, ggml_tensor* t, std::uint8_t value, std::size_t at, std::size_t size) {
  written(b).memset_tensor(b, t, value, at, size);
}
void set_tensor(ggml_backend_buffer_t b, ggml_tensor* t, void const* data, std::size_t at, std::size_t size) {
  written(b).set_tensor(b, t, data, at, size);
}
void set_tensor_2d(ggml_backend_buffer_t b, ggml_tensor* t, void const* data, std::size_t at, std::size_t size,
                   std::size_t copies, std::size_t stride, std::size_t data_stride) {
  written(b).set_tensor_2d(b, t, data, at, size, copies, stride, data_stride);
}
bool cpy_tensor(ggml_backend_buffer_t b, ggml_tensor const* from, ggml_tensor* to) {
  return written(b).cpy_tensor(b, from, to);
}
void clear(ggml_backend_buffer_t b, std::uint8_t value) { written(b).clear(b, value); }
void free_buffer(ggml_backend_buffer_t b) {
  ggml_backend_buffer_i const before = written(b);
  {
    std::lock_guard const lock(all().changing);
    all().buffers.erase(b);
  }
  if (before.free_buffer != nullptr) before.free_buffer(b);
}

}  // namespace

std::uint64_t writes_to(ggml_backend_buffer_t buffer) {
  std::lock_guard const lock(all().changing);
  auto const [at, fresh] = all().buffers.try_emplace(buffer);
  if (fresh) {
    at->second.before = buffer->iface;
    auto const replace = [](auto& function, auto by) {
      if (function != nullptr) function = by;
    };
    replace(buffer->iface.memset_tensor, memset_tensor);
    replace(buffer->iface.set_tensor, set_tensor);
    replace(buffer->iface.set_tensor_2d, set_tensor_2d);
    replace(buffer->iface.cpy_tensor, cpy_tensor);
    replace(buffer->iface.clear, clear);
    buffer->iface.free_buffer = free_buffer;
  }
  return at->second.writes;
}

}  // namespace kvpolicy::ggml
