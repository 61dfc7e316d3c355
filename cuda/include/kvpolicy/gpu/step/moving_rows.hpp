// Which row of an engine's batch each slot's sequence has, where rows move from step to step.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "kvpolicy/gpu/step/arrays.hpp"

namespace kvpolicy::gpu::detail {

template <owning_device D>
class moving_rows {
 public:
  /// `sequences` slots; `rows` of a batch at most, or 0: each slot has the row of its number. Throws invalid_value.
  moving_rows(D& device, std::int64_t sequences, std::int64_t rows)
      : most_(rows), row_of_(static_cast<std::size_t>(sequences), -1), numbers_(device, 1, rows == 0 ? 0 : sequences) {
    KVPOLICY_EXPECTS(rows >= 0, "batches of " + std::to_string(rows) +
                                    " rows; give the most that a step has, or 0 for rows "
                                    "that are the slots'");
  }

  bool move() const noexcept { return most_ > 0; }
  /// A slot's row of the batch, or -1.
  std::int64_t row(std::int64_t slot) const noexcept { return move() ? row_of_[static_cast<std::size_t>(slot)] : slot; }
  row_map map() const noexcept { return move() ? row_map{numbers_.of(0).values} : row_map{}; }

  /// The row that a slot's prompt has in its view, `given` or by its number. Throws invalid_value.
  std::int64_t row_of_prompt(std::int64_t slot, std::int64_t given) const {
    if (!move()) {
      KVPOLICY_EXPECTS(given < 0 || given == slot, "a prompt of slot " + std::to_string(slot) + " in row " +
                                                       std::to_string(given) + ", and steps will read row " +
                                                       std::to_string(slot) + "; give the constructor rows that move");
      return slot;
    }
    KVPOLICY_EXPECTS(given >= 0 && given < most_, "a prompt in row " + std::to_string(given) + " of batches of " +
                                                      std::to_string(most_) + "; rows move, so say which its page table has");
    return given;
  }

  /// Throws invalid_value unless rows have slots of their own.
  void check(std::span<std::int32_t const> slots) const {
    auto const count = std::ssize(row_of_);
    KVPOLICY_EXPECTS(move(), "plan_rows() of a decoder whose rows are its slots; give the constructor the rows of a batch");
    KVPOLICY_EXPECTS(std::ssize(slots) <= most_,
                     std::to_string(slots.size()) + " rows of a decoder for batches of " + std::to_string(most_));
    std::vector<std::int64_t> seen(row_of_.size(), -1);
    for (std::size_t r = 0; r < slots.size(); ++r) {
      std::int64_t const slot = slots[r];
      KVPOLICY_EXPECTS(slot >= 0 && slot < count, "row " + std::to_string(r) + " has slot " + std::to_string(slot) +
                                                      "; there are 0 to " + std::to_string(count - 1));
      std::int64_t& other = seen[static_cast<std::size_t>(slot)];
      KVPOLICY_EXPECTS(other < 0, "rows " + std::to_string(other) + " and " + std::to_string(r) + " both have slot " +
                                      std::to_string(slot) + "; each sequence has one row of a step");
      other = static_cast<std::int64_t>(r);
    }
  }
  /// Rows that were checked.
  void set(std::span<std::int32_t const> slots) {
    if (!move()) return;
    std::ranges::fill(row_of_, -1);
    for (std::size_t r = 0; r < slots.size(); ++r) row_of_[static_cast<std::size_t>(slots[r])] = static_cast<std::int64_t>(r);
    for (std::size_t s = 0; s < row_of_.size(); ++s) numbers_.set(0, static_cast<std::int64_t>(s), row_of_[s]);
  }
  void upload(D& device) const {
    if (move()) numbers_.upload(device);
  }

 private:
  std::int64_t most_;
  std::vector<std::int64_t> row_of_;  ///< of each slot, -1: it has no row at this step
  step_numbers<D> numbers_;           ///< the same on the device
};

}  // namespace kvpolicy::gpu::detail
