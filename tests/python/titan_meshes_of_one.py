"""For `--experimental.custom_import`: what torchtitan 0.2.2 shards on four ranks, on two.

Its compiler toolkit asks for the mesh `tp` always, and its simple FSDP for `fsdp` wherever there is
expert parallelism; both are made only for more than one rank. Here they are made for one, too: TP 2
with EP 2, or FSDP 2, are then possible on two ranks. Nothing is exchanged over a mesh of one.
"""

from __future__ import annotations

from torchtitan.distributed.parallel_dims import ParallelDims

_exists = ParallelDims._mesh_exist


def _exists_for_one(dims: ParallelDims, name: str, degree: int) -> bool:
    return name in ("fsdp", "tp") or _exists(dims, name, degree)


ParallelDims._mesh_exist = _exists_for_one
ParallelDims.tp_enabled = property(lambda _: True)
