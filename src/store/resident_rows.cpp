#include "kvpolicy/store/resident_rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

namespace kvpolicy {
namespace {

/// Blocks that are brought, or copied, by one get: a buffer's.
constexpr std::int64_t blocks_at_once = 4096;
/// Where a step's own number of rows is the limit, the least that stay.
constexpr std::int64_t rows_that_stay = 64;

/// The part of a list from `begin` to `end`, behind what is in `into`.
void append_between(range_list& into, range_list const& list, std::int64_t begin, std::int64_t end) {
  for (token_range const& range : list) {
    append(into, std::max<std::int64_t>(range.begin, begin), std::min<std::int64_t>(range.end, end), range.why);
  }
}

/// What is in `list` and not in `others`.
void subtract(range_list& into, range_list const& list, range_list const& others) {
  into.clear();
  auto other = others.begin();
  for (token_range const& range : list) {
    std::int32_t begin = range.begin;
    while (other != others.end() && other->end <= begin) ++other;
    for (auto o = other; o != others.end() && o->begin < range.end; ++o) {
      append(into, begin, o->begin, range.why);
      begin = o->end;
    }
    append(into, begin, range.end, range.why);
  }
}

/// The first of a list's last `behind` tokens; 0 where it has fewer.
std::int64_t begin_of_last(range_list const& list, std::int64_t behind) {
  if (behind == 0) return list.empty() ? 0 : list.back().end;
  for (std::size_t r = list.size(); r-- > 0; behind -= list[r].size()) {
    if (behind <= list[r].size()) return list[r].end - behind;
  }
  return 0;
}

}  // namespace

resident_rows::resident_rows(tiers::any_tier& tier, row_store& store, tiers::resident_options options)
    : tier_(&tier),
      store_(&store),
      shape_(store.shape()),
      row_bytes_(row_store::row_bytes(shape_, store.view(0).values({0}).type)),
      options_(options),
      heads_(static_cast<std::size_t>(shape_.layers * shape_.kv_heads)),
      layers_(static_cast<std::size_t>(shape_.layers)),
      readable_(static_cast<std::size_t>(shape_.kv_heads)),
      missed_(static_cast<std::size_t>(shape_.kv_heads)) {
  KVPOLICY_EXPECTS(tier.block_bytes() == row_bytes_, "the tier's blocks have " + std::to_string(tier.block_bytes()) +
                                                         " bytes; a key and a value of this cache have " +
                                                         std::to_string(row_bytes_));
  for (element_type const type : {shape_.type, store.view(0).values({0}).type}) {
    KVPOLICY_EXPECTS(tier.element().value_or(type) == type, "a codec of " + std::string(name_of(*tier.element())) +
                                                                " elements for rows of " + name_of(type) +
                                                                "; make the tier for the type that the store holds");
  }
  KVPOLICY_EXPECTS(options.slots >= 0, std::to_string(options.slots) + " rows of fast memory; they can't be negative");
  KVPOLICY_EXPECTS(tier.enlist(options.request),
                   "another sequence has request " + std::to_string(options.request) + " of " + tier.describe() +
                       ", and its rows have the same keys; give each sequence its own resident_options::request");
}

resident_rows::~resident_rows() {
  truncate(0);
  tier_->strike(options_.request);
}

tiers::block_key resident_rows::key_of(layer_id layer, std::int64_t head, std::int32_t token) const noexcept {
  return {options_.request, static_cast<std::int32_t>(layer.value), static_cast<std::int32_t>(head), token, generation_};
}

/// Throws invalid_value where the store lost tokens that are still away here.
void resident_rows::expect_told() const {
  KVPOLICY_EXPECTS(store_->least_left() >= put_end_,
                   "the store was cut to " + std::to_string(store_->least_left()) + " tokens, and a prompt of " +
                       std::to_string(put_end_) +
                       " is in the tier; call resident_rows::truncate() before row_store::truncate() or clear()");
}

void resident_rows::bring(layer_id layer) {
  expect_told();
  end_get(layer, true, 0);
  auto const fetch = [&] {
    if (missing_.empty()) return;
    begin_get(layer, true);
    end_get(layer, true, 0);
    missing_.clear();
  };
  missing_.clear();
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    list_ = at(layer, h).away;  // admission changes what is here, not what is away
    each_token(list_, [&](std::int32_t t) {
      if (store_->row(layer, h, t) != nullptr) return;
      missing_.push_back({static_cast<std::int32_t>(h), t});
      if (std::ssize(missing_) == blocks_at_once) fetch();
    });
  }
  fetch();
}

