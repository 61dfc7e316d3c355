#include <functional>

#include "engine.hpp"

namespace kvpolicy::llama {
namespace {

/// What a member function says of a sequence; nothing of one that there is not.
template <class Said>
auto said_of(sequence const* found, Said said) {
  using value = std::remove_cvref_t<std::invoke_result_t<Said, sequence const&>>;
  return found != nullptr ? value(std::invoke(said, *found)) : value{};
}

}  // namespace

session::session(host_policy policy, session_options options)
    : engine_(std::make_unique<engine>(std::move(policy), std::move(options))) {}
session::~session() = default;

void session::attach(llama_context_params& params, llama_model const* model) { engine_->attach(params, model); }
void session::detach() noexcept { engine_->detach(); }
void session::use(host_policy policy) { engine_->use(std::move(policy)); }
void session::use(host_policy policy, llama_seq_id of) { engine_->use(std::move(policy), of); }
void session::set_batch(llama_batch const& batch, batch_reading how) { engine_->set_batch(batch, how); }
void session::set_batch(std::span<llama_seq_id const> sequences, std::span<std::int8_t const> outputs, batch_reading how) {
  engine_->set_batch(sequences, outputs, how);
}
saved_prompt session::save(llama_seq_id of) const { return engine_->save(of); }
void session::load(saved_prompt const& saved, llama_seq_id of) { engine_->load(saved, of); }
int session::decode(llama_context* context, llama_batch const& batch) { return engine_->decode(context, batch); }
void session::copy(llama_seq_id from, llama_seq_id to) { engine_->copy(from, to); }
void session::end(llama_seq_id of) noexcept { engine_->end(of); }
void session::cut(llama_seq_id of, std::int64_t tokens) noexcept { engine_->cut(of, tokens); }
void session::give_back(llama_context* context, std::span<llama_seq_id const> sequences) {
  engine_->give_back(context, sequences);
}
std::vector<std::byte> session::save_state(std::string const& policy, llama_seq_id of) {
  return engine_->save_state(policy, of);
}
void session::load_state(std::span<std::byte const> state, std::string const& policy, llama_seq_id of) {
  engine_->load_state(state, policy, of);
}
void session::check() { engine_->check(); }
cache_shape session::shape() const noexcept { return engine_->attached_shape(); }
std::vector<std::string> session::report() const { return engine_->report(); }

step_statistics session::last_step(llama_seq_id of) const noexcept { return said_of(engine_->find(of), &sequence::last_step); }
prompt_statistics session::prompts(llama_seq_id of) const noexcept { return said_of(engine_->find(of), &sequence::prompts); }
tiers::resident_statistics session::tier_statistics(llama_seq_id of) const noexcept {
  return said_of(engine_->find(of), &sequence::tier_statistics);
}
memory_statistics session::memory() const noexcept { return engine_->memory(); }
memory_statistics session::memory(llama_seq_id of) const noexcept { return said_of(engine_->find(of), &sequence::memory); }
std::int64_t session::tokens(llama_seq_id of) const noexcept { return said_of(engine_->find(of), &sequence::owned); }
std::int64_t session::goes_on_from(llama_seq_id of) const noexcept {
  return said_of(engine_->find(of), &sequence::goes_on_from);
}
std::int64_t session::steps(llama_seq_id of) const noexcept { return said_of(engine_->find(of), &sequence::steps); }
void session::visit_statistics(statistic_visitor const& visit, llama_seq_id of) const {
  if (sequence const* const found = engine_->find(of)) found->visit_statistics(visit);
}

}  // namespace kvpolicy::llama
