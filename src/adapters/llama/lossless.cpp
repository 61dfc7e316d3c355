#include "kvpolicy/interop/llama/lossless.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "draft_count.hpp"
#include "engine.hpp"

namespace kvpolicy::llama {
namespace {

using clock = std::chrono::steady_clock;

double seconds_since(clock::time_point start) { return std::chrono::duration<double>(clock::now() - start).count(); }

/// A batch's arrays, with room for so many tokens.
class batch_room {
 public:
  explicit batch_room(std::size_t tokens)
      : tokens_(tokens), positions_(tokens), counts_(tokens, 1), sequences_(tokens), of_(tokens), outputs_(tokens, 1) {
    for (std::size_t i = 0; i < tokens; ++i) of_[i] = &sequences_[i];
  }
  void clear() noexcept { count_ = 0; }
  std::int32_t size() const noexcept { return static_cast<std::int32_t>(count_); }
  /// Every token has an output.
  void add(llama_token token, llama_pos position, llama_seq_id sequence) noexcept {
    tokens_[count_] = token;
    positions_[count_] = position;
    sequences_[count_++] = sequence;
  }
  llama_batch batch() noexcept {
    return {size(), tokens_.data(), nullptr, positions_.data(), counts_.data(), of_.data(), outputs_.data()};
  }

 private:
  std::size_t count_ = 0;
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> counts_;
  std::vector<llama_seq_id> sequences_;
  std::vector<llama_seq_id*> of_;
  std::vector<std::int8_t> outputs_;
};

/// What the last verification left of a sequence: its token, its drafts, and the logits behind each of them.
struct verified {
  llama_pos position = 0;  ///< the token's
  std::vector<llama_token> drafts;
  std::vector<float> logits;  ///< `[1 + drafts, vocabulary]`
  std::size_t proposed = 0;   ///< drafts, until they are judged
  std::size_t taken = 0;      ///< drafts that the caller took
  llama_pos chosen_at = 0;    ///< where the policy chose last: at a prompt's end, or where it took a verification for one
  std::int64_t put_off = 0;   ///< drafts that wait for a new choice
  draft_count count;
  lossless_statistics statistics{};

