# embed.cmake - files of the source tree that become part of the library.
#
# As a module: embed_page(NAME DIR SCRIPT...) makes gen/NAME.h with `static const unsigned char NAME[]` from DIR/page.html,
# in which @css@ is replaced by DIR/page.css and @js@ by the scripts of DIR, one after the other in the order given.  As a
# script (cmake -P) it does the work, at build time.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(embed_script ${CMAKE_CURRENT_LIST_FILE})
  function(embed_page name dir)
    list(TRANSFORM ARGN PREPEND ${dir}/ OUTPUT_VARIABLE scripts)
    string(REPLACE ";" "," names "${ARGN}") # a list would be split into arguments
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/gen/${name}.h
      COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DDIR=${dir} -DSCRIPTS=${names} -DOUT=${PROJECT_BINARY_DIR}/gen/${name} -P ${embed_script}
      DEPENDS ${embed_script} ${dir}/page.html ${dir}/page.css ${scripts} VERBATIM)
    set_source_files_properties(${PROJECT_BINARY_DIR}/gen/${name}.h PROPERTIES GENERATED TRUE)
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.22)
foreach(part html css)
  file(READ ${DIR}/page.${part} ${part})
endforeach()
string(REPLACE "," ";" SCRIPTS "${SCRIPTS}")
foreach(script ${SCRIPTS})
  file(READ ${DIR}/${script} text)
  string(APPEND js "${text}")
endforeach()
string(REPLACE "@css@" "${css}" html "${html}")
string(REPLACE "@js@" "${js}" html "${html}")
file(WRITE ${OUT}.html "${html}")
file(READ ${OUT}.html bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT}.h "/* ${NAME}.h - made from ${NAME}.html by cmake/embed.cmake */\nstatic const unsigned char ${NAME}[] = {\n${bytes}\n};\n")
