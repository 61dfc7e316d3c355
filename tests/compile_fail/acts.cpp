// Of retain and retrieve, one is keep_all.
#include <kvpolicy/kvpolicy.hpp>

using namespace kvpolicy;

#ifndef RETRIEVE
#define RETRIEVE keep_all
#endif

using retain = decltype(presets::snapkv{}.parts().retain);

policy<retain, RETRIEVE> const both = policy{retain{}, RETRIEVE{}};
