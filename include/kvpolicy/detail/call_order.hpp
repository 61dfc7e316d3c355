// What an engine may ask of a request next: layers in order, tokens without gaps. Checked before anything is read or written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "kvpolicy/error.hpp"
#include "kvpolicy/rows.hpp"

namespace kvpolicy {

/// Follows prompts and steps. A step brings tokens behind all those that are known; an engine that removed tokens from the end
/// says so first, by cut(). A prompt and the step behind it may go side by side, as long as a layer's prompt comes first; a
/// prompt that was left in the middle is forgotten by a step behind what came before it.
/// A verb that throws is not counted: the prompt, or the step, may then be begun again at its layer 0.
class call_order {
 public:
  /// `step_layers`: how many layers a step is made in, all of them, or 1 where one choice stands for all; then the others may
  /// be left out.
  call_order(std::int64_t layers, std::int64_t step_layers, std::int64_t max_tokens) noexcept
      : layers_(layers), step_layers_(step_layers), max_tokens_(max_tokens) {}

  /// Tokens of the sequence at the last verb.
  std::int64_t tokens() const noexcept { return tokens_; }
  /// Layers that have been prefilled with the last prompt, and that have chosen in the last step.
  std::int64_t prefilled() const noexcept { return prefilled_; }
  std::int64_t chosen() const noexcept { return chosen_; }
  std::int64_t step_layers() const noexcept { return step_layers_; }
  /// Tokens that the last step brought.
  std::int64_t brought() const noexcept { return brought_; }
  /// A piece that begins at token `first` comes to the layer: the first token of the prompt that it belongs to. Pieces with no
  /// step between them are one prompt.
  std::int64_t prompt_begin(layer_id layer, std::int64_t first) const noexcept {
    return layer.value == 0 ? std::min(may_go_on_from_, first) : begun_;
  }

  void check_layer(layer_id layer) const { kvpolicy::check_layer(layer, layers_); }

  layer_id checked(layer_id layer) const {
    check_layer(layer);
    return layer;
  }
  /// A verb has come to the layer. Throws invalid_value.
  void check_decided(layer_id layer) const {
    check_layer(layer);
    KVPOLICY_EXPECTS(known_ > 0 || layer.value < std::max(prefilled_, chosen_) || chosen_ >= step_layers_,
                     "layer " + std::to_string(layer.value) + " has decided nothing yet; call prefill() or choose() first");
  }

  /// Tokens [first, tokens) of a prompt are new in this layer. Throws invalid_value.
  void check_prompt(layer_id layer, std::int64_t first, std::int64_t tokens) const {
    check_layer(layer);
    if (layer.value == 0) {
      KVPOLICY_EXPECTS(tokens >= 1 && tokens <= max_tokens_ && first >= 0 && first <= tokens,
                       "a prompt of tokens " + piece(first, tokens) + "; this request was started for 1 to " +
                           std::to_string(max_tokens_) + ", and a piece can't begin behind its end");
      KVPOLICY_EXPECTS(first <= known_, "a prompt's piece begins at token " + std::to_string(first) +
                                            ", of those before only " + std::to_string(known_) +
                                            " are known in every layer; prefill them first");
      return;
    }
    KVPOLICY_EXPECTS(layer.value == prefilled_ && tokens == prompt_ && first == first_,
                     "prefill of layer " + std::to_string(layer.value) + ", tokens " + piece(first, tokens) + ", after " +
                         std::to_string(prefilled_) + " layers of tokens " + piece(first_, prompt_) +
                         "; layers go in order, with the same tokens");
  }

  /// A step whose tokens are the last `brought` of so many. Throws invalid_value.
  void check_step(layer_id layer, std::int64_t tokens, std::int64_t brought = 1) const {
    check_layer(layer);
    KVPOLICY_EXPECTS(!side_by_side() || layer.value < prefilled_, "choose for layer " + std::to_string(layer.value) +
                                                                      ", whose prompt is not there: prefill was called for " +
                                                                      std::to_string(prefilled_) + " of " +
                                                                      std::to_string(layers_) + " layers");
    if (layer.value == 0) {
      bool const with_prompt = side_by_side() && tokens > known_ + brought;
      std::int64_t const before = with_prompt ? prompt_ : known_;
      std::int64_t const loose = with_prompt ? 0 : drafts();  // of the step before, that need not have stayed
      if (tokens <= max_tokens_ && tokens <= before + brought && tokens >= before - loose + brought) return;
      throw invalid_value(
          "a step on " + std::to_string(tokens) + " tokens, " +
          (brought == 1 ? "the current one" : "the " + std::to_string(brought) + " that it brings") + " included, where " +
          std::to_string(before) + " are known" +
          (tokens > max_tokens_
               ? "; the request was started for " + std::to_string(max_tokens_) + ": start one of more"
               : "; it must be on " + std::to_string(before + brought) +
                     (tokens > before + brought
                          ? ": prefill what else came"
                          : ": count the step's own tokens, or call cut() after you removed tokens from the end")));
    }
    KVPOLICY_EXPECTS(layer.value == chosen_ && tokens == step_ && brought == brought_,
                     "choose for layer " + std::to_string(layer.value) + " on " + std::to_string(tokens) + " tokens, " +
                         (brought == brought_ ? "" : "with " + std::to_string(brought) + " of its own, ") + "after " +
                         std::to_string(chosen_) + " layers of a step on " + std::to_string(step_) +
                         (brought == brought_ ? "" : ", with " + std::to_string(brought_)) +
                         "; layers go in order, with the same tokens, from layer 0");
  }

