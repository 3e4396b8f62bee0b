// Makespans over memories: the frontier of one problem, and those of a sweep.

// Of a planner's line, by the places that palette.py gives it.
const SYMBOLS = ["circle", "square", "diamond", "cross", "x", "pentagon", "hexagon"];
const styleOf = ([tint, mark]) => ({ css: `s${tint}`, symbol: SYMBOLS[mark] });
const SIZE = 7; // pixels, of a mark
const NEAR = 4; // pixels, of marks that would hide each other
const MOST_NESTED = 300; // points of a curve, which take time
const RING = 6; // pixels by which a mark is larger than one that lies on it

class Curves extends Picture {
  constructor(div, title) {
    super(div, title);
    this.hidden = new Set();
    this.outlines = {}; // of symbols, as they were drawn
  }

  /* lines: {name, x, y, tips: [[word, figure], ...] a point, css, symbol, dash}; marks: the same, as single points.
     scale: lines for which the axes have room; by default these. Data are in the units of the axes. */
  set(content) {
    Object.assign(this, content);
    this.view = {};
  }

  seen() {
    return [...this.lines, ...this.marks].filter((line) => !this.hidden.has(line.name));
  }

  /* The size of each mark: of those at one place, a later one lies on the earlier ones, which are larger, so that all are
     seen. */
  sizes(seen) {
    const { xaxis, yaxis, margin } = this.layout();
    const px = (this.div.clientWidth - margin.l - margin.r) / (xaxis.range[1] - xaxis.range[0]);
    const py = (this.div.clientHeight - margin.t - margin.b) / (yaxis.range[1] - yaxis.range[0]);
    const near = (one, x, y) => one.x.some((other, k) => Math.abs(other - x) * px < NEAR && Math.abs(one.y[k] - y) * py < NEAR);
    const marked = (line) => !line.mode && line.x.length <= MOST_NESTED;
    return seen.map((line, at) => {
      if (!marked(line)) return line.size ?? SIZE;
      const above = seen.slice(at + 1).filter(marked);
      return line.x.map((x, k) => SIZE + RING * above.filter((one) => near(one, x, line.y[k])).length);
    });
  }

  traces() {
    const seen = this.seen();
    const sizes = this.sizes(seen);
    return seen.map((line, at) => ({
      type: "scatter",
      mode: line.mode ?? "lines+markers",
      x: line.x,
      y: line.y,
      hoverinfo: "skip",
      line: { color: colour(line.css), width: line.width ?? 1.8, dash: line.dash ?? "solid" },
      marker: { color: colour(line.css), size: sizes[at], opacity: 1, symbol: line.symbol, line: { color: colour("card"), width: 0.8 } },
    }));
  }

  layout() {
    const all = this.scale ?? [...this.lines, ...this.marks];
    const range = (values, low, high) => {
      const known = values.filter(Number.isFinite);
      const [least, most] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
      if (!known.length) return [0, 1];
      const span = most - least || Math.abs(most) || 1;
      return [least - low * span, most + high * span];
    };
    return {
      margin: { l: narrow() ? 58 : 64, r: 14, t: TOP, b: 44 },
      xaxis: axis({ title: this.xTitle, range: range(all.flatMap((line) => line.x), 0.03, 0.03) }),
      yaxis: axis({ title: this.yTitle, range: range(all.flatMap((line) => line.y), 0.06, 0.06), tickfont: { color: colour("muted"), size: narrow() ? 9.5 : 11 } }),
    };
  }

  draw() {
    super.draw();
    const all = [...this.lines, ...this.marks];
    const drawn = this.div.querySelectorAll(".scatterlayer .trace");
    const sizes = this.sizes(this.seen());
    this.seen().forEach((line, at) => {
      const outline = drawn[at]?.querySelector(".point")?.getAttribute("d");
      if (outline) this.outlines[line.symbol] ??= { outline, scale: Array.isArray(sizes[at]) ? SIZE / sizes[at][0] : 1 };
    });
    writeLegend(this.div, all.map((line) => [line.css, line.name, "drawn"]));
    [...legendOf(this.div).children].forEach((entry, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.ariaPressed = String(!this.hidden.has(all[at].name));
      button.append(...entry.childNodes);
      entry.append(button);
      entry.insertAdjacentHTML("afterbegin", this.swatch(all[at]));
      entry.style.opacity = this.hidden.has(all[at].name) ? "0.4" : "1";
      button.addEventListener("click", () => {
        if (!this.hidden.delete(all[at].name)) this.hidden.add(all[at].name);
        this.draw();
      });
    });
  }

  // A piece of a line with its symbol, as they are in the picture.
  swatch({ mode, dash, symbol }) {
    const dashes = dash ? ` stroke-dasharray="${dash.replaceAll("px", "")}"` : "";
    const line = mode === "markers" ? "" : `<path d="M-14 0H14"${dashes}/>`;
    const mark = mode !== "lines" && this.outlines[symbol] ? this.markOf(this.outlines[symbol]) : "";
    return `<svg viewBox="-14 -9 28 18" aria-hidden="true">${line}${mark}</svg>`;
  }

  markOf({ outline, scale }) {
    return `<path class="mark" d="${outline}" transform="scale(${scale})"/>`;
  }

