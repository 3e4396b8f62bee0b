// The pictures of one plan: the streams with the memory under them, the tensors, and the addresses.

const STREAMS = ["forward", "loss", "backward", "recompute", "offload", "prefetch"].map((kind) => [kind, kind]);
const PLACES = [
  ["device", "memory", "on the device"],
  ["fetched", "prefetch", "on the device, fetched back"],
  ["recomputed", "recompute", "on the device, computed again"],
  ["host", "offload", "on the host only"],
];
const ROLES = ["input", "weight", "activation", "gradient", "workspace", "buffer"];

const leftMargin = () => (narrow() ? 56 : 116);
const topMargin = () => (narrow() ? 6 : 26); // room for the buttons

// What the pictures of a plan have in common: their margins, and all of the time or the ops to the right.
function wide(title, until, factor, more = {}) {
  const range = [0, until > 0 ? 1.005 * until * factor : 1];
  return { margin: { l: leftMargin(), r: 14, t: topMargin(), b: 44 }, xaxis: axis({ title, range, ...more }) };
}

// A line across the whole picture.
const across = (y, dash, more = {}) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour("ink"), width: 1.1, dash }, ...more });

// A box for each entry of some columns, from y0 to y1; `kinds` are those that it may have, in order.
function boxesOf({ start, end, kind }, factor, y0, y1, kinds) {
  const x = (times) => times.map((time) => time * factor);
  return { x0: x(start), x1: x(end), y0, y1, kind: kind.map((one) => kinds.findIndex(([known]) => known === one)) };
}

function lastAtMost(values, x) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

class Timeline extends Picture {
  constructor(div, result) {
    super(div, `${result.problem}-${result.planner}`);
    const { timeline, until, time_unit: [factor, unit] } = result.figures;
    Object.assign(this, { result, factor, unit, until, columns: timeline, enough: 0.3 });
    this.kinds = STREAMS;
    const lanes = (by) => timeline.lane.map((lane) => lane + by);
    this.boxes = boxesOf(timeline, factor, lanes(-0.38), lanes(0.38), STREAMS);
    this.cursor = element("div", { class: "cursor", hidden: "" });
  }

  label(at) {
    return this.columns.name[at];
  }

  traces() {
    const { memory, byte_unit: [scale] } = this.result.figures;
    const last = Math.max(this.until, memory.time.at(-1) ?? 0);
    const x = [...memory.time, last].map((time) => time * this.factor);
    const y = [...memory.bytes, memory.bytes.at(-1) ?? 0].map((bytes) => bytes / scale);
    const under = { type: "scatter", mode: "lines", xaxis: "x", yaxis: "y2", hoverinfo: "skip" };
    const curve = { shape: "hv", width: 1.4, color: colour("memory"), simplify: false };
    const ends = [0, last * this.factor];
    const found = [
      { ...under, name: "memory", x, y, fill: "tozeroy", fillcolor: colour("fill"), line: curve },
      { ...under, x: ends, y: [0, 0].fill(memory.resident / scale), fill: "tozeroy", fillcolor: colour("resident-fill"), line: { width: 0 } },
    ];
    if (memory.peak_time !== null) {
      const dot = { size: 8, color: colour("memory"), line: { color: colour("card"), width: 1.5 } };
      found.push({ ...under, mode: "markers", x: [memory.peak_time * this.factor], y: [memory.peak / scale], marker: dot });
    }
    return found;
  }

