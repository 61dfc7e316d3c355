// kvpolicy-run without --compare: one policy, text as it is decoded.
#pragma once

#include <kvpolicy/interop/llama.hpp>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "options.hpp"
#include "text_model.hpp"

namespace kvpolicy {

/// A prompt's tokens. Throws invalid_value for none.
std::vector<llama_token> prompt_tokens(text_model const& model, run_options const& options, prompt_text const& prompt);

/// The tokens of a prompt that --mark's text is, first and behind the last; none where there is no such text.
std::optional<std::pair<std::size_t, std::size_t>> marked_tokens(text_model const& model, run_options const& options,
                                                                 prompt_text const& prompt);

/// Tokens that a repetition of the prompt may need behind it, if a policy has it repeated.
std::int64_t repetition_tokens(run_options const& options);
/// The context that holds the longest prompt and what is predicted. Throws invalid_value where the one asked for, or the
/// model's, is too small.
std::int64_t context_tokens(text_model const& model, run_options const& options, std::size_t longest_prompt);

void generate(run_options const& options);

double milliseconds_since(std::chrono::steady_clock::time_point start);
/// Writes a token of the answer to standard output, and behind the last one the line's end. Throws where it can't be written.
void write_token(text_model const& model, llama_token token, std::string& answer);
void write_end();

nlohmann::ordered_json memory_json(llama::memory_statistics const& of);

/// Says on stderr where a policy's own idea can't be at work: no head follows.
void warn_of_idle(std::string const& policy, nlohmann::ordered_json const& at_work);

/// What attention of prompts took, and what a prompt policy read.
nlohmann::ordered_json prompt_json(std::optional<prompt_pages> const& policy, llama::prompt_statistics const& read);

}  // namespace kvpolicy
