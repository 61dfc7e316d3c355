#include "random_calls.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr std::int64_t longest = 110;  // tokens of a sequence: four of them fit into every context here

template <class Number>
std::string number(Number n) {
  return std::to_string(n);
}

}  // namespace

std::int64_t same_prefix(history const& a, history const& b) {
  auto const same = [](token const& x, token const& y) { return x.id == y.id && x.position == y.position; };
  return std::ranges::mismatch(a, b, same).in1 - a.begin();
}

int batch::decode(llama_context* with, bool extended) {
  if (!extended) return llama_decode(with, plain());
  std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> const made(llama_batch_ext_init(with),
                                                                               &llama_batch_ext_free);
  for (part const& p : parts) {
    std::int32_t const at = llama_batch_ext_add_token(made.get(), p.sequence, p.what.id);
    llama_batch_ext_set_pos(made.get(), at, &p.what.position);
    llama_batch_ext_set_output_logits(made.get(), at, p.output);
  }
  return llama_process(with, LLAMA_PROCESS_TYPE_DECODE, made.get());
}

void batch::set_for(session& to) { to.set_batch(plain()); }

llama_batch batch::plain() {
  ids_.clear(), positions_.clear(), sequences_.clear(), outputs_.clear();
  for (part& p : parts) {
    ids_.push_back(p.what.id);
    positions_.push_back(p.what.position);
    sequences_.push_back(&p.sequence);
    outputs_.push_back(p.output);
  }
  ones_.assign(parts.size(), 1);
  return {static_cast<std::int32_t>(parts.size()),
          ids_.data(),
          nullptr,
          positions_.data(),
          ones_.data(),
          sequences_.data(),
          outputs_.data()};
}

random_calls::random_calls(std::uint64_t seed, engine_limits const& engine)
    : random_(seed), sequences_(1 + below(4)), cuts_(engine.cuts), unified_(below(2) == 0), blocks_(below(3) == 0) {
  unified_ = unified_ || (sequences_.size() == 3 && !engine.three_streams);
}

void random_calls::open(llama_model* model, std::unique_ptr<session> of, bool with_twin) {
  llama_context_params params = parameters({.tokens = static_cast<std::uint32_t>(256 * (unified_ ? 2 : sequences_.size())),
                                            .batch = 512,
                                            .micro_batch = std::array{8u, 32u, 512u}[below(3)],
                                            .threads = below(8) == 0 ? 2 : 1,
                                            .type = blocks_ ? GGML_TYPE_Q8_0 : GGML_TYPE_F16,
                                            .sequences = static_cast<std::uint32_t>(sequences_.size()),
                                            .unified = unified_});
  micro_batch_ = params.n_ubatch;
  if (with_twin) twin_.emplace(model, params);
  session_ = std::move(of);
  session_->attach(params, model);
  ours_.emplace(model, params);
  say(number(sequences_.size()) + " sequences " + (unified_ ? "in one cache" : "in streams") + ", micro-batches of " +
      number(micro_batch_) + (blocks_ ? ", q8_0" : "") + ", threads " + number(params.n_threads));
}

std::string random_calls::run(int calls) {
  try {
    for (int i = 0; i < calls; ++i) call();
    return {};
  } catch (std::exception const& fault) {
    return said_ + "  => " + fault.what();
  }
}

void random_calls::wrong(llama_seq_id of, std::string const& what) {
  if (wrong_.empty()) wrong_ = "sequence " + number(of) + ": " + what;
}

