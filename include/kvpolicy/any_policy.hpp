// A policy that is known at run time alone: two acts behind one abstract pair, what they are and what they are at work.
#pragma once

#include <memory>
#include <utility>

#include "kvpolicy/policy.hpp"

namespace kvpolicy {

/// A stage of any act, for one kind of view and one executor: one virtual call a verb and layer.
template <kv_cache_view View, executor_for<View> Exec>
class any_stage {
  struct model {
    virtual ~model() = default;
    virtual std::span<range_list const> lists(layer_id layer) const noexcept = 0;
    virtual std::int64_t max_ranges() const = 0;
    virtual std::int64_t revision(layer_id layer) const noexcept = 0;
    virtual std::int64_t looked_at(layer_id layer, std::int64_t head) const = 0;
    virtual void truncate(std::int64_t tokens) = 0;
    virtual void cut(layer_id layer, head_range heads, std::int64_t indices) = 0;
    virtual std::unique_ptr<model> copy() const = 0;
    virtual void prefill(View const&, layer_id, retained_tokens const&, prompt_signals const&, Exec&) = 0;
    virtual void wait(layer_id, std::int64_t tokens, prompt_signals const&) = 0;
    virtual void choose(View const&, layer_id, retained_tokens const&, step_signals const&, Exec&) = 0;
    virtual void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) = 0;
    virtual void tell(listener const& listen) const = 0;
    virtual void archive(state_writer& a) = 0;
    virtual void archive(state_reader& a) = 0;
  };
  template <stage<View, Exec> Stage>
  struct model_of final : model {
    explicit model_of(Stage made) : at_work(std::move(made)) {}
    std::span<range_list const> lists(layer_id layer) const noexcept override { return at_work.lists(layer); }
    std::int64_t max_ranges() const override { return at_work.max_ranges(); }
    std::int64_t revision(layer_id layer) const noexcept override { return at_work.revision(layer); }
    std::int64_t looked_at(layer_id layer, std::int64_t head) const override { return at_work.looked_at(layer, head); }
    void truncate(std::int64_t tokens) override { at_work.truncate(tokens); }
    void cut(layer_id layer, head_range heads, std::int64_t indices) override { at_work.cut(layer, heads, indices); }
    std::unique_ptr<model> copy() const override { return std::make_unique<model_of>(at_work); }
    void prefill(View const& view, layer_id layer, retained_tokens const& retained, prompt_signals const& prompt,
                 Exec& exec) override {
      at_work.prefill(view, layer, retained, prompt, exec);
    }
    void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) override {
      at_work.wait(layer, tokens, prompt);
    }
    void choose(View const& view, layer_id layer, retained_tokens const& retained, step_signals const& step,
                Exec& exec) override {
      at_work.choose(view, layer, retained, step, exec);
    }
    void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) override {
      at_work.observe(tokens, outcome, exec);
    }
    void tell(listener const& listen) const override { at_work.tell(listen); }
    void archive(state_writer& a) override { at_work.archive(a); }
    void archive(state_reader& a) override { at_work.archive(a); }
    Stage at_work;
  };

 public:
  template <stage<View, Exec> Stage>
  explicit any_stage(Stage made) : model_(std::make_unique<model_of<Stage>>(std::move(made))) {}
  any_stage(any_stage const& other) : model_(other.model_->copy()) {}
  any_stage(any_stage&&) noexcept = default;
  any_stage& operator=(any_stage const& other) { return *this = any_stage(other); }
  any_stage& operator=(any_stage&&) noexcept = default;

  std::span<range_list const> lists(layer_id layer) const noexcept { return model_->lists(layer); }
  std::int64_t max_ranges() const { return model_->max_ranges(); }
  std::int64_t revision(layer_id layer) const noexcept { return model_->revision(layer); }
  std::int64_t looked_at(layer_id layer, std::int64_t head) const { return model_->looked_at(layer, head); }
  void truncate(std::int64_t tokens) { model_->truncate(tokens); }
  void cut(layer_id layer, head_range heads, std::int64_t indices) { model_->cut(layer, heads, indices); }
  void prefill(View const& view, layer_id layer, retained_tokens const& retained, prompt_signals const& prompt, Exec& exec) {
    model_->prefill(view, layer, retained, prompt, exec);
  }
  void wait(layer_id layer, std::int64_t tokens, prompt_signals const& prompt) { model_->wait(layer, tokens, prompt); }
  void choose(View const& view, layer_id layer, retained_tokens const& retained, step_signals const& step, Exec& exec) {
    model_->choose(view, layer, retained, step, exec);
  }
  void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) { model_->observe(tokens, outcome, exec); }
  void tell(listener const& listen) const { model_->tell(listen); }
  template <class Archive>
  void archive(Archive& a) {
    model_->archive(a);
  }

 private:
  std::unique_ptr<model> model_;
};

