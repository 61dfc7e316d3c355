"""Conan 2: headers, the compiled executor, the row store and the C library, from this tree. Highway and nlohmann-json are the system's (apt:
libhwy-dev, nlohmann-json3-dev), or ConanCenter's with -o kvpolicy/*:system=False.

    conan create packaging/conan
"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Kvpolicy(ConanFile):
    name = "kvpolicy"
    description = "KV-cache policies for inference engines"
    license = "Apache-2.0"
    settings = "os", "arch", "compiler", "build_type"
    options = {"system": [True, False]}
    default_options = {"system": True}
    package_type = "static-library"

    @property
    def _tree(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._tree, "include", "kvpolicy", "version.hpp"))
        self.version = re.search(r'KVPOLICY_VERSION "([\d.]+)"', header).group(1)

    def export_sources(self):
        for folder in ("cmake", "include", "src"):
            copy(self, f"{folder}/*", self._tree, self.export_sources_folder)
        for name in ("CMakeLists.txt", "LICENSE"):
            copy(self, name, self._tree, self.export_sources_folder)

    def requirements(self):
        if not self.options.system:
            self.requires("highway/[>=1.0]")
            self.requires("nlohmann_json/[>=3.11]")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("ADAPTERS", "BENCHMARKS", "DISK", "EXAMPLES", "GPU", "TESTS", "TOOLS"):
            toolchain.cache_variables["KVPOLICY_BUILD_" + part] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        # Its own CMake package serves find_package(kvpolicy COMPONENTS ...).
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "kvpolicy"))
