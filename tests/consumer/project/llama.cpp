// The engine's adapter: it was linked with its llama.cpp.
#include <kvpolicy/interop/llama.hpp>
#include <kvpolicy/presets/quest.hpp>

int main() {
  kvpolicy::llama::session const session{kvpolicy::presets::quest{.tokens = 128}};
  return session.steps() == 0 ? 0 : 1;
}
