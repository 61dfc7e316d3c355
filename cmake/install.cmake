# Headers, compiled parts, and a package for find_package(kvpolicy).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvpolicy)
install(DIRECTORY include/kvpolicy DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
foreach(component kvpolicy simd llama)
  set(target kvpolicy_${component})
  if(component STREQUAL kvpolicy)
    set(target kvpolicy)
  endif()
  if(TARGET ${target})
    install(TARGETS ${target} EXPORT kvpolicy_${component} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT kvpolicy_${component} FILE kvpolicy-${component}.cmake NAMESPACE kvpolicy:: DESTINATION ${package_dir})
  endif()
endforeach()
if(TARGET kvpolicy-run)
  install(TARGETS kvpolicy-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
configure_package_config_file(cmake/kvpolicy-config.cmake.in kvpolicy-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(kvpolicy-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/kvpolicy-config.cmake ${PROJECT_BINARY_DIR}/kvpolicy-config-version.cmake
        DESTINATION ${package_dir})
