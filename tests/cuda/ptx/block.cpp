#include "cuda/ptx/block.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

namespace ptx {

namespace {

std::string text(std::array<std::uint32_t, 3> const& of) {
  return "(" + std::to_string(of[0]) + ", " + std::to_string(of[1]) + ", " + std::to_string(of[2]) + ")";
}
std::string hexadecimal(std::uint64_t number) {
  char digits[20];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(number));
  return digits;
}

}  // namespace

std::string readable(std::string const& mangled) {
  int status = 0;
  char* const made = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (made == nullptr) return mangled;
  std::string name = made;
  std::free(made);
  // "void kernel_of<BODY>(BODY::arguments)" is the kernel of a body.
  constexpr std::string_view before = "kernel_of<";
  std::size_t const begin = name.find(before), end = name.rfind(">(");
  if (begin != name.npos && end != name.npos) name = name.substr(begin + before.size(), end - begin - before.size());
  else if (std::size_t const arguments = name.find('<'); arguments != name.npos)  // a library's, whose arguments fill pages
    name = name.substr(0, arguments).substr(name.rfind(':', arguments) + 1);
  if (name.ends_with(' ')) name.pop_back();
  for (std::string_view const space : {"kvpolicy::gpu::detail::", "kvpolicy::gpu::", "kvpolicy::", "(element_type)"})
    for (std::size_t at = name.find(space); at != name.npos; at = name.find(space)) name.erase(at, space.size());
  return name;
}

processor::processor(std::optional<std::uint64_t> seed, bool count_sectors)
    : counts_sectors_(count_sectors), checks_writes_(std::getenv("KVPOLICY_PTX_INITCHECK") != nullptr) {
  if (seed) order_.emplace(*seed);
}

void processor::execute(launch const& what, counts& sum) {
  what_ = &what, sum_ = &sum;
  ++launch_number_, ++sum.launches;
  kernel const& code = *what.code;
  std::uint32_t const threads = what.block[0] * what.block[1] * what.block[2];
  last_range_.assign(code.code.size(), {});
  std::size_t const lines = (code.register_bytes() + sizeof(line) - 1) / sizeof(line);
  warps_.resize((threads + warp_size - 1) / warp_size);
  if (registers_.size() < lines * warps_.size()) registers_.resize(lines * warps_.size());
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warp& one = warps_[i];
    one.on = this;
    one.registers = registers_[i * lines].bytes;
    one.first_thread = static_cast<std::uint32_t>(i) * warp_size;
    std::uint32_t const lanes = std::min<std::uint32_t>(warp_size, threads - one.first_thread);
    one.threads = all_lanes >> (warp_size - lanes);
    std::memset(one.registers, 0, code.constants_at);
    std::memcpy(one.registers + code.constants_at, code.constants.data(), code.constants.size());
  }

  std::vector<std::uint32_t> blocks(std::size_t{what.grid[0]} * what.grid[1] * what.grid[2]);
  std::iota(blocks.begin(), blocks.end(), 0U);
  if (order_) std::shuffle(blocks.begin(), blocks.end(), *order_);
  for (std::uint32_t const block : blocks) {
    std::array const index{block % what.grid[0], block / what.grid[0] % what.grid[1], block / what.grid[0] / what.grid[1]};
    begin_block(index);
    try {
      run_block();
    } catch (fault const& wrong) {
      throw fault(readable(code.name) + ":" + wrong.what() + ", block " + text(index));
    }
  }
}

void processor::begin_block(std::array<std::uint32_t, 3> const& index) {
  kernel const& code = *what_->code;
  shared_.begin(code.shared_bytes);
  ++block_time_;
  for (warp& one : warps_) {
    one.groups.assign(1, {0, one.threads, false});
    one.at_barrier = false;
    auto const fill = [&](std::size_t special, auto value) {
      if (code.specials[special] < 0) return;
      auto* const to = one.values<std::uint32_t>(static_cast<std::uint32_t>(code.specials[special]));
      for (std::uint32_t lane = 0; lane < warp_size; ++lane) to[lane] = value(lane);
    };
    auto const& size = what_->block;
    fill(0, [&](std::uint32_t lane) { return (one.first_thread + lane) % size[0]; });
    fill(1, [&](std::uint32_t lane) { return (one.first_thread + lane) / size[0] % size[1]; });
    fill(2, [&](std::uint32_t lane) { return (one.first_thread + lane) / size[0] / size[1]; });
    for (std::size_t i = 0; i < 3; ++i) {
      fill(3 + i, [&](std::uint32_t) { return size[i]; });
      fill(6 + i, [&](std::uint32_t) { return index[i]; });
      fill(9 + i, [&](std::uint32_t) { return what_->grid[i]; });
    }
    fill(12, [&](std::uint32_t lane) { return lane; });
  }
}