void resident_rows::mend_cut(std::int64_t stay) {
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) open_from(layer, h, begin_of_last(at(layer, h).away, stay));
  }
  was_cut_ = false;
}

void resident_rows::put_away(layer_id layer, selection const& retained, std::int64_t tokens,
                             std::span<std::int64_t const> stay) {
  KVPOLICY_EXPECTS(layer.value >= 0 && layer.value < shape_.layers && std::ssize(stay) == shape_.kv_heads,
                   "layer " + std::to_string(layer.value) + " with " + std::to_string(stay.size()) +
                       " numbers of tokens that stay; there are layers 0 to " + std::to_string(shape_.layers - 1) + " of " +
                       std::to_string(shape_.kv_heads) + " KV heads");
  KVPOLICY_EXPECTS(tokens <= store_->tokens(layer), "a prompt of " + std::to_string(tokens) + " tokens; the store has " +
                                                        std::to_string(store_->tokens(layer)) + " in layer " +
                                                        std::to_string(layer.value));
  expect_told();
  KVPOLICY_EXPECTS(std::ranges::min(stay) >= 0, "a head of which " + std::to_string(std::ranges::min(stay)) +
                                                    " tokens stay; give request::always_read() of each");
  writes_.clear();
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    head_state& head = at(layer, h);
    range_list& now = readable_[static_cast<std::size_t>(h)];
    now.clear();
    append_between(now, retained.of({h}), 0, tokens);
    subtract(list_, head.away, now);
    drop_away(layer, h, list_);
    subtract(head.committed, head.away, list_);  // until the next step says what is
    std::swap(head.away, head.committed);
    head.committed.clear();
    std::int64_t const end = begin_of_last(now, stay[static_cast<std::size_t>(h)]);
    if (end < head.end) open_from(layer, h, end);
    kvpolicy::truncate(now, end);
    subtract(list_, now, head.away);
    head.rows.reserve(head.rows.size() + static_cast<std::size_t>(token_count(list_)));
    each_token(list_, [&](std::int32_t t) {
      std::byte const* const row = store_->row(layer, h, t);
      KVPOLICY_EXPECTS(row != nullptr, "token " + std::to_string(t) + " of layer " + std::to_string(layer.value) +
                                           " is not in memory; bring() the layer before it is put away");
      writes_.push_back({key_of(layer, h, t), row});
    });
  }
  if (!tier_->put(writes_)) {
    throw error(tier_->describe() + " has no room for the " + std::to_string(writes_.size()) + " rows that layer " +
                std::to_string(layer.value) + " retains; its capacity is " + std::to_string(tier_->capacity()) + " blocks");
  }
  // From here on nothing throws: what the tier took is known to be there.
  statistics_.bytes_stored += std::ssize(writes_) * row_bytes_;
  put_end_ = std::max(put_end_, tokens);
  store_->forget_least_left();
  for (tiers::block_write const& w : writes_) {
    at(layer, w.key.head).rows.push_back({w.key.position, 0});
  }
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    head_state& head = at(layer, h);
    std::ranges::sort(head.rows, {}, &here::token);
    std::swap(head.away, readable_[static_cast<std::size_t>(h)]);
    head.end = head.away.empty() ? 0 : head.away.back().end;
  }
}

