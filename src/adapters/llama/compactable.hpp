// Which policies a compaction of llama.cpp's cells can serve.
#pragma once

#include <kvpolicy/error.hpp>
#include <kvpolicy/exec/host_policy.hpp>

#include <string>

namespace kvpolicy::llama {

/// Throws unsupported unless the policy chooses once, by what a compaction can give it.
inline void check_compactable(host_policy const& policy) {
  requirements const of = requirements_of(policy);
  requirements const retain = requirements_of(parts_of(policy).retain);
  auto const refuse = [](std::string const& why) { throw unsupported("a compaction can't serve this policy: " + why); };
  if (!requirements_of(parts_of(policy).retrieve).keeps_all)
    refuse("at each step it chooses what to read, which the engine's own steps don't; use a session");
  if (retain.keeps_all) refuse("it drops nothing");
  if (of.after > 0)
    refuse("it waits for " + std::to_string(of.after) +
           " tokens of the answer; set its after to 0, and call compact() when the answer has that many");
  if (retain.evicts) refuse("it drops tokens in steps, too; use a session");
  constexpr signals given = signals::keys | signals::values | signals::observation_queries;
  if ((of.needs | given) != given) refuse("it needs more than keys, values and the prompt's last queries; use a session");
  if (of.observation_queries == all_queries) refuse("it looks at every query of the prompt; use a session");
}

}  // namespace kvpolicy::llama
