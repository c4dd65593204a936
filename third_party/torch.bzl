"""@torch: the libtorch inside an installed Python package, and the CUDA headers beside it.

The interpreter is, in this order: PYTHON_BIN_PATH (`--repo_env=PYTHON_BIN_PATH=...`), the virtual
environment that tools/setup makes, python3 on PATH.

@torch//:torch     libtorch without CUDA
@torch//:cuda      the same with libtorch_cuda, the CUDA headers and NCCL's (empty without them)
@torch//:rpath     where both are found at run time: for what runs on the machine that builds
@torch//:defs.bzl  HAS_CUDA, TORCH_VERSION, CUDA_VERSION ("" without CUDA)
"""

_REMEDY = "\n".join([
    "",
    "Run tools/setup, which installs PyTorch into a virtual environment, or name an interpreter",
    "that has it: GRAVURE_PYTHON=/path/to/python tools/build, or with Bazel alone:",
    "bazel build --repo_env=PYTHON_BIN_PATH=/path/to/python //...",
])

_BUILD = """\
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "torch",
    hdrs = glob(["include/**"]),
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L{lib}",
        "-ltorch_cpu",
        "-lc10",
    ],
)

cc_library(
    name = "rpath",
    linkopts = [{rpath}],
)
"""

_CUDA_BUILD = """
cc_library(
    name = "cuda",
    defines = [{defines}],
    hdrs = glob(
        [{globs}],
        exclude = ["cuda_include/cccl/**"],
    ),
    includes = [{includes}],
    linkopts = [
        "-L{lib}",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-l:{cudart}",
        "-L{cudart_folder}",
    ],
    deps = [":torch"],
)
"""

_NO_CUDA_BUILD = """
# This torch has no CUDA, or its headers were not found.
cc_library(
    name = "cuda",
    deps = [":torch"],
)
"""

# Whose environment a plain `bazel build` takes: default_release of tools/environment.sh.
_DEFAULT_RELEASE = "2.15"

def _interpreter(ctx):
    environ = ctx.os.environ
    named = environ.get("PYTHON_BIN_PATH", "")
    if named:
        return named
    cache = environ.get("XDG_CACHE_HOME", "") or environ.get("HOME", "") + "/.cache"
    venv = ctx.path(cache + "/gravure/venv-" + _DEFAULT_RELEASE + "/bin/python")
    if venv.exists:
        return str(venv)
    found = ctx.which("python3")
    if found == None:
        fail("There is no python3 on PATH." + _REMEDY)
    return str(found)

def _torch_repository_impl(ctx):
    python = _interpreter(ctx)
    answer = ctx.execute([python, str(ctx.path(Label("//third_party:find_torch.py")))])
    if answer.return_code != 0:
        fail("{} could not be asked for torch:\n{}{}".format(python, answer.stderr, _REMEDY))
    found = json.decode(answer.stdout)
    if "problem" in found:
        fail("No libtorch to build with: {}.{}".format(found["problem"], _REMEDY))
    ctx.symlink(found["include"], "include")

    has_cuda = "cuda" in found
    places = [found["lib"]]
    if has_cuda:
        places.append(found["cudart"].rpartition("/")[0])
    rpath = ", ".join(["\"-Wl,-rpath,{}\"".format(place) for place in places])
    build = _BUILD.format(lib = found["lib"], rpath = rpath)
    if has_cuda:
        ctx.symlink(found["cuda"], "cuda_include")
        ctx.symlink(found["crt"], "more_include/crt")
        ctx.symlink(found["nv"], "more_include/nv")
        folders = ["cuda_include", "more_include"]
        defines = []
        if "nccl" in found:
            ctx.symlink(found["nccl"], "nccl_include/nccl.h")
            folders.append("nccl_include")
            defines.append("USE_C10D_NCCL")
        build += _CUDA_BUILD.format(
            cudart = found["cudart"].split("/")[-1],
            cudart_folder = found["cudart"].rpartition("/")[0],
            defines = ", ".join(["\"{}\"".format(d) for d in defines]),
            globs = ", ".join(["\"{}/**\"".format(f) for f in folders]),
            includes = ", ".join(["\"{}\"".format(f) for f in folders]),
            lib = found["lib"],
        )
    else:
        # buildifier: disable=print
        print("The CUDA device is left out: {}.".format(found["no_cuda"]))
        build += _NO_CUDA_BUILD
    ctx.file("BUILD.bazel", build, executable = False)
    ctx.file(
        "defs.bzl",
        "HAS_CUDA = {}\n\nTORCH_VERSION = \"{}\"\n\nCUDA_VERSION = \"{}\"\n".format(
            has_cuda,
            found["version"],
            found["cuda_version"] if has_cuda else "",
        ),
        executable = False,
    )

torch_repository = repository_rule(
    implementation = _torch_repository_impl,
    # GRAVURE_TORCH says nothing to this rule: the scripts change it when what is found changes, so
    # that Bazel asks again.
    environ = [
        "CUDA_HOME",
        "GRAVURE_TORCH",
        "HOME",
        "PATH",
        "PYTHON_BIN_PATH",
        "XDG_CACHE_HOME",
    ],
    local = True,
)
