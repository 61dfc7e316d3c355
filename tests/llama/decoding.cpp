#include "decoding.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace kvpolicy::llama::testing {
namespace {

llama_context_params attached(llama_model* model, session* policy, context_options const& options) {
  llama_context_params params = parameters(options);
  if (policy != nullptr) policy->attach(params, model);
  return params;
}

}  // namespace

llama_context_params parameters(context_options const& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.tokens;
  params.n_batch = options.batch;
  params.n_ubatch = options.micro_batch;
  params.n_seq_max = options.sequences;
  params.n_threads = options.threads;
  params.n_threads_batch = options.threads;
  params.type_k = options.type;
  params.type_v = options.value_type == GGML_TYPE_COUNT ? options.type : options.value_type;
  params.kv_unified = options.unified;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  return params;
}

decoder::decoder(llama_model* model, session* policy, context_options const& options)
    : decoder(model, attached(model, policy, options)) {
  policy_ = policy;
}

decoder::decoder(llama_model* model, llama_context_params const& params)
    : vocabulary_(llama_vocab_n_tokens(llama_model_get_vocab(model))), context_(llama_init_from_model(model, params)) {
  if (context_ == nullptr) throw std::runtime_error("no context could be made");
}

int decoder::status_of(token_list tokens) {
  return llama_decode(context_.get(), llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size())));
}

logits decoder::feed(token_list tokens) {
  int const status = status_of(std::move(tokens));
  if (policy_ != nullptr) policy_->check();
  if (status != 0) throw std::runtime_error("llama_decode returned " + std::to_string(status));
  float const* const last = llama_get_logits_ith(context_.get(), -1);
  return {last, last + vocabulary_};
}

int decoder::status_of(token_list const& tokens, std::vector<llama_seq_id> const& sequences) {
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
  std::vector<llama_pos> next(llama_n_seq_max(context()));
  for (std::size_t s = 0; s < next.size(); ++s) next[s] = llama_memory_seq_pos_max(memory(), static_cast<llama_seq_id>(s)) + 1;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = next[static_cast<std::size_t>(sequences[i])]++;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequences[i];
    batch.logits[i] = i + 1 == tokens.size();
  }
  batch.n_tokens = static_cast<std::int32_t>(tokens.size());
  int const status = llama_decode(context(), batch);
  llama_batch_free(batch);
  return status;
}

std::vector<std::uint8_t> decoder::state() const {
  std::vector<std::uint8_t> bytes(llama_state_seq_get_size(context(), 0));
  bytes.resize(llama_state_seq_get_data(context(), bytes.data(), bytes.size(), 0));
  return bytes;
}

void decoder::restore(std::vector<std::uint8_t> const& state) {
  if (llama_state_seq_set_data(context(), state.data(), state.size(), 0) == 0) throw std::runtime_error("no state restored");
}

std::vector<std::uint8_t> const& ends_by_length() {
  static std::vector<std::uint8_t> const table = [] {
    std::vector<std::uint8_t> made(257);
    made.back() = 1;
    return made;
  }();
  return table;
}

token_list random_tokens(std::int64_t count, std::uint64_t seed) {
  token_list tokens(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 12345;
  for (llama_token& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<llama_token>(state >> 56);
  }
  return tokens;
}

token_list journey(llama_model const* model, std::size_t days) {
  std::string text = "<|im_start|>user\nHere are notes from a journey.\n";
  char const* const towns[] = {"Aarhus", "Bergen", "Cork", "Delft", "Espoo", "Faro", "Ghent", "Halle", "Ipswich", "Jena"};
  for (std::size_t day = 0; day < days; ++day) {
    text += "On day " + std::to_string(day + 1) + " we came to " + towns[day % 10] + " and paid " +
            std::to_string(day * 37 % 91 + 10) + " crowns for the night.\n";
  }
  text += "Write a short story about this journey.<|im_end|>\n<|im_start|>assistant\n";
  token_list tokens(2000);
  int const count = llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<std::int32_t>(text.size()),
                                   tokens.data(), static_cast<std::int32_t>(tokens.size()), false, true);
  tokens.resize(static_cast<std::size_t>(std::max(count, 0)));
  return tokens;
}

std::vector<logits> decode_each(decoder& with, token_list const& tokens) {
  std::vector<logits> all;
  for (llama_token const token : tokens) all.push_back(with.feed(token));
  return all;
}

double difference(logits const& actual, logits const& reference) {
  if (actual.size() != reference.size()) throw std::runtime_error("logits of different vocabularies");
  double mean = 0;
  for (float const value : reference) mean += static_cast<double>(value) / static_cast<double>(reference.size());
  double variance = 0;
  double largest = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    double const off = static_cast<double>(reference[i]) - mean;
    variance += off * off / static_cast<double>(reference.size());
    double const apart = std::abs(static_cast<double>(actual[i]) - static_cast<double>(reference[i]));
    largest = std::isnan(apart) ? INFINITY : std::max(largest, apart);
  }
  return largest / std::sqrt(variance);
}

double difference(std::vector<logits> const& actual, std::vector<logits> const& reference) {
  if (actual.size() != reference.size()) throw std::runtime_error("different numbers of steps");
  double largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) largest = std::max(largest, difference(actual[i], reference[i]));
  return largest;
}

session_options recording(std::vector<made_choice>& into, std::int64_t observation_queries) {
  return {.observation_queries = observation_queries,
          .on_choice = [&into](llama_seq_id, layer_id layer, std::int64_t tokens, selection const& kept) {
            into.push_back({layer.value, tokens, {kept.lists().begin(), kept.lists().end()}});
          }};
}

}  // namespace kvpolicy::llama::testing
