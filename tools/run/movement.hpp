// How what a policy reads of the prompt moves while it decodes: whether a method's own idea is at work.
#pragma once

#include <kvpolicy/selection.hpp>

#include <nlohmann/json.hpp>
#include <vector>

namespace kvpolicy {

/// Of the prompt's tokens that were chosen by score, list by list.
class movement {
 public:
  /// A prompt of so many tokens.
  void start(std::int64_t prompt);
  void add(layer_id layer, selection const& kept);

  /// `lists`, how many of them changed after their first step; `changes`, of a list from one step to the next, all lists
  /// together; and means over lists of the tokens that a step read and that all steps together did.
  nlohmann::ordered_json result() const;

 private:
  struct list {
    std::vector<char> ever;  ///< `[prompt]`
    range_list first;
    range_list last;
    std::int64_t steps = 0;
    std::int64_t read = 0;  ///< over all steps
    std::int64_t changes = 0;
    bool changed = false;
  };
  std::int64_t prompt_ = 0;
  std::vector<std::vector<list>> layers_;
};

}  // namespace kvpolicy
