#include "micro_batch.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <numeric>
#include <vector>

#include "kvpolicy/error.hpp"

namespace kvpolicy::llama {
namespace {

/// A hybrid's micro-batch: 4 tokens of a batch of 4 tokens of sequence 0 and 4 of sequence 1.
class two_prompts {
 public:
  explicit two_prompts(std::vector<llama_token> const& ids) : ids_(ids) {
    llama_batch batch = llama_batch_init(8, 0, 1);
    batch.n_tokens = 8;
    for (std::int32_t i = 0; i < 8; ++i) {
      batch.token[i] = ids[static_cast<std::size_t>(i)];
      batch.pos[i] = i % 4;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = i / 4;
      batch.logits[i] = 0;
    }
    batch_.cut_by_sequences(true);
    batch_.set(batch, batch_reading::by_policy);
    llama_batch_free(batch);
    std::iota(written_.begin(), written_.end(), 0);
  }
  std::vector<llama_seq_id> owners(std::vector<std::size_t> const& tokens, std::vector<std::int32_t> const& positions) {
    std::vector<std::int32_t> ids;
    for (std::size_t const token : tokens) ids.push_back(ids_[token]);
    std::vector<llama_seq_id> of;
    batch_.owners({.written = written_, .stream_cells = 100, .ids = ids, .positions = positions}, true, of);
    return of;
  }

 private:
  std::vector<llama_token> ids_;
  std::vector<std::int64_t> written_ = std::vector<std::int64_t>(4);
  caller_batch batch_;
};

TEST_CASE("a hybrid's micro-batch has tokens of one sequence or of each", "[llama]") {
  using owners = std::vector<llama_seq_id>;
  CHECK(two_prompts({1, 2, 3, 4, 5, 6, 7, 8}).owners({0, 1, 4, 5}, {}) == owners{0, 0, 1, 1});
  CHECK(two_prompts({1, 2, 3, 4, 5, 6, 7, 8}).owners({0, 1, 2, 3}, {}) == owners{0, 0, 0, 0});
  std::vector<llama_token> const alike(8, 9);
  CHECK(two_prompts(alike).owners({0, 1, 4, 5}, {0, 1, 0, 1}) == owners{0, 0, 1, 1});
  CHECK(two_prompts(alike).owners({0, 1, 2, 3}, {0, 1, 2, 3}) == owners{0, 0, 0, 0});
}

TEST_CASE("a micro-batch that can be read in two ways is refused", "[llama]") {
  std::vector<llama_token> const alike(8, 9);
  CHECK_THROWS_WITH(two_prompts(alike).owners({0, 1, 4, 5}, {}),
                    Catch::Matchers::ContainsSubstring("may be of 1 or of 2 sequences"));
}

}  // namespace
}  // namespace kvpolicy::llama
