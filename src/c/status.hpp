// How C++ becomes a status and a message: no exception leaves a call.
#pragma once

#include <cstdio>
#include <new>
#include <stdexcept>

#include "kvpolicy.h"
#include "kvpolicy/error.hpp"

namespace kvpolicy::c {

/// This thread's last failure; no allocation, so that running out of memory can be reported.
inline char* message() noexcept {
  thread_local char text[1024] = "";
  return text;
}

inline kvpolicy_status failed(kvpolicy_status status, char const* why) noexcept {
  std::snprintf(message(), 1024, "%s", why);
  return status;
}

/// Runs `call`; whatever it throws becomes a status.
template <class Call>
kvpolicy_status guarded(Call&& call) noexcept {
  try {
    call();
    return KVPOLICY_OK;
  } catch (invalid_value const& e) {
    return failed(KVPOLICY_INVALID, e.what());
  } catch (unsupported const& e) {
    return failed(KVPOLICY_UNSUPPORTED, e.what());
  } catch (std::bad_alloc const&) {
    return failed(KVPOLICY_NO_MEMORY, "out of memory");
  } catch (std::length_error const&) {
    return failed(KVPOLICY_NO_MEMORY, "out of memory: more than any machine has was asked for");
  } catch (std::exception const& e) {
    return failed(KVPOLICY_FAILED, e.what());
  } catch (...) {
    return failed(KVPOLICY_FAILED, "an unknown exception");
  }
}

/// Refuses NULL for an argument.
template <class T>
void required(T* argument, char const* name) {
  if (argument == nullptr) throw invalid_value(std::string(name) + " is NULL");
}

}  // namespace kvpolicy::c
