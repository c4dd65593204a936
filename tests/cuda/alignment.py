"""Do products of matrices have the same bits wherever their operands and results lie?

    python3 tests/cuda/alignment.py

Multiplies operands at so many bytes past an address that the caching allocator gives, into a result
that lies so, too, and compares the bits with those of the same product at such addresses.
batch-pointwise and place-products count on the answer: the pieces of a whole lie at multiples of a
row's bytes. Prints a line a dtype and offset.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

DTYPES = torch.bfloat16, torch.float16, torch.float32
OFFSETS = 2, 4, 8, 16, 32, 64, 128, 256
INNER = (512, 704), (704, 512), (256, 1024), (96, 200), (1024, 2816), (64, 64), (4096, 1536)
ROWS = 1, 2, 7, 16, 33, 64, 100, 127, 128, 129, 200, 256, 511, 777, 1024


def shifted(tensor: Tensor, offset: int) -> Tensor:
    """The same data, `offset` bytes past an address of the allocator's."""
    first = offset // tensor.element_size()
    room = torch.empty(tensor.numel() + first, device=tensor.device, dtype=tensor.dtype)
    view = room[first:].view(tensor.shape)
    return view.copy_(tensor)


def same_bits(a: Tensor, b: Tensor) -> bool:
    as_int = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.view(as_int), b.view(as_int))


# The two matrices, of the rows' values and gradients.
Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def products(dtype: torch.dtype) -> Iterator[tuple[Factors, Tensor, Tensor]]:
    """What a layer of an expert multiplies, forward and backward: the product, and its operands."""
    for inner, outer in INNER:
        weight = torch.randn(inner, outer, device="cuda", dtype=dtype)
        turned = torch.randn(outer, inner, device="cuda", dtype=dtype).t()
        for rows in ROWS:
            x = torch.randn(rows, inner, device="cuda", dtype=dtype)
            gradient = torch.randn(rows, outer, device="cuda", dtype=dtype)
            yield lambda a, _, w=weight: (a, w), x, gradient
            yield lambda a, _, w=turned: (a, w), x, gradient
            yield lambda a, g: (a.t(), g), x, gradient
            yield lambda _, g, w=weight: (g, w.t()), x, gradient


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a GPU")
        return 1
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for dtype in DTYPES:
        differ: Counter[int] = Counter()
        count = 0
        for factors, x, gradient in products(dtype):
            want = torch.mm(*factors(x, gradient))
            count += 1
            for offset in OFFSETS:
                if offset % x.element_size() == 0:
                    got = shifted(torch.full_like(want, torch.nan), offset)
                    torch.mm(*factors(shifted(x, offset), shifted(gradient, offset)), out=got)
                    differ[offset] += not same_bits(got, want)
        for offset, number in differ.items():
            print(f"{dtype} at {offset} bytes: {number} of {count} products have other bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