  /// The layer has chosen in the last step; where that failed before anything was chosen, in the one before. Throws
  /// invalid_value.
  void check_chosen(layer_id layer) const {
    check_layer(layer);
    KVPOLICY_EXPECTS(layer.value < chosen_ || chosen_ >= step_layers_ || (chosen_ == 0 && step_ > 0),
                     "layer " + std::to_string(layer.value) + " has chosen nothing in this step; call choose() first");
  }
  /// A step has been made in every layer, and not all of its tokens were observed before. Throws invalid_value.
  void check_outcome() const {
    KVPOLICY_EXPECTS(chosen_ >= step_layers_, "observe after " + std::to_string(chosen_) + " of " +
                                                  std::to_string(step_layers_) +
                                                  " layers of a step; choose for every layer first");
    KVPOLICY_EXPECTS(observed_ < brought_, "all outcomes of a step on " + std::to_string(step_) +
                                               " tokens were observed already; call observe() once for each token");
  }

  /// The engine removed the tokens from `tokens` on; the next step begins behind those that are left.
  void cut(std::int64_t tokens) {
    KVPOLICY_EXPECTS(tokens >= 0, "a cut to " + std::to_string(tokens) + " tokens; it can't be negative");
    if (side_by_side() && tokens < prompt_) prefilled_ = 0;
    if (tokens >= known_) return;
    known_ = tokens;
    may_go_on_from_ = std::min(may_go_on_from_, tokens);
    if (chosen_ < step_layers_) chosen_ = 0;  // a step that was left in the middle begins again
  }

  /// Layer 0's checks have passed.
  void begin_prompt(std::int64_t first, std::int64_t tokens) noexcept {
    known_ = std::min(known_, first);
    first_ = first;
    begun_ = may_go_on_from_ = std::min(may_go_on_from_, first);
    prompt_ = tokens_ = tokens;
    prefilled_ = chosen_ = 0;
  }
  void begin_step(std::int64_t tokens, std::int64_t brought = 1) noexcept {
    if (side_by_side() && tokens <= prompt_) prefilled_ = 0;
    if (!side_by_side()) known_ = std::min(known_, tokens - brought);
    step_ = tokens_ = tokens;
    may_go_on_from_ = INT64_MAX;
    brought_ = brought;
    chosen_ = 0;
    observed_ = 0;
  }
  void prefilled_one() noexcept {
    if (++prefilled_ == layers_) known_ = std::max(known_, prompt_);
  }
  void chosen_one() noexcept {
    if (++chosen_ >= step_layers_) known_ = step_;
  }
  void observed_one() noexcept { ++observed_; }
  /// Outcomes of the step's tokens so far.
  std::int64_t observed() const noexcept { return observed_; }

 private:
  /// Tokens behind the first one of the last step, where that was made in every layer and nothing came since.
  std::int64_t drafts() const noexcept { return chosen_ >= step_layers_ && known_ == step_ ? brought_ - 1 : 0; }
  /// A prompt has further layers to come.
  bool side_by_side() const noexcept { return prefilled_ > 0 && prefilled_ < layers_; }
  static std::string piece(std::int64_t first, std::int64_t tokens) {
    return std::to_string(first) + ".." + std::to_string(tokens);
  }

  std::int64_t layers_;
  std::int64_t step_layers_;
  std::int64_t max_tokens_;
  std::int64_t known_ = 0;                   ///< tokens, in every layer
  std::int64_t first_ = 0;                   ///< of the last prompt
  std::int64_t prompt_ = 0;                  ///< its tokens
  std::int64_t begun_ = 0;                   ///< where its first piece began
  std::int64_t may_go_on_from_ = INT64_MAX;  ///< where a prompt begins that goes on with the last one; INT64_MAX behind a step
  std::int64_t step_ = 0;                    ///< tokens of the last step
  std::int64_t tokens_ = 0;                  ///< of whichever came last
  std::int64_t prefilled_ = 0;               ///< layers of the prompt
  std::int64_t chosen_ = 0;                  ///< layers of the step
  std::int64_t brought_ = 1;                 ///< tokens that the step brought
  std::int64_t observed_ = 0;                ///< of them
};

}  // namespace kvpolicy
