"""The page in a real browser: it loads without an error, shows the numbers of its data, and its
controls work. Skipped where there is no Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser
import pytest
from browser import Browser
from gravure.page.html import page_of

pytest.importorskip("plotly")
pytestmark = pytest.mark.skipif(browser.found() is None, reason="there is no Chromium here")

_LINE = "document.getElementById('time-line')"
_MAP = "document.getElementById('memory-map')"


def program(calls: int = 60, host_from: int = 20, host_to: int = 24) -> dict[str, Any]:
    """A step with two graphs, and a stretch between them that waits once."""
    rows, buffers = [], []
    for i in range(calls):
        host = host_from <= i < host_to
        reason = ("host-sync" if i == host_from else "dynamic-shape") if host else ""
        partition = -1 if host else int(i >= host_to)
        op = "aten::item" if reason == "host-sync" else "aten::mm"
        module = f"blocks.{i // 10}.attn"
        rows.append([0, partition, op, f"%v{i}", "Float[8, 8]", f"model.py:{i}", module, reason])
        buffers.append([i, min(i + 3, calls), 1 << 20, (i % 3) << 20, f"%v{i}"])
    plan = {"bytes": 3 << 20, "live_bytes": 3 << 20, "alignment": 512, "buffers": buffers}
    cures = {"host-sync": "read it later", "dynamic-shape": "pad"}
    return {"entries": ["step"], "calls": rows, "planned": plan, "measured": None, "cures": cures}


def page(*details: dict[str, Any]) -> str:
    graphs = [
        {"label": f"graph {i}", "failure": "", "programs": [{"sizes": [], "detail": detail}]}
        for i, detail in enumerate(details)
    ]
    versions = {"gravure": "0"}
    return page_of({"title": "A report", "nothing": "", "graphs": graphs, "versions": versions})


def show(browser: Browser, figure: str) -> None:
    """Scrolls to it, and waits until it is drawn."""
    browser.evaluate(f"{figure}.scrollIntoView()")
    browser.wait_for(f"Boolean({figure}.data)")


@pytest.fixture(scope="module", params=["light", "dark"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Browser]:
    file: Path = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(page(program(), program(calls=30)))
    with Browser(dark=request.param == "dark") as shown:
        shown.open(file)
        yield shown
        assert shown.problems == []


def test_it_loads_without_an_error_and_asks_for_nothing(opened: Browser) -> None:
    assert opened.evaluate("document.title") == "A report"
    assert opened.evaluate(f"{_LINE}.data.length") == 5 and opened.problems == []


def test_the_numbers_are_those_of_the_data(opened: Browser) -> None:
    numbers = "Object.fromEntries([...document.querySelectorAll('[data-number]')].map("
    numbers += "e => [e.dataset.number, e.textContent]))"
    shown = opened.evaluate(numbers)
    captured = (60 - 4) + (30 - 4)
    assert shown["captured"] == f"{100 * captured / 90:.0f} %"
    assert shown["waits"] == "2 waits" and shown["arena"] == "6.00 MiB"
    assert f"{captured} of 90 operator calls" in opened.evaluate("document.body.innerText")
    # What is drawn, too.
    widths = opened.evaluate(f"{_LINE}.data.filter(t => t.type === 'bar').map(t => [...t.x])")
    assert widths == [[20, 36], [4]]
    assert opened.evaluate(f"{_LINE}.data.find(t => t.name === 'waits').x.length") == 1
    show(opened, _MAP)
    alive = opened.evaluate(f"Math.max(...{_MAP}.data.find(t => t.name === 'alive').y)")
    assert alive == 3  # MiB
    assert opened.evaluate(f"{_MAP}.data.find(t => t.name === 'arena').x.length") == 60


def test_each_call_says_where_it_comes_from(opened: Browser) -> None:
    texts = opened.evaluate(f"{_LINE}.data.find(t => t.type === 'heatmap').hovertext[0]")
    assert len(texts) == 60
    for word in ("aten::mm", "Float[8, 8]", "blocks.3.attn", "model.py:31"):
        assert word in texts[31]


def test_zoom(opened: Browser) -> None:
    extent = f"{_LINE}.layout.xaxis.range.map(Number)"
    click = "document.querySelector('[data-zoom={}]').click()"
    opened.evaluate(click.format("all"))
    assert opened.evaluate(extent) == [0, 60]
    opened.evaluate(click.format("in"))
    assert opened.evaluate(extent) == [15, 45]
    opened.evaluate(click.format("right"))
    assert opened.evaluate(extent) == [30, 60]
    opened.evaluate(click.format("all"))
    assert opened.evaluate(extent) == [0, 60]


def _search(opened: Browser, text: str) -> None:
    opened.evaluate(
        "(() => { const s = document.getElementById('search');"
        f"s.value = {json.dumps(text)}; s.dispatchEvent(new Event('input')); }})()"
    )


def test_search(opened: Browser) -> None:
    _search(opened, "BLOCKS.2")
    matches = "document.getElementById('matches').textContent"
    opened.wait_for(f"{matches} === '10 calls found'")
    begin, end = opened.evaluate(f"{_LINE}.layout.xaxis.range.map(Number)")
    assert 15 < begin < 20 and 30 < end < 35
    rows = "[...document.querySelectorAll('#calls tbody tr')].map(r => r.cells[3].textContent)"
    assert opened.evaluate(rows) == ["blocks.2.attn"] * 10
    _search(opened, "host-sync")
    opened.wait_for(f"{matches} === '1 call found'")
    _search(opened, "nowhere")
    opened.wait_for(f"{matches} === '0 calls found'")
    _search(opened, "")
    opened.wait_for(f"{matches} === ''")
    assert opened.evaluate(f"{_LINE}.layout.xaxis.range.map(Number)") == [0, 60]


def test_another_program_is_chosen(opened: Browser) -> None:
    choose = "(() => {{ const s = document.getElementById('program'); s.value = {!r};"
    choose += "s.dispatchEvent(new Event('change')); }})()"
    calls = f"{_LINE}.data.find(t => t.type === 'heatmap').z[0].length"
    shown = "[...document.querySelectorAll('#memory [data-program]')].map(e => !e.hidden)"
    opened.evaluate(choose.format("1"))
    assert opened.evaluate(calls) == 30 and opened.evaluate(shown) == [False, True]
    opened.evaluate(choose.format("0"))
    assert opened.evaluate(calls) == 60 and opened.evaluate(shown) == [True, False]


def timed_page(gpu: bool) -> str:
    """Of one program whose calls took a microsecond of the thread and two of the GPU."""
    detail = program()
    rows = [[i, 1000, 2000 if gpu else 0, int(gpu)] for i in range(len(detail["calls"]))]
    times = {"step": {"uncaptured_ns": 120_000, "replayed_ns": 100_000, "calls": rows}}
    found = {"sizes": [], "detail": detail, "call_times": times}
    graph = {"label": "graph 0", "failure": "", "programs": [found]}
    pace = {"gap": 1000.0, "launch": 5000.0, "each": 0.0, "start": 3000.0, "copy": 1.0}
    page = {"title": "A report", "nothing": "", "graphs": [graph]}
    return page_of(page | {"pace": pace if gpu else None})


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "host"])
def test_a_step_in_time(gpu: bool, tmp_path: Path) -> None:
    """With a GPU by two clocks: graphs lie where the GPU runs them, calls where the thread does."""
    file = tmp_path / "report.html"
    file.write_text(timed_page(gpu))
    replayed = f"{_LINE}.data.find(t => t.name === 'replayed')"
    host = f"{_LINE}.data.find(t => t.name === 'on the host')"
    lanes = f"{_LINE}.layout.yaxis.ticktext"
    order = "(() => {{ const s = document.getElementById('order'); s.value = {!r};"
    order += "s.dispatchEvent(new Event('change')); }})()"
    note = "document.getElementById('time-line-text').textContent"

    def near(expression: str, expected: list[float]) -> None:
        assert shown.evaluate(expression) == pytest.approx(expected, abs=1e-6)

    with Browser() as shown:
        shown.open(file)
        assert ("GPU" in shown.evaluate(lanes)) is gpu
        assert shown.evaluate(note).startswith("By time, a replayed step of ")
        if gpu:  # launched, 20 kernels with gaps; read: 2 behind them, 1 to know; 3 calls; launched
            near(f"[...{replayed}.base]", [0.005, 0.005 + 0.06 + 0.002 + 0.001 + 0.003 + 0.005])
            near(f"[...{replayed}.x]", [0.06, 36 * 0.003])
            near(f"[...{host}.base]", [0.005])
            assert shown.evaluate(f"{_LINE}.data.find(t => t.name === 'waiting').x.length") == 1
        else:  # one behind the other
            near(f"[...{replayed}.base]", [0.0, 0.024])
            near(f"[...{host}.base]", [0.02])
        _search(shown, "host-sync")
        shown.wait_for("document.getElementById('matches').textContent === '1 call found'")
        takes = "document.querySelector('#calls tbody tr').cells[6].textContent"
        assert shown.evaluate(takes) == ("63.0 µs" if gpu else "1.00 µs")
        _search(shown, "")
        shown.evaluate(order.format("order"))
        assert shown.evaluate(f"{_LINE}.layout.xaxis.range.map(Number)") == [0, 60]
        assert shown.evaluate(f"[...{replayed}.base]") == [0, 24]
        assert shown.evaluate(note).startswith("In the order of calls")
        assert shown.problems == []


def test_without_times_the_page_says_so(opened: Browser) -> None:
    note = opened.evaluate("document.getElementById('time-line-text').textContent")
    assert "no times were taken" in note and "the option times" in note
    assert not opened.evaluate("document.getElementById('order').checkVisibility()")


def test_it_can_be_read_on_its_screen(opened: Browser) -> None:
    """Text stands out from what is behind it: 4.5 to 1, of WCAG."""
    contrast = """(() => {
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(Number)
          .map((v) => { v /= 255; return v <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const behind = (e) => { for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
      return [...document.querySelectorAll('h1, h2, h3, p, a, li, li span, th, td, code, strong')]
        .filter((e) => e.checkVisibility())
        .map((e) => { const [a, b] = [getComputedStyle(e).color, behind(e)].map(light);
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 30)]; })
        .filter(([ratio]) => ratio < 4.5); })()"""
    assert opened.evaluate(contrast) == []


def test_a_screen_reader_finds_its_way(opened: Browser) -> None:
    nodes = [node for node in opened.accessible() if not node.get("ignored")]

    def named(role: str) -> list[str]:
        found = [n for n in nodes if n.get("role", {}).get("value") == role]
        return [node.get("name", {}).get("value", "") for node in found]

    assert "What is not captured, and why" in named("heading")
    assert {"main", "banner", "navigation"} <= {n.get("role", {}).get("value") for n in nodes}
    pictures = named("image") + named("img")
    assert any("Time line" in name for name in pictures)
    assert all(pictures) and all(named("button")) and all(named("searchbox"))
    assert not any("share" in name.lower() or "cloud" in name.lower() for name in named("button"))
    assert "Calls outside of graphs" in named("table")
    assert opened.evaluate("document.documentElement.lang") == "en"


def test_without_a_program(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page_of({"title": "A report", "nothing": "No graph.", "graphs": []}))
    with Browser() as shown:
        shown.open(file)
        assert "No graph." in shown.evaluate("document.body.innerText")
        assert shown.problems == []


def ragged(calls: int) -> dict[str, Any]:
    """A step with as many graphs as can be: each second call runs on the host, and waits."""
    detail = program(calls, 0, 0)
    for i, row in enumerate(detail["calls"]):
        host = i % 2
        row[1], row[-1] = (-1, "host-sync") if host else (i // 2, "")
    return detail


@pytest.mark.parametrize(
    "detail", [program(11_000, 5000, 5100), ragged(11_000)], ids=["two graphs", "ragged"]
)
def test_a_program_of_11000_calls(detail: dict[str, Any], tmp_path: Path) -> None:
    """How long it takes: page_seconds.py."""
    file = tmp_path / "report.html"
    file.write_text(page(detail))
    strip = f"{_LINE}.data.find(t => t.type === 'heatmap')"
    bars = f"{_LINE}.data.filter(t => t.type === 'bar').reduce((n, t) => n + t.x.length, 0)"
    waits = f"{_LINE}.data.find(t => t.name === 'waits').x.length"
    found = f"{_LINE}.data.find(t => t.name === 'found').x.length"
    with Browser() as shown:
        shown.open(file)
        # What nobody looks at takes no time: kinds of pictures, and a map that is further down.
        kinds = shown.evaluate("Object.keys(Plotly.PlotSchema.get().traces)")
        assert sorted(kinds) == ["bar", "heatmap", "scatter"]
        assert not shown.evaluate(f"Boolean({_MAP}.data)")
        # What is narrower than a pixel is drawn with its neighbours, and says so,
        assert shown.evaluate(f"{strip}.z[0].length") < 2000
        assert shown.evaluate(bars) < 3000 and shown.evaluate(waits) < 2000
        assert "too narrow to tell apart" in shown.evaluate(f"{strip}.hovertext[0][600]")
        # until there is room for each. No call is lost: 86 of 11,000 are in view, as much beside.
        for _ in range(7):
            shown.evaluate("document.querySelector('[data-zoom=in]').click()")
        begin, end = shown.evaluate(f"{_LINE}.layout.xaxis.range.map(Number)")
        texts = shown.evaluate(f"{strip}.hovertext[0]")
        expected = range(int(begin), int(end) + 1)
        for i in expected:
            assert sum(f"model.py:{i}<br>" in text for text in texts) == 1, i
        assert "too small or short-lived" in shown.evaluate(
            "document.getElementById('memory-text').textContent"
        )
        # A search that finds all of them marks them, and all are there again.
        _search(shown, "aten::")
        shown.wait_for("document.getElementById('matches').textContent === '11,000 calls found'")
        assert 100 < shown.evaluate(found) < 2000
        assert shown.evaluate(f"{_LINE}.layout.xaxis.range.map(Number)") == [0, 11_000]
        assert shown.problems == []


def test_bars_that_are_drawn_together_list_all_their_calls(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(ragged(11_000)))
    with Browser() as shown:
        shown.open(file)
        bars = f"{_LINE}.data.find(t => t.name === 'replayed')"
        first = shown.evaluate(f"{bars}.customdata[0]")
        assert first[0] == 0 and first[1] > 4
        shown.evaluate(f"{_LINE}.emit('plotly_click', {{points: [{{customdata: {first}}}]}})")
        rows = shown.evaluate("document.querySelectorAll('#calls tbody tr').length")
        assert rows == first[1] + 1
        assert shown.problems == []


def test_a_hand_that_zooms(opened: Browser) -> None:
    """What plotly says of a drag and of two clicks is taken up."""
    extent = f"{_LINE}.layout.xaxis.range.map(Number)"
    opened.evaluate(f"Plotly.relayout({_LINE}, {{'xaxis.range': [7, 21]}}).then(() => 0)")
    opened.evaluate("document.querySelector('[data-zoom=in]').click()")
    assert opened.evaluate(extent) == [10.5, 17.5]
    opened.evaluate(f"{_LINE}.emit('plotly_doubleclick')")
    assert opened.evaluate(extent) == [0, 60]


def test_what_is_not_on_the_screen_is_not_drawn(tmp_path: Path) -> None:
    """Its words are there all the same, and paper has all."""
    file = tmp_path / "report.html"
    file.write_text(page(program()))
    with Browser(height=300) as shown:
        shown.open(file)
        assert shown.evaluate("typeof Plotly") == "undefined"
        for name in ("time-line-text", "memory-text", "legend"):
            assert shown.evaluate(f"document.getElementById('{name}').textContent")
        shown.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert shown.evaluate(f"Boolean({_LINE}.data && {_MAP}.data)")
        assert shown.problems == []


@pytest.mark.parametrize("width", [360, 700])
def test_a_narrow_window_and_a_large_zoom(width: int, tmp_path: Path) -> None:
    """700 is a window of 1400 at twice the size. Wide tables scroll by themselves, not the page."""
    file = tmp_path / "report.html"
    file.write_text(page(program(), program(calls=30)))
    with Browser(width=width) as shown:
        shown.open(file)
        show(shown, _LINE)
        show(shown, _MAP)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        beyond = """[...document.querySelectorAll('h1, h2, p, button, input, select, figure')]
            .filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth)
            .map((e) => e.outerHTML.slice(0, 80))"""
        assert shown.evaluate(beyond) == []
        assert shown.problems == []


def test_each_table_has_a_caption_and_each_column_a_name(opened: Browser) -> None:
    tables = "[...document.querySelectorAll('table')]"
    assert opened.evaluate(f"{tables}.length") > 4
    assert opened.evaluate(f"{tables}.filter(t => !t.caption).length") == 0
    assert opened.evaluate(f"{tables}.filter(t => !t.querySelector('th[scope=col]')).length") == 0
    # Pictures have words beside them that say what they show.
    for name in ("time-line-text", "memory-text"):
        assert len(opened.evaluate(f"document.getElementById('{name}').textContent")) > 40
