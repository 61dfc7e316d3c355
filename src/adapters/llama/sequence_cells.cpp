#include "sequence_cells.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvpolicy::llama {
namespace {

bool is_a_row(std::span<std::int32_t const> cells) noexcept {
  return std::ranges::adjacent_find(cells, [](auto a, auto b) { return a + 1 != b; }) == cells.end();
}

}  // namespace

void sequence_cells::reserve(std::int64_t tokens) {
  cells_.reserve(static_cast<std::size_t>(tokens));
  known_.reserve(static_cast<std::size_t>(tokens));
}

std::int64_t sequence_cells::follow(seen_cells const& now) {
  auto const count = std::ssize(now.visible);
  if (holds(now)) {
    cells_.resize(static_cast<std::size_t>(count));
    known_.resize(static_cast<std::size_t>(count));
    in_a_row_ = in_a_row_ || is_a_row(cells_);
    return count;
  }
  order(now);
  stream_ = now.stream;
  in_a_row_ = is_a_row(cells_);
  auto const is_same = [&](fingerprint const& token, std::int32_t cell) { return table_.holds(stream_, cell, token); };
  std::int64_t const same = std::ranges::mismatch(known_, cells_, is_same).in1 - known_.begin();
  known_.resize(static_cast<std::size_t>(same));
  seal();
  if (std::exchange(in_order_, 0) > 0) remember();
  return same;
}

/// Whether the first tokens that were placed are what is seen now: the same cells, with the same in them.
bool sequence_cells::holds(seen_cells const& now) const noexcept {
  auto const count = std::ssize(now.visible);
  if (now.stream != stream_ || count > std::ssize(known_) || count > tokens()) return false;
  if (now.position != first_position_ + count) return false;
  for (std::int64_t t = 0; t < count; ++t) {
    std::int32_t const cell = cells_[static_cast<std::size_t>(t)];
    if (cell == now.cell || cell >= now.mask.cells() || !now.mask.visible(now.batch_index, cell)) return false;
    if (!table_.holds(stream_, cell, known_[static_cast<std::size_t>(t)])) return false;
  }
  return true;
}

/// By the positions that were last seen of what is in the cells.
void sequence_cells::order(seen_cells const& now) {
  auto const count = std::ssize(now.visible);
  auto const refuse = [&](std::string const& why) {
    throw unsupported("token " + std::to_string(now.position) + " of sequence " + std::to_string(id_) + " sees " +
                      std::to_string(count) + " cells that the session can't put in order: " + why);
  };
  ordered_.clear();
  bool const trusted = in_order_ > 0 && in_order_ == count;
  for (std::int32_t const cell : now.visible) {
    std::int32_t const position =
        trusted ? now.position - static_cast<std::int32_t>(count - std::ssize(ordered_)) : table_.position(now.stream, cell);
    if (position == cell_table::unknown) {
      refuse("cell " + std::to_string(cell) +
             " holds a token that it did not see written; after the engine's state was restored, call load() with what save() "
             "gave");
    }
    ordered_.push_back({position, cell});
  }
  std::ranges::sort(ordered_, {}, &placed_token::position);
  std::int32_t next = now.position - static_cast<std::int32_t>(count);
  for (placed_token const& t : ordered_) {
    if (t.position != next++) {
      refuse(
          "their positions have holes (llama_memory_seq_rm from the middle, or llama_memory_seq_div), or the batch has several "
          "sequences in one unified cache and set_batch() was not called");
    }
  }
  cells_.clear();
  for (placed_token const& t : ordered_) cells_.push_back(t.cell);
  first_position_ = now.position - static_cast<std::int32_t>(count);
}

void sequence_cells::place(seen_cells const& now) {
  forget();
  cells_.assign(now.visible.begin(), now.visible.end());
  stream_ = now.stream;
  in_a_row_ = is_a_row(cells_);
}

bool sequence_cells::continues(seen_cells const& now) const noexcept {
  if (now.position < 0 || now.position > std::ssize(known_)) return false;
  return std::ranges::all_of(now.visible, [&](std::int32_t cell) {
    std::int32_t const at = table_.position(now.stream, cell);
    return at >= staged_from_ && at < now.position && table_.holds(now.stream, cell, known_[static_cast<std::size_t>(at)]);
  });
}

void sequence_cells::cut(std::int64_t tokens, std::int64_t stream) {
  cells_.resize(static_cast<std::size_t>(tokens), -1);
  known_.resize(static_cast<std::size_t>(tokens));
  stream_ = stream;
  staged_from_ = std::min(staged_from_, static_cast<llama_pos>(tokens));
}

void sequence_cells::take_over(sequence_cells const& from, std::int64_t tokens, std::int64_t stream) {
  known_.assign(from.known_.begin(), from.known_.begin() + tokens);
  staged_from_ = from.staged_from_;
  cut(tokens, stream);
}

void sequence_cells::append(std::int32_t cell) {
  in_a_row_ = in_a_row_ && (cells_.empty() || cells_.back() + 1 == cell);
  cells_.push_back(cell);
}

void sequence_cells::seal() {
  for (auto t = known_.size(); t < cells_.size(); ++t) known_.push_back(table_.read(stream_, cells_[t]));
}

void sequence_cells::check_history() {
  bool const fresh = std::ranges::any_of(known_, [](fingerprint const& t) { return t.history == 0; });
  for (std::size_t t = 0; t < known_.size(); ++t) {
    if (cells_[t] < 0) continue;  // not the engine's any more
    fingerprint const now = table_.read(stream_, cells_[t]);
    if (known_[t].history != 0 && known_[t].history != now.history) {
      known_.clear();
      throw unsupported("token " + std::to_string(t) + " of sequence " + std::to_string(id_) +
                        " has other keys than the prompt that load() was given: another state was restored");
    }
    known_[t] = now;
  }
  if (fresh) remember();
}

void sequence_cells::remember() {
  std::int32_t position = first_position_;
  for (fingerprint const& token : known_) table_.remember(token, position++);
}

void sequence_cells::expect(std::span<fingerprint const> tokens, std::int32_t first_position) {
  forget();
  known_.assign(tokens.begin(), tokens.end());
  first_position_ = first_position;
  remember();
}

void sequence_cells::expect_in_order(std::int64_t tokens) {
  forget();
  in_order_ = tokens;
}

void sequence_cells::forget() noexcept {
  cells_.clear();
  known_.clear();
  stream_ = -1;
  in_order_ = 0;
  staged_from_ = 0;
  in_a_row_ = true;
}

rows sequence_cells::fresh(rows all) const noexcept {
  all.base += stream_ * table_.cells_of_a_stream() * all.token_stride;
  all.tokens = std::ssize(cells_) - std::ssize(known_);
  all.pages = cells_.data() + std::ssize(known_);
  all.page_size = 1;
  all.page_stride = all.token_stride;
  return all;
}

rows sequence_cells::placed(rows all) const noexcept {
  all.base += stream_ * table_.cells_of_a_stream() * all.token_stride;
  if (in_a_row_) {
    all.base += (cells_.empty() ? 0 : cells_.front()) * all.token_stride;
  } else {
    all.pages = cells_.data();
    all.page_size = 1;
    all.page_stride = all.token_stride;
  }
  return all;
}

}  // namespace kvpolicy::llama