  bool waits() const noexcept { return taken < drafts.size(); }
  llama_pos next() const noexcept { return position + 1 + static_cast<llama_pos>(taken); }
};

}  // namespace

class lossless::rounds {
 public:
  rounds(session& with, llama_context* context, lossless_options const& options)
      : session_(with),
        context_(context),
        memory_(llama_get_memory(context)),
        options_(options),
        vocabulary_(static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context))))),
        batch_(static_cast<std::size_t>(llama_n_seq_max(context)) * most_step_tokens) {}

  void decode(std::span<lossless_token const> tokens) {
    check(tokens);
    std::vector<lossless_token> due;
    std::vector<verified*> ready;
    for (lossless_token const& one : tokens) {
      if (is_drafted(one)) ready.push_back(&all_[one.sequence]);
      else due.push_back(one);
    }
    for (verified* const s : ready) ++s->taken;
    try {
      if (!due.empty()) run(due);
    } catch (...) {
      for (verified* const s : ready) --s->taken;
      throw;
    }
    for (verified* const s : ready) ++s->statistics.accepted;
    for (lossless_token const& one : tokens) ++all_[one.sequence].statistics.tokens;
  }

  std::span<float const> logits(llama_seq_id of) const {
    auto const found = all_.find(of);
    KVPOLICY_EXPECTS(found != all_.end() && !found->second.logits.empty(),
                     "sequence " + std::to_string(of) + " has no logits; decode() one of its tokens first");
    return std::span(found->second.logits).subspan(found->second.taken * vocabulary_, vocabulary_);
  }

  void settle(llama_seq_id of) {
    auto const found = all_.find(of);
    if (found == all_.end() || !found->second.waits()) return;
    verified& s = found->second;
    cut(of, s.next());
    s.drafts.resize(s.taken);
  }

  void settle_all() {
    for (auto const& [of, s] : all_) settle(of);
  }

  std::int64_t tokens(llama_seq_id of) const {
    auto const found = all_.find(of);
    bool const waits = found != all_.end() && found->second.waits() && is_there(of, found->second);
    return waits ? found->second.next() : llama_memory_seq_pos_max(memory_, of) + 1;
  }

  lossless_statistics statistics(llama_seq_id of) const noexcept {
    auto const found = all_.find(of);
    return found != all_.end() ? found->second.statistics : lossless_statistics{};
  }

 private:
  void cut(llama_seq_id of, llama_pos from) {
    if (!llama_memory_seq_rm(memory_, of, from, -1))
      throw unsupported("the engine can't remove the last tokens of sequence " + std::to_string(of) +
                        ", which drafts need; decode without drafts");
  }

  void check(std::span<lossless_token const> tokens) const {
    auto const most = static_cast<llama_seq_id>(llama_n_seq_max(context_));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      llama_seq_id const of = tokens[i].sequence;
      KVPOLICY_EXPECTS(of >= 0 && of < most,
                       "sequence " + std::to_string(of) + " of a context that has 0 to " + std::to_string(most - 1));
      for (std::size_t j = 0; j < i; ++j)
        KVPOLICY_EXPECTS(tokens[j].sequence != of,
                         "sequence " + std::to_string(of) + " is named twice; decode one token of each");
    }
  }

  /// Whether nobody changed what the last verification left.
  bool is_there(llama_seq_id of, verified const& s) const noexcept {
    return llama_memory_seq_pos_max(memory_, of) == s.position + static_cast<llama_pos>(s.drafts.size());
  }
  /// Whether the token is the next draft of its sequence, which nobody has changed since.
  bool is_drafted(lossless_token const& one) {
    verified& s = all_[one.sequence];
    if (!s.waits()) return false;
    bool const there = is_there(one.sequence, s);
    if (!there) s.drafts.resize(s.taken);
    return there && s.drafts[s.taken] == one.token;
  }

  /// Drafts behind each token, and verifies them.
  void run(std::span<lossless_token const> due) {
    std::vector<std::vector<llama_token>> rows;
    std::vector<llama_pos> at;
    std::vector<std::int64_t> drafts;
    bool choose = false;
    for (lossless_token const& one : due) {
      settle(one.sequence);
      verified& s = all_[one.sequence];
      if (s.proposed > 0) s.count.judged(std::exchange(s.proposed, 0), s.taken);
      at.push_back(llama_memory_seq_pos_max(memory_, one.sequence) + 1);
      rows.push_back({one.token});
      if (at.back() != s.next()) {  // a prompt came, or one token was decoded by somebody else
        s.chosen_at = at.back();
        s.put_off = 0;
        if (at.back() != s.next() + 1) s.count.begin();
      }
      llama_pos const stood = at.back() - s.chosen_at;
      std::int64_t const most = most_of(at.back(), std::ssize(due));
      std::int64_t count = std::min(std::exchange(s.put_off, 0), most);
      if (count == 0) count = wanted(s, at.back(), most);
      choose = choose || (count > 0 && stood >= options_.renewed);
      if (stood >= 2 * options_.renewed) s.put_off = std::exchange(count, 0);  // the choice is of another place
      drafts.push_back(count);
    }
    auto const cut_all = [&] {
      for (std::size_t i = 0; i < due.size(); ++i) llama_memory_seq_rm(memory_, due[i].sequence, at[i], -1);
    };
    try {
      return verify(due, at, rows, draft(due, at, drafts, rows), choose);
    } catch (error const&) {
      cut_all();
      settle_all();  // others' drafts may be what is in the way
    } catch (...) {
      cut_all();
      throw;
    }
    // No room for the drafts, or the policy lacks something, such as a prompt's queries that nobody saw: once without.
    for (std::vector<llama_token>& row : rows) row.resize(1);
    try {
      verify(due, at, rows, 0, true);
    } catch (...) {
      cut_all();
      throw;
    }
  }

  /// As many drafts as fit the batch, and the sequence's cells beside the token itself.
  std::int64_t most_of(llama_pos at, std::int64_t sequences) const {
    std::int64_t const of_batch = static_cast<std::int64_t>(llama_n_batch(context_)) / sequences - 1;
    std::int64_t const cells = static_cast<std::int64_t>(llama_n_ctx_seq(context_)) - at - 1;
    return std::max<std::int64_t>(std::min<std::int64_t>({options_.drafts, cells, of_batch}), 0);
  }
  /// As many of them as pay.
  std::int64_t wanted(verified& s, llama_pos at, std::int64_t most) const {
    if (!options_.adapt) return most;
    return at < options_.shortest ? 0 : s.count.next(most);
  }

  /// Appends to the rows what the policy's steps find likeliest, and cuts them from the cache. Returns the seconds.
  double draft(std::span<lossless_token const> due, std::span<llama_pos const> at, std::span<std::int64_t const> drafts,
               std::vector<std::vector<llama_token>>& rows) {
    auto const begun = clock::now();
    std::int64_t const most = *std::ranges::max_element(drafts);
    std::vector<std::size_t> in_batch;
    for (std::int64_t d = 0; d < most; ++d) {
      auto const step = clock::now();
      batch_.clear();
      in_batch.clear();
      for (std::size_t i = 0; i < due.size(); ++i) {
        if (d >= drafts[i]) continue;
        batch_.add(rows[i].back(), at[i] + static_cast<llama_pos>(d), due[i].sequence);
        in_batch.push_back(i);
      }
      decode_batch(batch_reading::by_policy);
      for (std::size_t b = 0; b < in_batch.size(); ++b) {
        float const* const logits = llama_get_logits_ith(context_, static_cast<std::int32_t>(b));
        rows[in_batch[b]].push_back(static_cast<llama_token>(std::max_element(logits, logits + vocabulary_) - logits));
      }
      for (std::size_t const i : in_batch) all_[due[i].sequence].count.drafted(d, seconds_since(step));
    }
    for (std::size_t i = 0; i < due.size(); ++i) {
      if (drafts[i] > 0) cut(due[i].sequence, at[i]);
    }
    return seconds_since(begun);
  }

  void verify(std::span<lossless_token const> due, std::span<llama_pos const> at,
              std::span<std::vector<llama_token> const> rows, double drafting, bool as_prompt) {
    auto const begun = clock::now();
    batch_.clear();
    for (std::size_t i = 0; i < due.size(); ++i) {
      for (std::size_t t = 0; t < rows[i].size(); ++t)
        batch_.add(rows[i][t], at[i] + static_cast<llama_pos>(t), due[i].sequence);
    }
    decode_batch(as_prompt ? batch_reading::everything_as_prompt : batch_reading::everything);
    double const seconds = seconds_since(begun);
    std::int32_t row = 0;
    for (std::size_t i = 0; i < due.size(); ++i) {
      verified& s = all_[due[i].sequence];
      s.logits.resize(rows[i].size() * vocabulary_);
      s.position = at[i];
      s.taken = 0;
      if (as_prompt) s.chosen_at = at[i];
      s.drafts.assign(rows[i].begin() + 1, rows[i].end());
      s.proposed = s.drafts.size();
      for (std::size_t t = 0; t < rows[i].size(); ++t, ++row) {
        std::copy_n(llama_get_logits_ith(context_, row), vocabulary_,
                    s.logits.begin() + static_cast<std::ptrdiff_t>(t * vocabulary_));
      }
      s.count.verified(s.drafts.size(), seconds);
      ++s.statistics.rounds;
      s.statistics.drafted += std::ssize(s.drafts);
      s.statistics.draft_seconds += drafting;
      s.statistics.verify_seconds += seconds;
    }
  }

  void decode_batch(batch_reading how) {
    llama_batch const batch = batch_.batch();
    session_.set_batch(batch, how);
    int const status = llama_decode(context_, batch);
    if (status == 0) return;
    session_.check();
    throw error("llama_decode returned " + std::to_string(status) + " for " + std::to_string(batch.n_tokens) + " tokens");
  }

  session& session_;
  llama_context* context_;
  llama_memory_t memory_;
  lossless_options options_;
  std::size_t vocabulary_;
  batch_room batch_;
  std::map<llama_seq_id, verified> all_;
};

lossless::lossless(session& with, llama_context* context, lossless_options const& options) {
  KVPOLICY_EXPECTS(options.drafts >= 0 && options.drafts < most_step_tokens,
                   "lossless decoding with " + std::to_string(options.drafts) + " drafts; there can be 0 to " +
                       std::to_string(most_step_tokens - 1) + ": a verifying batch has the sampled token too");
  with.engine_->check_lossless(options.drafts > 0);
  rounds_ = std::make_unique<rounds>(with, context, options);
}
lossless::~lossless() = default;

std::span<float const> lossless::decode(llama_token token, llama_seq_id of) {
  lossless_token const one{token, of};
  decode({&one, 1});
  return logits(of);
}
void lossless::decode(std::span<lossless_token const> tokens) { rounds_->decode(tokens); }
std::span<float const> lossless::logits(llama_seq_id of) const { return rounds_->logits(of); }
void lossless::settle(llama_seq_id of) { rounds_->settle(of); }
void lossless::settle_all() { rounds_->settle_all(); }
std::int64_t lossless::tokens(llama_seq_id of) const { return rounds_->tokens(of); }
lossless_statistics lossless::statistics(llama_seq_id of) const noexcept { return rounds_->statistics(of); }

}  // namespace kvpolicy::llama
