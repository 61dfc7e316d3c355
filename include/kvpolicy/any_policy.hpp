// Policies whose types are known only at run time: type-erased rules and their states.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kvpolicy/policy.hpp"

namespace kvpolicy {

/// Holds the state of a rule of any type, for one type of view and one executor.
/// Each verb costs one virtual call for each layer. A copy copies the state. Model of: rule_state, which documents the members.
template <kv_cache_view View, executor_for<View> Exec>
class any_state {
  struct model {
    virtual ~model() = default;
    virtual std::span<range_list const> lists(layer_id layer) const noexcept = 0;
    virtual std::span<range_list const> ahead(layer_id layer) const noexcept = 0;
    virtual std::int64_t max_ranges() const noexcept = 0;
    virtual void reserve(std::int64_t tokens, std::int64_t ranges) = 0;
    virtual std::int64_t revision(layer_id layer) const noexcept = 0;
    virtual std::int64_t always_read(layer_id layer, std::int64_t head) const = 0;
    virtual bool by_steps() const noexcept = 0;
    virtual void truncate(std::int64_t tokens) = 0;
    virtual void cut(layer_id layer, head_range heads, std::int64_t indices) = 0;
    virtual std::unique_ptr<model> copy() const = 0;
    virtual void prefill(View const&, layer_id, retained_tokens const&, prompt_signals const&, Exec&) = 0;
    virtual void wait(layer_id, std::int64_t tokens, prompt_signals const&) = 0;
    virtual void choose(View const&, layer_id, retained_tokens const&, step_signals const&, Exec&) = 0;
    virtual void observe(std::int64_t tokens, step_outcome const& outcome, Exec& exec) = 0;
    virtual void visit_statistics(statistic_visitor const& visit) const = 0;
    virtual void archive(state_writer& a) = 0;
    virtual void archive(state_reader& a) = 0;
  };
  template <rule_state<View, Exec> State>
  struct model_of final : model {
    explicit model_of(State made) : at_work(std::move(made)) {}
    std::span<range_list const> lists(layer_id layer) const noexcept override { return at_work.lists(layer); }
    std::span<range_list const> ahead(layer_id layer) const noexcept override { return at_work.ahead(layer); }
    std::int64_t max_ranges() const noexcept override { return at_work.max_ranges(); }
    void reserve(std::int64_t tokens, std::int64_t ranges) override { at_work.reserve(tokens, ranges); }
    std::int64_t revision(layer_id layer) const noexcept override { return at_work.revision(layer); }
    std::int64_t always_read(layer_id layer, std::int64_t head) const override { return at_work.always_read(layer, head); }
    bool by_steps() const noexcept override { return at_work.by_steps(); }
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
    void visit_statistics(statistic_visitor const& visit) const override { at_work.visit_statistics(visit); }
    void archive(state_writer& a) override { at_work.archive(a); }
    void archive(state_reader& a) override { at_work.archive(a); }
    State at_work;
  };

 public:
  /// Takes over a rule's state.
  /// @param made  the state, as start_retain() or start_retrieve() made it
  template <rule_state<View, Exec> State>
  explicit any_state(State made) : model_(std::make_unique<model_of<State>>(std::move(made))) {}
  any_state(any_state const& other) : model_(other.model_->copy()) {}
  any_state(any_state&&) noexcept = default;
  any_state& operator=(any_state const& other) { return *this = any_state(other); }
  any_state& operator=(any_state&&) noexcept = default;

  std::span<range_list const> lists(layer_id layer) const noexcept { return model_->lists(layer); }
  std::span<range_list const> ahead(layer_id layer) const noexcept { return model_->ahead(layer); }
  std::int64_t max_ranges() const noexcept { return model_->max_ranges(); }
  void reserve(std::int64_t tokens, std::int64_t ranges) { model_->reserve(tokens, ranges); }
  std::int64_t revision(layer_id layer) const noexcept { return model_->revision(layer); }
  std::int64_t always_read(layer_id layer, std::int64_t head) const { return model_->always_read(layer, head); }
  bool by_steps() const noexcept { return model_->by_steps(); }
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
  void visit_statistics(statistic_visitor const& visit) const { model_->visit_statistics(visit); }
  template <class Archive>
  void archive(Archive& a) {
    model_->archive(a);
  }