selection resident_rows::ready(layer_id layer, selection const& kept) {
  expect_told();
  ++now_;
  if (!options_.wait) touch_committed(layer);
  bool ended = end_get(layer, options_.wait, stamp(false));  // what was begun before, for this step or not
  missing_.clear();
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) look_for(layer, h, kept.of({h}));
  if (ended && !missing_.empty()) {
    begin_get(layer, options_.wait);
    ended = end_get(layer, options_.wait, stamp(true));
    if (ended) std::ranges::fill(missed_, 0);
  }
  if (options_.wait) return shed(layer), kept;
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    head_state& head = at(layer, h);
    if (missed_[static_cast<std::size_t>(h)] == 0) {
      head.committed.clear();
      append_between(head.committed, kept.of({h}), 0, head.end);
    }
    range_list& list = readable_[static_cast<std::size_t>(h)];
    list = head.committed;  // what the head last had whole, and of later tokens what is read
    append_between(list, kept.of({h}), head.end, INT32_MAX);
  }
  touch_committed(layer);
  shed(layer);
  return {scope::head, readable_, shape_.kv_heads};
}

void resident_rows::prefetch(layer_id layer, selection const& next) {
  expect_told();
  if (layers_[static_cast<std::size_t>(layer.value)].pending != 0) return;
  missing_.clear();
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) touch(layer, h, next.of({h}), stamp(true) + 1);  // the last to make room
  if (!missing_.empty()) begin_get(layer, false);
}

void resident_rows::shed(layer_id layer) {
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) shed(layer, h, 0);
}

void resident_rows::truncate(std::int64_t tokens) {
  if (tokens > put_end_) return;  // what is away stays, and what is on its way
  for (layer_state& s : layers_) settle(s);
  if (tokens == 0) return forget();
  if (tokens <= put_end_) was_cut_ = true;  // also where all that is away stays: a unit of it may be open again
  put_end_ = std::min(put_end_, tokens);
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) open_from(layer, h, tokens);
  }
}

/// A get that does not end in time is given up; what it brings is not wanted any more.
void resident_rows::settle(layer_state& s) noexcept {
  if (s.pending == 0) return;
  auto const deadline = tiers::clock::now() + std::min<std::chrono::milliseconds>(options_.deadline, std::chrono::hours(24));
  tiers::status ended = tiers::status::pending;
  try {
    ended = tier_->wait(std::exchange(s.pending, 0), deadline);
  } catch (std::exception const&) {
  }
  if (ended == tiers::status::pending) abandon(std::move(s.into));
  s.into.reset();
  s.coming.clear();
}

/// No token is away any more, whatever the tier says to that: their blocks have keys that are never used again.
void resident_rows::forget() noexcept {
  for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
    for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
      head_state& head = at(layer, h);
      drop_away(layer, h, head.away);
      head = {};
    }
  }
  was_cut_ = false;
  put_end_ = 0;
  ++generation_;
}

void resident_rows::take_over(resident_rows const& other, std::int64_t tokens) {
  truncate(0);
  was_cut_ = other.was_cut_ || tokens <= other.put_end_;
  put_end_ = std::min(other.put_end_, tokens);
  store_->forget_least_left();
  try {
    std::unique_ptr<buffer> through;
    auto const copy = [&](layer_id layer) {
      if (missing_.empty()) return;
      through = buffer_of(std::ssize(missing_));
      reads_.clear();
      writes_.clear();
      for (place const& p : missing_) {
        std::byte* const at = through->bytes.get() + std::ssize(reads_) * row_bytes_;
        reads_.push_back({other.key_of(layer, p.head, p.token), at});
        writes_.push_back({key_of(layer, p.head, p.token), at});
      }
      tiers::ticket const id = tier_->get(reads_);
      try {
        if (wait_for(id) == tiers::status::missed) lost(layer);
      } catch (...) {
        abandon(std::move(through));
        throw;
      }
      if (!tier_->put(writes_)) {
        throw error(tier_->describe() + " has no room for a copy of layer " + std::to_string(layer.value) +
                    "; its capacity is " + std::to_string(tier_->capacity()) + " blocks");
      }
      spare_ = std::move(through);
      missing_.clear();
    };
    for (layer_id layer{0}; layer.value < shape_.layers; ++layer.value) {
      missing_.clear();
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        head_state const& from = other.at(layer, h);
        head_state& head = at(layer, h);
        head.end = std::min(from.end, tokens);
        head.away = from.away;
        kvpolicy::truncate(head.away, tokens);
        std::ranges::copy_if(from.rows, std::back_inserter(head.rows), [&](here const& r) { return r.token < tokens; });
        for (here& r : head.rows) r.used = 0;
        each_token(head.away, [&](std::int32_t t) {
          missing_.push_back({static_cast<std::int32_t>(h), t});
          if (std::ssize(missing_) == blocks_at_once) copy(layer);
        });
      }
      copy(layer);
    }
  } catch (...) {
    truncate(0);
    throw;
  }
}

