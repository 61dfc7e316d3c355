// What kvpolicy-run was asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <kvpolicy/prompt_pages.hpp>

#include "published.hpp"

namespace kvpolicy {

struct prompt_text {
  std::string name;  ///< the file's, or "prompt"
  std::string text;
};

struct run_options {
  std::string model;
  std::vector<prompt_text> prompts;
  host_policy_list known;  ///< the names that texts may use
  std::vector<named_host_policy> policies;
  bool lossless = false;      ///< decode what dense decoding decodes; the policy drafts
  std::optional<int> drafts;  ///< of a round of lossless decoding; none: as many as pay
  bool chat = false;
  std::string answer_prefix;  ///< how the answer begins; part of the prompt
  std::string mark;           ///< text of the prompts whose place is told in the JSON, or empty
  int predict = 64;
  int rounds = 3;            ///< of a comparison, in which each way is timed once
  std::int64_t context = 0;  ///< tokens; 0: as many as needed
  int threads = 1;
  std::optional<prompt_pages> prompt_policy;
  bool compact = false;  ///< compact the prompt in the engine's cache; steps are the engine's own
  int gpu_layers = 0;    ///< with that: layers that the engine offloads
  std::string key_type = "f16";
  std::string value_type = "f16";
  bool managed_cache = false;   ///< the session holds the rows, the engine's context is --ctx
  std::string between_pieces;   ///< with a managed cache: the policy that drops rows after each piece of a prompt, or empty
  std::int64_t memory = 0;      ///< with a managed cache: bytes that its rows may take; 0: any
  std::int64_t longest = 0;     ///< with a managed cache: tokens of a sequence; 0: what is needed
  std::string tier;             ///< with a managed cache, where its rows go: empty, or as --tier names it
  std::int64_t tier_slots = 0;  ///< of those, rows of a KV head that are in memory too; 0: twice what a step reads
  bool tier_async = false;      ///< read what is there, do not wait
  std::string load_state;       ///< file of a state that the prompt comes behind, or empty
  std::string save_state;       ///< file for the state in the end, or empty
  std::string json;             ///< output file or empty
  std::string trace;            ///< output file or empty
};

}  // namespace kvpolicy
