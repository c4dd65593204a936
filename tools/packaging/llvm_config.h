// llvm/Config/config.h for the few files of LLVM's Support that an sdist brings: what LLVM's own build
// finds out about a system, for Linux with glibc. What those files do not ask for is left out.
#ifndef LLVM_CONFIG_CONFIG_H
#define LLVM_CONFIG_CONFIG_H

#include <llvm/Config/llvm-config.h>

// No handlers of signals, and no dumps, of its own: a process of Python's has others.
#define ENABLE_BACKTRACES 0
#define ENABLE_CRASH_OVERRIDES 0
#define LLVM_ENABLE_CRASH_DUMPS 0

#define HAVE_DECL_ARC4RANDOM 0
#define HAVE_DECL_STRERROR_S 0
#define HAVE_ERRNO_H 1
#define HAVE_FCNTL_H 1
#define HAVE_FUTIMENS 1
#define HAVE_GETPAGESIZE 1
#define HAVE_GETRLIMIT 1
#define HAVE_GETRUSAGE 1
#define HAVE_ISATTY 1
#define HAVE_POSIX_SPAWN 1
#define HAVE_PREAD 1
#define HAVE_PTHREAD_GETNAME_NP 1
#define HAVE_PTHREAD_H 1
#define HAVE_PTHREAD_SETNAME_NP 1
#define HAVE_SETRLIMIT 1
#define HAVE_SIGALTSTACK 1
#define HAVE_SIGNAL_H 1
#define HAVE_STRERROR_R 1
#define HAVE_STRUCT_STAT_ST_MTIM_TV_NSEC 1
#define HAVE_SYSCONF 1
#define HAVE_SYS_IOCTL_H 1
#define HAVE_SYS_MMAN_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_TERMIOS_H 1
#define HAVE_UNISTD_H 1
#define LLVM_VERSION_PRINTER_SHOW_BUILD_CONFIG 0
#define LLVM_WINDOWS_PREFER_FORWARD_SLASH 0
#define LTDL_SHLIB_EXT ".so"
#define PACKAGE_NAME "LLVM"
#define PACKAGE_VERSION LLVM_VERSION_STRING

#endif
