"""NVIDIA's compute-sanitizer on small training steps, captured and replayed.

    python3 tests/cuda/sanitize.py [--gravure PATH] [--tools memcheck,initcheck,racecheck]

Exports a dense step and one with a mixture of experts, in float64, and has
`gravure run --device cuda --verify` run them under each tool. In float64, because initcheck does
not see what some of cuBLAS's bf16 kernels write: the last row is two such products in plain
PyTorch, whose results it takes for memory that nobody has written. Prints a row a run; fails where
a step has an error.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "examples")]

from gravure_native import tool_environment  # noqa: E402

PLAIN_PRODUCTS = """
import torch
a, b = (torch.randn(8, *shape, device="cuda").bfloat16() for shape in ((16, 8), (8, 16)))
print(torch.bmm(a, b).float().sum().item())
x, w = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((32, 32), (128, 32)))
print((x @ w.t()).float().sum().item())
"""


def export(folder: Path) -> list[Path]:
    """Programs of steps whose every call has its result on the GPU."""
    import gravure
    import moe_step
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    programs = []
    for moe in (False, True):
        torch.manual_seed(0)
        step = moe_step.Step(moe_step.Moe(moe_step.SMALL, moe=moe)).to("cuda", torch.float64)
        with sdpa_kernel(SDPBackend.MATH):  # the others have no float64
            programs.append(folder / ("moe" if moe else "dense"))
            gravure.export_step(step, moe_step.batch(moe_step.SMALL, "cuda", 0), programs[-1])
    return programs


def errors(tool: str, command: list[str]) -> tuple[int, bool]:
    """How many the tool reports, and whether the command says that all bits agree."""
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, *command],
        env=tool_environment(),
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    if not found or done.returncode:
        raise RuntimeError(f"{tool}: {' '.join(command)} ended with {done.returncode}:\n{said}")
    return int(found[-1]), "every bit agrees" in said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gravure", default="gravure", help="the command-line tool")
    parser.add_argument("--tools", default="memcheck,initcheck,racecheck")
    options = parser.parse_args()
    clean = True
    print("| step | tool | errors | bits |\n|---|---|---:|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for program in export(Path(folder)):
            run = [options.gravure, "run", str(program), "--device", "cuda", "--steps", "5"]
            for tool in options.tools.split(","):
                count, agree = errors(tool, [*run, "--verify"])
                clean = clean and agree and count == 0
                print(f"| {program.name} | {tool} | {count} | {'agree' if agree else 'DIFFER'} |")
        count, _ = errors("initcheck", [sys.executable, "-c", PLAIN_PRODUCTS])
        print(f"| bf16 products, plain PyTorch | initcheck | {count} | – |")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