void random_calls::decode(token_counts const& counts, bool mixed) {
  bool const extended = below(4) == 0;
  bool const all_outputs = below(4) == 0;
  batch all;
  std::string what = extended ? "llama_process" : "llama_decode";
  token_counts before;
  bool steps = true;
  for (auto const& [of, count] : counts) {
    before[of] = std::ssize(at(of).tokens);
    begins(of);
    steps = steps && count == 1;
    what += " " + number(of) + "[" + number(before[of]) + " + " + number(count) + "]";
  }
  for (auto left = counts; !left.empty();) {
    auto const next = std::next(left.begin(), mixed ? static_cast<int>(below(left.size())) : 0);
    token const made{static_cast<llama_token>(below(tiny_vocabulary)), end_of(next->first), ++cells_};
    at(next->first).tokens.push_back(made);
    all.parts.push_back({next->first, made, all_outputs || next->second == 1});
    if (--next->second == 0) left.erase(next);
  }
  // In streams it may be left out, and in one cache of sequence 0; a prompt's token alone in a micro-batch is a step then.
  bool const alone =
      std::ranges::all_of(sequences_.begin() + 1, sequences_.end(), [](modelled const& s) { return s.tokens.empty(); });
  bool const whole = steps || (counts.size() == 1 && std::ssize(all.parts) % micro_batch_ != 1);
  bool const silent = (alone || !unified_) && whole && below(4) == 0;
  say(what + (mixed ? ", mixed" : "") + (silent ? ", no set_batch" : ""));
  if (!silent) all.set_for(*session_);
  int const status = all.decode(ours_->context(), extended);
  bool const waited = std::exchange(waits_, false);
  std::string said;
  try {
    session_->check();
  } catch (error const& refusal) {
    said = refusal.what();
  }
  if (!wrong_.empty()) throw fault(wrong_);
  bool const goes_on = status == 0 && !said.empty() && unstoppable_;
  if ((status == 0) != said.empty() && !goes_on) throw fault("returned " + number(status) + ", check() threw '" + said + "'");
  if (status != 0) return undo(std::move(all), before, said, extended, waited);
  if (goes_on) pass_over(before, said);
  else
    for (auto const& [of, count] : counts) {
      bool const drafts = before[of] > 0 && count > 1 && count <= most_step_tokens && all_outputs && !silent;
      bool const together = counts.size() == 1 && count <= micro_batch_;
      ended(of, before[of],
            count == 1 || (drafts && together) ? decoded_as::step
            : drafts                           ? decoded_as::either
                                               : decoded_as::prompt);
    }
  if (!twin_) return;
  if (all.decode(twin_->context(), extended) != 0) throw fault("the context without a session did not decode this");
  compare(all);
}

void random_calls::compare(batch const& all) {
  for (std::size_t i = 0; i < all.parts.size(); ++i) {
    if (!all.parts[i].output) continue;
    auto const row = [&](decoder const& of) {
      float const* const first = llama_get_logits_ith(of.context(), static_cast<std::int32_t>(i));
      return logits(first, first + tiny_vocabulary);
    };
    double const apart = difference(row(*ours_), row(*twin_));
    if (!(apart < (blocks_ ? .15 : .05)))
      throw fault("token " + number(i) + " of the batch is off by " + std::to_string(apart));
  }
}

void random_calls::check_refusal(token_counts const& before, std::string const& said) {
  say("  refused: " + said.substr(0, 60) + "...");
  auto const may = [&](auto const& b) { return may_refuse(said, at(b.first)); };
  if (detached_ || std::ranges::none_of(before, may)) throw fault("refused what is not on the list: " + said);
}

/// A refused decode that could not be stopped: the engine's attention served it.
void random_calls::pass_over(token_counts const& before, std::string const& said) {
  check_refusal(before, said);
  for (auto const& b : before) {
    modelled& s = at(b.first);
    s.known = s.tokens;
    s.unsure = true;
    s.prompted = false;
    s.replaced = true;
  }
}

