// A row store with a part of its rows in a tier: rows that steps do not read leave memory, and come back when they are chosen.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvpolicy/store/row_store.hpp"
#include "kvpolicy/tiers/any_tier.hpp"
#include "kvpolicy/tiers/resident_options.hpp"

namespace kvpolicy {

/// Moves rows between a row store and a tier.
/// The tier has the retained rows of prompts; the store has the most recently read of them too. Rows of later tokens, and of a
/// prompt's last few, are in the store alone. A block of the tier is one token's key and value of one head. Fetched rows come
/// through a buffer, so a tier never writes to the store's memory. Not thread-safe. Compiled (link kvpolicy::store).
class resident_rows {
 public:
  /// Puts a tier behind a store. Both must outlive this object.
  /// @param tier  whose blocks hold a key and a value
  /// @param store  the store
  /// @param options  how to use the tier
  /// @throws invalid_value if the tier's blocks have another size, or `slots` is negative
  resident_rows(tiers::any_tier& tier, row_store& store, tiers::resident_options options);
  resident_rows(resident_rows const&) = delete;
  resident_rows& operator=(resident_rows const&) = delete;
  /// Waits for pending gets, until the deadline. The buffer of a get that has not ended by then is never freed.
  ~resident_rows();

  tiers::resident_statistics const& statistics() const noexcept { return statistics_; }

  /// Brings all rows of a layer into the store, for a reader of all of them.
  /// @param layer  the layer
  /// @throws error if the tier lost rows or does not deliver, or as row_store::append() does
  void bring(layer_id layer);
  /// Whether a cut went into, or to the end of, a prompt that was put away.
  /// It may have reopened a unit, whose tokens steps read. Then bring() every layer, and call mend_cut().
  bool was_cut() const noexcept { return was_cut_; }
  /// Ends the work after a cut, once every layer was brought: the last tokens of each head count as in the store alone.
  /// @param stay  how many tokens of each head (requirements::unit)
  void mend_cut(std::int64_t stay);
  /// Puts a layer's retained rows of a prompt that has ended into the tier, and drops the others from it.
  /// All rows of the layer must be in the store, and none leaves it yet.
  /// @param layer  the layer
  /// @param retained  what the policy retains
  /// @param tokens  tokens of the prompt
  /// @param stay  `[kv_heads]`: how many of a head's last tokens stay in the store alone (request::always_read())
  /// @throws invalid_value if a row is not in the store
  /// @throws error if the tier has no room; the rows are then in the store alone
  void put_away(layer_id layer, selection const& retained, std::int64_t tokens, std::span<std::int64_t const> stay);
  /// Makes a selection readable in the store: fetches the missing rows, and waits for them if the options say so.
  /// The least recently read rows leave the store.
  /// @param layer  the layer
  /// @param kept  the selection of this step
  /// @return what this step reads: all of `kept` if it waited
  /// @throws invalid_value if a head reads more than `slots` rows of the tier
  /// @throws error as bring() does
  selection ready(layer_id layer, selection const& kept);
  /// Begins to fetch what the next step reads, while the rest of this one runs; its ready() waits for the rows then.
  /// Does nothing while an earlier get of the layer has not ended.
  /// @param layer  the layer
  /// @param next  what the next step reads, as far as that is known (request::ahead())
  /// @throws invalid_value if a head would read more than `slots` rows of the tier
  /// @throws error as bring() does
  void prefetch(layer_id layer, selection const& next);
  /// Lets the rows beyond `slots` leave the store.
  /// @param layer  the layer
  void shed(layer_id layer);

  /// Forgets the tokens from `tokens` on. Call it before row_store::truncate() and clear(). Never throws if `tokens` is 0.
  /// @param tokens  how many first tokens stay
  void truncate(std::int64_t tokens);
  /// Copies the tier's rows of another sequence, after the store became a fork of its store.
  /// @param other  the other sequence's rows
  /// @param tokens  how many first tokens are copied
  /// @throws error if the tier has no room, or lost rows; nothing is away then
  void take_over(resident_rows const& other, std::int64_t tokens);

 private:
  /// A prompt's row that is in the store too.
  struct here {
    std::int32_t token;
    std::int64_t used;  ///< when it was last read, see stamp()
  };
  struct head_state {
    range_list away;           ///< tokens that the tier has
    std::int64_t end = 0;      ///< after these: retained tokens from here on are in the store alone
    std::vector<here> rows{};  ///< ascending
    range_list committed{};    ///< the part of `away` that was last readable as a whole
    std::int64_t read = 0;     ///< tokens of `away` that the last step named
  };
  struct place {
    std::int32_t head;
    std::int32_t token;
  };
  struct buffer {
    std::unique_ptr<std::byte[]> bytes{};
    std::int64_t blocks = 0;
    buffer* next = nullptr;  ///< of the buffers that are never freed
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

  void expect_told() const;
  std::int64_t touch(layer_id layer, std::int64_t head, range_list const& list, std::int64_t used);
  void look_for(layer_id layer, std::int64_t head, range_list const& list);
  void touch_committed(layer_id layer);
  void begin_get(layer_id layer, bool waits);
  bool end_get(layer_id layer, bool wait, std::int64_t used);
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
  std::int64_t put_end_ = 0;         ///< tokens of the prompt that was put away last
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
  std::vector<std::int64_t> by_use_;  ///< when a row was last read, and its token
  std::vector<std::int32_t> victims_;
  std::vector<here> merged_;
  range_list list_;
};

}  // namespace kvpolicy
