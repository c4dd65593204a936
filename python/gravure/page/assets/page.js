"use strict";
// Draws the time line and the map of memory from the data in the page, and answers its controls.
(() => {
  const programs = JSON.parse(document.getElementById("gravure-data").textContent);
  const [PARTITION, OP, RESULT, TYPE, SOURCE, MODULE, REASON] = [0, 1, 2, 3, 4, 5, 6];
  const LANES = ["module", "waits", "on the host", "replayed"];
  const SHOWN = 300; // rows of the table of calls
  // Told apart by people who see few colours, on light and on dark (Okabe and Ito).
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8d8d3a", "#7d6bb0"];
  const line = document.getElementById("time-line");
  const map = document.getElementById("memory-map");
  let current = 0;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const count = (n, one, several) => `${n.toLocaleString("en")} ${n === 1 ? one : several || one + "s"}`;
  const safe = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  function size(bytes) {
    for (const [unit, s] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes >= s) {
        const value = bytes / s;
        return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${unit}`;
      }
    }
    return count(bytes, "byte");
  }
  const text = (p, i, field) => p.strings[p.calls[i][field]];

  // The part of a module's path by which calls are coloured: "blocks.3" of "blocks.3.moe.gate".
  function part(path) {
    const names = path.split(".");
    const end = names.findIndex((name) => /^\d+$/.test(name));
    return names.slice(0, end < 0 ? 1 : end + 1).join(".") || "no module";
  }
  function colours(p) {
    if (p.colours) return p.colours;
    const known = new Map();
    const of = (path) => {
      const name = part(path);
      if (!known.has(name)) known.set(name, known.size);
      return known.get(name);
    };
    return (p.colours = { of, calls: p.calls.map((call) => of(p.strings[call[MODULE]])), known });
  }

  function state(p, run) {
    const [, partition] = run;
    return partition < 0 ? "on the host" : p.states[partition] || "planned";
  }
  function described(p, i) {
    const module = text(p, i, MODULE), source = text(p, i, SOURCE), reason = text(p, i, REASON);
    return [
      `<b>${safe(text(p, i, OP))}</b> ${safe(text(p, i, TYPE))}`,
      module && `in ${safe(module)}`, source && `at ${safe(source)}`, reason && `on the host: ${reason}`,
      `call ${i.toLocaleString("en")}`,
    ].filter(Boolean).join("<br>");
  }
  function describedRun(p, run) {
    const [entry, partition, begin, end] = run;
    const host = run[4] === "copies" ? "copies of arguments or results" : "on the host";
    const name = partition < 0 ? host : `partition ${partition}, ${state(p, run)}`;
    const modules = new Set(), reasons = new Set();
    for (let i = begin; i < end; ++i) {
      modules.add(part(text(p, i, MODULE)));
      if (text(p, i, REASON)) reasons.add(text(p, i, REASON));
    }
    const several = [...modules].filter((module) => module !== "no module");
    const listed = several.slice(0, 5).join(", ") + (several.length > 5 ? ", …" : "");
    return [
      `<b>${p.entries[entry]}, ${name}</b>`,
      `${count(end - begin, "call")}, from ${begin.toLocaleString("en")}`,
      listed && `in ${safe(listed)}`, reasons.size && [...reasons].join(", "),
    ].filter(Boolean).join("<br>");
  }

  function layout(more) {
    const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--grid") };
    const base = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--ink"), size: 13 }, margin: { l: 95, r: 20, t: 24, b: 44 },
      hoverlabel: { bgcolor: css("--panel"), bordercolor: css("--soft"), font: { color: css("--ink") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
      hovermode: "closest", showlegend: false, dragmode: "zoom",
    };
    for (const [key, value] of Object.entries(more)) {
      base[key] = /axis/.test(key) ? { ...axis, ...value } : value;
    }
    return base;
  }
  // By name: plotly's own list has a button that sends the data to a server.
  const CONFIG = { responsive: true, displaylogo: false, scrollZoom: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

  // Where one entry ends and the next one begins.
  function borders(p, top) {
    const shapes = [], annotations = [];
    p.entries.forEach((name, e) => {
      const runs = p.runs.filter((run) => run[0] === e);
      if (!runs.length) return;
      const begin = runs[0][2];
      annotations.push({ x: begin, y: top, yref: "paper", xanchor: "left", yanchor: "bottom",
        text: name, showarrow: false, font: { color: css("--soft") } });
      if (begin > 0) {
        shapes.push({ type: "line", x0: begin, x1: begin, y0: 0, y1: 1, yref: "paper",
          line: { color: css("--soft"), width: 1, dash: "dot" } });
      }
    });
    return { shapes, annotations };
  }

  function bars(p, runs, lane, colour) {
    return { type: "bar", orientation: "h", name: lane, y: runs.map(() => LANES.indexOf(lane)),
      base: runs.map((run) => run[2]), x: runs.map((run) => run[3] - run[2]), width: 0.8,
      marker: { color: colour, line: { color: css("--panel"), width: runs.length > 400 ? 0 : 1 } },
      customdata: runs, hovertext: runs.map((run) => describedRun(p, run)), hoverinfo: "text" };
  }

  function drawLine() {
    const p = programs[current], known = colours(p), n = p.calls.length;
    const replayed = p.runs.filter((run) => run[1] >= 0), host = p.runs.filter((run) => run[4] === "host");
    const others = p.runs.filter((run) => run[1] < 0);
    const captured = replayed.map((run) =>
      ["captured", "planned"].includes(state(p, run)) ? css("--accent") : css("--soft"));
    const steps = Math.max(known.known.size - 1, 1), scale = [];
    for (let k = 0; k <= steps; ++k) scale.push([k / steps, PALETTE[k % PALETTE.length]]);
    const traces = [
      { type: "heatmap", name: "module", y: [0], x0: 0.5, dx: 1, z: [known.calls], zmin: 0, zmax: steps,
        colorscale: scale, showscale: false, hoverinfo: "text", hovertext: [p.calls.map((_, i) => described(p, i))] },
      bars(p, replayed, "replayed", captured), bars(p, others, "on the host", others.map((run) => css(run[4] === "host" ? "--host" : "--line"))),
      { type: "scatter", mode: "markers", name: "waits", x: p.waits.map((i) => i + 0.5), y: p.waits.map(() => LANES.indexOf("waits")),
        marker: { symbol: "diamond", size: 11, color: css("--wait") }, hoverinfo: "text",
        hovertext: p.waits.map((i) => "the processor waits<br>" + described(p, i)) },
      { type: "scatter", mode: "markers", name: "found", x: [], y: [], hoverinfo: "text", hovertext: [],
        marker: { symbol: "triangle-down", size: 11, color: css("--found"), line: { color: css("--panel"), width: 1 } } },
    ];
    const { shapes, annotations } = borders(p, 1);
    Plotly.react(line, traces, layout({
      xaxis: { range: [0, n], title: { text: "operator call" }, tickformat: ",d" },
      yaxis: { tickvals: LANES.map((_, i) => i), ticktext: LANES, zeroline: false, range: [-0.6, 3.6], fixedrange: true, showgrid: false },
      shapes, annotations, bargap: 0,
    }), CONFIG);
    const parts = [...known.known.keys()].slice(0, 6).join(", ");
    document.getElementById("time-line-text").textContent =
      `${count(replayed.length, "graph")} and ${count(host.length, "stretch", "stretches")} on the host ` +
      `(grey: copies of arguments and results), ` +
      `${count(p.waits.length, "wait")}, ${count(n, "call")}, ${p.captured.toLocaleString("en")} of ` +
      `${count(p.operators, "operator call")} in graphs. Colours of the lane "module" are parts of the model: ` +
      `${parts}${known.known.size > 6 ? ", …" : ""}.`;
    if (!line.hears) {
      line.hears = true;
      line.on("plotly_click", (event) => {
        const run = event.points[0].customdata;
        if (Array.isArray(run)) {
          const what = run[1] < 0 ? "on the host" : `in partition ${run[1]}`;
          const numbers = Array.from({ length: run[3] - run[2] }, (_, k) => run[2] + k);
          list(numbers, `${count(numbers.length, "call")} of ${programs[current].entries[run[0]]} ${what}`);
        }
      });
    }
  }

  function list(numbers, caption) {
    const table = document.getElementById("calls"), p = programs[current];
    table.hidden = !numbers.length;
    table.caption.textContent = caption + (numbers.length > SHOWN ? `; the first ${SHOWN}` : "");
    table.tBodies[0].replaceChildren(...numbers.slice(0, SHOWN).map((i) => {
      const row = document.createElement("tr");
      const where = p.calls[i][PARTITION] < 0
        ? "on the host" + (text(p, i, REASON) ? `: ${text(p, i, REASON)}` : "") : `partition ${p.calls[i][PARTITION]}`;
      for (const cell of [i.toLocaleString("en"), text(p, i, OP), `${text(p, i, RESULT)} ${text(p, i, TYPE)}`,
        text(p, i, MODULE), text(p, i, SOURCE), where]) {
        row.insertCell().textContent = cell;
      }
      return row;
    }));
  }

  function search() {
    const p = programs[current], wanted = document.getElementById("search").value.trim().toLowerCase();
    const found = [];
    if (wanted) {
      const hits = p.strings.map((each) => each.toLowerCase().includes(wanted));
      p.calls.forEach((call, i) => {
        if ([OP, SOURCE, MODULE, REASON].some((field) => hits[call[field]])) found.push(i);
      });
    }
    document.getElementById("matches").textContent = wanted ? count(found.length, "call") + " found" : "";
    const lane = (i) => LANES.indexOf(p.calls[i][PARTITION] < 0 ? "on the host" : "replayed");
    Plotly.restyle(line, { x: [found.map((i) => i + 0.5)], y: [found.map(lane)],
      hovertext: [found.map((i) => described(p, i))] }, [4]);
    if (found.length) {
      const [first, last] = [found[0], found[found.length - 1]];
      const room = Math.max(2, (last - first) * 0.05);
      zoomTo(first - room, last + 1 + room);
    } else if (!wanted) {
      zoomTo(0, p.calls.length);
    }
    list(found, `${count(found.length, "call")} with “${wanted}”`);
  }

  function zoomTo(begin, end) {
    const n = programs[current].calls.length;
    Plotly.relayout(line, { "xaxis.range": [Math.max(0, begin), Math.min(n, end)] });
  }
  function zoom(how) {
    const n = programs[current].calls.length;
    const [begin, end] = line.layout.xaxis.range.map(Number), width = end - begin;
    if (how === "in") zoomTo(begin + width / 4, end - width / 4);
    if (how === "out") zoomTo(begin - width / 2, end + width / 2);
    if (how === "left") zoomTo(Math.max(0, begin - width / 2), Math.max(width, end - width / 2));
    if (how === "right") zoomTo(Math.min(n - width, begin + width / 2), Math.min(n, end + width / 2));
    if (how === "all") zoomTo(0, n);
  }

  function drawMap() {
    if (!map) return;
    const p = programs[current], memory = p.memory, known = colours(p), note = document.getElementById("memory-text");
    map.hidden = !memory;
    note.textContent = memory ? "" : "This program has no arena.";
    if (!memory) return;
    const unit = memory.bytes >= 2 ** 30 ? ["GiB", 2 ** 30] : memory.bytes >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 2 ** 10];
    const scaled = (bytes) => bytes / unit[1], n = p.calls.length, all = memory.buffers;
    const label = ([begin, end, bytes, offset, maker, holder]) => [
      `<b>${size(bytes)}</b>, at ${size(offset)}`,
      `${safe(text(p, maker, OP))} ${safe(text(p, maker, TYPE))}`, `of ${safe(p.strings[holder])}`,
      text(p, maker, SOURCE) ? `at ${safe(text(p, maker, SOURCE))}` : "",
      `alive in calls ${begin.toLocaleString("en")} to ${(end - 1).toLocaleString("en")}`,
    ].filter(Boolean).join("<br>");
    const peak = memory.curve.find(([at]) => at === memory.peak)[1];
    const traces = [
      { type: "scatter", mode: "lines", name: "alive", x: memory.curve.map(([at]) => at), y: memory.curve.map(([, bytes]) => scaled(bytes)),
        line: { shape: "hv", color: css("--accent"), width: 2 }, fill: "tozeroy", yaxis: "y2",
        hovertext: memory.curve.map(([at, bytes]) => `${size(bytes)} alive from call ${at.toLocaleString("en")}`), hoverinfo: "text" },
      { type: "bar", name: "arena", x: all.map(([begin, end]) => (begin + end) / 2), width: all.map(([begin, end]) => end - begin),
        base: all.map((b) => scaled(b[3])), y: all.map((b) => scaled(b[2])),
        marker: { color: all.map((b) => PALETTE[known.calls[b[4]] % PALETTE.length]), opacity: 0.85,
          line: { color: css("--panel"), width: all.length > 800 ? 0.3 : 1 } },
        hovertext: all.map(label), hoverinfo: "text" },
    ];
    const { shapes, annotations } = borders(p, 1);
    annotations.push({ x: memory.peak, y: scaled(peak), yref: "y2", text: `peak ${size(peak)}`, showarrow: true, arrowcolor: css("--ink"), ax: -70, ay: -12 });
    Plotly.react(map, traces, layout({
      xaxis: { range: [0, n], title: { text: "operator call" }, tickformat: ",d", anchor: "y" },
      yaxis: { domain: [0, 0.62], range: [0, scaled(memory.bytes)], title: { text: `offset, ${unit[0]}` } },
      yaxis2: { domain: [0.7, 1], range: [0, scaled(peak) * 1.3], title: { text: `alive, ${unit[0]}` } },
      shapes, annotations, barmode: "overlay",
    }), CONFIG);
    const [left, bytes] = memory.left_out;
    note.textContent = `Arena of ${size(memory.bytes)}, ${size(memory.live_bytes)} alive at the peak, ` +
      `${memory.measured ? "as recorded in runs" : "as planned from types"}.` +
      (left ? ` ${count(left, "small tensor")}, ${size(bytes)} together, are not drawn.` : "");
  }

  function draw() {
    drawLine();
    drawMap();
    document.querySelectorAll("[data-program]").forEach((each) => { each.hidden = each.dataset.program !== String(current); });
    // Decoration of plotly's: its buttons have names.
    document.querySelectorAll("svg.icon, #js-plotly-tester").forEach((each) => each.setAttribute("aria-hidden", "true"));
  }

  if (programs.length) {
    draw();
    document.getElementById("program").addEventListener("change", (event) => {
      current = Number(event.target.value);
      draw();
      search();
    });
    let typing;
    document.getElementById("search").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(search, 120);
    });
    document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(button.dataset.zoom)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  }
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
})();
