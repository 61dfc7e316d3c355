#include "kvpolicy/store/row_store.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "kvpolicy/detail/row_checks.hpp"

namespace kvpolicy {
namespace {

/// Free places from which on a head is packed anew: below, what comes next fills them.
constexpr std::ptrdiff_t worth_packing = 2 * row_store::rows_of_block;

}  // namespace

std::int64_t row_store::row_bytes(cache_shape const& shape, element_type values) {
  return bytes_of(shape.type, shape.head_dim) + bytes_of(values, shape.values_dim());
}

row_store::row_store(block_arena& arena, cache_shape const& shape, element_type values)
    : arena_(&arena),
      shape_(shape),
      key_bytes_(bytes_of(shape.type, shape.head_dim)),
      value_bytes_(bytes_of(values, shape.values_dim())) {
  check(shape);
  cache_shape of_values = shape;
  of_values.type = values;
  check(of_values);
  KVPOLICY_EXPECTS(arena.block_bytes() == block_bytes(shape, values),
                   "the arena's blocks have " + std::to_string(arena.block_bytes()) + " bytes; " +
                       std::to_string(rows_of_block) + " rows of this cache have " +
                       std::to_string(block_bytes(shape, values)));
  KVPOLICY_EXPECTS(arena.blocks() <= INT32_MAX / rows_of_block, "an arena of " + std::to_string(arena.blocks()) +
                                                                    " blocks; a store counts rows in 32 bits, which is " +
                                                                    std::to_string(INT32_MAX / rows_of_block) + " blocks");
  std::int64_t const heads = shape.layers * shape.kv_heads;
  tokens_.assign(static_cast<std::size_t>(shape.layers), 0);
  heads_.resize(static_cast<std::size_t>(heads));
  row_of_ = std::make_unique_for_overwrite<std::int32_t[]>(static_cast<std::size_t>(heads * shape.max_tokens));
  for (layer_id layer{0}; layer.value < shape.layers; ++layer.value) {
    rows made{.base = arena.base(),
              .type = shape.type,
              .heads = shape.kv_heads,
              .tokens = 0,
              .head_dim = shape.head_dim,
              .dim_stride = size_of(shape.type),
              .pages = row_of(layer, 0),
              .page_size = 1,
              .page_stride = key_bytes_ + value_bytes_,
              .page_table_stride = shape.max_tokens};
    keys_.push_back(made);
    made.base += key_bytes_;
    made.type = values;
    made.head_dim = shape.values_dim();
    made.dim_stride = size_of(values);
    values_.push_back(made);
  }
}

row_store& row_store::operator=(row_store&& other) noexcept {
  if (this == &other) return *this;
  clear();
  arena_ = other.arena_;
  shape_ = other.shape_;
  key_bytes_ = other.key_bytes_;
  value_bytes_ = other.value_bytes_;
  whole_ = other.whole_;
  least_left_ = 0;
  tokens_ = std::move(other.tokens_);
  heads_ = std::exchange(other.heads_, {});
  row_of_ = std::move(other.row_of_);
  keys_ = std::move(other.keys_);
  values_ = std::move(other.values_);
  return *this;
}

row_store row_store::fork(std::int64_t tokens) const {
  KVPOLICY_EXPECTS(tokens >= 0, "a fork of " + std::to_string(tokens) + " tokens; it has 0 or more");
  row_store made(*arena_, shape_, values_.front().type);
  made.whole_ = whole_;
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    std::int64_t const here = std::min(tokens, this->tokens(layer));
    made.tokens_[static_cast<std::size_t>(layer.value)] = here;
    made.show_tokens(layer);
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      std::copy_n(row_of(layer, h), here, made.row_of(layer, h));
      head_rows copy = at(layer, h);
      make_room(copy);
      for (std::int32_t const block : copy.blocks) arena_->hold(block);
      head_rows& head = made.at(layer, h);
      head = std::move(copy);
      for (std::int64_t place = std::ssize(head.token_at); place-- > 0;) {
        if (head.token_at[static_cast<std::size_t>(place)] >= here) made.drop(head, place, made.row_of(layer, h));
      }
      made.settle(head);
    }
  }
  return made;
}