  layout() {
    const { memory, byte_unit: [scale, size] } = this.result.figures;
    const far = memory.budget > 4 * memory.peak; // a scale with it would flatten the curve
    const most = (far ? memory.peak : Math.max(memory.budget, memory.peak)) / scale || 1;
    const late = memory.peak_time !== null && memory.peak_time > this.until / 2;
    const words = narrow() ? ["compute", "to host", "to device"] : ["compute", "device to host", "host to device"];
    const said = { xref: "paper", yref: "y2", showarrow: false, font: { size: 11.5, color: colour("ink") } };
    const budget = `budget ${formatBytes(memory.budget)}${far ? " (off the scale)" : ""}`;
    const annotations = [
      { ...said, text: budget, x: late ? 0.003 : 1, xanchor: late ? "left" : "right", y: most, yanchor: "bottom", yshift: 1 },
    ];
    if (memory.peak_time !== null) {
      annotations.push({
        ...said,
        xref: "x",
        x: memory.peak_time * this.factor,
        y: memory.peak / scale,
        text: `peak ${formatBytes(memory.peak)}`,
        font: { size: 11.5, color: colour("memory") },
        bgcolor: colour("card"),
        borderpad: 1,
        xanchor: late ? "right" : "left",
        xshift: late ? -5 : 5,
        yanchor: narrow() ? "top" : "bottom", // beside the budget's there is no room
        yshift: narrow() ? -4 : 1,
      });
    }
    return {
      ...wide(`time (${this.unit})`, this.until, this.factor, { anchor: "y2" }),
      yaxis: axis({
        domain: [0.58, 1],
        range: [2.5, -0.5],
        fixedrange: true,
        tickvals: [0, 1, 2],
        ticktext: words,
        ticks: "",
        showgrid: false,
        tickfont: { color: colour("ink"), size: narrow() ? 10.5 : 12.5 },
      }),
      yaxis2: axis({
        domain: [0, 0.54],
        range: [0, 1.17 * most],
        fixedrange: true,
        title: narrow() ? "" : `memory (${size})`,
        ticksuffix: narrow() ? ` ${size}` : "",
        tickfont: { color: colour("muted"), size: narrow() ? 9.5 : 11 },
        nticks: 6,
      }),
      shapes: far ? [] : [across(memory.budget / scale, "6px,4px", { yref: "y2" })],
      annotations,
    };
  }

  draw() {
    super.draw();
    if (!this.div.contains(this.cursor)) this.div.append(this.cursor);
    const present = new Set(this.columns.kind);
    const entries = STREAMS.filter(([kind]) => present.has(kind)).map(([kind, css]) => [css, kind]);
    if (this.result.resident > 0) entries.push(["resident", "resident"]);
    writeLegend(this.div, [...entries, ["memory", "memory", "line"], ["ink", "budget", "line dash"]]);
  }

  describe(at) {
    const { name, kind, step, start, end, bytes } = this.columns;
    const lines = [
      [kind[at], `step ${step[at]}`],
      ["start", formatSeconds(start[at])],
      ["end", formatSeconds(end[at])],
      ["duration", formatSeconds(end[at] - start[at])],
    ];
    if (bytes[at] !== null) lines.push(["moves", formatBytes(bytes[at])]);
    return [name[at], lines];
  }

  point(event) {
    this.follow(event);
    const where = this.at(event, "yaxis2");
    if (!where) return super.point(event);
    const time = where.x / this.factor;
    const { memory } = this.result.figures;
    const at = lastAtMost(memory.time, time);
    if (time < 0 || time > Math.max(this.until, 0) || at < 0) return this.leave();
    const lines = [
      ["held", formatBytes(memory.bytes[at])],
      ["free", formatBytes(memory.budget - memory.bytes[at])],
    ];
    const { name, kind, start, end } = this.columns;
    for (let k = 0; k < name.length; k += 1) {
      if (start[k] <= time && time < end[k]) lines.push([kind[k], shortened(name[k], 34)]);
    }
    showTip(event, `at ${formatSeconds(time)}`, lines, "memory");
  }

  follow(event) {
    const where = this.at(event) || this.at(event, "yaxis2");
    this.cursor.hidden = !where;
    if (!where) return;
    const { _offset: top } = this.div._fullLayout.yaxis;
    const { _offset: low, _length: length } = this.div._fullLayout.yaxis2;
    this.cursor.style.left = `${event.clientX - this.div.getBoundingClientRect().left}px`;
    this.cursor.style.top = `${top}px`;
    this.cursor.style.height = `${low + length - top}px`;
  }

  leave() {
    super.leave();
    if (!this.div.matches(":hover")) this.cursor.hidden = true;
  }
}

class Lifetimes extends Picture {
  constructor(div, result, tensors) {
    super(div, `${result.problem}-${result.planner}-tensors`);
    const { lifetimes, until, time_unit: [factor, unit] } = result.figures;
    Object.assign(this, { tensors, factor, unit, until, columns: lifetimes, enough: 0, gaps: true });
    this.kinds = PLACES;
    this.rows = lifetimes.order.length;
    const row = new Map(lifetimes.order.map((tensor, at) => [tensor, at]));
    const half = lifetimes.place.map((place) => (place === "host" ? 0.26 : 0.42));
    const edge = (side) => lifetimes.tensor.map((tensor, at) => row.get(tensor) + side * half[at]);
    this.boxes = boxesOf({ ...lifetimes, kind: lifetimes.place }, factor, edge(-1), edge(1), PLACES);
  }

