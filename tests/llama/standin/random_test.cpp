// Any calls around contexts on a device: the same calls go to contexts on the host, and the logits are the same.
// A failure prints what repeats it.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "conformance/rounds.hpp"
#include "decoding.hpp"
#include "device.hpp"
#include "hook.hpp"
#include "published.hpp"
#include "tiny_model.hpp"

namespace kvpolicy::llama::testing {
namespace {

constexpr std::int64_t longest = 120;

/// A context on the device under a policy, and its twin on the host, under a session of it, or none.
class twins {
 public:
  /// @param near_ties  the policy compares scores, and two kernels round them otherwise: a step may choose another page
  twins(std::uint64_t seed, std::string const& policy, bool with_session, bool near_ties)
      : near_ties_(near_ties),
        moves_(near_ties || !with_session),
        random_(seed),
        sequences_(1 + below(4)),
        unified_(below(2) == 0),
        holes_(!with_session),
        tokens_(sequences_) {
    register_standin();
    static model_owner const there = tiny_llama({.layers = 2, .gpu_layers = 99});
    static model_owner const here = tiny_llama({.layers = 2});
    llama_context_params params = parameters({.tokens = static_cast<std::uint32_t>(unified_ ? 512 : 256 * sequences_),
                                              .batch = 512,
                                              .micro_batch = std::array{8u, 32u, 512u}[with_session ? 2 : below(3)],
                                              .sequences = static_cast<std::uint32_t>(sequences_),
                                              .unified = unified_});
    say(std::to_string(sequences_) + " sequences " + (unified_ ? "in one cache" : "in streams") + ", micro-batches of " +
        std::to_string(params.n_ubatch));
    auto const say_refusal = [this](std::string const& line) { refusal_ = line; };
    ggml::put_before_devices(policy, say_refusal);
    ggml::expect_sequences(static_cast<std::int64_t>(sequences_));
    device_.emplace(there.get(), params);
    ggml::put_before_devices("", say_refusal);
    if (with_session) {
      session_ = std::make_unique<session>(known_policies().parse(policy, {}).policy);
      session_->attach(params, here.get());
    }
    host_.emplace(here.get(), params);
  }

  /// What was called and went wrong; empty if nothing did.
  std::string run(int calls) {
    try {
      // A state's tokens in an order that is not known are left to the engine, and a session on the host knows it: the twins
      // part.
      for (int i = 0; i < calls && !(restored_ && left()); ++i) call();
      if (session_ && left() && !restored_) throw std::runtime_error(refusal_);
      return {};
    } catch (std::exception const& fault) {
      if (restored_ && std::string(fault.what()).find("call load()") != std::string::npos)
        return {};  // the session's own limit
      return said_ + "  => " + fault.what();
    }
  }

 private:
  void call() {
    auto const s = static_cast<llama_seq_id>(below(sequences_));
    std::int64_t const length = tokens_[static_cast<std::size_t>(s)];
    switch (below(10)) {
      case 0:
        return remove(s, moves_ ? static_cast<llama_pos>(below(static_cast<std::uint64_t>(length) + 1)) : 0, -1);
      case 1:
        return !moves_ || below(3) == 0 ? remove(s, 0, -1) : copy(s);
      case 2:
        return holes_ ? cut_out(s) : remove(s, 0, -1);
      case 3:
        return moves_ && below(2) == 0 ? state(s) : decode({{s, prompt()}});
      case 4:
        return decode({{s, prompt()}});
      case 5:
      case 6: {
        std::map<llama_seq_id, std::int64_t> counts;  // prompts among steps
        // A prompt's last token alone in a micro-batch is a step on a device, and not where a session knows the batch: in
        // streams, which are cut to the shortest, one prompt at most.
        std::int64_t prompts = unified_ || !session_ ? 4 : 1;
        for (std::size_t i = 0; i < sequences_; ++i)
          counts[static_cast<llama_seq_id>(i)] = below(3) == 0 && prompts-- > 0 ? prompt() : 1;
        return decode(counts);
      }
      default:
        for (std::uint64_t left = 1 + below(5), all = below(2); left > 0; --left) {
          std::map<llama_seq_id, std::int64_t> counts{{s, 1}};
          for (std::size_t i = 0; all == 1 && i < sequences_; ++i) counts[static_cast<llama_seq_id>(i)] = 1;
          decode(counts);
        }
    }
  }

