"""plotly's script, as the page carries it."""

from __future__ import annotations

import re

# The kinds of pictures that assets/page.js draws, beside scatter, which plotly always has.
_DRAWN = ("bar", "heatmap")
# As esbuild writes them: `P.register([a(),b(),…])` at the end, and modules `a=W((e,t)=>{…})`.
_REGISTERED = re.compile(r"\.register\(\[((?:[\w$]+\(\),?)+)\]\)")
_FORWARDED = re.compile(r"=\w+\(\(\w+,\w+\)=>\{\"use strict\";\w+\.exports=([\w$]+)\(\)\}\)")
_MODULE = re.compile(r"=\w+\(\(")
_KIND = re.compile(r'moduleType:"trace",name:"(\w+)"')
_SEEN = 4000  # characters of a module that its kind stands within


def plotly_script() -> str:
    """All of plotly, of which only what the page draws with is set up when the page opens: maps and
    three dimensions take longer than the rest together.

    Raises ImportError where plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(
            "gravure's page is drawn by plotly, which is not installed: pip install plotly"
        ) from None
    return _with_kinds(get_plotlyjs())


def _with_kinds(script: str) -> str:
    """The script, as it is where it has another form than the one known here."""
    registered = _REGISTERED.search(script, script.rfind(".register("))
    if registered is None:
        return script
    kept: dict[str, str] = {}
    for call in registered[1].split(","):
        kind = _kind(script, call.removesuffix("()"))
        if kind in _DRAWN:
            kept[kind] = call
        if len(kept) == len(_DRAWN):
            begin, end = registered.span(1)
            return script[:begin] + ",".join(kept.values()) + script[end:]
    return script


def _kind(script: str, module: str) -> str:
    """Of the pictures that a registered module draws; "" if it cannot be told."""
    begin = _declared(script, module)
    forwarded = _FORWARDED.match(script, begin) if begin >= 0 else None
    begin = _declared(script, forwarded[1]) if forwarded else begin
    kind = _KIND.search(script, begin, begin + _SEEN) if begin >= 0 else None
    return kind[1] if kind else ""


def _declared(script: str, module: str) -> int:
    """Where the "=" of its declaration is; -1 if there is none."""
    at = script.find(f"{module}=")
    while at >= 0 and not (script[at - 1] in " ,;" and _MODULE.match(script, at + len(module))):
        at = script.find(f"{module}=", at + 1)
    return at + len(module) if at >= 0 else -1
