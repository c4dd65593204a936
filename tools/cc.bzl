"""Our own C++: one set of warnings, and one test target a file."""

load("@torch//:defs.bzl", "HAS_CUDA")

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
]

# A tool or a test uses passes and runtime side by side; they never see each other.
ABOVE_ALL = [
    "//docs:__subpackages__",
    "//python:__subpackages__",
    "//tests:__subpackages__",
    "//tools:__subpackages__",
]

def gravure_library(name, deps = [], exclude = [], own = [], **kwargs):
    """A folder's library: every .cpp and .h in it, but those of `exclude`.

    Headers of `own` are for the folder alone: nobody else is compiled anew where one changes.
    alwayslink keeps the files whose only effect is to register an operator, a pass or a device.
    """
    native.cc_library(
        name = name,
        srcs = native.glob(["*.cpp"], allow_empty = True, exclude = exclude) + own,
        hdrs = native.glob(["*.h"], allow_empty = True, exclude = exclude + own),
        copts = COPTS,
        alwayslink = True,
        deps = deps,
        **kwargs
    )

def room(deps = [], used_by = [], **kwargs):
    """A room: a folder's library with the folder's name, which `used_by` alone may depend on.

    Bazel refuses a file that includes what its room does not depend on, and a room that depends on
    one that is not meant for it. The layer's own target gathers its rooms for those above.
    """
    package = native.package_name()
    gravure_library(
        name = package.split("/")[-1],
        visibility = ["//%s:__pkg__" % package.split("/")[0]] + used_by,
        deps = deps + [
            "@llvm//:support",
            "@torch",
        ],
        **kwargs
    )

def inner_room(name, folder, deps = [], copts = [], visibility = ["//visibility:private"]):
    """A room in a folder without a BUILD file of its own: everything in `folder`.

    For what becomes one file of a package (a library, a tool). alwayslink as above.
    """
    native.cc_library(
        name = name,
        srcs = native.glob([folder + "/*.cpp"]),
        hdrs = native.glob([folder + "/*.h"]),
        copts = COPTS + copts,
        alwayslink = True,
        visibility = visibility,
        deps = deps,
    )

_LAYERS = {
    "ir": ["//ir"],
    "passes": ["//passes"],
    "runtime": ["//runtime"],
    "cuda": ["//runtime:cuda"],
    "all": [
        "//passes",
        "//runtime",
    ],
}

def _layer(file):
    """A test in the folder ir/ sees //ir alone; the same for the other layers."""
    for layer in _LAYERS:
        if file.startswith(layer + "/"):
            return layer
    return "all"

def gravure_tests(deps = [], data = [], deps_of = {}, **kwargs):
    """One Catch2 test target for each .cpp file here and below; deps_of: what one of them needs more."""
    headers = native.glob(["**/*.h"], allow_empty = True)
    for file in native.glob(["**/*.cpp"], allow_empty = True):
        layer = _layer(file)
        if layer == "cuda" and not HAS_CUDA:
            continue
        native.cc_test(
            name = file[:-len(".cpp")],
            srcs = [file] + headers,
            copts = COPTS + ["-include", "tests/catch.h"],
            # A test case without an assertion cannot fail, so it fails.
            args = ["-w", "NoAssertions"],
            data = data,
            deps = ["//tests:catch_main"] + _LAYERS[layer] + deps +
                   deps_of.get(file[:-len(".cpp")], []),
            **kwargs
        )
