#include "kvpolicy/gpu/decode.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
