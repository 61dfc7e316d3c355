#include "checked_file.hpp"

#include <kvpolicy/error.hpp>
#include <kvpolicy/version.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace kvpolicy::preload {
namespace {

std::string first_line(std::string_view what) { return "kvpolicy " KVPOLICY_VERSION ", " + std::string(what) + "\n"; }

}  // namespace

void write_checked(std::string const& path, std::string_view what, std::span<std::byte const> bytes) {
  std::size_t const hash = hash_of(bytes);
  std::string const draft = path + ".part";
  {
    std::ofstream out(draft, std::ios::binary | std::ios::trunc);
    out << first_line(what);
    out.write(reinterpret_cast<char const*>(&hash), sizeof hash);
    out.write(reinterpret_cast<char const*>(bytes.data()), std::ssize(bytes));
    if (!out.flush()) throw error("'" + draft + "' can't be written");
  }
  std::filesystem::rename(draft, path);
}

std::optional<std::vector<std::byte>> read_checked(std::string const& path, std::string_view what) {
  std::ifstream in(path, std::ios::binary);
  std::string said = first_line(what);
  std::string const expected = said;
  std::size_t hash = 0;
  if (!in.read(said.data(), std::ssize(said)) || said != expected) return std::nullopt;
  if (!in.read(reinterpret_cast<char*>(&hash), sizeof hash)) return std::nullopt;
  std::vector<std::byte> bytes;
  std::error_code unknown;
  auto const size = std::filesystem::file_size(path, unknown);
  std::size_t const before = said.size() + sizeof hash;
  if (unknown || size < before) return std::nullopt;
  bytes.resize(size - before);
  in.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  if (!in || hash_of(bytes) != hash) return std::nullopt;
  return bytes;
}

}  // namespace kvpolicy::preload
