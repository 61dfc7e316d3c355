// Public llama.cpp calls around an attached session, drawn by seed, and a model of the cache that knows the calls alone.
#pragma once

#include <llama.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "decoding.hpp"
#include "kvpolicy/interop/llama.hpp"

namespace kvpolicy::llama::testing {

inline constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

struct token {
  llama_token id = 0;
  llama_pos position = 0;
  std::int64_t cell = 0;  ///< sequences of a unified cache may share it
};
using history = std::vector<token>;

/// How many tokens, ids and positions, are the same in both from the beginning on.
std::int64_t same_prefix(history const& a, history const& b);

/// One sequence, as the calls say that it is.
struct modelled {
  history tokens;
  history known;               ///< as of the last decode that the session saw, or load()
  saved_prompt heard{};        ///< what the session knew of them then
  std::int64_t hole = never;   ///< the first token behind one that was removed from the middle
  std::int64_t blind = never;  ///< the first token that the session neither saw written nor was told of by load()
  bool prompted = false;       ///< the session saw the end of its prompt, and since then only steps and cut tails
  bool replaced = false;       ///< since the session last saw it: a policy's state may begin anew
  bool restarted = false;      ///< a policy's state does begin anew
  bool unsure = false;         ///< what a policy's state was told can't be known
  saved_prompt seen{};         ///< what the session knew at the prompt's end; of it are still there:
  std::int64_t seen_tokens = 0;
  std::int64_t seen_queries = 0;

  void see(saved_prompt saved) {
    seen = std::move(saved);
    seen_tokens = seen.tokens;
    seen_queries = seen.window;
  }
  void cut_seen(std::int64_t to) {
    seen_queries = std::max<std::int64_t>(0, seen_queries - std::max<std::int64_t>(0, seen_tokens - to));
    seen_tokens = std::min(seen_tokens, to);
  }
  void cut(std::int64_t to) {
    tokens.resize(static_cast<std::size_t>(std::min(to, std::ssize(tokens))));
    prompted = prompted && seen_tokens <= to;
    cut_seen(to);
    if (hole >= to) hole = never;
    if (blind >= to) blind = never;
  }
  void replace() { prompted = false, replaced = true; }
};

struct part {
  llama_seq_id sequence = 0;
  token what{};
  bool output = false;
};

/// Tokens in the form of llama_decode, llama_process and the session.
struct batch {
  std::vector<part> parts;

  int decode(llama_context* with, bool extended);
  /// What a session is told before a decode.
  void set_for(session& to);

 private:
  llama_batch plain();

  std::vector<llama_token> ids_;
  std::vector<llama_pos> positions_;
  std::vector<std::int32_t> ones_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<std::int8_t> outputs_;
};

/// What the session takes a sequence's tokens of a decode for; either, where that depends on how the engine cuts them.
enum class decoded_as : std::uint8_t { prompt, step, either };

struct fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the engine can do with a model.
struct engine_limits {
  bool cuts = true;           ///< remove a sequence's tail: a hybrid's recurrent state does not follow
  bool three_streams = true;  ///< it ends the process when it makes a context of Kimi Linear with three
};

/// A context with a session, another without one that gets the same calls if wished, and what the calls make of their caches.
class random_calls {
 public:
  explicit random_calls(std::uint64_t seed, engine_limits const& engine = {});
  virtual ~random_calls() = default;

  /// Makes so many calls. What was called and went wrong; empty if nothing did.
  std::string run(int calls);

 protected:
  /// To be called once, with the session that the context is attached to.
  void open(llama_model* model, std::unique_ptr<session> of, bool with_twin);

  /// Decoding, as the one who checks it sees it: `before` tokens were there, a prompt or one token came.
  virtual void begins(llama_seq_id of) = 0;
  virtual void ended(llama_seq_id of, std::int64_t before, decoded_as what) = 0;
  virtual bool may_refuse(std::string const& what, modelled const& of) const = 0;
  /// The session's use() of its policy.
  virtual void use(session& by) = 0;

  modelled& at(llama_seq_id of) { return sequences_[static_cast<std::size_t>(of)]; }
  std::size_t sequences() const noexcept { return sequences_.size(); }
  bool detached() const noexcept { return detached_; }
  /// By how much an element of a key may be off: it is rounded again each time that it is turned.
  float rounding() const noexcept { return blocks_ ? .12f : .03f; }
  session& attached() noexcept { return *session_; }
  /// For the engine's threads, where a throw would be taken for the session's.
  void wrong(llama_seq_id of, std::string const& what);
  bool is_wrong() const noexcept { return !wrong_.empty(); }

 private:
  using token_counts = std::map<llama_seq_id, std::int64_t>;
  struct saved_state {
    llama_seq_id of = -1;  ///< -1: of the whole context
    std::array<std::vector<std::uint8_t>, 2> bytes;
    std::vector<modelled> sequences;
    std::vector<std::optional<saved_prompt>> prompts;  ///< none: the session had not seen what the sequence was then
  };

  /// So many tokens of each sequence, one sequence after the other or mixed.
  void decode(token_counts const& counts, bool mixed = false);
  void check_refusal(token_counts const& before, std::string const& said);
  void pass_over(token_counts const& before, std::string const& said);
  void undo(batch all, token_counts const& before, std::string const& said, bool extended, bool waited);
  void compare(batch const& all);

  void call();
  void steps();
  void prompt();
  void mixed();
  void cut();
  void end();
  /// From the middle or the beginning; the rest is moved forward, perhaps, as where room is made for more.
  void cut_out();
  void remove(llama_seq_id of, llama_pos first, llama_pos last);
  void keep();
  void clear();
  void shift();
  void add_to_positions(llama_seq_id of, llama_pos from, llama_pos by);
  /// Streams are copied whole, over whatever is there. In one cache nothing is copied, and what is behind may stay.
  void copy();
  void get();
  void set();
  void restore(llama_seq_id to, modelled const& from, std::optional<saved_prompt> const* prompt);
  void threads();
  void abort_callback();
  void attach();
  std::int64_t room(llama_seq_id of);
  /// Whether another sequence has one of its cells.
  bool shared(llama_seq_id with);
  void renew(history& tokens);
  void say(std::string const& what) { said_ += "  " + what + "\n"; }
  llama_pos end_of(llama_seq_id of) { return at(of).tokens.empty() ? 0 : at(of).tokens.back().position + 1; }
  llama_pos position(llama_seq_id of, std::int64_t t) { return at(of).tokens[static_cast<std::size_t>(t)].position; }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  std::int64_t between(std::int64_t first, std::int64_t end) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(end - first)));
  }
  llama_seq_id any() { return static_cast<llama_seq_id>(below(sequences_.size())); }
  template <class Use>
  void each(Use use) {
    use(*ours_, 0);
    if (twin_) use(*twin_, 1);
  }

  std::mt19937_64 random_;
  std::vector<modelled> sequences_;
  bool cuts_;  ///< see engine_limits
  bool unified_;
  bool blocks_;  ///< the cache is of q8_0
  std::int64_t micro_batch_ = 0;
  std::unique_ptr<session> session_;
  std::optional<decoder> ours_;
  std::optional<decoder> twin_;
  bool detached_ = false;
  bool unstoppable_ = false;  ///< the abort callback is no longer the session's
  bool waits_ = false;  ///< the engine puts off turned keys and copied streams to the next decode; no state has them before
  std::int64_t cells_ = 0;
  std::vector<saved_state> states_;
  std::string wrong_;
  std::string said_;
};

}  // namespace kvpolicy::llama::testing