 private:
  std::unique_ptr<model> model_;
};

/// Holds a retain rule or a retrieve rule of any type. Copies share the rule, which never changes.
/// At compile time an any_rule needs every signal, at head scope. At run time requirements_of() returns the held rule's needs.
template <kv_cache_view View, executor_for<View> Exec>
class any_rule {
  struct model {
    virtual ~model() = default;
    virtual requirements required() const = 0;
    virtual bool retrieves() const noexcept = 0;
    virtual void check(cache_shape const& shape) const = 0;
    virtual any_state<View, Exec> start(cache_shape const& shape) const = 0;
  };
  template <class Rule, bool Retrieves>
  struct model_of final : model {
    explicit model_of(Rule const& made) : rule(made) {}
    requirements required() const override { return requirements_of(rule); }
    bool retrieves() const noexcept override { return Retrieves; }
    void check(cache_shape const& shape) const override {
      if constexpr (Retrieves) check_retrieve(rule, shape);
      else kvpolicy::check(rule, shape);
    }
    any_state<View, Exec> start(cache_shape const& shape) const override {
      if constexpr (Retrieves) return any_state<View, Exec>(start_retrieve(rule, shape));
      else return any_state<View, Exec>(start_retain(rule, shape));
    }
    Rule rule;
  };

 public:
  static constexpr signals needs = all_signals;
  static constexpr scope granularity = scope::head;

  /// Holds a retain that keeps everything.
  any_rule() : any_rule(retain(keep_all{})) {}
  /// Holds a retain rule.
  /// @param rule  copied
  /// @return the erased rule
  template <class Rule>
  static any_rule retain(Rule const& rule) {
    return any_rule(std::make_shared<model_of<Rule, false> const>(rule));
  }
  /// Holds a retrieve rule.
  /// @param rule  copied
  /// @return the erased rule
  template <class Rule>
  static any_rule retrieve(Rule const& rule) {
    return any_rule(std::make_shared<model_of<Rule, true> const>(rule));
  }

  /// Compares identity: only copies of one any_rule are equal, rules with equal parameters are not.
  friend bool operator==(any_rule const&, any_rule const&) noexcept = default;
  friend requirements requirements_of(any_rule const& any) { return any.model_->required(); }
  friend void check(any_rule const& any, cache_shape const& shape) { any.check_as(false, shape); }
  friend void check_retrieve(any_rule const& any, cache_shape const& shape) { any.check_as(true, shape); }
  friend any_state<View, Exec> start_retain(any_rule const& any, cache_shape const& shape) { return any.model_->start(shape); }
  friend any_state<View, Exec> start_retrieve(any_rule const& any, cache_shape const& shape) {
    return any.model_->start(shape);
  }

 private:
  explicit any_rule(std::shared_ptr<model const> made) : model_(std::move(made)) {}
  void check_as(bool retrieve, cache_shape const& shape) const {
    KVPOLICY_EXPECTS(model_->retrieves() == retrieve || model_->required().keeps_all,
                     std::string("the policy's ") + (retrieve ? "retrieve" : "retain") +
                         " was made by any_rule::" + (retrieve ? "retain" : "retrieve") + "(); make it by the other");
    model_->check(shape);
  }
  std::shared_ptr<model const> model_;
};

/// A policy of two erased rules: for policies that are chosen by name, and for adapters that are compiled once.
template <kv_cache_view View, executor_for<View> Exec>
using any_policy = policy<any_rule<View, Exec>, any_rule<View, Exec>>;

/// The request of an any_policy.
template <kv_cache_view View, executor_for<View> Exec>
using any_request = request_of<any_policy<View, Exec>>;

/// Erases the types of a policy's rules.
/// @param policy  a policy or a preset; its rules are copied, those of an any_policy are shared
/// @return the same policy as an any_policy
template <kv_cache_view View, executor_for<View> Exec, policy_like Policy>
any_policy<View, Exec> erase(Policy const& policy) {
  using rule = any_rule<View, Exec>;
  if constexpr (std::same_as<Policy, any_policy<View, Exec>>) return policy;
  else return {rule::retain(parts_of(policy).retain), rule::retrieve(parts_of(policy).retrieve)};
}

}  // namespace kvpolicy
