// What a session refuses before there is a context.
#pragma once

#include <llama.h>

namespace kvpolicy::llama {

/// Throws unsupported for a model, a cache or an attention that no policy can run in; model may not be null.
void check_parameters(llama_context_params const& params, llama_model const* model);

}  // namespace kvpolicy::llama
