"use strict";
// Draws the time line and the map of memory from the data in the page, and answers its controls.
(() => {
  const programs = JSON.parse(document.getElementById("gravure-data").textContent);
  const [PARTITION, OP, RESULT, TYPE, SOURCE, MODULE, REASON] = [0, 1, 2, 3, 4, 5, 6];
  const LANES = ["module", "waits", "on the host", "replayed"];
  // With two clocks: the thread's below, the device's above.
  const GPU_LANES = ["the calls", "waits", "processor", "GPU", "its calls"];
  const SHOWN = 300; // rows of the table of calls
  const CELLS = 1200; // about a pixel each, of what is in view: what is narrower is drawn together
  // Told apart by people who see few colours, on light and on dark (Okabe and Ito).
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8d8d3a", "#7d6bb0"];
  const line = document.getElementById("time-line");
  const map = document.getElementById("memory-map");
  let current = 0, byTime = true;
  let view = null; // the calls, or the milliseconds, that the time line shows; null for all
  let found = []; // calls that were searched for
  const near = new Set(); // figures that are on the screen or were: the others are not drawn yet

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
  function duration(ms) {
    for (const [unit, s] of [["s", 1e3], ["ms", 1]]) {
      if (ms >= s) return `${(ms / s).toPrecision(3)} ${unit}`;
    }
    return `${(ms * 1e3).toPrecision(ms < 1e-4 ? 1 : 3)} µs`;
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
    const known = new Map(), ofString = new Map();
    const calls = p.calls.map(({ [MODULE]: path }) => {
      if (!ofString.has(path)) {
        const name = part(p.strings[path]);
        if (!known.has(name)) known.set(name, known.size);
        ofString.set(path, known.get(name));
      }
      return ofString.get(path);
    });
    return (p.colours = { calls, names: [...known.keys()] });
  }

  // Where calls and sections of the step lie on the axis: by time where that is known and wished, else in order.
  function axisOf(p) {
    const t = byTime ? p.time : null;
    if (!t) {
      return { t, lanes: LANES, end: p.calls.length, title: "operator call", format: ",d",
        call: (i) => [i, i + 1], section: (k) => [p.sections[k][2], p.sections[k][3]] };
    }
    return { t, lanes: t.gpu ? GPU_LANES : LANES, end: t.end, title: "ms, from the step's begin", format: "",
      call: (i) => t.calls[i], section: (k) => t.sections[k] };
  }
  const onGpu = (p, i) => p.time.gpu && p.calls[i][PARTITION] >= 0;
  function took(p, i) {
    if (!p.time) return "";
    const [begin, end] = p.time.calls[i];
    return end > begin ? duration(end - begin) : "";
  }

  function state(p, section) {
    const [, partition] = section;
    return partition < 0 ? "on the host" : p.states[partition] || "planned";
  }
  function described(p, i) {
    const module = text(p, i, MODULE), source = text(p, i, SOURCE), reason = text(p, i, REASON);
    return [
      `<b>${safe(text(p, i, OP))}</b> ${safe(text(p, i, TYPE))}`,
      module && `in ${safe(module)}`, source && `at ${safe(source)}`, reason && `on the host: ${reason}`,
      took(p, i) && `${took(p, i)} ${onGpu(p, i) ? "on the GPU" : "of the thread"}`, `call ${i.toLocaleString("en")}`,
    ].filter(Boolean).join("<br>");
  }
  // The parts of the model that calls [begin, end) are of, and why they are on the host.
  function partsOf(p, begin, end) {
    const { calls, names } = colours(p), parts = new Set(), reasons = new Set();
    for (let i = begin; i < end; ++i) {
      if (names[calls[i]] !== "no module") parts.add(names[calls[i]]);
      if (text(p, i, REASON)) reasons.add(text(p, i, REASON));
    }
    const listed = [...parts].slice(0, 5).join(", ") + (parts.size > 5 ? ", …" : "");
    return [listed && `in ${safe(listed)}`, reasons.size && [...reasons].join(", ")];
  }
  function describedSection(p, k) {
    const section = p.sections[k];
    const [entry, partition, begin, end] = section;
    const host = section[4] === "copies" ? "copies of arguments or results" : "on the host";
    const name = partition < 0 ? host : `partition ${partition}, ${state(p, section)}`;
    return [
      `<b>${p.entries[entry]}, ${name}</b>`,
      `${count(end - begin, "call")}, from ${begin.toLocaleString("en")}`,
      p.time && `${duration(p.time.sections[k][1] - p.time.sections[k][0])} ${p.time.gpu && partition >= 0 ? "on the GPU" : "of the thread"}`,
      ...partsOf(p, begin, end),
    ].filter(Boolean).join("<br>");
  }
  // Of what is drawn together: calls [begin, end).
  const together = (p, what, begin, end) => [
    `<b>${what}</b>, too narrow to tell apart: zoom in`,
    `calls ${begin.toLocaleString("en")} to ${(end - 1).toLocaleString("en")}`, ...partsOf(p, begin, end),
  ].filter(Boolean).join("<br>");

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
  function borders(p, top, at) {
    const shapes = [], annotations = [];
    p.entries.forEach((name, e) => {
      const first = p.sections.findIndex((section) => section[0] === e);
      if (first < 0) return;
      const begin = at(first);
      annotations.push({ x: begin, y: top, yref: "paper", xanchor: "left", yanchor: "bottom",
        text: name, showarrow: false, font: { color: css("--soft") } });
      if (begin > 0) {
        shapes.push({ type: "line", x0: begin, x1: begin, y0: 0, y1: 1, yref: "paper",
          line: { color: css("--soft"), width: 1, dash: "dot" } });
      }
    });
    return { shapes, annotations };
  }

  // What is in view, with as much to its left and right, and how wide a pixel is.
  function seen(axis) {
    const [begin, end] = view || [0, axis.end], width = end - begin;
    return { begin: begin - width, end: end + width, pixel: width / CELLS };
  }
  // `each`: spans that follow one another. Those in view; neighbours that are narrower than a pixel are one:
  // [begin, end, first, last], the last two by their position in `each`.
  function inView(each, { begin: from, end: to, pixel }) {
    const shown = [];
    each.forEach(([begin, end], i) => {
      if (end < from || begin > to) return;
      const last = shown[shown.length - 1];
      if (last && begin - last[1] < pixel && end - last[0] < pixel) {
        last[1] = Math.max(last[1], end);
        last[3] = i;
      } else {
        shown.push([begin, end, i, i]);
      }
    });
    return shown;
  }

  // `spans`: where each bar begins and ends; `sections`: what they are of; `words` and `colour` of each.
  function bars(p, axis, name, lane, spans, sections, colour, words) {
    const shown = inView(spans, seen(axis));
    return { type: "bar", orientation: "h", name, y: shown.map(() => lane),
      base: shown.map(([begin]) => begin), x: shown.map(([begin, end]) => end - begin), width: 0.8,
      marker: { color: shown.map(([, , i]) => colour(sections[i])), line: { color: css("--panel"), width: shown.length > 100 ? 0 : 1 } },
      customdata: shown.map(([, , i, last]) => [sections[i], sections[last]]), hoverinfo: "text",
      hovertext: shown.map(([, , i, last]) => i === last ? words(i)
        : together(p, `${last - i + 1} of ${name}`, p.sections[sections[i]][2], p.sections[sections[last]][3])) };
  }
  // Marks of single calls, above where they are.
  function marks(p, axis, name, numbers, lane, marker, words) {
    const spans = numbers.map(axis.call).map(([begin, end]) => [(begin + end) / 2, (begin + end) / 2]);
    const shown = inView(spans, seen(axis));
    return { type: "scatter", mode: "markers", name, x: shown.map(([begin, end]) => (begin + end) / 2),
      y: shown.map(([, , i]) => lane(numbers[i])), marker, hoverinfo: "text",
      hovertext: shown.map(([, , i, last]) => i === last ? words + described(p, numbers[i])
        : together(p, count(last - i + 1, "call"), numbers[i], numbers[last] + 1)) };
  }
  // A strip of calls, coloured by part of the model. They follow one another.
  function strip(p, known, axis, lane, numbers) {
    const steps = Math.max(known.names.length - 1, 1), scale = [];
    for (let k = 0; k <= steps; ++k) scale.push([k / steps, PALETTE[k % PALETTE.length]]);
    const shown = inView(numbers.map(axis.call), seen(axis)), edges = [], z = [], texts = [], least = axis.end * 1e-9;
    let until = 0;
    for (const [begin, end, first, last] of shown) {
      if (!(end - begin > least)) continue;
      if (begin - until > least || !edges.length) {  // nothing runs until it begins
        if (edges.length) { z.push(null); texts.push(""); }
        edges.push(begin);
      }
      edges.push(until = Math.max(end, edges[edges.length - 1] + least));
      z.push(known.calls[numbers[first]]);
      texts.push(first === last ? described(p, numbers[first])
        : together(p, count(last - first + 1, "call"), numbers[first], numbers[last] + 1));
    }
    return { type: "heatmap", name: "module", y: [lane], zmin: 0, zmax: steps, colorscale: scale, showscale: false,
      hoverinfo: "text", ygap: 0, x: edges, z: [z], hovertext: [texts] };
  }

  const replayedSections = (p) => [...p.sections.keys()].filter((k) => p.sections[k][1] >= 0);

  // What the picture of the step says, in words: they are there though nothing is drawn.
  function tellLine() {
    const p = programs[current], { t } = axisOf(p), host = p.sections.filter((section) => section[4] === "host");
    const how = t
      ? `By time, a replayed step of ${duration(t.end)}: ` + (t.gpu
        ? "widths are measured (on the GPU by CUPTI, on the processor by a clock) in uncaptured steps; where they begin is worked out as a replay runs them. Kernels that the processor launches one by one are not drawn on the GPU. "
        : "widths are what calls took the thread in an uncaptured step, one behind the other. ")
      : "In the order of calls, each as wide as the next" + (p.time ? ". " : `: no times were taken${p.why ? ` (${p.why})` : ", which the option times does"}. `);
    legend(colours(p));
    document.getElementById("order").closest("label").hidden = !p.time;
    document.getElementById("time-line-text").textContent = how +
      `${count(replayedSections(p).length, "graph")} and ${count(host.length, "section", "sections")} on the host ` +
      `(grey: copies of arguments and results), ` +
      `${count(p.waits.length, "wait")}, ${count(p.calls.length, "call")}, ${p.captured.toLocaleString("en")} of ` +
      `${count(p.operators, "operator call")} in graphs.`;
  }

  function drawLine() {
    if (!near.has(line)) return;
    const p = programs[current], known = colours(p), axis = axisOf(p), { t, lanes } = axis, gpu = t && t.gpu;
    const replayed = replayedSections(p), others = [...p.sections.keys()].filter((k) => p.sections[k][1] < 0);
    const [hostLane, replayLane, waitLane] = [lanes.indexOf(gpu ? "processor" : "on the host"), lanes.indexOf(gpu ? "GPU" : "replayed"), 1];
    const calls = [...p.calls.keys()], inGraphs = (i) => p.calls[i][PARTITION] >= 0;
    const laneOf = (i) => (inGraphs(i) ? replayLane : hostLane);
    const [accent, soft, hosted, copies, waiting, launching] = ["--accent", "--soft", "--host", "--line", "--wait", "--launch"].map(css);
    const words = (sections) => (i) => describedSection(p, sections[i]);
    const traces = [
      strip(p, known, axis, 0, gpu ? calls.filter((i) => !inGraphs(i)) : calls),
      bars(p, axis, "replayed", replayLane, replayed.map(axis.section), replayed,
        (k) => (["captured", "planned"].includes(state(p, p.sections[k])) ? accent : soft), words(replayed)),
      bars(p, axis, "on the host", hostLane, others.map(axis.section), others, (k) => (p.sections[k][4] === "host" ? hosted : copies), words(others)),
      marks(p, axis, "waits", p.waits, () => waitLane, { symbol: "diamond", size: 11, color: waiting }, "the processor waits<br>"),
      marks(p, axis, "found", found, laneOf,
        { symbol: "triangle-down", size: 11, color: css("--found"), line: { color: css("--panel"), width: 1 } }, ""),
    ];
    if (gpu) {
      const launched = t.launches.map(([k]) => k), sectionOf = (i) => p.sections.findIndex((section) => section[2] <= i && i < section[3]);
      traces.push(strip(p, known, axis, lanes.indexOf("its calls"), calls.filter(inGraphs)),
        bars(p, axis, "launches", hostLane, t.launches.map(([, begin, end]) => [begin, end]), launched, () => launching, (i) =>
          `<b>launch of partition ${p.sections[launched[i]][1]}</b><br>${duration(t.launches[i][2] - t.launches[i][1])} of the thread`),
        bars(p, axis, "waiting", waitLane, t.waits.map(([, begin, end]) => [begin, end]), t.waits.map(([i]) => sectionOf(i)), () => waiting, (i) =>
          `the processor waits ${duration(t.waits[i][2] - t.waits[i][1])}<br>` + described(p, t.waits[i][0])));
    }
    const { shapes, annotations } = borders(p, 1, (k) => axis.section(k)[0]);
    plotly().react(line, traces, layout({
      xaxis: { range: view || [0, axis.end], title: { text: axis.title }, tickformat: axis.format },
      yaxis: { tickvals: lanes.map((_, i) => i), ticktext: lanes, zeroline: false, range: [-0.6, lanes.length - 0.4], fixedrange: true, showgrid: false },
      shapes, annotations, bargap: 0, barmode: "overlay",
    }), { ...CONFIG, doubleClick: false });
    hidePictures();
    if (!line.hears) {
      line.hears = true;
      line.on("plotly_click", (event) => {
        const sections = event.points[0].customdata;
        if (!sections) return;
        const p = programs[current], [first, last] = sections.map((k) => p.sections[k]);
        const what = first !== last ? "" : first[1] < 0 ? " on the host" : ` in partition ${first[1]}`;
        const numbers = Array.from({ length: last[3] - first[2] }, (_, k) => first[2] + k);
        list(numbers, `${count(numbers.length, "call")} of ${p.entries[first[0]]}${what}`);
      });
      line.on("plotly_doubleclick", () => zoom("all"));
      line.on("plotly_relayout", (change) => {  // zoomed by hand: what was too narrow may have room now
        if (!Object.keys(change).some((key) => key.startsWith("xaxis"))) return;
        if (change["xaxis.autorange"]) zoom("all"); else zoomTo(...line.layout.xaxis.range.map(Number));
      });
    }
  }

  // Parts of the model, in the colours of their calls. Those beyond share colours with them.
  function legend(known) {
    const parts = known.names;
    document.getElementById("legend").replaceChildren(...parts.slice(0, PALETTE.length).map((name, k) => {
      const item = document.createElement("li"), patch = document.createElement("i");
      patch.style.background = PALETTE[k];
      item.append(patch, k === PALETTE.length - 1 && parts.length > PALETTE.length ? `${name}, …` : name);
      return item;
    }));
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
        text(p, i, MODULE), text(p, i, SOURCE), where, took(p, i) || "–"]) {
        row.insertCell().textContent = cell;
      }
      return row;
    }));
  }

  function search() {
    const p = programs[current], wanted = document.getElementById("search").value.trim().toLowerCase();
    found = [];
    if (wanted) {
      const hits = p.strings.map((each) => each.toLowerCase().includes(wanted));
      p.calls.forEach((call, i) => {
        if ([OP, SOURCE, MODULE, REASON].some((field) => hits[call[field]])) found.push(i);
      });
    }
    document.getElementById("matches").textContent = wanted ? count(found.length, "call") + " found" : "";
    const axis = axisOf(p);
    if (found.length) {
      const first = found.reduce((least, i) => Math.min(least, axis.call(i)[0]), Infinity);
      const last = found.reduce((most, i) => Math.max(most, axis.call(i)[1]), 0);
      const room = Math.max(axis.t ? axis.end / 1e4 : 2, (last - first) * 0.05);
      zoomTo(first - room, last + room);
    } else if (wanted) {
      drawLine();
    } else {
      zoomTo(0, axis.end);
    }
    list(found, `${count(found.length, "call")} with “${wanted}”`);
  }

  function zoomTo(begin, end) {
    view = [Math.max(0, begin), Math.min(axisOf(programs[current]).end, end)];
    drawLine();
  }
  function zoom(how) {
    const n = axisOf(programs[current]).end;
    const [begin, end] = view || [0, n], width = end - begin;
    if (how === "in") zoomTo(begin + width / 4, end - width / 4);
    if (how === "out") zoomTo(begin - width / 2, end + width / 2);
    if (how === "left") zoomTo(Math.max(0, begin - width / 2), Math.max(width, end - width / 2));
    if (how === "right") zoomTo(Math.min(n - width, begin + width / 2), Math.min(n, end + width / 2));
    if (how === "all") zoomTo(0, n);
  }

  function tellMap() {
    if (!map) return;
    const memory = programs[current].memory, note = document.getElementById("memory-text");
    map.hidden = !memory;
    note.textContent = memory ? "" : "This program has no arena.";
    if (!memory) return;
    const [left, bytes] = memory.left_out;
    note.textContent = `Arena of ${size(memory.bytes)}, ${size(memory.live_bytes)} alive at the peak, ` +
      `${memory.measured ? "as recorded in runs" : "as planned from types"}.` +
      (left ? ` ${count(left, "tensor")}, ${size(bytes)} together, are too small or short-lived to be drawn.` : "");
  }

  function drawMap() {
    const p = programs[current], memory = p.memory, known = colours(p);
    if (!memory || !near.has(map)) return;
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
    const { shapes, annotations } = borders(p, 1, (k) => p.sections[k][2]);
    annotations.push({ x: memory.peak, y: scaled(peak), yref: "y2", text: `peak ${size(peak)}`, showarrow: true, arrowcolor: css("--ink"), ax: memory.peak < n / 5 ? 70 : -70, ay: -12 });
    plotly().react(map, traces, layout({
      xaxis: { range: [0, n], title: { text: "operator call" }, tickformat: ",d", anchor: "y" },
      yaxis: { domain: [0, 0.62], range: [0, scaled(memory.bytes)], title: { text: `offset, ${unit[0]}` } },
      yaxis2: { domain: [0.7, 1], range: [0, scaled(peak) * 1.3], title: { text: `alive, ${unit[0]}` } },
      shapes, annotations, barmode: "overlay",
    }), CONFIG);
    hidePictures();
  }

  // Plotly's buttons have names; their pictures are decoration.
  function hidePictures() {
    document.querySelectorAll("svg.icon, #js-plotly-tester").forEach((each) => each.setAttribute("aria-hidden", "true"));
  }
  // It is large: read when the first picture is to be drawn.
  function plotly() {
    if (!window.Plotly) {
      const code = document.createElement("script");
      code.textContent = document.getElementById("plotly").textContent;
      document.head.append(code);
    }
    return window.Plotly;
  }
  function draw() {
    document.querySelectorAll("[data-program]").forEach((each) => { each.hidden = each.dataset.program !== String(current); });
    tellLine();
    tellMap();
    drawLine();
    drawMap();
  }
  const drawn = () => { document.documentElement.dataset.drawn ||= String(Math.round(performance.now())); };

  function begin() {
    draw();
    // What is on the screen, or nearly, is drawn; the rest when it comes there.
    const watch = new IntersectionObserver((changes) => {
      for (const { target } of changes.filter((change) => change.isIntersecting && !near.has(change.target))) {
        near.add(target);
        if (target === line) drawLine(); else drawMap();
      }
      drawn();
    }, { rootMargin: "200px" });
    const figures = [line, map].filter(Boolean);
    figures.forEach((figure) => watch.observe(figure));
    addEventListener("beforeprint", () => {
      figures.forEach((figure) => near.add(figure));
      draw();
    });
    document.getElementById("program").addEventListener("change", (event) => {
      current = Number(event.target.value);
      view = null;
      draw();
      search();
    });
    document.getElementById("order").addEventListener("change", (event) => {
      byTime = event.target.value === "time";
      view = null;
      tellLine();
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

  // Words and tables are read before anything is drawn.
  if (programs.length) {
    requestAnimationFrame(() => setTimeout(begin));
  } else {
    drawn();
  }
})();
