// Storage: the engine's own cells, which its graphs write and the policies' attention reads where they lie.
#include "storage.hpp"

namespace kvpolicy::llama {
namespace {

class cell_rows final : public row_source {
 public:
  using row_source::row_source;

  void begin(cache_shape const& shape, element_type) override {
    shape_ = shape;
    keys_.resize(static_cast<std::size_t>(shape.layers));
    values_.resize(static_cast<std::size_t>(shape.layers));
  }
  std::optional<std::int64_t> follow(seen_cells const& now) override { return cells_.follow(now); }
  void see(std::int64_t layer, rows const& keys, rows const& values) noexcept override {
    keys_[static_cast<std::size_t>(layer)] = cells_.placed(keys);
    values_[static_cast<std::size_t>(layer)] = cells_.placed(values);
  }
  layer_table_view view(std::int64_t tokens) const noexcept override {
    return {.cache = shape_, .count = tokens, .key_rows = keys_.data(), .value_rows = values_.data()};
  }
  selection resident(layer_id, std::int64_t tokens) override {
    all_.assign(1, {0, static_cast<std::int32_t>(tokens)});
    return {scope::request, {&all_, 1}, shape_.kv_heads};
  }

 private:
  cache_shape shape_{};
  std::vector<rows> keys_;  ///< `[layers]`, of this sequence's tokens
  std::vector<rows> values_;
  range_list all_;
};

class engine_cells final : public storage {
 public:
  bool engine_has_rows() const noexcept override { return true; }
  std::unique_ptr<row_source> rows_of(llama_seq_id id, cell_table& table) override {
    return std::make_unique<cell_rows>(id, table);
  }
};

}  // namespace

std::unique_ptr<storage> make_engine_cells() { return std::make_unique<engine_cells>(); }

}  // namespace kvpolicy::llama