/// Touches what is here of a head's list, lists what is missing, and returns how many rows of the tier the list names.
/// Throws invalid_value where there are more than the head may have in fast memory.
std::int64_t resident_rows::touch(layer_id layer, std::int64_t h, range_list const& list, std::int64_t used) {
  head_state& head = at(layer, h);
  list_.clear();
  append_between(list_, list, 0, head.end);
  std::int64_t const named = token_count(list_);
  KVPOLICY_EXPECTS(options_.slots == 0 || named <= options_.slots,
                   "a head reads " + std::to_string(named) + " rows that are in the tier, and may have " +
                       std::to_string(options_.slots) + " of these in fast memory; raise slots");
  auto row = head.rows.begin();
  each_token(list_, [&](std::int32_t t) {
    while (row != head.rows.end() && row->token < t) ++row;
    if (row != head.rows.end() && row->token == t) row->used = used;
    else missing_.push_back({static_cast<std::int32_t>(h), t});
  });
  return named;
}

/// What a step reads of a head.
void resident_rows::look_for(layer_id layer, std::int64_t h, range_list const& list) {
  std::int64_t const before = std::ssize(missing_);
  std::int64_t const named = at(layer, h).read = touch(layer, h, list, stamp(true));
  std::int64_t const missed = missed_[static_cast<std::size_t>(h)] = std::ssize(missing_) - before;
  statistics_.wanted += named;
  statistics_.hits += named - missed;
}

/// All of these rows are here.
void resident_rows::touch_committed(layer_id layer) {
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) touch(layer, h, at(layer, h).committed, stamp(true));
}

/// Of what is missing, by head.
void resident_rows::begin_get(layer_id layer, bool waits) {
  layer_state& s = layers_[static_cast<std::size_t>(layer.value)];
  s.into = buffer_of(std::ssize(missing_));
  s.coming = missing_;
  reads_.clear();
  for (place const& p : missing_) {
    reads_.push_back({key_of(layer, p.head, p.token), s.into->bytes.get() + std::ssize(reads_) * row_bytes_});
  }
  s.pending = tier_->get(reads_, waits);
}

/// Whether no get is pending any more. What came counts as read at `used`, and others make room for it; 0: there is room.
bool resident_rows::end_get(layer_id layer, bool wait, std::int64_t used) {
  layer_state& s = layers_[static_cast<std::size_t>(layer.value)];
  if (s.pending == 0) return true;
  tiers::status const result = wait ? wait_for(s.pending) : tier_->poll(s.pending);
  if (result == tiers::status::pending) return false;
  s.pending = 0;
  std::unique_ptr<buffer> const& into = spare_ = std::move(s.into);
  if (result == tiers::status::missed) lost(layer);
  statistics_.bytes_fetched += std::ssize(s.coming) * row_bytes_;
  for (auto first = s.coming.begin(); first != s.coming.end();) {
    auto const last = std::find_if(first, s.coming.end(), [&](place const& p) { return p.head != first->head; });
    if (used > 0) shed(layer, first->head, last - first);
    admit(layer, first->head, {first, last}, into->bytes.get() + (first - s.coming.begin()) * row_bytes_, used);
    first = last;
  }
  return true;
}

