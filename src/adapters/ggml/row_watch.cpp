#include "row_watch.hpp"

#include <ggml-backend-impl.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace kvpolicy::ggml {
namespace {

struct watched {
  ggml_backend_buffer_i before{};
  row_observer* by = nullptr;
};
struct watches {
  std::mutex changing;
  std::map<ggml_backend_buffer_t, watched> buffers;
};
watches& all() {
  static watches& one = *new watches;  // buffers may end after static objects
  return one;
}

watched of(ggml_backend_buffer_t buffer) {
  std::lock_guard const lock(all().changing);
  return all().buffers.at(buffer);
}

/// The buffer's own functions, before they write.
ggml_backend_buffer_i writes(ggml_backend_buffer_t buffer, char const* to, std::size_t count, void const* bytes) {
  watched const mine = of(buffer);
  if (mine.by != nullptr) mine.by->written(to, count, static_cast<std::byte const*>(bytes));
  return mine.before;
}
char const* place(ggml_tensor const* of, std::size_t at) { return static_cast<char const*>(of->data) + at; }

void memset_tensor(ggml_backend_buffer_t b, ggml_tensor* t, std::uint8_t value, std::size_t at, std::size_t size) {
  writes(b, place(t, at), size, nullptr).memset_tensor(b, t, value, at, size);
}
void set_tensor(ggml_backend_buffer_t b, ggml_tensor* t, void const* data, std::size_t at, std::size_t size) {
  writes(b, place(t, at), size, data).set_tensor(b, t, data, at, size);
}
void get_tensor(ggml_backend_buffer_t b, ggml_tensor const* t, void* data, std::size_t at, std::size_t size) {
  watched const mine = of(b);
  mine.before.get_tensor(b, t, data, at, size);
  if (mine.by != nullptr) mine.by->read(place(t, at), {static_cast<std::byte const*>(data), size});
}
void set_tensor_2d(ggml_backend_buffer_t b, ggml_tensor* t, void const* data, std::size_t at, std::size_t size,
                   std::size_t copies, std::size_t stride, std::size_t data_stride) {
  writes(b, place(t, at), (copies - 1) * stride + size, nullptr)
      .set_tensor_2d(b, t, data, at, size, copies, stride, data_stride);
}
bool cpy_tensor(ggml_backend_buffer_t b, ggml_tensor const* from, ggml_tensor* to) {
  watched const mine = of(b);
  bool const done = mine.before.cpy_tensor(b, from, to);  // else it is read, and written
  if (done && mine.by != nullptr) mine.by->copied(place(from, 0), place(to, 0), ggml_nbytes(to));
  return done;
}
void clear(ggml_backend_buffer_t b, std::uint8_t value) {
  writes(b, static_cast<char const*>(ggml_backend_buffer_get_base(b)), b->size, nullptr).clear(b, value);
}

}  // namespace

void watch(ggml_backend_buffer_t buffer, row_observer& by) {
  std::lock_guard const lock(all().changing);
  watched& mine = all().buffers[buffer];
  mine.by = &by;
  if (buffer->iface.clear == clear) return;  // else it is another buffer than the one that was there
  mine.before = buffer->iface;
  auto const replace = [](auto& function, auto other) {
    if (function != nullptr) function = other;
  };
  replace(buffer->iface.memset_tensor, memset_tensor);
  replace(buffer->iface.set_tensor, set_tensor);
  replace(buffer->iface.get_tensor, get_tensor);
  replace(buffer->iface.set_tensor_2d, set_tensor_2d);
  replace(buffer->iface.cpy_tensor, cpy_tensor);
  replace(buffer->iface.clear, clear);
  // ggml-cuda knows its buffers by their free_buffer, which stays: what is told of a buffer outlives it.
}

void leave(row_observer const& by) {
  std::lock_guard const lock(all().changing);
  for (auto& [buffer, mine] : all().buffers)
    if (mine.by == &by) mine.by = nullptr;
}

}  // namespace kvpolicy::ggml
