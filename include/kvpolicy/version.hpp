// The library's version. CMake reads it here.
#pragma once

#define KVPOLICY_VERSION "0.1.0"
