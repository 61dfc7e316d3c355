#include "sequences.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace kvpolicy::llama {

void sequences::attach(cache_shape const& of_model, bool unified, bool hybrid) {
  of_model_ = of_model;
  unified_ = unified;
  batch_.cut_by_sequences(hybrid);
}

void sequences::use(host_policy policy) {
  if (shape_.max_tokens != 0) kvpolicy::check(policy, shape_);
  for (auto const& s : all_) {
    if (s) s->check_use();
  }
  for (auto const& s : all_) {
    if (s) s->use(policy);
  }
  policy_ = std::move(policy);
}

sequence const* sequences::find(llama_seq_id of) const noexcept {
  auto const at = static_cast<std::size_t>(of);
  return of >= 0 && at < all_.size() ? all_[at].get() : nullptr;
}
sequence* sequences::find(llama_seq_id of) noexcept { return const_cast<sequence*>(std::as_const(*this).find(of)); }

sequence& sequences::of(llama_seq_id id) {
  auto const most = static_cast<llama_seq_id>(llama_max_parallel_sequences());
  KVPOLICY_EXPECTS(id >= 0 && id < most,
                   "there is no sequence " + std::to_string(id) + "; llama.cpp has 0 to " + std::to_string(most - 1));
  auto const at = static_cast<std::size_t>(id);
  if (at >= all_.size()) all_.resize(at + 1);
  if (all_[at] == nullptr) {
    auto made = std::make_unique<sequence>(id, policy_, options_, rope_, storage_.rows_of(id, cells_));
    if (shape_.max_tokens != 0) made->begin(shape_, value_type_);
    all_[at] = std::move(made);
  }
  return *all_[at];
}

bool sequences::needs(signals which) const noexcept {
  return contains(needs_of(policy_), which) ||
         std::ranges::any_of(all_, [&](auto const& s) { return s != nullptr && contains(s->needs(), which); });
}

bool sequences::wants_logits() const noexcept {
  return std::ranges::any_of(steps_, [](sequence const* s) { return contains(s->needs(), signals::logits); });
}

/// Steps of others are repeated as they were; a prompt's window was cut in the middle.
void sequences::forget_graph() noexcept {
  if (served_ != nullptr) {
    served_->forget_all();
    for (sequence* const s : prompts_) s->forget_all();
    return;
  }
  for (auto const& s : all_) {
    if (s) s->forget_all();
  }
}

/// A managed cache gives cells back: a token comes behind the last of those that are left.
void sequences::correct_positions(attention_node const& node, graph_tokens const& graph, std::span<std::int32_t> counted) {
  if (storage_.engine_has_rows() || !cells_.are_of(node.keys)) return;
  written_.assign(graph.written.begin(), graph.written.end());
  std::ranges::sort(written_);
  for (std::int32_t i = 0; i < std::ssize(counted); ++i) {
    std::int32_t before = cell_table::unknown;
    std::int32_t new_before = -1;  // but for itself
    for (std::int64_t cell = 0; cell < node.mask.cells(); ++cell) {
      if (!node.mask.visible(i, cell)) continue;
      bool const is_new = std::ranges::binary_search(written_, graph.stream(i) * graph.stream_cells + cell);
      if (is_new) ++new_before;
      else before = std::max(before, cells_.position(graph.stream(i), static_cast<std::int32_t>(cell)));
    }
    if (before != cell_table::unknown) counted[static_cast<std::size_t>(i)] = before + 1 + new_before;
  }
}

bool sequences::follow(attention_node const& node, graph_tokens const& graph) noexcept {
  try {
    if (!node.refused.empty()) return cells_.forget(), false;
    if (node.layer == 0) {
      // Another context may have been made of the same parameters, to see what fits for instance.
      if (!cells_.are_of(node.keys)) cells_.begin(node.keys, node.values, node.stream_cells);
      history_due_ = !cells_.sees_history();
      cells_.write(graph);
    }
    if (is_last(node)) cells_.see_last(node.keys);
    return is_last(node);
  } catch (...) {
    cells_.forget();  // a policy that runs learns why in serve()
    return false;
  }
}

void sequences::rotate(std::span<std::int32_t const> by) {
  if (by.empty()) cells_.forget();
  else cells_.rotate(by);
}

void sequences::seal(attention_node const& node, graph_tokens const& graph) noexcept {
  if (is_last(node)) cells_.seal(graph.written);
}

