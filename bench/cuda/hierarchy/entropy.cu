// Entropy and varentropy of a step's next-token logits, fp32. There is no context in it.
#include "cache.hpp"
#include "kvpolicy/gpu/hierarchy/entropy.hpp"
#include "primitives.hpp"

namespace kvpolicy::bench {

void entropies(measured_gpu& on) {
  measured_gpu::each(on.wanted().batches, all_batches, [&](std::int64_t batch) {
    on.run("entropy of 128256", batch, 0, [&] {
      using llama_8b::vocabulary;
      double const bytes = llama_8b::logits(batch);
      gpu::stream_device device(on.on());
      std::vector<gpu::device_buffer<float>> logits;
      for (int left = on.copies(bytes, bytes); left > 0; --left) logits.push_back(on.floats(batch * vocabulary));
      gpu::device_buffer<float> const found(2 * batch);
      return outcome{bytes, on.time([&](int turn) {
                       gpu::detail::entropy_body::arguments a{};
                       a.logits = vectors(logits[static_cast<std::size_t>(turn) % logits.size()], 1, vocabulary);
                       a.vocabulary = vocabulary;
                       a.sequences = batch;
                       a.entropy = {found.get().data, batch};
                       a.varentropy = {found.get().data + batch, batch};
                       device.launch<gpu::detail::entropy_body>({batch, 1, 1}, a);
                     })};
    });
  });
}

}  // namespace kvpolicy::bench
