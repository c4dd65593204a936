"""NVIDIA's compute-sanitizer on small training steps, captured and replayed.

    python3 tests/cuda/sanitize.py [--gravure PATH] [--tools memcheck,initcheck,racecheck]

Exports a dense step and one with a mixture of experts, in float64, and has
`gravure run --device cuda --verify` run them under each tool. Prints a row a run; fails where a
step has an error. What initcheck does not see, shown by the last rows, which are plain PyTorch:

- what some of cuBLAS's bf16 kernels write: hence float64;
- what the kernels of a graph write before its copies read it, since it looks at these when the
  graph is launched: they are counted apart, and are no errors.
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

PRODUCTS = """
import torch
kept = [torch.randn(8, *shape, device="cuda") for shape in ((16, 8), (8, 16))]
kept += [each.bfloat16() for each in kept]  # nothing is freed: the result's memory is new
print(torch.bmm(*kept[2:]).float().sum().item())
"""

COPIES = """
import torch
source, copy = (torch.empty(64, device="cuda") for _ in range(2))
torch.zeros(64, device="cuda"), torch.cuda._sleep(1)  # kernels are loaded
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.cuda._sleep(20_000_000)
    source.fill_(1)
    copy.copy_(source)
graph.replay()
assert copy.sum().item() == 64
"""

# A read that initcheck reports of a copy in a graph.
GRAPH_COPY = re.compile(r"by cudaMemcpy source\n(?:.*\n){1,3}.*Host Frame: *cudaGraphLaunch")


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


def errors(tool: str, command: list[str]) -> tuple[int, int, bool]:
    """How many the tool reports, how many are copies of a graph, and whether all bits agree."""
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--print-limit", "100000", *command],
        env=tool_environment(),
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    if not found or done.returncode:
        raise RuntimeError(f"{tool}: {' '.join(command)} ended with {done.returncode}:\n{said}")
    copies = len(GRAPH_COPY.findall(said)) if tool == "initcheck" else 0
    return int(found[0]) - copies, copies, "every bit agrees" in said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gravure", default="gravure", help="the command-line tool")
    parser.add_argument("--tools", default="memcheck,initcheck,racecheck")
    options = parser.parse_args()
    clean = True
    print("| step | tool | errors | copies of graphs | bits |\n|---|---|---:|---:|---|")

    def check(name: str, tool: str, command: list[str]) -> bool:
        count, copies, agree = errors(tool, command)
        said = ("agree" if agree else "DIFFER") if "--verify" in command else "–"
        print(f"| {name} | {tool} | {count} | {copies} | {said} |", flush=True)
        return agree and count == 0

    with tempfile.TemporaryDirectory() as folder:
        for program in export(Path(folder)):
            run = [options.gravure, "run", str(program), "--device", "cuda", "--steps", "5"]
            for tool in options.tools.split(","):
                clean = check(program.name, tool, [*run, "--verify"]) and clean
    for name, script in (("bf16 products", PRODUCTS), ("copies in a graph", COPIES)):
        check(f"{name}, plain PyTorch", "initcheck", [sys.executable, "-c", script])
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
