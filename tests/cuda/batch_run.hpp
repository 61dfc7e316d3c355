// A decoder's steps beside the four verbs' on the oracle, over random batches.
#pragma once

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/rounds.hpp"
#include "conformance/tokens.hpp"
#include "cuda/batch_cache.hpp"
#include "cuda/test_device.hpp"
#include "kvpolicy/exec/host.hpp"
#include "kvpolicy/gpu/base/vectors.hpp"
#include "kvpolicy/gpu/decoder.hpp"

namespace kvpolicy_test {

constexpr std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }

/// What list `head` of a sequence names, read as kernels read it.
inline std::vector<std::int64_t> tokens_of(test_device const& device, gpu::token_lists const& lists, std::int64_t sequence,
                                           std::int64_t head) {
  auto const number = [&](gpu::per_sequence const& of, std::int64_t nth) -> std::int64_t {
    return of.values.data == nullptr ? of.all : device.read(of.values, nth, 1)[0];
  };
  std::int64_t const list = sequence * lists.lists + (lists.lists == 1 ? 0 : head);
  std::int64_t const tail = number(lists.tail, lists.tails == 1 ? sequence : list);
  std::int32_t const named = lists.named.data == nullptr ? 0 : device.read(lists.named, list, 1)[0];
  auto const units = device.read(lists.units, list * lists.stride, gpu::divided_up(named, lists.unit_size));
  std::vector<std::int64_t> made;
  for (std::int32_t i = 0; i < named; ++i) {
    made.push_back(units[static_cast<std::size_t>(i / lists.unit_size)] * lists.unit_size + i % lists.unit_size);
  }
  for (std::int64_t t = tail; t < number(lists.tokens, sequence); ++t) made.push_back(t);
  return made;
}

/// One sequence of the batch, run by the four verbs on the oracle.
template <class Policy>
struct oracle {
  Policy const& policy;
  request_of<Policy> state;
  host_exec exec;

  oracle(Policy const& p, cache_shape const& shape) : policy(p), state(start(p, shape)) {}
};

inline constexpr std::int64_t vocabulary = 21;

template <class Policy>
class batch_run {
  using view_type = gpu::sequence_view<gpu::paged_batch, host_memory>;

