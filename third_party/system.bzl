"""@llvm and @catch2: Debian's packages, by the places they install to."""

_LLVM_BUILD = """\
package(default_visibility = ["//visibility:public"])

# ADT and Support only. The archives are static, so that no LLVM symbol leaves our libraries.
cc_library(
    name = "support",
    srcs = [
        "libLLVMSupport.a",
        "libLLVMDemangle.a",
    ],
    hdrs = glob(
        [
            "include/llvm/%s/**" % folder
            for folder in ["ADT", "Config", "Demangle", "FileCheck", "Support", "TargetParser"]
        ],
    ) + glob(["include/llvm-c/**"]),
    includes = ["include"],
    linkopts = [
        "-ldl",
        "-lm",
        "-lpthread",
    ],
)
"""

def _llvm_repository_impl(ctx):
    config = ctx.which("llvm-config-19") or ctx.which("/usr/lib/llvm-19/bin/llvm-config")
    remedy = " Run tools/setup, or: apt-get install llvm-19-dev llvm-19-tools"
    if config == None:
        fail("LLVM 19 was not found: there is no llvm-config-19 on PATH." + remedy)
    places = ctx.execute([config, "--includedir", "--libdir"])
    if places.return_code != 0:
        fail("{} failed: {}{}".format(config, places.stderr, remedy))
    include, lib = places.stdout.strip().split("\n")
    for archive in ["libLLVMSupport.a", "libLLVMDemangle.a"]:
        if not ctx.path(lib + "/" + archive).exists:
            fail("{} is not in {}.{}".format(archive, lib, remedy))
        ctx.symlink(lib + "/" + archive, archive)
    ctx.symlink(include, "include")
    ctx.file("BUILD.bazel", _LLVM_BUILD, executable = False)

llvm_repository = repository_rule(
    implementation = _llvm_repository_impl,
    environ = ["PATH"],
    local = True,
)

_CATCH2_BUILD = """\
# The header lies in /usr/include, where the compiler looks anyway.
cc_library(
    name = "catch2",
    visibility = ["//visibility:public"],
)
"""

def _catch2_repository_impl(ctx):
    if not ctx.path("/usr/include/catch2/catch.hpp").exists:
        fail("Catch2 version 2 was not found. Run tools/setup, or: apt-get install catch2")
    ctx.file("BUILD.bazel", _CATCH2_BUILD, executable = False)

catch2_repository = repository_rule(
    implementation = _catch2_repository_impl,
    local = True,
)
