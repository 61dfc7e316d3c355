// A tier of any kind, called through function pointers, for code that is compiled once.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvpolicy/tiers/tier.hpp"
#include "kvpolicy/types.hpp"

namespace kvpolicy::tiers {

/// Owns a tier of any kind. The calls keep the contracts of tier_like.
class any_tier {
 public:
  /// Makes a tier in place, because tiers do not move.
  /// @tparam Tier  the kind of tier
  /// @param arguments  for the tier's constructor
  /// @return the owner
  template <tier_like Tier, class... Arguments>
  static any_tier of(Arguments&&... arguments) {
    return any_tier(
        pointer(new Tier(std::forward<Arguments>(arguments)...), [](void* tier) { delete static_cast<Tier*>(tier); }),
        calls_of<Tier>);
  }

  std::int64_t block_bytes() const { return calls_->block_bytes(self_.get()); }
  std::int64_t capacity() const { return calls_->capacity(self_.get()); }
  std::string describe() const { return calls_->describe(self_.get()); }
  /// The type of the elements that a codec reads; none where a tier takes bytes.
  std::optional<element_type> element() const { return calls_->element(self_.get()); }
  bool put(std::span<block_write const> writes) { return calls_->put(self_.get(), writes); }
  ticket get(std::span<block_read const> reads, bool waits = true) { return calls_->get(self_.get(), reads, waits); }
  status poll(ticket id) { return calls_->poll(self_.get(), id); }
  status wait(ticket id, clock::time_point deadline) { return calls_->wait(self_.get(), id, deadline); }
  void drop(std::span<block_key const> keys) { calls_->drop(self_.get(), keys); }
  usage occupied() { return calls_->occupied(self_.get()); }

  /// Notes that a sequence uses a request's keys.
  /// @param request  block_key::request
  /// @return whether nobody else does
  bool enlist(std::int64_t request) {
    std::lock_guard const lock(users_->guard);
    if (std::ranges::find(users_->requests, request) != users_->requests.end()) return false;
    users_->requests.push_back(request);
    return true;
  }
  /// Notes that the sequence has ended.
  /// @param request  block_key::request
  void strike(std::int64_t request) noexcept {
    std::lock_guard const lock(users_->guard);
    std::erase(users_->requests, request);
  }

 private:
  struct users {
    std::mutex guard;
    std::vector<std::int64_t> requests;
  };
  using pointer = std::unique_ptr<void, void (*)(void*)>;
  struct calls {
    std::int64_t (*block_bytes)(void*);
    std::int64_t (*capacity)(void*);
    std::string (*describe)(void*);
    std::optional<element_type> (*element)(void*);
    bool (*put)(void*, std::span<block_write const>);
    ticket (*get)(void*, std::span<block_read const>, bool waits);
    status (*poll)(void*, ticket);
    status (*wait)(void*, ticket, clock::time_point);
    void (*drop)(void*, std::span<block_key const>);
    usage (*occupied)(void*);
  };
  template <class Tier>
  static constexpr calls calls_of{
      .block_bytes = [](void* t) -> std::int64_t { return static_cast<Tier*>(t)->block_bytes(); },
      .capacity = [](void* t) -> std::int64_t { return static_cast<Tier*>(t)->capacity(); },
      .describe = [](void* t) { return tiers::describe(*static_cast<Tier const*>(t)); },
      .element = [](void* t) -> std::optional<element_type> {
        if constexpr (requires(Tier const& tier) { tier.element(); }) return static_cast<Tier*>(t)->element();
        else return std::nullopt;
      },
      .put = [](void* t, std::span<block_write const> writes) { return static_cast<Tier*>(t)->put(writes); },
      .get =
          [](void* t, std::span<block_read const> reads, bool waits) {
            if constexpr (requires(Tier & tier) { tier.get(reads, waits); }) return static_cast<Tier*>(t)->get(reads, waits);
            else return static_cast<Tier*>(t)->get(reads);
          },
      .poll = [](void* t, ticket id) { return static_cast<Tier*>(t)->poll(id); },
      .wait = [](void* t, ticket id, clock::time_point deadline) { return static_cast<Tier*>(t)->wait(id, deadline); },
      .drop = [](void* t, std::span<block_key const> keys) { static_cast<Tier*>(t)->drop(keys); },
      .occupied = [](void* t) { return static_cast<Tier*>(t)->occupied(); }};

  any_tier(pointer self, calls const& functions) : self_(std::move(self)), calls_(&functions) {}

  pointer self_;
  calls const* calls_;
  std::unique_ptr<users> users_ = std::make_unique<users>();
};

static_assert(tier_like<any_tier>);

}  // namespace kvpolicy::tiers