void processor::run_block() {
  while (true) {
    std::vector<warp*> ready;
    std::size_t waiting = 0;
    for (warp& one : warps_) {
      if (one.at_barrier) ++waiting;
      else if (!one.groups.empty()) ready.push_back(&one);
    }
    if (ready.empty() && waiting == 0) return;
    if (ready.empty()) {
      if (waiting != warps_.size())
        throw fault(" " + std::to_string(warps_.size() - waiting) + " of " + std::to_string(warps_.size()) +
                    " warps returned before a barrier of the block");
      ++block_time_;
      for (warp& one : warps_) one.at_barrier = one.groups[0].waits = false, ++one.groups[0].next;
      continue;
    }
    run(*ready[order_ ? (*order_)() % ready.size() : 0]);
  }
}

/// Runs a warp until its lanes have returned or wait at the block's barrier. The group that is furthest behind goes first, so
/// that lanes meet again where their branches do.
void processor::run(warp& one) {
  auto& groups = one.groups;
  while (!groups.empty()) {
    std::sort(groups.begin(), groups.end(), [](group const& a, group const& b) { return a.next < b.next; });
    for (std::size_t i = 1; i < groups.size();) {
      if (groups[i - 1].next != groups[i].next) {
        ++i;
        continue;
      }
      groups[i - 1].lanes |= groups[i].lanes;
      groups[i - 1].waits = false;
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(i));
    }
    auto const first = std::find_if(groups.begin(), groups.end(), [](group const& each) { return !each.waits; });
    if (first == groups.end()) {
      instruction const& at = what_->code->code[static_cast<std::size_t>(groups[0].next)];
      if (groups.size() == 1 && at.kind == flow::block_barrier && groups[0].lanes == one.threads) {
        one.at_barrier = true;
        return;
      }
      throw fault(std::to_string(at.line) + ": divergence: lanes " + hexadecimal(groups[0].lanes) + " of the warp of thread " +
                  std::to_string(one.first_thread) +
                  (at.kind == flow::block_barrier ? " wait at the block's barrier" : " wait for each other") +
                  ", and the others never come");
    }
    std::int32_t const until = first + 1 == groups.end() ? std::numeric_limits<std::int32_t>::max() : first[1].next;
    auto const at = static_cast<std::size_t>(first - groups.begin());
    try {
      while (step(one, at, until)) {
      }
    } catch (fault const& wrong) {
      instruction const& where = what_->code->code[static_cast<std::size_t>(groups[at].next)];
      throw fault(std::to_string(where.line) + ": " + wrong.what());
    }
  }
}

/// @return false where the warp's groups changed, or this one came to `until`, where the next one is
bool processor::step(warp& one, std::size_t at, std::int32_t until) {
  group& here = one.groups[at];
  instruction const* const code = what_->code->code.data();
  for (std::int32_t next = here.next; next < until;) {
    instruction const& what = code[next];
    lane_mask lanes = here.lanes;
    if (what.guard >= 0) {
      lane_mask const truth = one.predicate(static_cast<std::uint32_t>(what.guard));
      lanes &= what.unless ? ~truth : truth;
    }
    here.next = next;
    switch (what.kind) {
      case flow::next:
        if (lanes != 0) what.run(one, what, lanes);
        break;
      case flow::branch:
        if (lanes == 0) break;
        ++sum_->instructions;
        if (lanes != here.lanes) {
          here.lanes &= ~lanes;
          here.next = next + 1;
          one.groups.push_back({what.target, lanes, false});
          return false;
        }
        here.next = what.target;
        if (what.target <= next) return one.groups.size() == 1;  // where several are, another may now be behind
        next = what.target;
        continue;
      case flow::leave:
        ++sum_->instructions;
        here.lanes &= ~lanes;
        here.next = next + 1;
        if (here.lanes == 0) one.groups.erase(one.groups.begin() + static_cast<std::ptrdiff_t>(at));
        return false;
      default:
        if (lanes == 0) break;
        if (!may_go(one, what, here, lanes)) return false;
        if (what.run != nullptr) what.run(one, what, lanes);
    }
    ++sum_->instructions;
    here.next = ++next;
  }
  return false;
}

