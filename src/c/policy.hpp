// A policy behind the C ABI.
#pragma once

#include "kvpolicy.h"
#include "published.hpp"

struct kvpolicy_policy {
  kvpolicy::policy_inputs inputs;
  kvpolicy::named_host_policy chosen;
};