/// Takes a head's fetched rows in; what was taken stays where there is no room for another.
void resident_rows::admit(layer_id layer, std::int64_t h, std::span<place const> tokens, std::byte const* from,
                          std::int64_t used) {
  head_state& head = at(layer, h);
  merged_.clear();
  merged_.reserve(head.rows.size() + tokens.size());
  auto old = head.rows.begin();
  auto const end = [&] {
    merged_.insert(merged_.end(), old, head.rows.end());
    std::swap(merged_, head.rows);
  };
  try {
    for (place const& p : tokens) {
      while (old != head.rows.end() && old->token < p.token) merged_.push_back(*old++);
      std::memcpy(store_->readmit(layer, h, p.token), from, static_cast<std::size_t>(row_bytes_));
      from += row_bytes_;
      merged_.push_back({p.token, used});
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

/// Makes room for so many more: what was read least recently leaves.
void resident_rows::shed(layer_id layer, std::int64_t h, std::int64_t more) {
  head_state& head = at(layer, h);
  std::int64_t const limit = options_.slots > 0 ? options_.slots : std::max(2 * head.read, rows_that_stay);
  std::int64_t const excess = std::ssize(head.rows) + more - limit;
  if (excess <= 0) return;
  by_use_.clear();
  for (here const& r : head.rows) {
    if (r.used < stamp(true)) by_use_.push_back(r.used << 32 | r.token);
  }
  KVPOLICY_EXPECTS(options_.slots == 0 || std::ssize(by_use_) >= excess,
                   "a head reads, and waits for, more than the " + std::to_string(options_.slots) +
                       " rows of the tier that it may have in fast memory; raise slots");
  std::int64_t const count = std::min(excess, std::ssize(by_use_));
  std::ranges::nth_element(by_use_, by_use_.begin() + count);
  victims_.clear();
  for (std::int64_t i = 0; i < count; ++i)
    victims_.push_back(static_cast<std::int32_t>(by_use_[static_cast<std::size_t>(i)] & INT32_MAX));
  std::ranges::sort(victims_);
  store_->evict(layer, h, victims_);
  auto victim = victims_.begin();
  std::erase_if(head.rows, [&](here const& r) {
    if (victim == victims_.end() || *victim != r.token) return false;
    ++victim;
    return true;
  });
}

/// A tier that can't drop keeps the blocks: they are never read again.
void resident_rows::drop_away(layer_id layer, std::int64_t h, range_list const& list) noexcept {
  head_state& head = at(layer, h);
  try {
    keys_.clear();
    each_token(list, [&](std::int32_t t) { keys_.push_back(key_of(layer, h, t)); });
    if (!keys_.empty()) tier_->drop(keys_);
  } catch (std::exception const&) {
  }
  auto gone = list.begin();
  std::erase_if(head.rows, [&](here const& r) {
    while (gone != list.end() && gone->end <= r.token) ++gone;
    return gone != list.end() && gone->begin <= r.token;
  });
}

/// A head's tokens from `end` on are in the store alone, or gone.
void resident_rows::open_from(layer_id layer, std::int64_t h, std::int64_t end) {
  head_state& head = at(layer, h);
  if (end >= head.end) return;
  list_.clear();
  append_between(list_, head.away, end, INT32_MAX);
  drop_away(layer, h, list_);
  kvpolicy::truncate(head.away, end);
  kvpolicy::truncate(head.committed, end);
  head.end = end;
}

std::unique_ptr<resident_rows::buffer> resident_rows::buffer_of(std::int64_t blocks) {
  std::unique_ptr<buffer> made = std::move(spare_);
  if (made != nullptr && made->blocks >= blocks) return made;
  if (made == nullptr) made = std::make_unique<buffer>();
  made->blocks = 0;
  made->bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(blocks * row_bytes_));
  made->blocks = blocks;
  return made;
}

/// Never frees it: the tier may still write there.
void resident_rows::abandon(std::unique_ptr<buffer> given) noexcept {
  static std::atomic<buffer*> all{nullptr};
  buffer* const made = given.release();
  made->next = all.load();
  while (!all.compare_exchange_weak(made->next, made)) {
  }
}

tiers::status resident_rows::wait_for(tiers::ticket id) {
  auto const start = tiers::clock::now();
  tiers::status const result =
      tier_->wait(id, start + std::min<std::chrono::milliseconds>(options_.deadline, std::chrono::hours(24)));
  statistics_.stall_seconds += std::chrono::duration<double>(tiers::clock::now() - start).count();
  if (result == tiers::status::pending) {
    throw error(tier_->describe() + " did not deliver within " + std::to_string(options_.deadline.count()) + " ms");
  }
  return result;
}

void resident_rows::lost(layer_id layer) const {
  throw error(tier_->describe() + " lost rows of layer " + std::to_string(layer.value) +
              ": a block that it acknowledged is missing or damaged");
}

}  // namespace kvpolicy
