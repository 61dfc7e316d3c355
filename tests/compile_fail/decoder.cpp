// A policy that a decoder on a GPU takes; each definition puts a part in it that has no kernels.
#include <kvpolicy/gpu/base/stream_device.hpp>
#include <kvpolicy/gpu/decoder.hpp>
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef SCORE
#define SCORE scorers::upper_bound
#endif
#ifndef BUDGET
#define BUDGET budgets::tokens
#endif
#ifndef TRIGGER
#define TRIGGER triggers::every_step
#endif
#ifndef WINDOW
#define WINDOW windows::pages
#endif
#ifndef RETAIN
#define RETAIN keep_all
#endif

struct other_score : scorers::upper_bound {};
struct other_trigger : triggers::every_step {};

using h2o = decltype(presets::h2o{}.parts().retain);
using made =
    policy<RETAIN,
           decltype(keep{segments::pages{}, pools::bounds{}, SCORE{}, BUDGET{}, selectors::top{}, WINDOW{}, TRIGGER{}})>;

std::size_t size() { return sizeof(gpu::decoder<made, gpu::stream_device>); }