  // The nearest point of a curve.
  point(event) {
    const { xaxis, yaxis } = this.div._fullLayout;
    const place = this.div.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left - xaxis._offset, event.clientY - place.top - yaxis._offset];
    let [found, least] = [null, 30];
    for (const line of this.seen()) {
      if (!line.tips) continue;
      for (let at = 0; at < line.x.length; at += 1) {
        const distance = Math.hypot(xaxis.c2p(line.x[at]) - x, yaxis.c2p(line.y[at]) - y);
        if (distance < least) [found, least] = [[line, at], distance];
      }
    }
    if (!found) return hideTip();
    showTip(event, found[0].name, found[0].tips(found[1]), found[0].css);
  }
}

function frontierCurves(div, result) {
  const { ideal, planners, bounds, own, time_unit: [factor, unit], byte_unit: [scale, size] } = result.frontier;
  const above = (makespan) => (Math.abs(makespan / ideal - 1) > 1e-9 ? makespan / ideal - 1 : 0); // sums in another order
  const overIdeal = (makespan) => (ideal > 0 ? [["over ideal", formatPercent(above(makespan))]] : []);
  const lines = planners.map((one) => ({
    ...styleOf(one.style),
    name: one.memory.length ? one.name : `${one.name} (no plan)`,
    x: one.memory.map((bytes) => bytes / scale),
    y: one.makespan.map((seconds) => seconds * factor),
    tips: (k) => [
      ["memory", formatBytes(one.memory[k])],
      ["makespan", formatSeconds(one.makespan[k])],
      ["lower bound", formatSeconds(one.lower_bound[k])],
      ...overIdeal(one.makespan[k]),
    ],
  }));
  Object.entries(bounds).forEach(([words, [memory, seconds]], at) => {
    const x = memory.map((bytes) => bytes / scale);
    const y = seconds.map((bound) => bound * factor);
    lines.push({ name: `lower bound ${words}`, x, y, css: at ? "muted" : "ink", mode: "lines", width: 1.2, dash: at ? "8px,3px,2px,3px" : "6px,4px" });
  });
  const star = {
    name: `this plan (${own.name})`,
    x: [own.memory / scale],
    y: [own.makespan * factor],
    css: "ink",
    mode: "markers",
    symbol: "star",
    size: 16,
    tips: () => [["memory", formatBytes(own.memory)], ["makespan", formatSeconds(own.makespan)], ...overIdeal(own.makespan)],
  };
  const made = new Curves(div, `${result.problem || "a problem without a name"}: what less memory costs`);
  made.set({ lines, marks: [star], xTitle: `memory (${size})`, yTitle: `makespan (${unit})` });
  return made;
}

// How many of the largest unit that suits, as memsched.plot has them.
function byteUnit(most) {
  const [base, units] = data.byte_units;
  for (const power of [4, 3, 2, 1]) if (most >= base ** power) return [base ** power, units[power]];
  return [1, "bytes"];
}

function sweepCurves(div, table) {
  const column = (title) => table.columns.findIndex((one) => one.title === title);
  const [planner, problem, link, memory] = ["planner", "problem", "link", "memory"].map(column);
  const bandwidth = table.columns.findIndex((one) => one.kind === "bandwidth"); // it may be the link's name
  const linkOf = (row) => shown(table.columns[link].kind, row[link]);
  const [status, makespan, ideal, gap, bound] = ["status", "makespan", "ideal", "gap", "lower bound"].map(column);
  const planned = table.rows.filter((row) => row[status] === "planned");
  const names = Object.keys(data.styles);
  const made = new Curves(div, "sweep");
  const choices = [document.getElementById("problem"), document.getElementById("link")];
  const offer = (select, values) => {
    const before = select.value;
    select.replaceChildren(...values.map((value) => element("option", { value }, value)));
    if (values.includes(before)) select.value = before;
  };
  const choose = () => {
    const of = planned.filter((row) => row[problem] === choices[0].value);
    of.sort((a, b) => compareCells(a[bandwidth], b[bandwidth]) || compareCells(a[link], b[link]));
    offer(choices[1], [...new Set(of.map(linkOf))]);
    const rows = of.filter((row) => linkOf(row) === choices[1].value).sort((a, b) => a[memory] - b[memory]);
    const relative = of.every((row) => row[ideal] > 0);
    const [scale, size] = byteUnit(of.reduce((most, row) => Math.max(most, row[memory]), 0));
    const high = (row) => (relative ? row[makespan] / row[ideal] : row[makespan]);
    made.title = `${choices[0].value}, ${choices[1].value}: what less memory costs`;
    const lines = names.map((name) => {
      const own = rows.filter((row) => row[planner] === name);
      return {
        ...styleOf(data.styles[name]),
        name,
        x: own.map((row) => row[memory] / scale),
        y: own.map(high),
        tips: (k) => [
          ["memory", formatBytes(own[k][memory])],
          ["makespan", formatSeconds(own[k][makespan])],
          ...(relative ? [["/ ideal", shown("ratio", own[k][makespan] / own[k][ideal])]] : []),
          ["lower bound", formatSeconds(own[k][bound])],
          ["gap", shown("percent", own[k][gap])],
        ],
      };
    });
    const seen = lines.filter((line) => line.x.length);
    const all = [{ x: of.map((row) => row[memory] / scale), y: of.map(high) }];
    made.set({ lines: seen, marks: [], scale: all, xTitle: `memory (${size})`, yTitle: relative ? "makespan / computation alone" : "makespan (s)" });
    made.draw();
  };
  offer(choices[0], [...new Set(planned.map((row) => row[problem]))].sort(compareCells));
  choices.forEach((select) => select.addEventListener("change", choose));
  made.redraw = choose;
  return made;
}
