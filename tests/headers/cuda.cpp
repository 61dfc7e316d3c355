#include "kvpolicy/gpu/decode.hpp"
#include "kvpolicy/gpu/exec.hpp"
