#include "redis/certificate.hpp"

#include <stdexcept>

#include "redis/shell.hpp"

namespace kvpolicy_test::redis {

certificate make_certificate(std::string const& folder) {
  auto const made = shell("cd " + quoted(folder) + R"( &&
    key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes' &&
    openssl req -x509 $key -keyout ca.key -out ca.crt -subj '/CN=kvpolicy test authority' -days 2 &&
    openssl req -new $key -keyout server.key -out server.csr -subj /CN=localhost &&
    echo 'subjectAltName = IP:127.0.0.1, DNS:localhost' >server.ext &&
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile server.ext -out server.crt -days 2)");
  if (made.status != 0) throw std::runtime_error("openssl made no certificate: " + made.output);
  return {folder + "/ca.crt", folder + "/server.crt", folder + "/server.key"};
}

}  // namespace kvpolicy_test::redis
