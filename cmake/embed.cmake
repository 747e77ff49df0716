# embed.cmake - files of the source tree that become part of the library.
#
# As a module: embed_page(NAME DIR) makes gen/NAME.h with `static const unsigned char NAME[]` from DIR/page.html, in which
# @css@ and @js@ are replaced by DIR/page.css and DIR/page.js.  As a script (cmake -P) it does the work, at build time.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(embed_script ${CMAKE_CURRENT_LIST_FILE})
  function(embed_page name dir)
    add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/gen/${name}.h
      COMMAND ${CMAKE_COMMAND} -DNAME=${name} -DDIR=${dir} -DOUT=${PROJECT_BINARY_DIR}/gen/${name} -P ${embed_script}
      DEPENDS ${embed_script} ${dir}/page.html ${dir}/page.css ${dir}/page.js VERBATIM)
    set_source_files_properties(${PROJECT_BINARY_DIR}/gen/${name}.h PROPERTIES GENERATED TRUE)
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.22)
foreach(part html css js)
  file(READ ${DIR}/page.${part} ${part})
endforeach()
string(REPLACE "@css@" "${css}" html "${html}")
string(REPLACE "@js@" "${js}" html "${html}")
file(WRITE ${OUT}.html "${html}")
file(READ ${OUT}.html bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT}.h "/* ${NAME}.h - made from ${NAME}.html by cmake/embed.cmake */\nstatic const unsigned char ${NAME}[] = {\n${bytes}\n};\n")
