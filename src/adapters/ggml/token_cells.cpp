#include "token_cells.hpp"

#include <algorithm>
#include <utility>

namespace kvpolicy::ggml {

void write_order::forget(cell_range cells) noexcept {
  auto const end = std::min<std::int64_t>(cells.end, std::ssize(numbers_));
  for (std::int64_t cell = std::max<std::int64_t>(cells.begin, 0); cell < end; ++cell)
    numbers_[static_cast<std::size_t>(cell)] = unknown | ++last_;
}

bool write_order::holds(cell_run const& run) const noexcept {
  std::uint64_t const* const numbers = numbers_.data() + run.cell;
  bool same = true;
  for (std::int64_t i = 0; i < run.count; ++i) same &= numbers[i] == run.written + static_cast<std::uint64_t>(i);
  return same;
}

token_cells::token_cells(std::span<cell_range const> seen, write_order const& order) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> by_number;
  for (cell_range const& each : seen)
    for (std::int64_t cell = each.begin; cell < each.end; ++cell) by_number.emplace_back(order.of(cell), cell);
  std::ranges::sort(by_number);
  for (auto const& [number, cell] : by_number) {
    ordered_ = ordered_ && write_order::is_known(number);
    append(cell, number);
  }
}

void token_cells::append(std::int64_t cell, std::uint64_t written) {
  ++tokens_;
  if (!runs_.empty()) {
    cell_run& last = runs_.back();
    auto const count = static_cast<std::uint64_t>(last.count);
    if (last.cell + last.count == cell && last.written + count == written) {
      ++last.count;
      return;
    }
  }
  runs_.push_back({cell, 1, written});
}

void token_cells::cut(std::int64_t tokens) noexcept {
  while (tokens_ > tokens) {
    std::int64_t const gone = std::min(tokens_ - tokens, runs_.back().count);
    tokens_ -= gone;
    if ((runs_.back().count -= gone) == 0) runs_.pop_back();
  }
}

bool token_cells::begins_with(std::span<cell_range const> seen, write_order const& order) const {
  std::int64_t wanted = 0;
  for (cell_range const& each : seen) wanted += each.end - each.begin;
  if (wanted > tokens_) return false;
  std::vector<cell_range> first;
  for (std::size_t i = 0; wanted > 0; ++i) {
    cell_run run = runs_[i];
    run.count = std::min(run.count, wanted);
    if (!order.holds(run)) return false;
    wanted -= run.count;
    first.push_back({run.cell, run.cell + run.count});
  }
  std::ranges::sort(first, {}, &cell_range::begin);
  std::size_t merged = 0;
  for (cell_range const& each : first) {
    if (merged > 0 && first[merged - 1].end == each.begin) first[merged - 1].end = each.end;
    else first[merged++] = each;
  }
  return std::ranges::equal(std::span(first).first(merged), seen);
}

}  // namespace kvpolicy::ggml
