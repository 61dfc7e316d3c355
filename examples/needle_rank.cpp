// Where a policy loses an answer: the rank of the pages that hold it, as CHESS ranks pages, for the request and layer by layer.
//
//   needle_rank MODEL.gguf PROMPT.txt TEXT_OF_THE_ANSWER [TOKENS_OF_A_PAGE]
//
// A policy's view of the engine's cache is all that a new scorer needs to be tried out like this.
#include <kvpolicy/exec/host.hpp>
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/kvpolicy.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

namespace kv = kvpolicy;

namespace {

/// Mean key of every page, each layer's and KV head's side by side, as CHESS has them.
struct page_vectors {
  std::int64_t page = 16, pages = 0, layers = 0, dims_of_layer = 0;
  std::vector<float> means;  // [pages, layers * dims_of_layer]

  kv::table<float> table() { return {means.data(), pages, layers * dims_of_layer, layers * dims_of_layer}; }
};

/// How many pages rank before the best one in [first, last], by the affinity of channels [from, to) to the last whole page.
std::int64_t rank(page_vectors& of, std::int64_t from, std::int64_t to, bool standardised, std::int64_t first,
                  std::int64_t last) {
  kv::table<float> const pages = of.table();
  std::vector<double> score(static_cast<std::size_t>(pages.rows), 0.0);
  for (std::int64_t i = from; i < to; ++i) {
    double mean = 0, square = 0;
    for (std::int64_t p = 0; p < pages.rows; ++p) mean += static_cast<double>(pages(p, i)) / static_cast<double>(pages.rows);
    for (std::int64_t p = 0; p < pages.rows; ++p) square += (pages(p, i) - mean) * (pages(p, i) - mean);
    double const variance = square / static_cast<double>(pages.rows);
    double const anchor = pages(pages.rows - 1, i);
    double const weight = !standardised ? anchor : variance > 0 ? (anchor - mean) / variance : 0;
    for (std::int64_t p = 0; p < pages.rows; ++p) score[static_cast<std::size_t>(p)] += weight * pages(p, i);
  }
  double const best = *std::max_element(score.begin() + first, score.begin() + last + 1);
  return std::ranges::count_if(score, [&](double s) { return s > best; });
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 5) throw kv::invalid_value("usage: needle_rank MODEL.gguf PROMPT.txt TEXT [PAGE]");
  std::ifstream file(argv[2], std::ios::binary);
  std::string const prompt(std::istreambuf_iterator<char>(file), {});
  std::size_t const where = prompt.find(argv[3]);
  if (!file || where == std::string::npos) throw kv::invalid_value(std::string(argv[2]) + " does not hold '" + argv[3] + "'");
  page_vectors found;
  if (argc == 5) found.page = std::stoll(argv[4]);
  if (found.page < 1) throw kv::invalid_value("a page has at least 1 token");

  llama_log_set([](ggml_log_level, char const*, void*) {}, nullptr);
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) throw kv::invalid_value("can't load " + std::string(argv[1]));
  llama_vocab const* const vocab = llama_model_get_vocab(model);
  auto const tokens_of = [&](std::string const& text) {
    std::vector<llama_token> tokens(text.size() + 8);
    tokens.resize(
        static_cast<std::size_t>(std::max(0, llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                                            static_cast<int>(tokens.size()), true, true))));
    return tokens;
  };
  std::vector<llama_token> tokens = tokens_of(prompt);
  auto const begin = static_cast<std::int64_t>(tokens_of(prompt.substr(0, where)).size());
  auto const end = static_cast<std::int64_t>(tokens_of(prompt.substr(0, where) + argv[3]).size());

  if (tokens.size() < 2) throw kv::invalid_value("the prompt has fewer than 2 tokens");

  // At the first decode step every layer's keys pass by.
  kv::host_exec exec;
  kv::llama::session_options watch;
  watch.on_queries = [&](llama_seq_id, kv::layer_id layer, kv::layer_table_view const& view, kv::query_heads const&,
                         kv::simd_exec&) {
    kv::rows const keys = view.keys(layer);
    if (layer.value == 0) {
      found.pages = view.tokens() / found.page;
      found.layers = view.shape().layers;
      found.dims_of_layer = keys.heads * keys.head_dim;
      found.means.assign(static_cast<std::size_t>(found.pages * found.layers * found.dims_of_layer), 0);
    }
    pool_mean(keys, {.unit_size = found.page, .first = 0, .last = found.pages * found.page}, found.table(),
              layer.value * found.dims_of_layer, exec);
  };
  kv::llama::session session(kv::presets::quest{}, watch);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(tokens.size() + 8);
  params.n_batch = params.n_ctx;
  session.attach(params, model);
  llama_context* const context = llama_init_from_model(model, params);
  if (context == nullptr) throw kv::error("llama.cpp made no context of " + std::to_string(params.n_ctx) + " tokens");
  llama_token last = tokens.back();
  tokens.pop_back();
  for (llama_batch const batch :
       {llama_batch_get_one(tokens.data(), static_cast<std::int32_t>(tokens.size())), llama_batch_get_one(&last, 1)}) {
    if (llama_decode(context, batch) != 0) {
      session.check();
      throw kv::error("llama_decode failed");
    }
  }

  std::int64_t const first_page = (begin - 1) / found.page;
  std::int64_t const last_page = (end - 1) / found.page;
  if (last_page >= found.pages) throw kv::invalid_value("the text is in the last page, which is still open");
  std::int64_t const all = found.layers * found.dims_of_layer;
  std::printf("tokens %lld to %lld of %lld, pages %lld to %lld of %lld\n", static_cast<long long>(begin),
              static_cast<long long>(end), static_cast<long long>(tokens.size() + 1), static_cast<long long>(first_page),
              static_cast<long long>(last_page), static_cast<long long>(found.pages));
  std::printf("pages ranked before it: %lld by the plain affinity, %lld standardised\n",
              static_cast<long long>(rank(found, 0, all, false, first_page, last_page)),
              static_cast<long long>(rank(found, 0, all, true, first_page, last_page)));
  std::printf("by one layer alone:");
  for (std::int64_t l = 0; l < found.layers; ++l) {
    std::printf(" %lld", static_cast<long long>(
                             rank(found, l * found.dims_of_layer, (l + 1) * found.dims_of_layer, true, first_page, last_page)));
  }
  std::puts(" (standardised, first layer first)");
  llama_free(context);
  llama_model_free(model);
} catch (std::exception const& e) {
  std::fprintf(stderr, "needle_rank: %s\n", e.what());
  return 2;
}
