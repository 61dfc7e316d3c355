# The warnings that the library's own code is clean under; consumers are not given them.
function(kvpolicy_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${KVPOLICY_WERROR}>:-Werror>)
endfunction()