std::int64_t row_store::released() const noexcept { return *std::ranges::min_element(tokens_); }

std::int64_t row_store::rows_held() const noexcept {
  std::int64_t count = 0;
  for (head_rows const& head : heads_) count += head.count;
  return count;
}

std::int64_t row_store::bytes_held() const noexcept {
  std::int64_t blocks = 0;
  for (head_rows const& head : heads_) blocks += std::ssize(head.blocks);
  return blocks * arena_->block_bytes();
}

void row_store::check_layer(layer_id layer) const {
  KVPOLICY_EXPECTS(layer.value >= 0 && layer.value < shape_.layers,
                   "layer " + std::to_string(layer.value) + "; this store has 0 to " + std::to_string(shape_.layers - 1));
}

void row_store::check_head(layer_id layer, std::int64_t head) const {
  check_layer(layer);
  KVPOLICY_EXPECTS(head >= 0 && head < shape_.kv_heads, "KV head " + std::to_string(head) + "; this store has 0 to " +
                                                            std::to_string(shape_.kv_heads - 1) +
                                                            ", and query head h reads KV head h / (q_heads / kv_heads)");
}

std::int64_t row_store::tokens(layer_id layer) const {
  check_layer(layer);
  return tokens_[static_cast<std::size_t>(layer.value)];
}

std::int64_t row_store::rows_of(layer_id layer, std::int64_t head) const {
  check_head(layer, head);
  return at(layer, head).count;
}

void row_store::append(layer_id layer, rows const& keys, rows const& values) {
  check_layer(layer);
  std::int64_t& before = tokens_[static_cast<std::size_t>(layer.value)];
  for (rows const* const r : {&keys, &values}) {
    element_type const type = r == &keys ? shape_.type : values_.front().type;
    std::int64_t const dim = r == &keys ? shape_.head_dim : shape_.values_dim();
    KVPOLICY_EXPECTS(r->heads == shape_.kv_heads && r->head_dim == dim && r->type == type && r->contiguous(),
                     "rows of " + std::to_string(r->heads) + " heads x " + std::to_string(r->head_dim) + " of " +
                         name_of(r->type) + "; this store takes contiguous ones of " + std::to_string(shape_.kv_heads) +
                         " heads x " + std::to_string(dim) + " of " + name_of(type));
  }
  KVPOLICY_EXPECTS(keys.tokens == 0 || (keys.base != nullptr && values.base != nullptr),
                   "the pointer to the keys or the values that are appended is null");
  check_strides(keys, "the keys that are appended");
  check_strides(values, "the values that are appended");
  KVPOLICY_EXPECTS(keys.tokens >= 0 && values.tokens == keys.tokens && before + keys.tokens <= shape_.max_tokens,
                   std::to_string(keys.tokens) + " keys and " + std::to_string(values.tokens) + " values behind " +
                       std::to_string(before) + " tokens; this store was made for " + std::to_string(shape_.max_tokens));
  std::int64_t blocks = 0;
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) blocks += needs(at(layer, h), keys.tokens);
  arena_->expect(blocks);
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    head_rows& head = at(layer, h);
    for (std::int64_t i = 0; i < keys.tokens; ++i) {
      std::int64_t const place = next_place(head, row_of(layer, h));
      std::byte* const to = address(head, place);
      std::memcpy(to, keys.address({h}, {i}), static_cast<std::size_t>(key_bytes_));
      std::memcpy(to + key_bytes_, values.address({h}, {i}), static_cast<std::size_t>(value_bytes_));
      put(head, place, static_cast<std::int32_t>(before + i), row_of(layer, h));
    }
  }
  before += keys.tokens;
  show_tokens(layer);
}

