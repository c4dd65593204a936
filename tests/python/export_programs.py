"""Writes the test models as programs, beside what eager PyTorch computes for the same inputs.

    python3 tests/python/export_programs.py OUTDIR [MODEL …]

For each model OUTDIR/MODEL/step and OUTDIR/MODEL/joint hold `program.gv`, `inputs.pt` and
`expected.pt`: {"seed", "loss", "gradients": {name: tensor}, "mutated": {name: tensor}}, from the
values in `inputs.pt` and `torch.manual_seed(seed)`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "python")]

import gravure  # noqa: E402
import models  # noqa: E402
import torch  # noqa: E402
from running import statements  # noqa: E402
from text_reader import read  # noqa: E402

SEED = 7


def expected(model: models.Model, program: str) -> dict[str, Any]:
    """What eager computes, by the program's own names. Leaves the model as it was."""
    module, before = model.module, copy.deepcopy(model.module.state_dict())
    module.zero_grad(set_to_none=True)
    prefix = "" if isinstance(model.fn, torch.nn.Module) else "model"
    torch.manual_seed(SEED)
    result = model.fn(*model.args)
    loss = result[0] if isinstance(result, tuple) else result
    loss.backward()
    named = dict(module.named_parameters(prefix, remove_duplicate=False))
    buffers = dict(module.named_buffers(prefix))
    roles = [(role, name) for entry in read(program).values() for _, role, name in entry.outputs]
    inputs = {v: n for entry in read(program).values() for v, _, _, n in entry.inputs}
    found = {
        "seed": SEED,
        "loss": loss.detach().cpu(),
        "gradients": {n: named[n].grad.cpu() for role, n in roles if role == "gradient"},
        "mutated": {
            inputs[v]: buffers[inputs[v]].cpu().clone() for role, v in roles if role == "mutation"
        },
    }
    module.load_state_dict(before)
    module.zero_grad(set_to_none=True)
    return found


def write(name: str, make: Callable[[], models.Model], folder: Path, **options: Any) -> None:
    """Exports one model both ways and says what was written."""
    for kind, export in (("step", gravure.export_step), ("joint", gravure.export_joint)):
        model = make()
        told = {"is_compiling": model.is_compiling}
        path = export(model.fn, model.args, folder / name / kind, **told | options)
        text = (path / "program.gv").read_text()
        torch.save(expected(model, text), path / "expected.pt")
        entries = read(text)
        nodes = sum(len(entry.body) for entry in entries.values())
        draws = sum(s.rng is not None for entry in entries.values() for s in entry.body)
        reads = sum(len(statements(e, "aten::_local_scalar_dense")) for e in entries.values())
        print(f"{path}: {nodes} nodes, {reads} host reads, {draws} draws from a saved state")


def main(folder: str, *names: str) -> None:
    for name in names or models.ALL:
        write(name, models.ALL[name], Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