/// A refused decode: the micro-batches before the refused one stay, in the twin too.
void random_calls::undo(batch all, token_counts const& before, std::string const& said, bool extended, bool waited) {
  check_refusal(before, said);
  if (!cuts_) {  // the graph that was stopped may have been moving others' recurrent states
    waits_ = twin_ && waited;
    return clear();
  }
  for (auto const& [of, tokens] : before) {
    modelled& s = at(of);
    llama_pos const last = llama_memory_seq_pos_max(ours_->memory(), of);
    while (!s.tokens.empty() && s.tokens.back().position > last) s.tokens.pop_back();
    if (std::ssize(s.tokens) < tokens) throw fault("a refused decode took tokens away");
    s.known = s.tokens;
    s.unsure = true;
    s.prompted = false;
  }
  std::erase_if(all.parts, [&](part const& p) { return p.what.position >= end_of(p.sequence); });
  if (all.parts.empty()) waits_ = twin_ && waited;
  else if (twin_ && all.decode(twin_->context(), extended) != 0) throw fault("the context without a session can't follow");
  for (auto const& b : before) {
    if (below(4) != 0) remove(b.first, 0, -1);
  }
}

void random_calls::call() {
  static constexpr std::pair<int, void (random_calls::*)()> all[] = {
      {26, &random_calls::steps},  {14, &random_calls::prompt},        {10, &random_calls::mixed}, {7, &random_calls::cut},
      {5, &random_calls::end},     {2, &random_calls::cut_out},        {9, &random_calls::copy},   {1, &random_calls::keep},
      {3, &random_calls::shift},   {1, &random_calls::clear},          {8, &random_calls::get},    {9, &random_calls::set},
      {1, &random_calls::threads}, {1, &random_calls::abort_callback}, {3, &random_calls::attach}};
  int drawn = static_cast<int>(below(100));
  for (auto const& [weight, does] : all) {
    if (drawn < weight) return (this->*does)();
    drawn -= weight;
  }
}

void random_calls::steps() {
  token_counts counts;
  for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
    if (below(3) != 0 && !at(of).tokens.empty() && room(of) > 0) counts[of] = 1;
  }
  counts.empty() ? prompt() : decode(counts);
}

void random_calls::prompt() {
  llama_seq_id const of = any();
  if (room(of) < 2) return remove(of, 0, -1);
  decode({{of, std::min(room(of), between(2, 36))}});
}

void random_calls::mixed() {
  token_counts counts;
  for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
    std::int64_t const count = below(2) == 0 ? 1 : between(2, 26);
    if (below(3) != 0 && room(of) >= count) counts[of] = count;
  }
  counts.empty() ? end() : decode(counts, below(3) == 0);
}

void random_calls::cut() {
  llama_seq_id const of = any();
  std::int64_t const count = std::ssize(at(of).tokens);
  if (count > 1)
    remove(of, position(of, below(2) == 0 ? std::max<std::int64_t>(1, count - between(1, 7)) : between(1, count)), -1);
}

void random_calls::end() { remove(any(), -1, -1); }

void random_calls::cut_out() {
  llama_seq_id const of = any();
  std::int64_t const half = std::ssize(at(of).tokens) / 2;
  if (half < 4 || shared(of)) return;
  std::int64_t const from = between(0, half);
  llama_pos const first = position(of, from);
  llama_pos const last = position(of, between(from + 1, from + half));
  remove(of, first, last);
  if (below(2) == 0) add_to_positions(of, last, first - last);
}

void random_calls::remove(llama_seq_id of, llama_pos first, llama_pos last) {
  say("seq_rm " + number(of) + " [" + number(first) + ", " + number(last) + ")");
  modelled& s = at(of);
  bool const tail = first > 0 && !s.tokens.empty() && s.tokens.back().position >= first && (last < 0 || last >= end_of(of));
  each([&](decoder& d, int) {
    if (llama_memory_seq_rm(d.memory(), of, first, last) != (cuts_ || !tail)) throw fault("seq_rm did otherwise than expected");
  });
  if (!cuts_ && tail) return;
  history after;
  std::ranges::copy_if(s.tokens, std::back_inserter(after), [&](token const& t) { return last >= 0 && t.position >= last; });
  s.cut(std::ranges::count_if(s.tokens, [&](token const& t) { return t.position < first; }));
  if (after.empty()) return;
  s.hole = std::min(s.hole, std::ssize(s.tokens));
  s.tokens.insert(s.tokens.end(), after.begin(), after.end());
  s.replace();
}