void row_store::retain(layer_id layer, selection const& kept, std::int64_t tokens) {
  check_layer(layer);
  KVPOLICY_EXPECTS(kept.kv_heads() == shape_.kv_heads, "a selection for " + std::to_string(kept.kv_heads()) +
                                                           " KV heads; this store has " + std::to_string(shape_.kv_heads));
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    head_rows& head = at(layer, h);
    range_list const& list = kept.of({h});
    auto const is_kept = [&](std::int32_t token) {
      auto const behind = std::ranges::upper_bound(list, token, {}, &token_range::begin);
      return behind != list.begin() && token < std::prev(behind)->end;
    };
    std::int64_t const before = head.count;
    for (std::int64_t place = std::ssize(head.token_at); place-- > 0;) {
      std::int32_t const token = head.token_at[static_cast<std::size_t>(place)];
      if (token != nowhere && token < tokens && !is_kept(token)) drop(head, place, row_of(layer, h));
    }
    if (head.count == before) continue;
    whole_ = false;
    close_gaps(head, row_of(layer, h));
  }
}

void row_store::truncate(std::int64_t tokens) {
  KVPOLICY_EXPECTS(tokens >= 0, "a truncation to " + std::to_string(tokens) + " tokens; it leaves 0 or more");
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    if (this->tokens(layer) <= tokens) continue;
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      head_rows& head = at(layer, h);
      for (std::int64_t place = std::ssize(head.token_at); place-- > 0;) {
        if (head.token_at[static_cast<std::size_t>(place)] >= tokens) drop(head, place, row_of(layer, h));
      }
      settle(head);
    }
    tokens_[static_cast<std::size_t>(layer.value)] = tokens;
    show_tokens(layer);
  }
  if (tokens == 0) whole_ = true;
  least_left_ = std::min(least_left_, tokens);
}

void row_store::clear() noexcept {
  for (head_rows& head : heads_) {
    for (std::int32_t const block : head.blocks) arena_->release(block);
    head = {};
  }
  std::ranges::fill(tokens_, 0);
  for (layer_id layer{0}; layer.value < std::ssize(tokens_); ++layer.value) show_tokens(layer);
  whole_ = true;
  least_left_ = 0;
}

std::byte const* row_store::row(layer_id layer, std::int64_t head, std::int32_t token) const {
  check_head(layer, head);
  if (token < 0 || token >= tokens(layer)) return nullptr;
  std::int32_t const row = row_of(layer, head)[token];
  return row == nowhere ? nullptr : arena_->base() + row * (key_bytes_ + value_bytes_);
}

void row_store::evict(layer_id layer, std::int64_t h, std::span<std::int32_t const> tokens) noexcept {
  head_rows& head = at(layer, h);
  for (std::int32_t const token : tokens) {
    std::int32_t const row = row_of(layer, h)[token];
    if (row != nowhere) drop(head, place_of(head, row), row_of(layer, h));
  }
  if (!tokens.empty()) close_gaps(head, row_of(layer, h));
}

std::byte* row_store::readmit(layer_id layer, std::int64_t h, std::int32_t token) {
  head_rows& head = at(layer, h);
  arena_->expect(needs(head, 1));
  std::int64_t const place = next_place(head, row_of(layer, h));
  put(head, place, token, row_of(layer, h));
  return address(head, place);
}

void row_store::save(layer_id layer, state_writer& a) const {
  std::int64_t tokens = this->tokens(layer);
  bool whole = whole_;
  auto shape = saved_shape();
  std::int64_t of = layer.value;
  a(shape, of, tokens, whole);
  range_list there;
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    list(layer, h, tokens, there);
    a(there);
    for (token_range const& range : there) {
      for (std::int32_t t = range.begin; t < range.end; ++t)
        a.bytes({row(layer, h, t), static_cast<std::size_t>(key_bytes_ + value_bytes_)});
    }
  }
}

/// What bytes of rows depend on.
std::array<std::int64_t, 5> row_store::saved_shape() const {
  return {shape_.kv_heads, shape_.head_dim, shape_.values_dim(), static_cast<std::int64_t>(shape_.type),
          static_cast<std::int64_t>(values_.front().type)};
}

