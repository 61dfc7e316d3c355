// A disk tier's file as bytes, to damage what is in it. Only while no tier has the file open.
#pragma once

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "kvpolicy/tiers/tier.hpp"

namespace kvpolicy_test {

class disk_file {
 public:
  static constexpr std::int64_t header_bytes = 64;

  explicit disk_file(std::string const& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }
  disk_file(disk_file const&) = delete;
  disk_file& operator=(disk_file const&) = delete;
  ~disk_file() { std::ofstream(path_, std::ios::binary | std::ios::trunc).write(bytes_.data(), std::ssize(bytes_)); }

  /// The header of a block, found by its key, and what is behind it.
  char* slot_of(kvpolicy::tiers::block_key const& block) {
    std::string const image(reinterpret_cast<char const*>(&block), sizeof block);
    auto const at = bytes_.find(image);
    if (at == std::string::npos || bytes_.find(image, at + 1) != std::string::npos)
      throw std::runtime_error("a block is not there once");
    return bytes_.data() + at - 8;  // its magic
  }

 private:
  std::string path_;
  std::string bytes_;
};

}  // namespace kvpolicy_test
