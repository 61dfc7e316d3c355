#include "parameters.hpp"

#include <string>

#include "kvpolicy/error.hpp"
#include "nodes.hpp"

namespace kvpolicy::llama {

void check_parameters(llama_context_params const& params, llama_model const* model) {
  KVPOLICY_EXPECTS(model != nullptr, "attach needs the model that the context will be made from");
  auto const refuse_if = [](bool refused, char const* what) {
    if (refused) throw unsupported(what);
  };
  refuse_if(llama_model_is_recurrent(model), "recurrent models are not supported: they have no KV cache");
  refuse_if(llama_model_has_encoder(model), "models with an encoder are not supported");
  refuse_if(llama_model_is_diffusion(model), "diffusion models are not supported");
  refuse_if(params.attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL, "non-causal attention is not supported");
  refuse_if(params.flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED,
            "flash attention is disabled in the context's parameters; set flash_attn_type to LLAMA_FLASH_ATTN_TYPE_ENABLED");
  for (ggml_type const type : {params.type_k, params.type_v}) {
    if (!element_of(type)) {
      throw unsupported(std::string("a KV cache of type ") + ggml_type_name(type) +
                        " is not supported; set type_k and type_v to f16, bf16, f32, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl");
    }
  }
}

}  // namespace kvpolicy::llama