void row_store::load(layer_id layer, state_reader& a) {
  KVPOLICY_EXPECTS(tokens(layer) == 0, "layer " + std::to_string(layer.value) + " has " + std::to_string(tokens(layer)) +
                                           " tokens already; call clear() before load()");
  std::int64_t tokens = 0;
  auto shape = saved_shape();
  std::int64_t of = layer.value;
  a(shape, of, tokens, whole_);
  if (shape != saved_shape()) state_reader::refuse();
  KVPOLICY_EXPECTS(of == layer.value, "rows of layer " + std::to_string(of) + " for layer " + std::to_string(layer.value) +
                                          "; load each layer from the bytes that were saved of it");
  if (tokens < 0 || tokens > shape_.max_tokens) state_reader::refuse();
  tokens_[static_cast<std::size_t>(layer.value)] = tokens;
  range_list there;
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    std::fill_n(row_of(layer, h), tokens, nowhere);
    there.clear();
    a(there);
    std::int64_t end = 0;
    for (token_range const& range : there) {
      if (range.begin < end || range.end > tokens || range.end <= range.begin) state_reader::refuse();
      end = range.end;
      for (std::int32_t t = range.begin; t < range.end; ++t)
        a.bytes({readmit(layer, h, t), static_cast<std::size_t>(key_bytes_ + value_bytes_)});
    }
  }
}

void row_store::list(layer_id layer, std::int64_t head, std::int64_t tokens, range_list& into) const {
  check_head(layer, head);
  into.clear();
  std::int32_t const* const row = row_of(layer, head);
  for (std::int64_t t = 0; t < std::min(tokens, this->tokens(layer)); ++t) {
    if (row[t] != nowhere) kvpolicy::append(into, t, t + 1, reason::open);
  }
}

/// Where a row of a head is among its places.
std::int64_t row_store::place_of(head_rows const& head, std::int32_t row) noexcept {
  auto const block = std::ranges::find(head.blocks, row / static_cast<std::int32_t>(rows_of_block));
  return (block - head.blocks.begin()) * rows_of_block + row % rows_of_block;
}

/// The most blocks that a head takes for so many tokens more: new ones, and copies of shared ones with a free place.
std::int64_t row_store::needs(head_rows const& head, std::int64_t tokens) const noexcept {
  std::int64_t const places = std::ssize(head.token_at);
  std::int64_t const room = std::ssize(head.blocks) * rows_of_block - places;
  std::int64_t const beyond = std::max<std::int64_t>(0, tokens - std::ssize(head.free) - room);
  std::int64_t blocks = (beyond + rows_of_block - 1) / rows_of_block;
  bool const all_own = std::ranges::none_of(head.blocks, [&](std::int32_t b) { return arena_->is_shared(b); });
  if (all_own || tokens == 0) return blocks;
  std::int64_t last = -1;
  bool open = room > 0;  // its last block is written to, and not counted yet
  for (std::int32_t const place :
       std::span(head.free).last(static_cast<std::size_t>(std::min(tokens, std::ssize(head.free))))) {
    std::int64_t const block = place / rows_of_block;
    if (block != std::exchange(last, block) && arena_->is_shared(head.blocks[static_cast<std::size_t>(block)])) ++blocks;
    open = open && block != (places - 1) / rows_of_block;
  }
  return blocks + (open && arena_->is_shared(head.blocks.back()) ? 1 : 0);
}

std::int64_t row_store::next_place(head_rows& head, std::int32_t* row_of) {
  std::int64_t place = std::ssize(head.token_at);
  if (!head.free.empty()) {
    place = head.free.back();
    own(head, place / rows_of_block, row_of);
    head.free.pop_back();
    return place;
  }
  if (place < std::ssize(head.blocks) * rows_of_block) {
    own(head, place / rows_of_block, row_of);
  } else {
    head.blocks.push_back(-1);  // what may throw first
    try {
      head.blocks.back() = arena_->take();
    } catch (...) {
      head.blocks.pop_back();
      throw;
    }
    make_room(head);
  }
  head.token_at.push_back(nowhere);
  return place;
}

