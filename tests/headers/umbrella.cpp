#include "kvpolicy/exec/simd.hpp"
#include "kvpolicy/kvpolicy.hpp"
