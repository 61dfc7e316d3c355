#include "kvpolicy/cuda/decode.hpp"
#include "kvpolicy/cuda/exec.hpp"