/// The token's row is at this place now.
void row_store::put(head_rows& head, std::int64_t place, std::int32_t token, std::int32_t* row_of) noexcept {
  head.token_at[static_cast<std::size_t>(place)] = token;
  row_of[token] = row_at(head, place);
  ++head.count;
}

/// For all places of its blocks, so that drop() never allocates.
void row_store::make_room(head_rows& head) {
  std::size_t const places = head.blocks.size() * static_cast<std::size_t>(rows_of_block);
  if (head.token_at.capacity() < places) head.token_at.reserve(std::max(places, 2 * head.token_at.capacity()));
  head.free.reserve(head.token_at.capacity());
}

/// A block that others hold too is copied before it is written to.
void row_store::own(head_rows& head, std::int64_t block, std::int32_t* row_of) {
  std::int32_t& held = head.blocks[static_cast<std::size_t>(block)];
  if (!arena_->is_shared(held)) return;
  std::int32_t const made = arena_->take();
  std::int64_t const bytes = arena_->block_bytes();
  std::memcpy(arena_->base() + made * bytes, arena_->base() + held * bytes, static_cast<std::size_t>(bytes));
  arena_->release(std::exchange(held, made));
  std::int64_t const end = std::min(std::ssize(head.token_at), (block + 1) * rows_of_block);
  for (std::int64_t place = block * rows_of_block; place < end; ++place) {
    std::int32_t const token = head.token_at[static_cast<std::size_t>(place)];
    if (token != nowhere) row_of[token] = row_at(head, place);
  }
}

/// Followed by settle().
void row_store::drop(head_rows& head, std::int64_t place, std::int32_t* row_of) noexcept {
  std::int32_t& token = head.token_at[static_cast<std::size_t>(place)];
  row_of[token] = nowhere;
  token = nowhere;
  head.free.push_back(static_cast<std::int32_t>(place));
  --head.count;
}

/// Free places at the end are none, and blocks behind the last place go back.
void row_store::settle(head_rows& head) noexcept {
  while (!head.token_at.empty() && head.token_at.back() == nowhere) head.token_at.pop_back();
  auto const behind = [&](std::int32_t place) { return place >= std::ssize(head.token_at); };
  std::erase_if(head.free, behind);
  std::ranges::sort(head.free, std::greater{});
  std::int64_t const blocks = (std::ssize(head.token_at) + rows_of_block - 1) / rows_of_block;
  for (; std::ssize(head.blocks) > blocks; head.blocks.pop_back()) arena_->release(head.blocks.back());
}

void row_store::close_gaps(head_rows& head, std::int32_t* row_of) noexcept {
  settle(head);
  if (std::ssize(head.free) >= worth_packing && can_pack(head)) pack(head, row_of);
}

/// Shared blocks that rows move to are copied first; where there is no room for that, gaps stay until something comes to fill
/// them.
bool row_store::can_pack(head_rows const& head) const noexcept {
  std::int64_t const blocks = (head.count + rows_of_block - 1) / rows_of_block;
  auto const first = head.blocks.begin();
  return std::count_if(first, first + blocks, [&](std::int32_t b) { return arena_->is_shared(b); }) <= arena_->free();
}

/// Moves rows down to where places are free, in their order.
void row_store::pack(head_rows& head, std::int32_t* row_of) noexcept {
  std::int64_t to = 0;
  for (std::int64_t from = 0; from < std::ssize(head.token_at); ++from) {
    std::int32_t const token = head.token_at[static_cast<std::size_t>(from)];
    if (token == nowhere) continue;
    if (to != from) {
      own(head, to / rows_of_block, row_of);
      std::memcpy(address(head, to), address(head, from), static_cast<std::size_t>(key_bytes_ + value_bytes_));
      head.token_at[static_cast<std::size_t>(to)] = token;
      head.token_at[static_cast<std::size_t>(from)] = nowhere;
      row_of[token] = row_at(head, to);
    }
    ++to;
  }
  head.free.clear();
  settle(head);
}

}  // namespace kvpolicy
