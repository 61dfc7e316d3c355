# How the library's own code is compiled.

# The warnings that the library's own code is clean under; consumers are not given them.
function(kvpolicy_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${KVPOLICY_WERROR}>:-Werror>)
endfunction()

# kvpolicy_library(NAME SOURCE...): kvpolicy::NAME, an installed library. BUILD_SHARED_LIBS says of which kind.
function(kvpolicy_library name)
  add_library(kvpolicy_${name} ${ARGN})
  add_library(kvpolicy::${name} ALIAS kvpolicy_${name})
  set_target_properties(kvpolicy_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_link_libraries(kvpolicy_${name} PUBLIC kvpolicy)
  kvpolicy_warnings(kvpolicy_${name})
endfunction()
