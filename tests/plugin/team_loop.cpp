// A shared object that the tests load, as programs load plugins: its code uses a team of threads that the program made.
#include <kvpolicy/exec/team.hpp>

extern "C" __attribute__((visibility("default"))) void count_in_plugin(kvpolicy::team& threads, std::int64_t* runs,
                                                                       std::int64_t count) {
  threads.for_each(count, [&](std::int64_t i) { ++runs[i]; });
}
