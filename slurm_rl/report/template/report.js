"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const live = document.getElementById("live");
  const hidden = new Set();

  const sizes = [[86400, "d"], [3600, "h"], [60, "min"]];
  const grouped = (v, digits) => v.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  function shown(value, unit) {
    if (value === null || value === undefined) return "–";
    if (unit === "s") {
      for (const [size, name] of sizes) if (Math.abs(value) >= size) return `${grouped(value / size, 1)} ${name}`;
      return `${value.toFixed(0)} s`;
    }
    if (unit === "share") return `${grouped(100 * value, Math.abs(value) < 10 ? 1 : 0)}%`;
    if (unit === "ratio") return `×${value.toFixed(2)}`;
    return Math.abs(value) >= 1000 ? grouped(value, 0) : String(Number(value.toPrecision(3)));
  }
  const unpacked = new Map();
  function cells(run) {
    if (!unpacked.has(run)) unpacked.set(run, Uint8Array.from(atob(data.heat.cells[run]), (c) => c.charCodeAt(0)));
    return unpacked.get(run);
  }

  // ---- tables of what is plotted ----
  function quoted(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    // A spreadsheet would run a name that begins like a formula.
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }
  function rowsOf(id) {
    if (id === "comparison") {
      const names = Object.keys(data.runs[0].metrics);
      return [["policy", "backfill", "placement", ...names],
        ...data.runs.map((r) => [r.policy, r.backfill, r.placement, ...names.map((n) => r.metrics[n])])];
    }
    if (data.heat && id === data.heat.id) {
      const rows = [["policy", "backfill", "nodes", "seconds", "allocated_percent"]];
      data.runs.forEach((run, r) => {
        const own = cells(r);
        data.heat.rows.forEach((name, i) => data.heat.xs.forEach((x, k) =>
          rows.push([run.policy, run.backfill, name, x, own[i * data.heat.xs.length + k]])));
      });
      return rows;
    }
    const chart = data.charts[id];
    const word = (axis) => axis.name.replaceAll(/[^A-Za-z0-9]+/g, "_") + (axis.unit === "s" ? "_seconds" : "");
    const facet = chart.facet ? [chart.facet.replaceAll(" ", "_")] : [];
    const counted = chart.counts.length ? ["jobs"] : [];
    const rows = [["policy", "backfill", ...facet, word(chart.x), ...counted, word(chart.y)]];
    data.runs.forEach((run, r) => chart.panels.forEach((panel) => chart.xs.forEach((x, i) => rows.push([
      run.policy, run.backfill, ...(facet.length ? [panel.name] : []), x,
      ...(counted.length ? [chart.counts[i]] : []), panel.series[r][i]]))));
    return rows;
  }
  const csvOf = (id) => rowsOf(id).map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  function save(id) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csvOf(id)], {type: "text/csv"}));
    link.download = `${id}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  for (const button of document.querySelectorAll("[data-save]"))
    button.addEventListener("click", () => save(button.dataset.save));

  // ---- which policies are shown ----
  const chips = [...document.querySelectorAll(".chip[data-run]")];
  function show(run, visible) {
    visible ? hidden.delete(run) : hidden.add(run);
    root.classList.toggle(`hide-${run}`, !visible);
    chips[run].setAttribute("aria-pressed", String(visible));
  }
  chips.forEach((chip, run) => {
    chip.disabled = false;
    chip.addEventListener("click", () => show(run, hidden.has(run)));
    chip.addEventListener("dblclick", () => chips.forEach((_, other) => show(other, other === run)));
  });
  document.getElementById("all").addEventListener("click", () => chips.forEach((_, run) => show(run, true)));

  // ---- values under the pointer, or under the arrow keys ----
  const make = (name, attributes) => {
    const node = document.createElementNS(document.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  function element(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }
  function fill(title, lines) {
    const box = [element("strong", title)];
    for (const [run, label, value] of lines) {
      const row = element("div", undefined, "row");
      const left = element("span", undefined, run === null ? "" : `p${run}`);
      if (run !== null) left.append(element("i"));
      left.append(label);
      row.append(left, element("span", value));
      box.push(row);
    }
    tip.replaceChildren(...box);
    live.textContent = [title, ...lines.map(([, label, value]) => `${label} ${value}`)].join(", ");
  }
  const visible = () => data.runs.map((_, run) => run).filter((run) => !hidden.has(run));

  function reader(svg) {
    const [left, top, right, bottom] = svg.dataset.plot.split(" ").map(Number);
    const kind = svg.dataset.kind;
    const run = svg.dataset.run === undefined ? null : Number(svg.dataset.run);
    const chart = kind === "heat" ? data.heat : data.charts[svg.dataset.chart];
    const [low, high, log] = (svg.dataset.domain || "0 1 0").split(" ").map(Number);
    const scaled = (v) => log ? Math.log(Math.max(v, low) / low) / Math.log(high / low) : (v - low) / (high - low);
    const px = (v) => left + Math.min(Math.max(scaled(v), 0), 1) * (right - left);
    const count = kind === "heat" ? chart.xs.length : chart.xs.length;
    const height = (bottom - top) / (kind === "heat" ? chart.rows.length : chart.xs.length);
    const points = kind === "scatter" ? [...svg.querySelectorAll("circle")] : [];
    const at = (c) => [Number(c.getAttribute("cx")), Number(c.getAttribute("cy"))];
    const panel = chart.panels ? chart.panels[Number(svg.dataset.panel)] : null;
    const base = data.base;
    let overlay = null;
    const draw = (node) => { if (overlay) overlay.remove(); overlay = node; svg.append(node); };
    const lines = (i) => visible().map((r) => [r, data.runs[r].label, shown(panel.series[r][i], chart.y.unit)]);
    const clamp = (i, n) => Math.min(Math.max(i, 0), n - 1);

    return {
      // The stop nearest to a place in the picture.
      near(x, y) {
        if (kind === "lines") {
          let best = 0;
          for (let i = 1; i < count; i++)
            if (Math.abs(px(chart.xs[i]) - x) < Math.abs(px(chart.xs[best]) - x)) best = i;
          return [best, 0];
        }
        if (kind === "rows") return [0, clamp(Math.floor((y - top) / height), count)];
        if (kind === "heat")
          return [clamp(Math.floor((x - left) / (right - left) * count), count),
            clamp(Math.floor((y - top) / height), chart.rows.length)];
        let best = 0, least = Infinity;
        points.forEach((c, i) => {
          const [cx, cy] = at(c), far = (cx - x) ** 2 + (cy - y) ** 2;
          if (far <= least) { least = far; best = i; }
        });
        return [best, 0];
      },
      step([i, j], dx, dy) {
        if (kind === "rows") return [0, clamp(j + dx + dy, count)];
        if (kind === "heat") return [clamp(i + dx, count), clamp(j + dy, chart.rows.length)];
        return [clamp(i + dx + dy, kind === "scatter" ? points.length : count), 0];
      },
      // Marks a stop and fills the tip; gives the place of the stop in the picture.
      mark([i, j]) {
        if (kind === "lines") {
          const x = px(chart.xs[i]);
          draw(make("path", {class: "cursor", d: `M${x} ${top}V${bottom}`}));
          fill(`${chart.x.name}${chart.x.log ? " ≤ " : ": "}${shown(chart.xs[i], chart.x.unit)}`, lines(i));
          return [x, top + 20];
        }
        if (kind === "rows") {
          const y = top + j * height;
          draw(make("rect", {class: "band", x: 0, y, width: right, height}));
          const jobs = chart.counts.length ? `, ${chart.counts[j].toLocaleString("en")} jobs` : "";
          fill(`${chart.xs[j]}${jobs}`, lines(j));
          return [right - 80, y + height / 2];
        }
        if (kind === "heat") {
          const width = (right - left) / count, x = left + i * width, y = top + j * height;
          draw(make("rect", {class: "ring", x, y, width, height: Math.max(height, 2)}));
          fill(chart.rows[j], [[null, `after ${shown(chart.xs[i], "s")}`, `${cells(run)[j * count + i]}%`]]);
          return [x, y];
        }
        if (!points.length) return [left, top];
        const [cx, cy] = at(points[i]), user = Number(points[i].dataset.i);
        draw(make("circle", {class: "ring", cx, cy, r: Number(points[i].getAttribute("r")) + 2}));
        fill(`${chart.xs[user]}, ${chart.counts[user].toLocaleString("en")} jobs`,
          [base, run].map((r) => [r, data.runs[r].label, shown(panel.series[r][user], "s")]));
        return [cx, cy];
      },
      clear() { if (overlay) overlay.remove(); overlay = null; },
    };
  }

  function place(x, y) {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = x + 14 + box.width < innerWidth - 6 ? x + 14 : Math.max(x - 14 - box.width, 6);
    tip.style.left = `${right}px`;
    tip.style.top = `${Math.min(Math.max(y - box.height / 2, 6), Math.max(innerHeight - box.height - 6, 6))}px`;
  }
  for (const svg of document.querySelectorAll("svg.chart")) {
    let read = null, stop = null;
    const start = () => (read = read || reader(svg));
    const leave = () => { if (read) read.clear(); stop = null; tip.hidden = true; };
    svg.addEventListener("pointermove", (event) => {
      const spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      stop = start().near(spot.x, spot.y);
      read.mark(stop);
      place(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const moves = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1],
        PageDown: [10, 0], PageUp: [-10, 0], Home: [-1e9, 0], End: [1e9, 0]};
      if (event.key === "Escape") return leave();
      if (!(event.key in moves)) return undefined;
      event.preventDefault();
      start();
      stop = stop === null ? [0, 0] : read.step(stop, ...moves[event.key]);
      const [x, y] = read.mark(stop);
      const spot = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
      return place(spot.x, spot.y);
    });
  }

  globalThis.slurmRl = {csvOf, shown};
})();
