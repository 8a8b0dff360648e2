# Cross-compiles for 64-bit ARM with Debian's compiler. Programs are linked statically, so that they need nothing of the
# target's system, and run under an emulator.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
# The compiler names its sanitizer's archive after the C++ library that this needs; one not asked for adds nothing.
set(CMAKE_CXX_STANDARD_LIBRARIES "-lubsan -lstdc++")
find_program(AETHER_EMULATOR NAMES qemu-aarch64-static qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR "${AETHER_EMULATOR}")
