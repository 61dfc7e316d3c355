// What a remote tier moves: gets of so many blocks at a time, for run.sh, which measures the server's own benchmark beside it.
//
//   kvpolicy_remote_tier HOST:PORT block_bytes blocks batch seconds   -> MB/s
#include <kvpolicy/tiers/redis.hpp>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace tiers = kvpolicy::tiers;

int main(int argc, char** argv) try {
  if (argc != 6) throw std::invalid_argument("usage: kvpolicy_remote_tier HOST:PORT block_bytes blocks batch seconds");
  std::int64_t const bytes = std::stoll(argv[2]);
  std::int64_t const blocks = std::stoll(argv[3]);
  std::int64_t const batch = std::stoll(argv[4]);
  double const seconds = std::stod(argv[5]);
  tiers::redis rows({.nodes = {argv[1]}, .deadline = std::chrono::seconds(30), .attempt = std::chrono::seconds(10)}, bytes,
                    blocks);
  std::mt19937 random(1);
  std::vector<std::byte> some(static_cast<std::size_t>(batch * bytes));
  for (std::byte& b : some) b = static_cast<std::byte>(random());
  auto const key = [](std::int64_t i) { return tiers::block_key{1, 0, 0, static_cast<std::int32_t>(i), 1}; };
  for (std::int64_t first = 0; first < blocks; first += batch) {
    std::vector<tiers::block_write> writes;
    for (std::int64_t i = first; i < std::min(blocks, first + batch); ++i) {
      writes.push_back({key(i), some.data() + (i - first) * bytes});
    }
    if (!rows.put(writes)) throw std::runtime_error("a put failed");
  }
  std::int64_t moved = 0;
  auto const start = tiers::clock::now();
  double took = 0;
  while (took < seconds) {
    std::vector<tiers::block_read> reads;
    for (std::int64_t i = 0; i < batch; ++i) {
      reads.push_back({key(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(blocks))), some.data() + i * bytes});
    }
    if (rows.wait(rows.get(reads), tiers::clock::now() + std::chrono::seconds(30)) != tiers::status::done) {
      throw std::runtime_error("a get failed");
    }
    moved += batch * bytes;
    took = std::chrono::duration<double>(tiers::clock::now() - start).count();
  }
  std::printf("%.1f\n", static_cast<double>(moved) / took / 1e6);
} catch (std::exception const& problem) {
  std::fprintf(stderr, "kvpolicy_remote_tier: %s\n", problem.what());
  return 2;
}
