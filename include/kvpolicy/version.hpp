// The library's version. CMake, the Python build and the Conan recipe read it from this file.
#pragma once

/// The version as "major.minor.patch".
#define KVPOLICY_VERSION "0.2.0"
