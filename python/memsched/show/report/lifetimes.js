// When each tensor of a plan is where.

const PLACES = [
  ["device", "memory", "on the device"],
  ["fetched", "prefetch", "on the device, fetched back"],
  ["recomputed", "recompute", "on the device, computed again"],
  ["host", "offload", "on the host only"],
];
const ROW = 15; // pixels that a name needs

// A row a tensor. Where they do not all have room for their names, some have, and a button makes all rows scroll.
class Lifetimes extends Picture {
  constructor(div, result, tensors) {
    super(div, `${named(result)}: its tensors`);
    const { lifetimes, time_unit: [factor, unit] } = result.figures;
    Object.assign(this, { result, tensors, factor, unit, columns: lifetimes, gaps: true });
    this.kinds = PLACES;
    this.rows = lifetimes.order.length;
    const row = new Map(lifetimes.order.map((tensor, at) => [tensor, at]));
    const half = lifetimes.place.map((place) => (place === "host" ? 0.26 : 0.42));
    const edge = (side) => lifetimes.tensor.map((tensor, at) => row.get(tensor) + side * half[at]);
    this.boxes = boxesOf({ ...lifetimes, kind: lifetimes.place }, factor, edge(-1), edge(1), PLACES);
    this.scrolls = false;
    this.addScroller();
  }

  // The picture stays where it is while the box around it scrolls, and shows the rows of that place.
  addScroller() {
    this.scroller = element("div", { class: "rows" });
    this.all = element("div");
    this.div.replaceWith(this.scroller);
    this.scroller.append(this.all);
    this.all.append(this.div);
    this.button = element("button", { type: "button", class: "switch" });
    this.hint = element("span", { class: "hint" }, " Scroll the picture to see all rows ↓");
    this.scroller.before(this.button, this.hint);
    this.button.addEventListener("click", () => {
      this.scrolls = !this.scrolls;
      delete this.view.yaxis;
      this.scroller.scrollTop = 0;
      this.draw();
    });
    this.scroller.addEventListener("scroll", () => {
      if (this.scrolls) requestAnimationFrame(() => Plotly.relayout(this.div, { "yaxis.range": this.window() }));
    });
  }

  // How many rows are seen, and how far the box scrolls for one: a page of the box is a page of rows.
  get page() {
    const pixels = this.height - TOP - 44;
    return { rows: pixels / ROW, step: (ROW * this.height) / pixels };
  }

  // The rows that are seen while the box is scrolled.
  window() {
    const { rows, step } = this.page;
    const first = this.scroller.scrollTop / step;
    return [first + rows - 0.5, first - 0.5];
  }

  layout() {
    const range = this.scrolls ? this.window() : [this.rows - 0.5, -0.5];
    const tickfont = { color: colour("muted"), size: 10 };
    return {
      ...wide(this.result, `time (${this.unit})`, this.result.figures.time_end, this.factor),
      yaxis: axis({ range, tickvals: [], showgrid: false, ticklen: 3, tickfont, fixedrange: this.scrolls }),
    };
  }

  draw() {
    if (this.rows === 0) return;
    const room = narrow() ? 420 : 640;
    const whole = TOP + 44 + ROW * this.rows;
    this.height = Math.max(150, Math.min(room, whole));
    this.button.hidden = whole <= room;
    this.scrolls &&= whole > room;
    this.button.textContent = this.scrolls ? "Show all rows at once" : `Show the names of all ${this.rows} tensors`;
    this.div.style.height = `${this.height}px`;
    this.scroller.style.height = `${this.height}px`;
    this.scroller.classList.toggle("scrolls", this.scrolls);
    const { rows, step } = this.page;
    this.all.style.height = `${this.height + (this.scrolls ? (this.rows - rows) * step : 0)}px`;
    this.hint.hidden = !this.scrolls;
    const region = { tabindex: "0", role: "region", "aria-label": "rows of tensors" }; // so that keys can scroll it
    for (const [key, value] of Object.entries(region)) {
      if (this.scrolls) this.scroller.setAttribute(key, value);
      else this.scroller.removeAttribute(key);
    }
    super.draw();
    const present = new Set(this.columns.place);
    writeLegend(this.div, PLACES.filter(([place]) => present.has(place)).map(([, css, words]) => [css, words]));
  }

  // Names of the rows, or of as many as there is room for.
  ticks(py) {
    const [low, high] = this.div._fullLayout.yaxis.range;
    const first = Math.max(0, Math.ceil(Math.min(low, high)));
    const last = Math.min(this.rows - 1, Math.floor(Math.max(low, high)));
    const every = Math.max(1, Math.ceil(11 / py));
    const rows = [];
    for (let row = Math.ceil(first / every) * every; row <= last; row += every) rows.push(row);
    const room = leftMargin(this.result) - 10;
    const text = rows.map((row) => escaped(fitted(readable(this.tensors[this.columns.order[row]][0]), 10, room)));
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