void random_calls::keep() {
  if (!cuts_ && !unified_) return;  // the engine keeps the others' rows, and not their recurrent states
  llama_seq_id const of = any();
  say("seq_keep " + number(of));
  each([&](decoder& d, int) { llama_memory_seq_keep(d.memory(), of); });
  for (modelled& s : sequences_) {
    if (unified_ && &s != &at(of)) s.cut(0);  // streams are kept each
  }
}

void random_calls::clear() {
  bool const data = below(2) == 0;
  say("clear");
  each([&](decoder& d, int) { llama_memory_clear(d.memory(), data); });
  for (modelled& s : sequences_) s.cut(0);
}

void random_calls::shift() {
  llama_seq_id const of = any();
  if (!at(of).tokens.empty() && !shared(of)) add_to_positions(of, -1, static_cast<llama_pos>(between(1, 21)));
}

void random_calls::add_to_positions(llama_seq_id of, llama_pos from, llama_pos by) {
  if (blocks_ || !llama_memory_can_shift(ours_->memory())) return;  // the engine dies of it, of blocks for heads of 32
  say("seq_add " + number(of) + " [" + number(from) + ", inf) " + number(by));
  each([&](decoder& d, int) { llama_memory_seq_add(d.memory(), of, from, -1, by); });
  for (token& t : at(of).tokens) t.position += t.position >= from ? by : 0;
  for (modelled& s : sequences_) s.replace();
  at(of).see({});
  waits_ = true;
}

void random_calls::copy() {
  llama_seq_id const from = any();
  llama_seq_id const to = any();
  std::int64_t const all = std::ssize(at(from).tokens);
  if (from == to || all == 0) return;
  std::int64_t const count = unified_ && cuts_ && below(2) == 0 ? between(1, all + 1) : all;
  llama_pos const last = count == all ? -1 : position(from, count);
  bool const stays = last >= 0 && below(4) == 0 && room(to) > count;
  if (unified_) remove(to, -1, stays ? last : -1);
  history const rest = unified_ ? at(to).tokens : history{};
  say("seq_cp " + number(from) + " to " + number(to) + " [-1, " + number(last) + ")");
  each([&](decoder& d, int) { llama_memory_seq_cp(d.memory(), from, to, -1, last); });
  modelled& s = at(to);
  s.tokens = at(from).tokens;
  s.hole = at(from).hole;
  s.blind = at(from).blind;
  s.see(at(from).seen);
  s.cut_seen(at(from).seen_tokens);
  s.cut(count);
  if (!rest.empty()) s.hole = 0;
  s.tokens.insert(s.tokens.end(), rest.begin(), rest.end());
  s.replace();
  if (unified_) return;
  renew(s.tokens);
  waits_ = true;
}

void random_calls::get() {
  saved_state made{.of = below(4) == 0 ? -1 : any(), .bytes = {}, .sequences = {}, .prompts = {}};
  if (waits_) return steps();
  if (made.of >= 0 && at(made.of).tokens.empty()) return;  // to set it would change nothing
  say("get state " + number(states_.size()) + " of " + number(made.of));
  each([&](decoder& d, int i) {
    std::vector<std::uint8_t>& bytes = made.bytes[static_cast<std::size_t>(i)];
    llama_context* const c = d.context();
    bytes.resize(made.of < 0 ? llama_state_get_size(c) : llama_state_seq_get_size(c, made.of));
    if (made.of < 0) llama_state_get_data(c, bytes.data(), bytes.size());
    else llama_state_seq_get_data(c, bytes.data(), bytes.size(), made.of);
  });
  for (llama_seq_id of = 0; of < std::ssize(sequences_); ++of) {
    modelled const& s = at(of);
    if (made.of >= 0 && made.of != of) continue;
    bool const behind = detached_ || s.blind != never || s.replaced || same_prefix(s.known, s.tokens) == 0;
    made.sequences.push_back(s);
    made.prompts.push_back(behind ? std::nullopt : std::optional(session_->save(of)));
  }
  states_.push_back(std::move(made));
}

