#include "cuda/ptx/modules.hpp"

#include <cstring>
#include <map>
#include <optional>
#include <set>

namespace ptx {

namespace {

/// What the linker finds, and what it points to (fatbinary_section.h, fatBinaryCtl.h of the toolkit).
struct wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  void const* data;
};
struct container {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;
};
struct entry {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
};
constexpr std::uint32_t wrapper_magic = 0x466243b1, container_magic = 0xba55ed50;
constexpr std::uint16_t kind_ptx = 1;

struct registered {
  void const* binary;
  std::string name;
  std::optional<kernel> decoded;
};
std::map<void const*, registered>& all_registered() {
  static auto& all = *new std::map<void const*, registered>;
  return all;
}

}  // namespace

std::vector<std::string_view> texts_in(void const* fat_binary) {
  auto const* const outer = static_cast<wrapper const*>(fat_binary);
  auto const* const inner = static_cast<container const*>(outer->data);
  if (outer->magic != wrapper_magic || inner->magic != container_magic)
    throw std::invalid_argument("this is not what nvcc 12 and 13 embed");
  auto const* at = reinterpret_cast<char const*>(inner) + inner->header_bytes;
  char const* const end = at + inner->bytes;
  std::vector<std::string_view> texts;
  while (at < end) {
    entry one;
    std::memcpy(&one, at, sizeof one);
    if (one.kind == kind_ptx) {
      char const* const text = at + one.header_bytes;
      std::string_view const found(text, strnlen(text, one.bytes));
      if (found.find(".version") == found.npos)
        throw std::invalid_argument("this program's PTX is compressed; nvcc leaves it as text with --no-compress");
      texts.push_back(found);
    }
    at += one.header_bytes + one.bytes;
  }
  if (texts.empty())
    throw std::invalid_argument("this program holds no PTX; an architecture such as 90-virtual makes nvcc embed it");
  return texts;
}

std::vector<std::string_view> all_texts() {
  std::set<void const*> binaries;
  for (auto const& [function, one] : all_registered()) binaries.insert(one.binary);
  std::vector<std::string_view> texts;
  for (void const* const binary : binaries) texts.push_back(texts_in(binary).front());
  return texts;
}

kernel const& kernel_of(void const* host_function) {
  auto const found = all_registered().find(host_function);
  if (found == all_registered().end()) throw std::invalid_argument("no kernel has this address");
  registered& one = found->second;
  if (!one.decoded) one.decoded = decode(texts_in(one.binary).front(), one.name);
  return *one.decoded;
}

}  // namespace ptx

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
void __cudaRegisterFunction(void** handle, char const* host_function, char*, char const* name, int, void*, void*, void*, void*,
                            int*) {
  ptx::all_registered()[host_function] = {*handle, name, {}};
}
void __cudaRegisterVar(void**, char*, char*, char const*, int, std::size_t, int, int) {}

}  // extern "C"
