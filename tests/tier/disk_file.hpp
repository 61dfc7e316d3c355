// A disk tier's file, as LMDB sees it: to damage what is in it. Only while no tier has the file open.
#pragma once

#include <lmdb.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvpolicy/tier/tier.hpp"

namespace kvpolicy_test {

class disk_file {
 public:
  explicit disk_file(std::string const& path) {
    must(mdb_env_create(&env_));
    must(mdb_env_set_mapsize(env_, std::size_t{1} << 30));
    must(mdb_env_set_maxdbs(env_, 2));
    must(mdb_env_open(env_, path.c_str(), MDB_NOSUBDIR | MDB_NOSYNC | MDB_NOTLS, 0644));
    must(mdb_txn_begin(env_, nullptr, 0, &txn_));
    must(mdb_dbi_open(txn_, "blocks", 0, &blocks_));
  }
  disk_file(disk_file const&) = delete;
  disk_file& operator=(disk_file const&) = delete;
  ~disk_file() {
    mdb_txn_commit(txn_);
    mdb_env_close(env_);
  }

  std::vector<unsigned char> read(kvpolicy::tier::block_key const& block) {
    auto image = image_of(block);
    MDB_val key{image.size(), image.data()};
    MDB_val value{};
    must(mdb_get(txn_, blocks_, &key, &value));
    auto const* const bytes = static_cast<unsigned char const*>(value.mv_data);
    return {bytes, bytes + value.mv_size};
  }
  void write(kvpolicy::tier::block_key const& block, std::vector<unsigned char> bytes) {
    auto image = image_of(block);
    MDB_val key{image.size(), image.data()};
    MDB_val value{bytes.size(), bytes.data()};
    must(mdb_put(txn_, blocks_, &key, &value, 0));
  }

 private:
  static void must(int code) {
    if (code != 0) throw std::runtime_error(mdb_strerror(code));
  }
  static std::vector<unsigned char> image_of(kvpolicy::tier::block_key const& key) {
    std::vector<unsigned char> image(24);
    std::memcpy(image.data(), &key.request, 8);
    std::memcpy(image.data() + 8, &key.layer, 4);
    std::memcpy(image.data() + 12, &key.head, 4);
    std::memcpy(image.data() + 16, &key.position, 4);
    std::memcpy(image.data() + 20, &key.generation, 4);
    return image;
  }

  MDB_env* env_ = nullptr;
  MDB_txn* txn_ = nullptr;
  MDB_dbi blocks_ = 0;
};

}  // namespace kvpolicy_test
