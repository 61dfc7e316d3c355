#include "cuda/emulator/state.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvpolicy_test {
namespace {

constexpr char const* did[] = {"read", "written", "added to"};

std::string text_of(std::source_location const& where) {
  if (where.line() == 0) return "";
  std::string const file = where.file_name();
  return " at " + file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line());
}

std::string text_of(block_state const& block) {
  return std::string(block.kernel) + ", block (" + std::to_string(block.at[0]) + ", " + std::to_string(block.at[1]) + ", " +
         std::to_string(block.at[2]) + ")";
}

std::string text_of(meeting const& place) {
  return std::to_string(place.arrived) + " of " + std::to_string(place.threads) + " threads from " +
         std::to_string(place.first) + " on wait in " + place.key.kind + text_of(place.key.where);
}

bool same(std::source_location const& a, std::source_location const& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

bool same(meeting_key const& a, meeting_key const& b) {
  return a.kind == b.kind && a.type == b.type && a.storage == b.storage && same(a.where, b.where);
}

}  // namespace

void fail(char const* kind, std::string const& what, std::source_location const& where) {
  throw emulator_error(text_of(*current->block) + ", thread " + std::to_string(current->index) + ": " + kind + ": " + what +
                       text_of(where));
}

std::string shadow::text_of_race(thread_state const& me, access how) const {
  std::string text = " " + std::string(did[static_cast<unsigned>(how)]);
  for (unsigned k = 0; k < 3; ++k) {
    if (harmless(how, static_cast<access>(k)) || !by[k].clashes(me)) continue;
    unsigned const other = by[k].first == me.index ? by[k].second : by[k].first;
    return text + ", and " + did[k] + " by thread " + std::to_string(other) + " with no sync between";
  }
  return text;
}

global_shadows::page& global_shadows::page_of(std::uintptr_t number) {
  auto& [last, where] = recent_[number % recent_.size()];
  if (where == nullptr || last != number) {
    last = number;
    where = &pages_[number];
  }
  return *where;
}

void global_shadows::start_launch() {
  launch_ = block_ + 1;
  counters_.clear();
  if (pages_.size() < 1024) return;
  pages_.clear();
  recent_.fill({});
}

std::string global_shadows::end_launch() {
  if (counters_.empty()) return "";
  return std::to_string(counters_.begin()->second.size()) + " blocks have come to a counter, and no last one";
}

bool global_shadows::last_of(std::int32_t* counter, std::int32_t count, std::source_location const& where) {
  std::vector<std::uint32_t>& came = counters_[counter];
  if (*counter != static_cast<std::int32_t>(came.size()))
    fail("counter", "it was " + std::to_string(*counter) + " after " + std::to_string(came.size()) + " blocks", where);
  came.push_back(block_);
  came_ = true;
  if (++*counter < count) return false;
  seen_ = came;
  *counter = 0;
  counters_.erase(counter);
  return true;
}

void global_shadows::touch(thread_state const& me, void const* at, std::size_t bytes, access how, element_index const& index) {
  auto address = reinterpret_cast<std::uintptr_t>(at);
  while (bytes > 0) {
    std::size_t const offset = address % page_bytes;
    std::size_t const here = std::min(bytes, page_bytes - offset);
    page& of = page_of(address / page_bytes);
    auto const finest = std::min(static_cast<unsigned>(std::countr_zero(offset | here)), 3u);
    if (of.granules.empty()) {
      of.shift = finest;
      of.granules.resize(page_bytes >> finest);
    } else if (finest < of.shift) {
      // What was noted of a granule holds for its parts.
      std::vector<granule> parts(page_bytes >> finest);
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = of.granules[i >> (of.shift - finest)];
      of.granules.swap(parts);
      of.shift = finest;
    }
    for (std::size_t i = offset >> of.shift; i < (offset + here) >> of.shift; ++i) {
      granule& g = of.granules[i];
      if (g.block != block_) {
        if (g.block < launch_) {
          g.before = 0;
        } else {
          for (unsigned k = 0; k < 3; ++k) g.before |= g.here.by[k].epoch != 0 ? 1u << k : 0u;
        }
        g.here = {};
        g.block = block_;
      }
      auto const name = [&] { return "global element " + std::to_string(index.value); };
      for (unsigned k = 0; k < 3; ++k) {
        if ((g.before >> k & 1) == 0 || harmless(how, static_cast<access>(k))) continue;
        bool const told = how == access::read && static_cast<access>(k) == access::write && !g.late &&
                          std::ranges::binary_search(seen_, g.writer);
        if (told) continue;
        fail("race", name() + " " + did[static_cast<unsigned>(how)] + ", and " + did[k] + " by another block", index.where);
      }
      if (how == access::write) {
        g.writer = block_;
        g.late = came_;
      }
      if (g.here.races(me, how)) fail("race", name() + g.here.text_of_race(me, how), index.where);
    }
    address += here;
    bytes -= here;
  }
}

void block_state::start() {
  epoch = 1;
  place.first = 0;
  place.threads = threads;
  place.arrived = place.exited = 0;
  for (unsigned w = 0; w < threads / 32; ++w) {
    warps[w].epoch = 0;
    warps[w].place.first = w * 32;
    warps[w].place.threads = 32;
    warps[w].place.arrived = warps[w].place.exited = 0;
  }
  for (unsigned t = 0; t < threads; ++t) each[t] = {this, &warps[t / 32], t};
  memory.start_block();
}

void block_state::run(random_bits& random, std::function<void(unsigned)> const& body) {
  start();
  scheduler.run(
      threads, random,
      [&](unsigned t) {
        current = &each[t];
        body(t);
        current = &each[t];
        exited(place);
        exited(each[t].warp->place);
      },
      [this] { return stuck(); });
}

bool block_state::arrive(meeting& here, meeting_key const& key, void* brought) {
  spend(*current, key.where);
  if (here.exited > 0) fail("exited early", "another thread has, and this one is in " + std::string(key.kind), key.where);
  if (here.arrived > 0 && !same(here.key, key))
    fail("divergence", std::string(key.kind) + text_of(key.where) + ", but " + text_of(here), {});
  here.key = key;
  current->brought = brought;
  return ++here.arrived == here.threads;
}

void block_state::next_epoch(std::uint32_t& of, meeting const& here, std::source_location const& where) {
  if (++of >= 1u << 18) fail("no progress", "262144 syncs", where);
  for (unsigned t = here.first; t < here.first + here.threads; ++t) each[t].spent = 0;
}

void block_state::exited(meeting& here) {
  if (here.arrived > 0) fail("exited early", text_of(here), {});
  ++here.exited;
}

std::exception_ptr block_state::stuck() const {
  std::string waiting = place.arrived > 0 ? text_of(place) : "";
  for (unsigned w = 0; w < threads / 32; ++w) {
    if (warps[w].place.arrived > 0) waiting += (waiting.empty() ? "" : "; ") + text_of(warps[w].place);
  }
  return std::make_exception_ptr(emulator_error(text_of(*this) + ": divergence: " + waiting));
}

}  // namespace kvpolicy_test
