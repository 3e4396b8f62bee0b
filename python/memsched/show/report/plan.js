// What the pictures of a plan share, and the first of them: the streams with the memory under them.

const STREAMS = ["forward", "loss", "backward", "update", "recompute", "offload", "prefetch"].map((kind) => [kind, kind]);
const TOP = 30; // room for the title and the buttons
const named = (result) => result.called ?? `${result.planner} on ${result.problem || "a problem without a name"}`;
const tableOf = (result, what) => data.tables[`${what}-${data.results.indexOf(result)}`];
const namesOf = (result) => (tableOf(result, "tensors") ?? tableOf(result, "buffers")).rows.map((row) => readable(row[0]));

// Room for the names of tensors, the same in all pictures of a plan: their axes of time lie below each other.
function leftMargin(result) {
  result.widest ??= namesOf(result).reduce((most, name) => Math.max(most, Math.min(widthOf(name, 10), 240)), 0);
  return narrow() ? Math.min(96, Math.max(62, result.widest + 12)) : Math.max(116, result.widest + 14);
}

// What the pictures of a plan have in common: their margins, and all of the time or the ops to the right.
function wide(result, title, until, factor, more = {}) {
  const range = [0, until > 0 ? 1.005 * until * factor : 1];
  return { margin: { l: leftMargin(result), r: 14, t: TOP, b: 44 }, xaxis: axis({ title, range, ...more }) };
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

const LANE = 46; // pixels, of a stream of transfers
const HALF = 1; // lanes, of the compute stream, which has room for names that are written upwards
const LANES = [["compute", "compute"], ["device to host", "to host"], ["host to device", "to device"], ["host", "host"]];

class Timeline extends Picture {
  constructor(div, result) {
    super(div, `${named(result)}: streams and memory`);
    const { timeline, until, time_unit: [factor, unit] } = result.figures;
    Object.assign(this, { result, factor, unit, until, columns: timeline });
    this.kinds = STREAMS.filter(([kind]) => timeline.kind.includes(kind));
    const used = [1, 2, 3].filter((lane) => timeline.lane.includes(lane)); // a stream without steps has no lane
    this.lanes = [0, ...used];
    this.middles = [0, ...used.map((_, at) => HALF + 0.5 + at)];
    const edge = (side) => timeline.lane.map((lane) => this.middles[this.lanes.indexOf(lane)] + side * (lane ? 0.38 : HALF - 0.09));
    this.boxes = boxesOf(timeline, factor, edge(-1), edge(1), this.kinds);
    this.cursor = element("div", { class: "cursor", hidden: "" });
  }

  names(at) {
    const { name, layer, lane } = this.columns;
    return barNames(name[at], lane[at] ? null : layer[at]).map((one) => [one]);
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
    const { memory, memory_end, time_end, byte_unit: [scale, size] } = this.result.figures;
    const far = memory.budget > memory_end;
    const most = memory_end / scale || 1;
    const at = far ? most : memory.budget / scale;
    const late = memory.peak_time !== null && memory.peak_time > this.until / 2;
    const crowded = narrow() && memory.peak / scale > 0.85 * at; // the budget and the peak have no room side by side
    const lanes = LANE * (2 * HALF - 1 + this.lanes.length);
    const low = narrow() ? 190 : 230;
    this.height = TOP + lanes + 14 + low + 44;
    const said = { xref: "paper", yref: "y2", showarrow: false, font: { size: 11.5, color: colour("ink") } };
    const budget = `budget ${formatBytes(memory.budget)}${far ? " (off the scale)" : ""}`;
    const annotations = [
      { ...said, text: budget, x: late ? 0.003 : 1, xanchor: late ? "left" : "right", y: at, yanchor: "bottom", yshift: crowded ? 17 : 1 },
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
        yanchor: "bottom",
        yshift: 1,
      });
    }
    return {
      ...wide(this.result, `time (${this.unit})`, time_end, this.factor, { anchor: "y2" }),
      yaxis: axis({
        domain: [1 - lanes / (lanes + 14 + low), 1],
        range: [HALF + this.lanes.length - 1, -HALF],
        fixedrange: true,
        tickvals: this.middles,
        ticktext: this.lanes.map((lane) => LANES[lane][Number(narrow())]),
        ticks: "",
        showgrid: false,
        tickfont: { color: colour("ink"), size: narrow() ? 10.5 : 12.5 },
      }),
      yaxis2: axis({
        domain: [0, low / (lanes + 14 + low)],
        range: [0, (crowded ? 1.28 : 1.17) * most],
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
    this.layout();
    this.div.style.height = `${this.height}px`;
    super.draw();
    if (!this.div.contains(this.cursor)) this.div.append(this.cursor);
    const times = new Map(); // of all steps of a kind: what is thinner than a pixel, such as a loss, is not seen
    this.columns.kind.forEach((kind, at) => times.set(kind, (times.get(kind) ?? 0) + this.columns.end[at] - this.columns.start[at]));
    const pixel = this.result.figures.time_end / this.div.clientWidth;
    const entries = STREAMS.filter(([kind]) => times.has(kind) && !(times.get(kind) < pixel)).map(([kind, css]) => [css, kind]);
    if (this.result.resident > 0) entries.push(["resident", "resident"]);
    writeLegend(this.div, [...entries, ["memory", "memory", "line"], ["ink", "budget", "line dash"]]);
  }

  describe(at) {
    const { name, layer, kind, step, start, end, bytes } = this.columns;
    const lines = [
      [kind[at], `step ${step[at]}`],
      ...(layer[at] ? [["layer", layer[at]]] : []),
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
