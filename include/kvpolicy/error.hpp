// The exceptions of the library, and a check of preconditions that throws one.
#pragma once

#include <stdexcept>
#include <string>

namespace kvpolicy {

/// The base of every exception that this library throws.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A value that no engine could serve. The message names the value, its limit and the way out.
struct invalid_value : error {
  using error::error;
};

/// A model, a context, a pair of policy and engine, or a call without a needed signal that this version refuses.
/// The message names it.
struct unsupported : error {
  using error::error;
};

}  // namespace kvpolicy

/// Throws invalid_value unless a condition holds.
/// @param condition  what must be true
/// @param message  a std::string expression, evaluated only on failure
#define KVPOLICY_EXPECTS(condition, message)                    \
  do {                                                          \
    if (!(condition)) throw ::kvpolicy::invalid_value(message); \
  } while (false)