 public:
  /// `nearly`: where summaries are rounded to 16 bits, the last bit of a float may change one, and a list with it.
  batch_run(Policy const& policy, cache_shape const& shape, std::int64_t sequences, bool whole, random_source& random,
            bool nearly = false)
      : policy_(policy),
        shape_(shape),
        random_(random),
        whole_(whole),
        nearly_(nearly),
        is_captured_(on_real_gpu || random.one_in(2)),
        halves_(shape.type != element_type::f32 && random.one_in(3)),
        most_new_(waits(policy) || gpu::retain_renews<Policy, test_device> || random.one_in(2) ? 1 : random.between(2, 6)),
        moves_(random.one_in(3)),
        rows_(sequences + (moves_ ? random.between(0, 2) : 0)),
        row_of_(static_cast<std::size_t>(sequences)),
        cache_(shape, sequences, static_cast<std::int32_t>(random.between(1, 20)),
               random.one_in(2) ? page_layout::nhd : page_layout::hnd, random, whole, rows_),
        device_(static_cast<std::uint64_t>(random.between(1, 1000))),
        decoder_(policy, shape, sequences, device_, most_new_, moves_ ? rows_ : 0),
        tokens_(static_cast<std::size_t>(sequences)),
        prompts_(static_cast<std::size_t>(sequences)),
        new_(static_cast<std::size_t>(sequences)),
        queries_(static_cast<std::size_t>(shape.layers * layer_size())),
        short_queries_(queries_.size()),
        out_(queries_.size(), 7),
        logits_(static_cast<std::size_t>(rows_ * most_new_ * vocabulary)),
        ids_(static_cast<std::size_t>(rows_ * most_new_)),
        lists_(static_cast<std::size_t>(shape.layers)),
        oracles_(static_cast<std::size_t>(sequences)) {
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, shape.head_dim / 2); ++i)
      frequencies_.push_back(whole ? 0 : std::pow(.3f, static_cast<float>(i)));  // keys that turn are no whole numbers
    if (random.one_in(2)) rotation_ = rotation::pairing::neighbours;
    std::iota(row_of_.begin(), row_of_.end(), 0);
    for (auto* const of : {&slopes_, &sinks_})
      for (std::int64_t q = 0, heads = random.one_in(4) ? shape.q_heads : 0; q < heads; ++q)
        of->push_back(.25f * random.real());
    if (random.one_in(4)) terms_.soft_cap = 1.5f;
    terms_.slopes = slopes_.empty() ? nullptr : on_device(slopes_).data;
    terms_.sinks = sinks_.empty() ? nullptr : on_device(sinks_).data;
  }

  /// A new request in a slot; in two pieces in one case of two.
  void begin(std::int64_t sequence, std::int64_t tokens) {
    auto& mine = oracles_[static_cast<std::size_t>(sequence)];
    mine.emplace(policy_, shape_);
    for (std::int64_t t = 0; t < tokens; ++t) cache_.write(sequence, t, random_);
    std::int64_t const cut = tokens > 1 && random_.one_in(2) ? random_.between(1, tokens - 1) : tokens;
    piece(sequence, 0, cut, *mine);
    if (cut < tokens) piece(sequence, cut, tokens, *mine);
    prompts_[static_cast<std::size_t>(sequence)] = tokens_[static_cast<std::size_t>(sequence)] =
        static_cast<std::int32_t>(tokens);
  }
  /// More of the prompt, after what was decoded.
  void extend(std::int64_t sequence, std::int64_t more) {
    std::int32_t& tokens = tokens_[static_cast<std::size_t>(sequence)];
    if (tokens == 0) return;
    for (std::int64_t t = tokens; t < tokens + more; ++t) cache_.write(sequence, t, random_);
    piece(sequence, tokens, tokens + more, *oracles_[static_cast<std::size_t>(sequence)]);
    tokens += static_cast<std::int32_t>(more);
    prompts_[static_cast<std::size_t>(sequence)] = tokens;
  }
  /// The sequence is repeated, in one piece or two; rows behind it are scratch.
  void repeat(std::int64_t sequence) {
    std::int64_t const tokens = tokens_[static_cast<std::size_t>(sequence)];
    if (tokens < 2) return;
    std::int64_t const cut = random_.one_in(2) ? random_.between(1, tokens - 1) : tokens;
    for (token_span const of : {token_span{0, cut}, token_span{cut, tokens}}) {
      if (of.empty()) continue;
      std::int64_t const more = random_.between(1, 5);
      for (std::int64_t t = tokens; t < tokens + more; ++t) cache_.write(sequence, t, random_);
      piece(sequence, tokens, tokens + more, *oracles_[static_cast<std::size_t>(sequence)], of);
    }
    prompts_[static_cast<std::size_t>(sequence)] = static_cast<std::int32_t>(tokens);
  }
  void end(std::int64_t sequence) {
    oracles_[static_cast<std::size_t>(sequence)].reset();
    tokens_[static_cast<std::size_t>(sequence)] = 0;
    if (moves_) decoder_.end(sequence);
  }

  /// One step of the sequences that are there, but for those that pause; what differs from the oracle's, or nothing. On a GPU,
  /// and in half of the runs on the emulator, the first step is captured, and every step a replay of it. Of what a sequence
  /// brings at a step, its first token stays, and as many of the others as chance has it.
  std::string step() {
    std::vector<std::int32_t> now(tokens_);
    for (std::size_t s = 0; s < now.size(); ++s) {
      bool const steps = tokens_[s] > 0 && !random_.one_in(6);
      new_[s] = steps ? static_cast<std::int32_t>(random_.between(1, std::min(most_new_, shape_.max_tokens - tokens_[s]))) : 0;
      tokens_[s] += new_[s];
      if (tokens_[s] > 0) now[s] = steps ? tokens_[s] : gpu::paused;
    }
    bool const alone = most_new_ == 1 && random_.one_in(2);
    std::span<std::int32_t const> const brought = alone ? std::span<std::int32_t const>() : new_;
    if (moves_) plan_rows(now, brought);
    else decoder_.plan(now, brought);
    fill(queries_);
    if (halves_) shorten();
    std::ranges::fill(out_, 7.0f);
    fill(logits_);
    for (std::int32_t& id : ids_) id = static_cast<std::int32_t>(random_.between(0, vocabulary - 1));
    // A step run layer by layer must do without the later layers' keys; one that is replayed has them all.
    for (std::int64_t l = 0; is_captured_ && l < shape_.layers; ++l) write(l);
    device_.send();
    // An engine may have a graph of idle steps beside that of all steps, and one of what stayed.
    bool const first_step = std::exchange(first_step_, false);
    bool const idle = !first_step && decoder_.idle() && random_.one_in(2);
    auto const settle = [&] { decoder_.settle(cache_.view(), .125f); };
    if (is_captured_ && (first_step || decoder_.unsettled())) settled_.run(device_.on(), settle);
    else if (decoder_.unsettled()) settle();
    bool const decides = decoder_.decides();
    auto const enqueue = [&] {
      for (std::int64_t l = 0; l < shape_.layers; ++l) {
        if (!is_captured_) write(l);
        gpu::vector_rows heads = rows_of(on_device(queries_).data + l * layer_size(), layer_size());
        if (halves_) heads.base = on_device(short_queries_).data + l * layer_size(), heads.type = shape_.type;
        if (decides) decoder_.decide(cache_.view(), {l}, heads, .125f, exec_);
        lists_[static_cast<std::size_t>(l)] =
            idle ? decoder_.standing({l}) : decoder_.choose(cache_.view(), {l}, heads, .125f, on_device(ids_));
        decoder_.attend(cache_.view(), {l}, lists_[static_cast<std::size_t>(l)], heads, .125f,
                        rows_of(on_device(out_).data + l * layer_size(), layer_size()), terms_);
        if (!idle) decoder_.renew(cache_.view(), {l}, heads, .125f);
      }
      gpu::vector_rows logits{};
      logits.base = on_device(logits_).data;
      logits.elements = std::ssize(logits_);
      logits.sequence_stride = most_new_ * vocabulary;
      logits.token_stride = vocabulary;
      decoder_.observe(logits, vocabulary);
    };
    if (is_captured_ && !decides) (idle ? idle_ : captured_).run(device_.on(), enqueue);
    else enqueue();
    device_.wait();
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        bool const theirs = std::ranges::find(row_of_, r) != row_of_.end();
        if (!theirs && out_[static_cast<std::size_t>(l * layer_size() + r * layer_size() / rows_)] != 7)
          return "row " + std::to_string(r) + ", which no sequence has, was written";
      }
      for (std::size_t s = 0; s < tokens_.size(); ++s) {
        std::string const fault = compare(static_cast<std::int64_t>(s), l);
        if (!fault.empty()) return "layer " + std::to_string(l) + " sequence " + std::to_string(s) + ": " + fault;
      }
    }
    for (std::size_t s = 0; s < tokens_.size(); ++s) {
      if (new_[s] == 0) continue;
      std::int64_t const stay = random_.between(1, new_[s]);
      tokens_[s] += static_cast<std::int32_t>(stay) - new_[s];
      bool cut = false;
      if constexpr (requires { decoder_.cut(0, 0); }) {
        cut = random_.one_in(4);
        if (cut) decoder_.cut(static_cast<std::int64_t>(s), tokens_[s] = cut_of(s));
      }
      auto& mine = oracles_[s];
      for (std::int64_t i = 0; i < stay; ++i) {
        std::int64_t const row = row_of_[s] * most_new_ + i;
        mine->state.observe({std::span<float const>(logits_.data() + row * vocabulary, vocabulary)}, mine->exec);
      }
      if (cut) mine->state.cut(tokens_[s]);
    }
    return {};
  }

  bool values_are_part_of_keys() const { return cache_.values_are_part_of_keys(); }
  std::int64_t compared() const { return compared_; }
  std::int64_t differ() const { return differ_; }
  std::int64_t most_tokens() const { return *std::max_element(tokens_.begin(), tokens_.end()); }

 private:
  view_type view(std::int64_t sequence, std::int64_t tokens) const { return {cache_.host_view(), shape_, sequence, tokens}; }
  float number() { return whole_ ? static_cast<float>(random_.between(-2, 2)) : random_.real(); }
  void fill(shared_vector<float>& with) {
    for (float& x : with) x = number();
  }
  /// Queries of the rows' type, and floats of the same values.
  void shorten() {
    bool const f16 = shape_.type == element_type::f16;
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      short_queries_[i] = f16 ? float_to_half(queries_[i]) : float_to_bfloat(queries_[i]);
      queries_[i] = f16 ? half_to_float(short_queries_[i]) : bfloat_to_float(short_queries_[i]);
    }
  }
  /// Where attention has weights of 16 bits, the largest value, 2, may be off by half of their last bit.
  float tolerance() const {
    if (!halves_ || shape_.values_dim() == shape_.head_dim) return 1e-4f;
    return shape_.type == element_type::f16 ? 1e-3f : 8e-3f;
  }
  std::vector<float> numbers(std::int64_t count) {
    std::vector<float> made(static_cast<std::size_t>(count));
    for (float& x : made) x = number();
    return made;
  }
  static bool waits(Policy const& policy) {
    return gpu::decides_late<Policy, test_device> && requirements_of(policy).after > 0;
  }
  /// A cut does not undo a choice.
  std::int32_t cut_of(std::size_t s) const {
    std::int64_t const after = waits(policy_) ? requirements_of(policy_).after : 0;
    std::int64_t const chose = prompts_[s] + after;
    return static_cast<std::int32_t>(random_.between(tokens_[s] >= chose ? chose : prompts_[s], tokens_[s]));
  }
  void write(std::int64_t layer) {
    for (std::size_t s = 0; s < tokens_.size(); ++s) {
      for (std::int64_t t = tokens_[s] - new_[s]; t < tokens_[s]; ++t)
        cache_.write(static_cast<std::int64_t>(s), t, layer, random_);
    }
  }
  /// Queries or outputs of a layer, floats.
  std::int64_t layer_size() const { return rows_ * most_new_ * shape_.q_heads * shape_.head_dim; }
  /// Every sequence that steps has a row by chance, and some of those that pause.
  void plan_rows(std::vector<std::int32_t> const& now, std::span<std::int32_t const> brought) {
    move();
    std::vector<std::int32_t> slots, tokens, new_ones;
    for (std::int64_t r = 0; r < rows_; ++r) {
      auto const slot = std::ranges::find(row_of_, r) - row_of_.begin();
      auto const s = static_cast<std::size_t>(slot);
      bool const none = slot == std::ssize(row_of_) || now[s] == 0;
      if (none || (now[s] == gpu::paused && random_.one_in(2))) {
        // A plan's rows have no gaps: those behind move up.
        if (slot != std::ssize(row_of_)) row_of_[s] = -1;
        continue;
      }
      row_of_[s] = std::ssize(slots);
      slots.push_back(static_cast<std::int32_t>(slot));
      tokens.push_back(now[s]);
      if (!brought.empty()) new_ones.push_back(brought[s]);
    }
    cache_.arrange(row_of_);
    decoder_.plan_rows(slots, tokens, new_ones);
  }
  /// Sequences take other rows.
  void move() {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(rows_));
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t i = rows.size(); i > 1; --i)
      std::swap(rows[i - 1], rows[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(i) - 1))]);
    std::copy_n(rows.begin(), row_of_.size(), row_of_.begin());
    cache_.arrange(row_of_);
  }
  gpu::vector_rows rows_of(float* data, std::int64_t size) const {
    gpu::vector_rows made{};
    made.base = data;
    made.elements = size;
    made.sequence_stride = most_new_ * shape_.q_heads * shape_.head_dim;
    made.token_stride = shape_.q_heads * shape_.head_dim;
    made.head_stride = shape_.head_dim;
    return made;
  }

  void piece(std::int64_t sequence, std::int64_t first, std::int64_t tokens, oracle<Policy>& mine, token_span repeats = {}) {
    if (moves_) move();
    device_.send();
    std::int64_t const observed = repeats.empty() ? observation_queries(policy_) : tokens - first;
    std::int64_t const window = std::min<std::int64_t>(observed, tokens - first);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens - first));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random_.between(0, vocabulary - 1));
    for (std::int64_t l = 0; l < shape_.layers; ++l) {
      std::vector<float> const queries = numbers(window * shape_.q_heads * shape_.head_dim);
      prompt_signals prompt{};
      prompt.first = first;
      prompt.observed_from = first;
      prompt.token_ids = ids;
      prompt.repeats = repeats;
      prompt.queries = {queries.data(), window, shape_.q_heads, shape_.q_heads * shape_.head_dim, shape_.head_dim, .125f};
      prompt.rope = {frequencies_.data(), shape_.head_dim / 2, rotation_};
      decoder_.prefill(sequence, cache_.view(), tokens, {l}, prompt, exec_,
                       moves_ ? row_of_[static_cast<std::size_t>(sequence)] : -1);
      mine.state.prefill(view(sequence, tokens), {l}, prompt, mine.exec);
    }
  }

  std::string compare(std::int64_t s, std::int64_t l) {
    std::int64_t const size = most_new_ * shape_.q_heads * shape_.head_dim;
    std::int64_t const row = row_of_[static_cast<std::size_t>(s)];
    float const* const queries = queries_.data() + l * layer_size() + row * size;
    float const* const out = out_.data() + l * layer_size() + row * size;
    auto& mine = oracles_[static_cast<std::size_t>(s)];
    std::int64_t const brought = new_[static_cast<std::size_t>(s)];
    std::int64_t const written = brought * shape_.q_heads * shape_.head_dim;
    auto const is_value = [&](std::int64_t i) { return i % shape_.head_dim < shape_.values_dim(); };
    for (std::int64_t i = written; i < size && row >= 0; ++i) {
      if (is_value(i) && out[i] != 0) return "a token that was not brought has an output";
    }
    if (brought == 0) {
      if constexpr (gpu::known_counts<Policy, test_device>) {
        if (decoder_.listed({l}, s, {0}) != 0) return "the host counts tokens of a slot that is empty or pauses";
      }
      return {};
    }
    std::int64_t const n = tokens_[static_cast<std::size_t>(s)];
    query_window const heads{queries, brought, shape_.q_heads, shape_.q_heads * shape_.head_dim, shape_.head_dim, .125f};
    std::span const ids(ids_.data() + row * most_new_, static_cast<std::size_t>(brought));
    selection const kept = most_new_ == 1
                               ? mine->state.choose(view(s, n), {l}, step_signals{heads.token(0), ids[0]}, mine->exec)
                               : mine->state.choose(view(s, n), {l}, step_window{brought, heads, ids}, mine->exec);
    // Once renew() was enqueued, the device has the next step's lists; what this one read shows in its output.
    bool const later = requirements_of(policy_).next_step;
    selection const listed = later ? mine->state.ahead({l}) : kept;
    for (std::int64_t h = 0; h < shape_.kv_heads && !(later && brought > 1); ++h) {
      std::vector<std::int64_t> const want = tokens_of(listed.of({h}));
      std::vector<std::int64_t> const got = tokens_of(device_, lists_[static_cast<std::size_t>(l)], s, h);
      ++compared_;
      if (want != got && nearly_ && close(want, got)) {
        ++differ_;
        return {};
      }
      if (want != got)
        return "head " + std::to_string(h) + " of " + std::to_string(n) + " tokens reads " + text(got) + " for " + text(want);
      if constexpr (gpu::known_counts<Policy, test_device>) {
        if (decoder_.listed({l}, s, {h}) != std::ssize(want))
          return "the host counts " + std::to_string(decoder_.listed({l}, s, {h})) + " tokens for " +
                 std::to_string(want.size());
      }
    }
    std::vector<float> expected(static_cast<std::size_t>(written));
    attend(
        heads, view(s, n).keys({l}), view(s, n).values({l}), kept,
        attention_terms{terms_.soft_cap, slopes_.empty() ? nullptr : slopes_.data(), sinks_.empty() ? nullptr : sinks_.data()},
        table<float>{expected.data(), brought * shape_.q_heads, shape_.values_dim(), shape_.head_dim}, {}, mine->exec);
    for (std::int64_t i = 0; i < written; ++i) {
      if (is_value(i) && !(std::abs(out[i] - expected[static_cast<std::size_t>(i)]) <= tolerance())) {
        return "output " + std::to_string(i) + " is " + std::to_string(out[i]) + " for " +
               std::to_string(expected[static_cast<std::size_t>(i)]);
      }
    }
    return {};
  }
  /// Whether a unit at most has taken another's place.
  static bool close(std::vector<std::int64_t> const& a, std::vector<std::int64_t> const& b) {
    std::vector<std::int64_t> missing;
    std::ranges::set_difference(a, b, std::back_inserter(missing));
    return std::ssize(missing) <= longest_unit;
  }
  static std::string text(std::vector<std::int64_t> const& list) {
    std::string made = "{";
    for (std::int64_t const t : list) made += std::to_string(t) + " ";
    return made + "}";
  }

  static constexpr std::int64_t longest_unit = 7;  ///< that tests draw

  Policy const& policy_;
  cache_shape shape_;
  random_source& random_;
  bool whole_;
  bool nearly_;
  std::int64_t compared_ = 0;  ///< lists
  std::int64_t differ_ = 0;    ///< that a near-tie explains
  bool is_captured_;
  bool halves_;                       ///< queries have the rows' type
  std::int64_t most_new_;             ///< tokens that a sequence brings at most
  bool moves_;                        ///< sequences' rows do, from step to step
  std::int64_t rows_;                 ///< of a batch at most
  std::vector<std::int64_t> row_of_;  ///< of each sequence at this step, or -1
  batch_cache cache_;
  test_device device_;
  prompt_exec exec_;
  captured_step captured_;
  captured_step idle_;
  captured_step settled_;
  bool first_step_ = true;
  gpu::decoder<Policy, test_device> decoder_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> prompts_;
  std::vector<std::int32_t> new_;  ///< of them, that came with this step; 0: the sequence pauses, or nobody is there
  shared_vector<float> queries_;   ///< `[layers, sequences, most_new, q_heads, head_dim]`
  shared_vector<std::uint16_t> short_queries_;
  shared_vector<float> out_;
  shared_vector<float> logits_;
  shared_vector<std::int32_t> ids_;
  std::vector<gpu::token_lists> lists_;  ///< of each layer
  std::vector<std::optional<oracle<Policy>>> oracles_;
  shared_vector<float> slopes_, sinks_;  ///< `[q_heads]`, or empty
  attention_terms terms_;                ///< on the device
  std::vector<float> frequencies_;       ///< of the keys' rotary embedding
  rotation::pairing rotation_ = rotation::pairing::halves;
};