/// Any retain, or any retrieve; copies share it, nobody changes it. What it needs is known at compile time as everything, at
/// run time (facts_of) as the act's own.
template <kv_cache_view View, executor_for<View> Exec>
class any_act {
  struct model {
    virtual ~model() = default;
    virtual act_facts facts() const = 0;
    virtual void check(cache_shape const& shape) const = 0;
    virtual any_stage<View, Exec> start(cache_shape const& shape, std::int64_t retained) const = 0;
  };
  template <class Act, bool Retrieves>
  struct model_of final : model {
    explicit model_of(Act const& made) : act(made) {}
    act_facts facts() const override { return facts_of(act); }
    void check(cache_shape const& shape) const override {
      if constexpr (Retrieves) check_retrieve(act, shape);
      else kvpolicy::check(act, shape);
    }
    any_stage<View, Exec> start(cache_shape const& shape, std::int64_t retained) const override {
      if constexpr (Retrieves) return any_stage<View, Exec>(start_retrieve(act, shape, retained));
      else return any_stage<View, Exec>(start_retain(act, shape));
    }
    Act act;
  };

 public:
  static constexpr signals needs = all_signals;
  static constexpr scope granularity = scope::head;

  any_act() : any_act(retain(keep_all{})) {}
  template <class Act>
  static any_act retain(Act const& act) {
    return any_act(std::make_shared<model_of<Act, false> const>(act));
  }
  template <class Act>
  static any_act retrieve(Act const& act) {
    return any_act(std::make_shared<model_of<Act, true> const>(act));
  }

  /// Whether they are copies of one: equal parameters do not count.
  friend bool operator==(any_act const&, any_act const&) noexcept = default;
  friend act_facts facts_of(any_act const& any) { return any.model_->facts(); }
  friend void check(any_act const& any, cache_shape const& shape) { any.model_->check(shape); }
  friend void check_retrieve(any_act const& any, cache_shape const& shape) { any.model_->check(shape); }
  friend any_stage<View, Exec> start_retain(any_act const& any, cache_shape const& shape) {
    return any.model_->start(shape, 0);
  }
  friend any_stage<View, Exec> start_retrieve(any_act const& any, cache_shape const& shape, std::int64_t retained) {
    return any.model_->start(shape, retained);
  }

 private:
  explicit any_act(std::shared_ptr<model const> made) : model_(std::move(made)) {}
  std::shared_ptr<model const> model_;
};

/// A named policy, or one that an adapter compiled once can hold: two erased acts.
template <kv_cache_view View, executor_for<View> Exec>
using any_policy = policy<any_act<View, Exec>, any_act<View, Exec>>;

template <kv_cache_view View, executor_for<View> Exec>
using any_request = request_of<any_policy<View, Exec>>;

template <kv_cache_view View, executor_for<View> Exec, policy_like Policy>
any_policy<View, Exec> erase(Policy const& policy) {
  using act = any_act<View, Exec>;
  if constexpr (std::same_as<Policy, any_policy<View, Exec>>) return policy;
  else return {act::retain(parts_of(policy).retain), act::retrieve(parts_of(policy).retrieve)};
}

}  // namespace kvpolicy
