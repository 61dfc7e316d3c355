// A row store of which a part lies in a tier: what steps do not read leaves memory, and comes back when it is chosen.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvpolicy/store/row_store.hpp"
#include "kvpolicy/tiers/any_tier.hpp"
#include "kvpolicy/tiers/resident_options.hpp"

namespace kvpolicy {

/// Retained rows of prompts are in the tier, and those of them that were read last in the store too; rows of later tokens, and
/// a prompt's last few, are in the store alone. A block of the tier is one token's key and value of one head. Fetched rows come
/// by way of a buffer, so that the store's memory is never a tier's to write to. Not thread-safe. Compiled (link
/// kvpolicy::store).
class resident_rows {
 public:
  /// Both must outlive it. Throws invalid_value where the tier's blocks are of another size.
  resident_rows(tiers::any_tier& tier, row_store& store, tiers::resident_options options);
  resident_rows(resident_rows const&) = delete;
  resident_rows& operator=(resident_rows const&) = delete;
  /// Waits for pending gets as long as the deadline; where one has not ended by then, its buffer is never given back.
  ~resident_rows();

  tiers::resident_statistics const& statistics() const noexcept { return statistics_; }

  /// Brings all of a layer's rows into the store, for those who read them all. Throws error where the tier lost some or does
  /// not deliver, and as row_store::append().
  void bring(layer_id layer);
  /// Whether a cut went into a prompt that was put away, or to its end, and so perhaps into a unit, whose tokens steps look at:
  /// bring() every layer then, and mend_cut().
  bool was_cut() const noexcept { return was_cut_; }
  /// Every layer was brought after a cut. Of each head's tokens, so many of the last are not away any more
  /// (requirements::unit).
  void mend_cut(std::int64_t stay);
  /// A prompt of `tokens` tokens has ended, and all of the layer's rows are here: what is retained goes to the tier, but
  /// for the last `stay[head]` tokens of a head; what is not any more goes from it. Nothing leaves the store yet. Throws error
  /// where the tier has no room; what was to go is in the store alone then.
  void put_away(layer_id layer, selection const& retained, std::int64_t tokens, std::span<std::int64_t const> stay);
  /// Makes a selection readable in the store: fetches what is missing, waits if that was asked for, and returns what this step
  /// reads, which is all of it then. What was read least recently leaves. Throws invalid_value for more than `slots` rows,
  /// error as bring().
  selection ready(layer_id layer, selection const& kept);
  /// What is beyond `slots` leaves the store.
  void shed(layer_id layer);

  /// Before the store's: tokens from `tokens` on are gone. Of 0 it never throws.
  void truncate(std::int64_t tokens);
  /// After the store became a fork of the other's. Throws error where the tier has no room, or lost rows.
  void take_over(resident_rows const& other, std::int64_t tokens);

 private:
  /// A prompt's row that is in the store too.
  struct here {
    std::int32_t token;
    std::int64_t used;  ///< when it was last read; see stamp()
  };
  struct head_state {
    range_list away;           ///< tokens that the tier has
    std::int64_t end = 0;      ///< behind those; what is retained from there on is in the store alone
    std::vector<here> rows{};  ///< ascending
    range_list committed{};    ///< of `away`, what was last readable whole
    std::int64_t read = 0;     ///< of `away`, how many tokens the last step named
  };
  struct place {
    std::int32_t head;
    std::int32_t token;
  };
  struct buffer {
    std::unique_ptr<std::byte[]> bytes{};
    std::int64_t blocks = 0;
    buffer* next = nullptr;  ///< of the lost ones
  };
  struct layer_state {
    tiers::ticket pending = 0;
    std::unique_ptr<buffer> into{};
    std::vector<place> coming{};
  };

  head_state& at(layer_id layer, std::int64_t head) noexcept { return heads_[index(layer, head)]; }
  head_state const& at(layer_id layer, std::int64_t head) const noexcept { return heads_[index(layer, head)]; }
  std::size_t index(layer_id layer, std::int64_t head) const noexcept {
    return static_cast<std::size_t>(layer.value * shape_.kv_heads + head);
  }
  tiers::block_key key_of(layer_id layer, std::int64_t head, std::int32_t token) const noexcept;
  std::int64_t stamp(bool protect) const noexcept { return 2 * now_ + (protect ? 1 : 0); }

  void look_for(layer_id layer, std::int64_t head, range_list const& list);
  void touch_committed(layer_id layer);
  void begin_get(layer_id layer);
  bool end_get(layer_id layer, bool wait, bool bounded);
  void admit(layer_id layer, std::int64_t head, std::span<place const> tokens, std::byte const* from, std::int64_t used);
  void shed(layer_id layer, std::int64_t head, std::int64_t more);
  void settle(layer_state& s) noexcept;
  void forget() noexcept;
  void drop_away(layer_id layer, std::int64_t head, range_list const& list) noexcept;
  void open_from(layer_id layer, std::int64_t head, std::int64_t end);
  void put(layer_id layer, std::int64_t head, range_list const& list);
  std::unique_ptr<buffer> buffer_of(std::int64_t blocks);
  static void abandon(std::unique_ptr<buffer> lost) noexcept;
  tiers::status wait_for(tiers::ticket id);
  [[noreturn]] void lost(layer_id layer) const;

  tiers::any_tier* tier_;
  row_store* store_;
  cache_shape shape_;
  std::int64_t row_bytes_;
  tiers::resident_options options_;
  std::uint32_t generation_ = 1;
  std::int64_t now_ = 0;
  bool was_cut_ = false;
  std::int64_t put_end_ = 0;         ///< tokens of the prompt that was last put away
  std::vector<head_state> heads_;    ///< `[layers, kv_heads]`
  std::vector<layer_state> layers_;  ///< `[layers]`
  std::unique_ptr<buffer> spare_;
  tiers::resident_statistics statistics_;

  // Scratch.
  std::vector<range_list> readable_;  ///< `[kv_heads]`
  std::vector<place> missing_;
  std::vector<std::int64_t> missed_;  ///< `[kv_heads]`
  std::vector<tiers::block_read> reads_;
  std::vector<tiers::block_write> writes_;
  std::vector<tiers::block_key> keys_;
  std::vector<std::int64_t> by_use_;  ///< when a row was used, and its token
  std::vector<std::int32_t> victims_;
  std::vector<here> merged_;
  range_list list_;
};

}  // namespace kvpolicy
