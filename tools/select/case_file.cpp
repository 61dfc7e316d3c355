#include "case_file.hpp"

#include <charconv>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "read_file.hpp"

namespace kvpolicy {
namespace {

/// The tensors of one .safetensors file: 8 bytes of header length, a JSON header, the data.
class tensors {
 public:
  tensors(std::string bytes, std::string const& name) : where_("case '" + name + "'"), bytes_(std::move(bytes)) {
    std::uint64_t length = 0;
    if (bytes_.size() < sizeof length) fail("is too short for a .safetensors file");
    std::memcpy(&length, bytes_.data(), sizeof length);
    if (length > bytes_.size() - sizeof length) fail("is cut: its header says " + std::to_string(length) + " bytes");
    data_ = sizeof length + static_cast<std::size_t>(length);
    header_ = nlohmann::json::parse(bytes_.begin() + sizeof length, bytes_.begin() + static_cast<std::ptrdiff_t>(data_),
                                    nullptr, false);
    if (!header_.is_object()) fail("has no JSON header; it is not a .safetensors file");
  }

  std::int64_t number(char const* name) const {
    std::string const text = metadata(name);
    std::int64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > INT32_MAX) {
      fail(std::string("says ") + name + " = '" + text + "'; it must be a number from 1");
    }
    return value;
  }
  std::string metadata(char const* name) const {
    auto const all = header_.find("__metadata__");
    if (all == header_.end() || !all->is_object()) fail("has no metadata");
    auto const found = all->find(name);
    if (found == all->end() || !found->is_string()) fail(std::string("has no ") + name + " in its metadata");
    return found->get<std::string>();
  }
  bool has(std::string const& name) const { return header_.contains(name); }

  /// Copies a float32 tensor of that many elements to `to`.
  void copy(std::string const& name, std::vector<std::int64_t> const& shape, float* to) const {
    auto const found = header_.find(name);
    if (found == header_.end()) fail("has no tensor " + name);
    try {
      if (found->at("dtype") != "F32")
        fail("has " + name + " in " + found->at("dtype").get<std::string>() + "; it must be F32");
      if (found->at("shape") != nlohmann::json(shape)) fail("has " + name + " of another shape than its metadata says");
      std::uint64_t const begin = offset(found->at("data_offsets").at(0));
      std::uint64_t const end = offset(found->at("data_offsets").at(1));
      std::uint64_t size = sizeof(float);
      for (std::int64_t const extent : shape) size *= static_cast<std::uint64_t>(extent);
      if (begin > end || end > bytes_.size() - data_ || end - begin != size) fail("is cut: " + name + " lies outside of it");
      if (size > 0) std::memcpy(to, bytes_.data() + data_ + begin, static_cast<std::size_t>(size));
    } catch (nlohmann::json::exception const&) {
      fail("has a malformed header at " + name);
    }
  }

  /// Of one tensor of that shape, which the file must be able to hold.
  std::int64_t elements(std::initializer_list<std::int64_t> shape) const {
    auto const most = static_cast<std::int64_t>(bytes_.size() / sizeof(float));
    std::int64_t count = 1;
    for (std::int64_t const extent : shape) {
      if (extent > most / count) fail("is cut: its metadata says tensors that are larger than it");
      count *= extent;
    }
    return count;
  }

  [[noreturn]] void fail(std::string const& what) const { throw invalid_value(where_ + " " + what); }

 private:
  /// JSON's other numbers do not convert.
  std::uint64_t offset(nlohmann::json const& json) const {
    if (!json.is_number_unsigned()) fail("has a data offset of " + json.dump() + "; it must be a whole number from 0");
    return json.get<std::uint64_t>();
  }

  std::string where_;
  std::string bytes_;
  std::size_t data_ = 0;
  nlohmann::json header_;
};

}  // namespace

case_file read_case(std::string const& path) { return parse_case(read_file(path), path); }

case_file parse_case(std::string bytes, std::string const& name) {
  tensors const file(std::move(bytes), name);
  if (file.metadata("format") != "kvpolicy-case/1")
    file.fail("is of format '" + file.metadata("format") + "', not kvpolicy-case/1");
  case_file result;
  cache_shape& s = result.shape;
  s = {.layers = file.number("layers"),
       .q_heads = file.number("q_heads"),
       .kv_heads = file.number("kv_heads"),
       .head_dim = file.number("head_dim"),
       .max_tokens = file.number("tokens"),
       .type = element_type::f32};
  shape_of(strided_view<>{.cache = s});
  // Before anything is allocated, sizes are checked against the file's own.
  std::int64_t const layer_size = file.elements({s.max_tokens, s.kv_heads, s.head_dim});
  std::int64_t const query_size = file.elements({s.max_tokens, s.q_heads, s.head_dim});
  for (std::int64_t l = 0; l < s.layers; ++l) {
    if (!file.has("queries." + std::to_string(l))) file.fail("has no tensor queries." + std::to_string(l));
  }
  for (std::int64_t l = 0; l < s.layers; ++l) {
    std::string const layer = std::to_string(l);
    std::vector<float>& queries = result.queries.emplace_back(static_cast<std::size_t>(query_size));
    file.copy("queries." + layer, {s.max_tokens, s.q_heads, s.head_dim}, queries.data());
    result.keys.resize(static_cast<std::size_t>((l + 1) * layer_size));
    result.values.resize(static_cast<std::size_t>((l + 1) * layer_size));
    file.copy("keys." + layer, {s.max_tokens, s.kv_heads, s.head_dim}, result.keys.data() + l * layer_size);
    file.copy("values." + layer, {s.max_tokens, s.kv_heads, s.head_dim}, result.values.data() + l * layer_size);
  }
  if (file.has("rope.inv_freq")) {
    result.inverse_frequency.resize(static_cast<std::size_t>(s.head_dim / 2));
    file.copy("rope.inv_freq", {s.head_dim / 2}, result.inverse_frequency.data());
  }
  return result;
}

strided_view<> case_file::view(std::int64_t tokens) const noexcept {
  std::int64_t const row = shape.head_dim * static_cast<std::int64_t>(sizeof(float));
  byte_strides const strides{
      .layer = shape.max_tokens * shape.kv_heads * row, .head = row, .token = shape.kv_heads * row, .dim = 4};
  return {.cache = shape,
          .token_count = tokens,
          .key_base = reinterpret_cast<std::byte const*>(keys.data()),
          .value_base = reinterpret_cast<std::byte const*>(values.data()),
          .key_strides = strides,
          .value_strides = strides};
}

}  // namespace kvpolicy
