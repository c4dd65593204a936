"""Prints, as JSON, where the running interpreter's PyTorch and the CUDA headers are.

Nothing but torch's version.py is run: a look-up costs milliseconds, not seconds.
"""

import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path

# torch/csrc's and c10's CUDA headers pull these in.
CUDA_HEADERS = ("cuda_runtime_api.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h")


def toolkits() -> list[Path]:
    return [Path(home) for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]


def find_cuda_include(site: Path) -> Path | None:
    """The wheels beside torch come first: their version is the one torch was built with."""
    candidates = sorted(site.glob("nvidia/cu*/include"), reverse=True)
    candidates += [home / "include" for home in toolkits()]
    return next(
        (c for c in candidates if all((c / header).is_file() for header in CUDA_HEADERS)), None
    )


def find_folder(header: str, site: Path, cuda: Path) -> Path | None:
    """The folder of a header that CUDA's own include and that may lie in another wheel."""
    candidates = [cuda, site / "triton/backends/nvidia/include"]
    candidates += [home / "include" for home in toolkits()]
    return next(((c / header).parent for c in candidates if (c / header).is_file()), None)


def find_nccl(site: Path, cuda: Path) -> Path | None:
    candidates = [site / "nvidia/nccl/include", cuda, Path("/usr/include")]
    return next((c / "nccl.h" for c in candidates if (c / "nccl.h").is_file()), None)


def find_cudart(site: Path, cuda: Path) -> Path | None:
    """The CUDA runtime library that comes with those headers."""
    folders = [*sorted(site.glob("nvidia/cu*/lib"), reverse=True), cuda.parent / "lib64"]
    found = (library for folder in folders for library in sorted(folder.glob("libcudart.so*")))
    return next(found, None)


def describe_cuda(torch: Path) -> dict[str, str]:
    """Where CUDA is, or under `no_cuda` why the CUDA device is left out."""
    if not (torch / "lib/libtorch_cuda.so").is_file():
        return {"no_cuda": "this torch was built without CUDA"}
    site = torch.parent
    cuda = find_cuda_include(site)
    if cuda is None:
        return {"no_cuda": f"no folder beside torch or in CUDA_HOME has all of {CUDA_HEADERS}"}
    found = {
        "cudart": find_cudart(site, cuda),
        "crt": find_folder("crt/host_defines.h", site, cuda),
        "nv": find_folder("nv/target", site, cuda),
        "nccl": find_nccl(site, cuda),
    }
    wheels = {
        "cudart": "nvidia-cuda-runtime",
        "crt": "nvidia-cuda-crt",
        "nv": "nvidia-cuda-cccl",
    }
    missing = [name for name in wheels if found[name] is None]
    if missing:
        packages = " ".join(wheels[name] for name in missing)
        names = " and ".join(missing)
        return {"no_cuda": f"missing {names}; it comes with: {packages}", "packages": packages}
    return {"cuda": str(cuda), **{name: str(path) for name, path in found.items() if path}}


def describe() -> dict[str, object]:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return {"problem": f"{sys.executable} has no torch"}
    torch = Path(next(iter(spec.submodule_search_locations))).resolve()
    if not (torch / "include/torch/csrc/jit/ir/ir.h").is_file():
        return {"problem": f"{torch} holds no C++ headers"}
    if not (torch / "lib/libtorch_cpu.so").is_file():
        return {"problem": f"{torch}/lib holds no libtorch_cpu.so"}
    version = runpy.run_path(str(torch / "version.py"))
    return {
        "include": str(torch / "include"),
        "lib": str(torch / "lib"),
        "version": version["__version__"],  # with what it was built for: 2.11.0+cu130
        "cuda_version": version["cuda"] or "",
        **describe_cuda(torch),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