  void decode(std::map<llama_seq_id, std::int64_t> const& counts) {
    std::vector<llama_seq_id> order;
    std::string what = "decode";
    for (auto const& [of, count] : counts) {
      if (tokens_[static_cast<std::size_t>(of)] + count > longest) remove(of, 0, -1);
      order.push_back(of);
    }
    std::ranges::shuffle(order, random_);
    llama_batch batch = llama_batch_init(512, 0, 1);
    std::vector<std::int32_t> outputs;
    for (llama_seq_id const of : order) {
      std::int64_t const count = counts.at(of);
      what += " " + std::to_string(of) + "[" + std::to_string(tokens_[static_cast<std::size_t>(of)]) + " + " +
              std::to_string(count) + "]";
      llama_pos next = llama_memory_seq_pos_max(host_->memory(), of) + 1;
      for (std::int64_t t = 0; t < count; ++t) {
        std::int32_t const i = batch.n_tokens++;
        batch.token[i] = static_cast<llama_token>(below(tiny_vocabulary));
        batch.pos[i] = next++;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = of;
        batch.logits[i] = t + 1 == count;
      }
      outputs.push_back(batch.n_tokens - 1);
      tokens_[static_cast<std::size_t>(of)] += count;
    }
    say(what);
    if (session_) session_->set_batch(batch);
    int const here = llama_decode(host_->context(), batch);
    if (session_) session_->check();
    int const there = llama_decode(device_->context(), batch);
    llama_batch_free(batch);
    if (here != 0 || there != 0)
      throw std::runtime_error("returned " + std::to_string(here) + " and " + std::to_string(there) + ", " + refusal_);
    if (session_ && left()) return;
    for (std::int32_t const i : outputs) {
      auto const row = [&](decoder const& of) {
        float const* const first = llama_get_logits_ith(of.context(), i);
        return logits(first, first + tiny_vocabulary);
      };
      double const apart = difference(row(*device_), row(*host_));
      ++compared_;
      if (apart < .05) continue;
      say("  token " + std::to_string(i) + " of the batch is off by " + std::to_string(apart));
      if (++off_ > 1 + compared_ / 50 || !near_ties_) throw std::runtime_error("too many are off");
    }
  }

  void remove(llama_seq_id of, llama_pos first, llama_pos last) {
    say("remove " + std::to_string(of) + " from " + std::to_string(first) + " to " + std::to_string(last));
    each([&](decoder const& one) { llama_memory_seq_rm(one.memory(), of, first, last); });
    std::int64_t& tokens = tokens_[static_cast<std::size_t>(of)];
    llama_pos const end = llama_memory_seq_pos_max(host_->memory(), of) + 1;
    tokens = last < 0 ? (holes_ ? std::min<std::int64_t>(tokens, end) : end) : tokens - (last - first);
    if (end == 0) tokens = 0;
  }
  void cut_out(llama_seq_id of) {
    llama_pos const end = llama_memory_seq_pos_max(host_->memory(), of) + 1;
    if (end < 20) return;
    auto const first = static_cast<llama_pos>(below(10));
    remove(of, first, first + 7);
    if (below(2) == 0) return;
    say("move the rest");
    each([&](decoder const& one) { llama_memory_seq_add(one.memory(), of, first + 7, -1, -7); });
  }
  void copy(llama_seq_id from) {
    auto const to = static_cast<llama_seq_id>(below(sequences_));
    if (to == from) return;
    if (unified_) remove(to, 0, -1);
    say("copy " + std::to_string(from) + " to " + std::to_string(to));
    each([&](decoder const& one) { llama_memory_seq_cp(one.memory(), from, to, -1, -1); });
    tokens_[static_cast<std::size_t>(to)] = tokens_[static_cast<std::size_t>(from)];
  }
  void state(llama_seq_id of) {
    auto const to = static_cast<llama_seq_id>(below(sequences_));
    if (tokens_[static_cast<std::size_t>(of)] == 0) return;
    say("state of " + std::to_string(of) + " to " + std::to_string(to));
    each([&](decoder const& one) {
      std::vector<std::uint8_t> bytes(llama_state_seq_get_size(one.context(), of));
      bytes.resize(llama_state_seq_get_data(one.context(), bytes.data(), bytes.size(), of));
      if (llama_state_seq_set_data(one.context(), bytes.data(), bytes.size(), to) == 0) throw std::runtime_error("no state");
    });
    tokens_[static_cast<std::size_t>(to)] = tokens_[static_cast<std::size_t>(of)];
    restored_ = session_ != nullptr;
  }
  bool left() const { return refusal_.find("order its tokens") != std::string::npos; }

  std::int64_t prompt() { return 3 + static_cast<std::int64_t>(below(50)); }
  void each(std::function<void(decoder const&)> const& what) {
    what(*host_);
    what(*device_);
  }
  void say(std::string const& what) { said_ += "  " + what + "\n"; }
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  bool near_ties_;
  bool moves_;  ///< tokens are taken back, copied and restored; on the host, what streaming_llm dropped stays dropped then
  std::int64_t compared_ = 0;
  std::int64_t off_ = 0;
  std::mt19937_64 random_;
  std::size_t sequences_;
  bool unified_;
  bool holes_;  ///< tokens are removed from the middle, too
  std::vector<std::int64_t> tokens_;
  std::string refusal_;
  bool restored_ = false;
  std::string said_;
  std::unique_ptr<session> session_;
  std::optional<decoder> host_;
  std::optional<decoder> device_;
};

void seeds(std::string const& policy, bool with_session, bool near_ties = false) {
  auto const many = static_cast<std::uint64_t>(kvpolicy_test::rounds_of(100));
  for (std::uint64_t seed = 1; seed <= many; ++seed) {
    std::string const fault = twins(seed, policy, with_session, near_ties).run(40);
    INFO("seed " << seed << ", " << policy << "\n" << fault);
    REQUIRE(fault.empty());
  }
}

TEST_CASE("after any calls, a device's full cache gives the engine's logits", "[standin][random]") { seeds("full", false); }
TEST_CASE("after any calls, a policy on a device gives the logits of a session on the host", "[standin][random]") {
  seeds("streaming_llm:tokens=32", true);
  seeds("quest:tokens=32,page=8", true, true);
}

}  // namespace
}  // namespace kvpolicy::llama::testing