node_use sequences::serve(attention_node const& node, graph_tokens const& graph) {
  if (node.layer == 0) {
    served_ = nullptr;
    if (shape_.max_tokens == 0) begin(node);
    begin_graph(node, graph);
  }
  if (node.mask.input() != mask_) throw unsupported("layers that attend to all tokens have masks of their own");
  see_rows(node);
  if (is_last(node) && history_due_) {
    for (auto const* const some : {&prompts_, &steps_}) {
      for (sequence* const s : *some) {
        served_ = s;
        or_leave(*s, [&] { s->check_history(); });
      }
    }
    served_ = nullptr;
  }
  if (prompts_.empty() || options_.prompts) return node_use::take;
  bool const wanted =
      !steps_.empty() || is_last(node) || std::ranges::any_of(prompts_, [](sequence const* s) { return s->keeps_queries(); });
  return wanted ? node_use::come_back : node_use::leave;
}

/// The first graph: now the cache's shape is known.
void sequences::begin(attention_node const& node) {
  cache_shape shape = of_model_;
  shape.max_tokens = node.stream_cells;
  shape.type = node.keys.type;
  value_type_ = node.values.type;
  seen_.reserve(static_cast<std::size_t>(node.stream_cells));
  storage_.begin(shape, value_type_);
  solo_.emplace(cache_shape{.layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 1, .max_tokens = 1});
  for (auto const& s : all_) {
    if (s) s->begin(shape, value_type_);
  }
  shape_ = shape;
  std::exception_ptr refused;  // one that can't be loaded is empty, and the others are there
  for (auto const& s : all_) {
    try {
      if (s) s->load_pending();
    } catch (...) {
      refused = std::current_exception();
    }
  }
  if (refused) std::rethrow_exception(refused);
}

/// A graph is about to run; its inputs are set, nothing of it is computed. Divides its tokens among sequences.
void sequences::begin_graph(attention_node const& node, graph_tokens const& graph) {
  prompts_.clear();
  steps_.clear();
  mask_ = node.mask.input();
  batch_.owners(graph, unified_, owners_);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    llama_seq_id const of = owners_[i];
    if (of < 0) continue;
    batch_indices_.clear();
    for (std::size_t j = i; j < owners_.size(); ++j) {
      if (owners_[j] != of) continue;
      batch_indices_.push_back(static_cast<std::int32_t>(j));
      owners_[j] = -1;
    }
    add(of, node.mask, graph);
  }
  served_ = nullptr;
}

void sequences::see_cells(graph_mask const& mask, std::int32_t batch_index) {
  seen_.clear();
  for (std::int64_t cell = 0; cell < mask.cells(); ++cell) {
    if (mask.visible(batch_index, cell)) seen_.push_back(static_cast<std::int32_t>(cell));
  }
}

/// What the sequence lacks of its tokens' history, another one may have.
void sequences::follow(sequence& s, seen_cells const& now) {
  auto const other_that = [&](auto has) -> sequence const* {
    auto const found = std::ranges::find_if(all_, [&](auto const& other) { return other && other.get() != &s && has(*other); });
    return found != all_.end() ? found->get() : nullptr;
  };
  std::int64_t const known = s.rows().sealed();
  switch (s.follow(now)) {
    case sequence::history::known:
      return;
    case sequence::history::of_others:
      if (sequence const* const donor = other_that([&](sequence const& other) { return other.knows(s); })) s.learn_from(*donor);
      return;
    case sequence::history::elsewhere:
      break;
  }
  sequence const* const donor = other_that([&](sequence const& other) { return other.has(now); });
  if (donor == nullptr) {
    throw unsupported("token " + std::to_string(now.position) + " of sequence " + std::to_string(s.id()) +
                      " comes behind tokens whose rows the session does not have: it has " + std::to_string(known) +
                      " tokens of this sequence, and no other has those that the engine still holds");
  }
  s.take_over(*donor, now.position, now.stream);
}

