# Areas of tests/run.sh: each is a build target, tests-AREA, and the label of its tests.

# kvpolicy_test_area(AREA [BUILDS target...] [FULL test...]): the tests that this folder added so far get the label AREA; those
# under FULL, which tests/run.sh --full alone runs, AREA-full. A test that has a label keeps it. The targets are built for AREA;
# one that does not exist here is left out.
function(kvpolicy_test_area area)
  cmake_parse_arguments(of "" "" "BUILDS;FULL" ${ARGN})
  if(NOT TARGET tests-${area})
    add_custom_target(tests-${area})
  endif()
  foreach(target IN LISTS of_BUILDS)
    if(TARGET ${target})
      add_dependencies(tests-${area} ${target})
    endif()
  endforeach()
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_property(label TEST ${test} PROPERTY LABELS)
    if(label)
      continue()
    endif()
    set(label ${area})
    if(test IN_LIST of_FULL)
      string(APPEND label -full)
    endif()
    set_property(TEST ${test} PROPERTY LABELS ${label})
  endforeach()
endfunction()

foreach(area core gpu llama c python tools package preload redis)
  kvpolicy_test_area(${area})
endforeach()
