// Exceptions that the library throws, and the precondition check.
#pragma once

#include <stdexcept>
#include <string>

namespace kvpolicy {

/// Base of everything that this library throws.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A value that no engine could serve: the message names the value, the limit and the way out.
struct invalid_value : error {
  using error::error;
};

/// A model, context or pair of policy and engine that this version refuses by name.
struct unsupported : error {
  using error::error;
};

}  // namespace kvpolicy

/// Throws invalid_value with `message` (a std::string expression, evaluated only on failure) unless `condition` holds.
#define KVPOLICY_EXPECTS(condition, message)                    \
  do {                                                          \
    if (!(condition)) throw ::kvpolicy::invalid_value(message); \
  } while (false)
