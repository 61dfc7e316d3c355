# An overlay port of this tree: vcpkg install kvpolicy --overlay-ports=packaging/vcpkg
set(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../..")
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DKVPOLICY_BUILD_ADAPTERS=OFF
    -DKVPOLICY_BUILD_BENCHMARKS=OFF
    -DKVPOLICY_BUILD_GPU=OFF
    -DKVPOLICY_BUILD_DISK=OFF
    -DKVPOLICY_BUILD_EXAMPLES=OFF
    -DKVPOLICY_BUILD_TESTS=OFF
    -DKVPOLICY_BUILD_TOOLS=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/kvpolicy)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
