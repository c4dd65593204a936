"""Which sets of sizes of one graph have programs, where there are more than may have one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Set

Sizes = tuple[int, ...]

FEWEST, _MOST = 8, 64  # by default so many sets of sizes have programs, at least and at most
_SHARE = 1 << 30  # bytes of host and GPU that their captures may take, all together
_BYTES = 10 << 10  # of these that one captured call takes: docs/benchmarks-log.md
_REMEMBERED = 256  # sets of sizes that have no program
_OFTEN = 8  # programs made again that are a warning
logger = logging.getLogger("gravure")


def most_sizes(calls: int) -> int:
    """How many sets of sizes have programs by default, of a graph with so many calls."""
    return max(FEWEST, min(_MOST, _SHARE // (_BYTES * max(calls, 1))))


class SizeChoice:
    """The calls of a graph, by their sizes.

    A set of sizes beyond the limit has a program instead of the one that was not called for
    longest. It has to come twice in that time: a last batch of an epoch comes once among many
    others, and takes no program from another.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._calls = 0
        self._last: dict[Sizes, int] = {}  # the last call with these sizes
        self._waiting: OrderedDict[Sizes, int] = OrderedDict()  # the same, of those without program
        self._gone: set[Sizes] = set()  # whose program was let go of
        self._again = 0  # programs that were made for such once more
        self._warned = False

    def called(self, sizes: Sizes, *, after: Sizes) -> None:
        """A call with other sizes, or of another module, than the last one's, which were `after`.

        Calls in a row with the same sizes are not told one by one. `after`: () where there is none.
        """
        if after:
            self._calls += 1
            self._last[after] = self._calls
        self._calls += 1
        self._last[sizes] = self._calls

    def admit(
        self, sizes: Sizes, made: Set[Sizes], held: Set[Sizes], most: int
    ) -> tuple[bool, Sizes | None]:
        """Whether `sizes` may have a program beside those that are `made`, and whose goes for it.

        `held`: those whose saved values wait for a backward, which stay.
        """
        if len(made) < most:
            self._take(sizes)
            return True, None
        before = self._waiting.pop(sizes, None)
        self._waiting[sizes] = self._last.get(sizes, self._calls)
        if len(self._waiting) > _REMEMBERED:
            self._last.pop(self._waiting.popitem(last=False)[0], None)
        free = [each for each in made if each not in held]
        oldest = min(free, key=lambda each: self._last.get(each, 0), default=None)
        if oldest is None or before is None or self._last.get(oldest, 0) > before:
            return False, None
        self._take(sizes)
        if len(self._gone) >= _REMEMBERED:
            self._gone.clear()
        self._gone.add(oldest)
        self._last.pop(oldest, None)
        return True, oldest

    def _take(self, sizes: Sizes) -> None:
        self._waiting.pop(sizes, None)
        if sizes not in self._gone:
            return
        self._gone.discard(sizes)
        self._again += 1
        if self._again >= _OFTEN and not self._warned:
            self._warned = True
            logger.warning(
                "%s: sizes come and go, and programs that were let go of have been captured again "
                "%d times; raise the option max_shapes, or pad to fewer sizes",
                self._label,
                self._again,
            )
