# headroom_embed_texts(OUT HEADER NAMESPACE FILE...): writes a source file that defines the text of
# each file as a std::string_view named after it (common.css: common_css), declared in HEADER. It is
# written anew whenever one of the files changes.
set(headroom_embed_script "${CMAKE_CURRENT_LIST_FILE}")

function(headroom_embed_texts out header namespace)
  add_custom_command(OUTPUT "${out}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${out}" "-DHEADER=${header}" "-DNAMESPACE=${namespace}"
            "-DFILES=${ARGN}" -P "${headroom_embed_script}"
    DEPENDS ${ARGN} "${headroom_embed_script}"
    COMMENT "Embedding texts for ${header}" VERBATIM)
endfunction()

# The script's part.
if(CMAKE_SCRIPT_MODE_FILE AND CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(source "// Generated. Edit the files that the names tell.\n#include \"${HEADER}\"\n\n")
  string(APPEND source "namespace ${NAMESPACE} {\n\n")
  foreach(file IN LISTS FILES)
    get_filename_component(name "${file}" NAME)
    string(MAKE_C_IDENTIFIER "${name}" name)
    file(READ "${file}" text)
    if(text MATCHES "\\)embedded\"")
      message(FATAL_ERROR "${file} contains the end of the literal that it is to be put in")
    endif()
    string(APPEND source "const std::string_view ${name} = R\"embedded(${text})embedded\";\n\n")
  endforeach()
  string(APPEND source "}  // namespace ${NAMESPACE}\n")
  file(WRITE "${OUT}" "${source}")
endif()