  layout() {
    return {
      ...wide(`time (${this.unit})`, this.until, this.factor),
      yaxis: axis({ range: [this.rows - 0.5, -0.5], tickvals: [], showgrid: false, ticks: "", tickfont: { color: colour("muted"), size: 10 } }),
    };
  }

  draw() {
    if (this.rows === 0) return;
    this.div.style.height = `${Math.max(150, Math.min(narrow() ? 420 : 640, 60 + 15 * this.rows))}px`;
    super.draw();
    const present = new Set(this.columns.place);
    writeLegend(this.div, PLACES.filter(([place]) => present.has(place)).map(([, css, words]) => [css, words]));
  }

  // Names of the rows, once there is room for them.
  ticks(py) {
    const [low, high] = this.div._fullLayout.yaxis.range;
    const first = Math.max(0, Math.ceil(Math.min(low, high)));
    const last = Math.min(this.rows - 1, Math.floor(Math.max(low, high)));
    const rows = py >= 10 && !narrow() ? Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => first + at) : [];
    const text = rows.map((row) => escaped(shortened(this.tensors[this.columns.order[row]][0], 17)));
    return { "yaxis.tickvals": rows, "yaxis.ticktext": text };
  }

  describe(at) {
    const { tensor, place, start, end } = this.columns;
    const [name, role, bytes, fate] = this.tensors[tensor[at]];
    const words = PLACES.find(([kind]) => kind === place[at])[2];
    const from = [["from", formatSeconds(start[at])], ["until", formatSeconds(end[at])], ["for", formatSeconds(end[at] - start[at])]];
    return [name, [[words, ""], [role, formatBytes(bytes)], ...from, ["all in all", fate]]];
  }
}

class Addresses extends Picture {
  constructor(div, result) {
    super(div, `${result.problem}-${result.planner}-addresses`);
    const columns = result.figures.addresses;
    const [factor, unit] = columns.in_time ? result.figures.time_unit : [1, null];
    const scale = columns.unit[0];
    Object.assign(this, { result, columns, factor, enough: 0, gaps: true });
    this.title = unit ? `time (${unit})` : "ops, in the order of the plan";
    this.kinds = ROLES.filter((role) => columns.kind.includes(role)).map((role) => [role, role]);
    const low = columns.low.map((bytes) => bytes / scale);
    const high = columns.low.map((bytes, at) => (bytes + columns.bytes[at]) / scale);
    this.boxes = boxesOf(columns, factor, low, high, this.kinds);
  }

  label(at) {
    return this.columns.name[at] ?? "";
  }

  layout() {
    const { height, capacity, unit: [scale, size], until } = this.columns;
    const near = capacity <= 1.8 * height;
    const said = { xref: "paper", showarrow: false, yanchor: "bottom", font: { size: 11.5, color: colour("ink") } };
    const both = near && capacity !== height;
    return {
      ...wide(this.title, until, this.factor),
      yaxis: axis({ title: narrow() ? "" : `address (${size})`, ticksuffix: narrow() ? ` ${size}` : "", range: [0, (1.1 * (near ? Math.max(height, capacity) : height)) / scale || 1] }),
      shapes: [across(height / scale, "2px,3px"), ...(both ? [across(capacity / scale, "6px,4px")] : [])],
      annotations: [
        { ...said, text: `height ${formatBytes(height)}`, x: 0.003, xanchor: "left", y: height / scale },
        ...(both ? [{ ...said, text: `capacity ${formatBytes(capacity)}`, x: 1, xanchor: "right", y: capacity / scale }] : []),
      ],
    };
  }

  draw() {
    super.draw();
    const { height, lower_bound: bound, claimed, fragmentation } = this.columns;
    const lowest = claimed ? "claimed lowest" : "proven lowest";
    const proven = height === bound ? lowest : `${claimed ? "claimed " : ""}lower bound ${formatBytes(bound)}`;
    const legend = this.kinds.map(([role, css]) => [css, role]);
    writeLegend(this.div, [...legend, ["ink", `height ${formatBytes(height)}: ${proven}, fragmentation ${formatPercent(fragmentation)}`, "line dash"]]);
  }

  describe(at) {
    const { name, kind, start, end, low, bytes, in_time: timed } = this.columns;
    const when = timed ? formatSeconds : (op) => `op ${op}`;
    return [
      name[at] ?? "workspace",
      [
        [kind[at], formatBytes(bytes[at])],
        ["address", String(low[at])],
        ["from", when(start[at])],
        ["until", when(end[at])],
      ],
    ];
  }
}