/// The graph writes tokens of this sequence, at batch_indices_.
void sequences::add(llama_seq_id id, graph_mask const& mask, graph_tokens const& graph) {
  sequence& s = of(id);
  served_ = &s;
  std::int32_t const first = batch_indices_.front();
  see_cells(mask, first);
  if (std::erase(seen_, graph.cell(first)) != 1) throw unsupported("attention is not causal: a token does not see itself");
  if (batch_indices_.size() > 1 && mask.visible(first, graph.cell(batch_indices_[1]))) {
    throw unsupported("tokens of sequence " + std::to_string(id) +
                      " see those behind them, as an image's do, or after llama_set_causal_attn(context, false): only causal "
                      "attention is supported");
  }
  auto const visible = std::ssize(seen_);
  seen_cells const now{mask, first, graph.cell(first), graph.stream(first), graph.position(first), seen_};
  try {
    follow(s, now);
  } catch (unsupported const& why) {
    if (!options_.lenient || mask.biased()) throw;
    s.leave(why.what(), now);
  }
  std::int64_t const before = s.tokens();
  storage_.check_length(before + std::ssize(batch_indices_));
  for (std::int64_t t = 0; t < before && mask.biased(); ++t) {
    if (mask.is_apart(first, s.rows().cells().cells()[static_cast<std::size_t>(t)], before - t)) continue;
    throw unsupported("sequence " + std::to_string(id) + " has holes between its positions, which ALiBi would see");
  }
  bool const step = batch_.may_step(id, std::ssize(batch_indices_)) && s.may_step(batch_indices_);
  if (step) s.add_step(batch_indices_, graph, batch_.reads_everything());
  else s.add_prompt(batch_indices_, graph, batch_.reads_everything());
  (step ? steps_ : prompts_).push_back(&s);
  check_causal(id, mask, graph, visible);
}

/// Tokens see those before them and not the next: the last one's cells are counted, the others read at their edges.
void sequences::check_causal(llama_seq_id of, graph_mask const& mask, graph_tokens const& graph, std::int64_t visible) {
  if (batch_indices_.size() == 1) return;
  see_cells(mask, batch_indices_.back());
  bool causal = std::ssize(seen_) == visible + std::ssize(batch_indices_);
  for (std::size_t i = 0; i + 1 < batch_indices_.size(); ++i) {
    causal = causal && mask.visible(batch_indices_[i], graph.cell(batch_indices_[i])) &&
             !mask.visible(batch_indices_[i], graph.cell(batch_indices_[i + 1]));
  }
  if (!causal) {
    throw unsupported("tokens of sequence " + std::to_string(of) +
                      " do not see exactly those before them: only causal attention is supported, and several sequences in one "
                      "unified cache need set_batch() before their decode");
  }
}

/// Where a layer's rows are now; of the same heads as all other layers', or refused.
void sequences::see_rows(attention_node const& node) {
  for (auto const& [r, dim] : {std::pair(node.keys, shape_.head_dim), std::pair(node.values, shape_.values_dim())}) {
    if (r.heads != shape_.kv_heads || r.head_dim != dim || node.queries.heads() != shape_.q_heads) {
      throw unsupported("layer " + std::to_string(node.layer) + " of those that are served has other heads than before");
    }
  }
  storage_.check(node);
  for (sequence* const s : prompts_) s->see(node);
  for (sequence* const s : steps_) s->see(node);
}

/// Lenient: a sequence whose policy fails is left, and does its work again without; the others go on.
template <class Work>
void sequences::or_leave(sequence& s, Work work) {
  try {
    work();
  } catch (std::exception const& why) {
    if (!options_.lenient || s.why_left() != nullptr) throw;
    s.leave(why.what());
    work();
  }
}

/// One layer's attention of every sequence, prompts and steps.
void sequences::attend(attention_node const& node, simd_exec& exec) {
  for (sequence* const s : prompts_) {
    served_ = s;
    if (s->keeps_queries()) s->keep_queries(node);
    or_leave(*s, [&] { s->prompt(node, exec); });
    if (is_last(node)) s->end_prompt(node.scale, exec);
  }
  served_ = nullptr;
  steps(node, exec);
}

void sequences::steps(attention_node const& node, simd_exec& exec) {
  for (sequence* const s : steps_) {
    served_ = s;
    or_leave(*s, [&] { s->step(node, exec); });
  }
  served_ = nullptr;
}

void sequences::attend_densely(attention_node const& node, simd_exec& exec) const {
  if (!storage_.engine_has_rows()) throw unsupported("a managed cache can't be attended to after a failure");
  for (sequence const* const s : prompts_) s->dense_prompt(node, exec);
  for (sequence const* const s : steps_) s->dense_step(node, exec);
}

/// The engine computed the prompts, and the steps among them are still to be.
void sequences::computed(attention_node const& node, simd_exec& exec) {
  for (sequence* const s : prompts_) {
    if (s->keeps_queries()) s->keep_queries(node);
    if (is_last(node)) s->end_prompt(node.scale, exec);
  }
  steps(node, exec);
}

void sequences::observe(std::int32_t batch_index, std::span<float const> logits) {
  for (sequence* const s : steps_) {
    bool const its = std::ranges::find(s->batch_indices(), batch_index) != s->batch_indices().end();
    if (!its || !contains(s->needs(), signals::logits)) continue;
    served_ = s;
    s->observe(logits, *solo_);
  }
}

}  // namespace kvpolicy::llama
