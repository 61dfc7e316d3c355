#include "kvpolicy/gpu/decoder.hpp"
#include "kvpolicy/gpu/gpu_exec.hpp"