/// Whether all lanes that an instruction is for have come to it; where not, this group waits.
bool processor::may_go(warp& one, instruction const& what, group& here, lane_mask lanes) {
  if (what.kind == flow::block_barrier) {
    if (lanes != here.lanes) throw fault("a barrier of the block whose guard holds for some lanes");
    here.waits = true;
    ++sum_->instructions;
    return false;
  }
  lane_mask members = all_lanes;
  if (what.members >= 0) {
    auto const* const given = one.values<lane_mask>(static_cast<std::uint32_t>(what.members));
    members = given[std::countr_zero(lanes)];
    for (lane_mask rest = lanes; rest != 0; rest &= rest - 1)
      if (given[std::countr_zero(rest)] != members) throw fault("lanes that meet name different members");
  }
  if ((lanes & ~members) != 0) throw fault("a lane is not among the members that it names");
  if ((members & ~lanes) != 0) {
    here.waits = true;
    return false;
  }
  if (what.kind == flow::warp_barrier) ++one.time;
  return true;
}

std::array<std::byte*, warp_size> processor::reach(warp& by, instruction const& what, std::uint32_t address_at, lane_mask lanes,
                                                   std::uint32_t bytes, bool writes) {
  auto const* const base = by.values<std::uint64_t>(address_at);
  auto const offset = static_cast<std::uint64_t>(what.offset);
  std::array<std::byte*, warp_size> found;
  range& last = last_range_[static_cast<std::size_t>(what.index)];
  std::uint64_t lowest = ~std::uint64_t{0}, highest = 0, any = 0;
  for (int lane = 0; lane < warp_size; ++lane) {
    std::uint64_t const address = base[lane] + offset;
    bool const used = (lanes >> lane & 1) != 0;
    lowest = used && address < lowest ? address : lowest;
    highest = used && address > highest ? address : highest;
    any |= used ? address : 0;
    found[static_cast<std::size_t>(lane)] = reinterpret_cast<std::byte*>(address + static_cast<std::uint64_t>(last.to_host));
  }
  if ((any & (bytes - 1)) != 0)
    throw fault("an address that is no multiple of the " + std::to_string(bytes) + " bytes of the access");
  if (!last.holds(lowest, highest + bytes)) {
    for (lane_mask rest = lanes; rest != 0; rest &= rest - 1) {
      int const lane = std::countr_zero(rest);
      std::uint64_t const address = base[lane] + offset;
      last = memory::device().find(address);
      if (!last.holds(address, address + bytes)) {
        std::string const where = last.end == 0 ? "no allocation"
                                                : "an allocation of " + std::to_string(last.end - last.begin) +
                                                      " bytes, at byte " + std::to_string(address - last.begin);
        throw fault(std::string("out of bounds: thread ") + std::to_string(by.user(lane).thread) +
                    (writes ? " writes " : " reads ") + std::to_string(bytes) + " bytes at " + hexadecimal(address) + ", in " +
                    where);
      }
      found[static_cast<std::size_t>(lane)] = reinterpret_cast<std::byte*>(address + static_cast<std::uint64_t>(last.to_host));
    }
  }
  for (lane_mask rest = checks_writes_ ? lanes : 0; rest != 0; rest &= rest - 1) {
    std::uint64_t const address = base[std::countr_zero(rest)] + offset;
    if (writes) memory::device().note_write(memory::device().find(address), address, bytes);
    else if (!memory::device().is_written(memory::device().find(address), address, bytes))
      throw fault("a read of device memory that was never written, at " + hexadecimal(address));
  }
  if (counts_sectors_)
    for (lane_mask rest = lanes; rest != 0; rest &= rest - 1) count_sector(base[std::countr_zero(rest)] + offset, writes);
  return found;
}

/// An access is aligned to its size, so it lies in one sector.
void processor::count_sector(std::uint64_t address, bool writes) {
  std::uint32_t* const stamps = memory::device().sector_stamps(address);
  if (stamps == nullptr || stamps[writes ? 1 : 0] == launch_number_) return;
  stamps[writes ? 1 : 0] = launch_number_;
  ++(writes ? sum_->sectors_written : sum_->sectors_read);
}

void processor::refuse_shared(std::uint32_t address, std::uint32_t bytes, warp const& by) const {
  std::string const of = " of the warp of thread " + std::to_string(by.first_thread);
  if (address % bytes != 0)
    throw fault("an address in shared memory that is no multiple of the " + std::to_string(bytes) + " bytes of the access," +
                of);
  throw fault("out of bounds: a thread" + of + " uses byte " + std::to_string(address) + " of " +
              std::to_string(shared_.bytes()) + " bytes of shared memory");
}

std::byte const* processor::parameters(std::int64_t offset, std::uint32_t bytes) const {
  if (offset < 0 || offset + bytes > std::ssize(what_->parameters) || offset % bytes != 0)
    throw fault("a read of " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset) + " of " +
                std::to_string(what_->parameters.size()) + " bytes of parameters");
  return what_->parameters.data() + offset;
}

}  // namespace ptx