inline cache_shape batch_shape(random_source& random, std::int64_t most_tokens) {
  constexpr std::array<std::int64_t, 8> dims{8, 16, 24, 5, 64, 96, 128, 256};
  constexpr std::array<std::int64_t, 4> groups{1, 2, 3, 8};
  std::int64_t const heads = random.between(1, 3);
  return {.layers = random.between(1, 3),
          .q_heads = heads * random.pick(groups),
          .kv_heads = heads,
          .head_dim = random.pick(dims),
          .max_tokens = most_tokens,
          .type = random.pick(types)};
}

/// Latent attention (MLA), and keys and values of unequal widths.
inline cache_shape latent_shape(random_source& random, std::int64_t most_tokens) {
  constexpr std::array<std::array<std::int64_t, 2>, 5> dims{{{576, 512}, {576, 512}, {544, 512}, {288, 256}, {24, 16}}};
  auto const [keys, values] = random.pick(dims);
  return {.layers = random.between(1, 2),
          .q_heads = random.between(1, 16),
          .kv_heads = 1,
          .head_dim = keys,
          .max_tokens = most_tokens,
          .type = random.pick(types),
          .value_dim = values};
}

template <class Policy, class Make>
void run_batches(std::uint64_t seed, int rounds, Make make, bool whole = true, bool extends = true, bool nearly = false,
                 cache_shape (*shape_of)(random_source&, std::int64_t) = batch_shape) {
  random_source random(seed);
  std::int64_t compared = 0;
  std::int64_t differ = 0;
  for (int round = 0; round < rounds_of(rounds); ++round) {
    cache_shape const shape = shape_of(random, 120);
    Policy const policy = make(random, shape);
    std::int64_t const sequences = random.between(1, 3);
    batch_run<Policy> run(policy, shape, sequences, whole, random, nearly);
    REQUIRE(run.step().empty());  // nobody is there yet: a step to warm up with, or to capture
    for (std::int64_t s = 0; s < sequences; ++s) {
      if (s == 0 || !random.one_in(4)) run.begin(s, random.between(1, 85));
    }
    for (int step = 0; step < 10; ++step) {
      if (step == 4 && extends) run.extend(0, random.between(1, 15));
      if (step == 5) run.begin(sequences - 1, random.between(1, 60));
      if (step == 7 && sequences > 1) run.end(0);
      std::string const fault = run.step();
      INFO("round " << round << " step " << step << ": " << fault);
      REQUIRE(fault.empty());
    }
    compared += run.compared();
    differ += run.differ();
  }
  CAPTURE(compared, differ);
  REQUIRE(differ * 500 <= compared);
}

}  // namespace kvpolicy_test
