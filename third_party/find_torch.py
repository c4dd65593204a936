"""Prints, as JSON, where the running interpreter's PyTorch and the CUDA headers are.

Nothing is imported from torch itself: a look-up costs milliseconds, not seconds.
"""

import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path

# torch/csrc's and c10's CUDA headers pull these in.
CUDA_HEADERS = ("cuda_runtime_api.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h")


def has_cuda_headers(folder: Path) -> bool:
    return all((folder / header).is_file() for header in CUDA_HEADERS)


def find_cuda_include(site: Path) -> Path | None:
    """The wheels beside torch come first: their version is the one torch was built with."""
    candidates = sorted(site.glob("nvidia/cu*/include"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if home:
            candidates.append(Path(home) / "include")
    return next((folder for folder in candidates if has_cuda_headers(folder)), None)


def find_nccl_include(site: Path, cuda: Path | None) -> Path | None:
    candidates = [site / "nvidia/nccl/include", Path("/usr/include")]
    if cuda is not None:
        candidates.insert(1, cuda)
    return next((folder for folder in candidates if (folder / "nccl.h").is_file()), None)


def find_cudart(site: Path, cuda: Path) -> Path | None:
    """The CUDA runtime library that comes with those headers."""
    folders = [*sorted(site.glob("nvidia/cu*/lib"), reverse=True), cuda.parent / "lib64"]
    found = (library for folder in folders for library in sorted(folder.glob("libcudart.so*")))
    return next(found, None)


def describe() -> dict[str, object]:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return {"problem": f"{sys.executable} has no torch"}
    torch = Path(next(iter(spec.submodule_search_locations))).resolve()
    if not (torch / "include/torch/csrc/jit/ir/ir.h").is_file():
        return {"problem": f"{torch} holds no C++ headers"}
    if not (torch / "lib/libtorch_cpu.so").is_file():
        return {"problem": f"{torch}/lib holds no libtorch_cpu.so"}
    site = torch.parent
    cuda = find_cuda_include(site) if (torch / "lib/libtorch_cuda.so").is_file() else None
    cudart = find_cudart(site, cuda) if cuda is not None else None
    if cudart is None:
        cuda = None
    nccl = find_nccl_include(site, cuda) if cuda is not None else None
    return {
        "include": str(torch / "include"),
        "lib": str(torch / "lib"),
        "version": importlib.metadata.version("torch"),
        "python": sys.executable,
        "cuda_include": str(cuda) if cuda else None,
        "cudart": str(cudart) if cudart else None,
        "nccl_include": str(nccl) if nccl else None,
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