void random_calls::set() {
  if (waits_ || states_.empty()) return steps();
  std::size_t const which = states_.size() - 1 - below(std::min<std::size_t>(3, states_.size()));
  saved_state const& from = states_[which];
  bool const loads = below(3) != 0;
  llama_seq_id const to = from.of < 0 ? 0 : any();
  say("set state " + number(which) + (from.of < 0 ? "" : " to " + number(to)) + (loads ? " with load" : ""));
  each([&](decoder& d, int i) {
    std::vector<std::uint8_t> const& bytes = from.bytes[static_cast<std::size_t>(i)];
    if (from.of < 0) llama_state_set_data(d.context(), bytes.data(), bytes.size());
    else llama_state_seq_set_data(d.context(), bytes.data(), bytes.size(), to);
  });
  for (std::size_t i = 0; i < from.sequences.size(); ++i) {
    restore(to + static_cast<llama_seq_id>(i), from.sequences[i], loads ? &from.prompts[i] : nullptr);
  }
  if (from.of >= 0) renew(at(to).tokens);
}

void random_calls::restore(llama_seq_id to, modelled const& from, std::optional<saved_prompt> const* prompt) {
  modelled& s = at(to);
  s.tokens = from.tokens;
  s.hole = from.hole;
  bool const known = s.tokens.empty() || (prompt != nullptr && prompt->has_value());
  s.blind = known ? never : 0;
  s.replace();
  if (prompt == nullptr) return s.cut_seen(same_prefix(s.known, s.tokens));  // it may see that nothing changed
  s.see(prompt->value_or(saved_prompt{}));
  s.cut_seen(std::ssize(s.tokens));  // it may have been saved before a tail was cut
  session_->load(s.seen, to);
  s.known = prompt->has_value() ? from.known : history{};
  s.heard = s.seen;
  s.restarted = true;
  s.prompted = s.seen_tokens == std::ssize(s.tokens) && s.seen_queries > 0;
}

void random_calls::threads() {
  auto const one = static_cast<std::int32_t>(between(1, 3));
  auto const many = static_cast<std::int32_t>(between(1, 3));
  say("threads " + number(one) + " and " + number(many));
  each([&](decoder& d, int) { llama_set_n_threads(d.context(), one, many); });
}

void random_calls::abort_callback() {
  say("abort callback");
  unstoppable_ = true;
  each([](decoder& d, int) {
    llama_set_abort_callback(
        d.context(), [](void*) { return false; }, nullptr);
  });
}

void random_calls::attach() {
  if (!detached_ && below(3) != 0) {
    say("detach");
    session_->detach();
    detached_ = true;
    return;
  }
  say("use");
  use(*session_);
  detached_ = false;
  for (modelled& s : sequences_) {
    s.replace();
    s.restarted = true;
    s.see({});
  }
}

std::int64_t random_calls::room(llama_seq_id of) { return longest - std::ssize(at(of).tokens); }

bool random_calls::shared(llama_seq_id with) {
  return std::ranges::any_of(sequences_, [&](modelled const& s) {
    auto const also = [&](token const& t) { return std::ranges::find(s.tokens, t.cell, &token::cell) != s.tokens.end(); };
    return &s != &at(with) && std::ranges::any_of(at(with).tokens, also);
  });
}

void random_calls::renew(history& tokens) {
  for (token& t : tokens) t.cell = ++cells_;
}

}  // namespace kvpolicy::llama::testing
