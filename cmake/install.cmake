# What is installed: program, libraries, headers, pkg-config and CMake packages, manual pages, shell completions.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS fovea_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS fovea_shared EXPORT fovea LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS fovea_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# ---- packages ----
configure_file(cmake/fovea.pc.in fovea.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fovea.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)
install(EXPORT fovea NAMESPACE fovea:: FILE foveaTargets.cmake DESTINATION ${package})
configure_package_config_file(cmake/foveaConfig.cmake.in foveaConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(foveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/foveaConfig.cmake ${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake DESTINATION ${package})

# ---- manual pages and completions, printed by the program from its own tables ----
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/share/done
  COMMAND ${PROJECT_SOURCE_DIR}/tools/make_share.sh $<TARGET_FILE:fovea_program> ${PROJECT_BINARY_DIR}/share
  DEPENDS fovea_program ${PROJECT_SOURCE_DIR}/tools/make_share.sh VERBATIM)
add_custom_target(fovea_share ALL DEPENDS ${PROJECT_BINARY_DIR}/share/done)
install(DIRECTORY ${PROJECT_BINARY_DIR}/share/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${PROJECT_BINARY_DIR}/share/fovea.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME fovea)
install(FILES ${PROJECT_BINARY_DIR}/share/_fovea DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${PROJECT_BINARY_DIR}/share/fovea.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
