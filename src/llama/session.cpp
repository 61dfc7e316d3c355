#include "engine.hpp"

namespace kvpolicy::llama {

session::session(policy_runner runner, session_options options)
    : engine_(std::make_unique<engine>(std::move(runner), std::move(options))) {}
session::~session() = default;

void session::attach(llama_context_params& params, llama_model const* model) { engine_->attach(params, model); }
void session::detach() noexcept { engine_->detach(); }
void session::use(policy_runner runner) { engine_->use(std::move(runner)); }
saved_prompt session::save() const { return engine_->save(); }
void session::load(saved_prompt const& saved) { engine_->load(saved); }
void session::check() { engine_->check(); }
step_statistics const& session::last_step() const noexcept { return engine_->last_step(); }
tier::resident_statistics session::tier_statistics() const noexcept { return engine_->tier_statistics(); }
std::int64_t session::steps() const noexcept { return engine_->steps(); }

}  // namespace kvpolicy::llama
