// What a TLS server shows to its clients, made for one test.
#pragma once

#include <string>

namespace kvpolicy_test::redis {

/// Files, PEM. The certificate is for 127.0.0.1 and localhost, good for two days.
struct certificate {
  std::string ca;  ///< who signed it
  std::string file;
  std::string key;
};

/// An authority of its own, and a certificate by it, into a folder; throws where openssl can't.
certificate make_certificate(std::string const& folder);

}  // namespace kvpolicy_test::redis
