// What all pictures share: colours from the style sheet, a tip under the pointer, boxes drawn by the thousand, and names
// in those that have room.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// Black or white, whichever is easier to read on a colour such as "rgb(0, 90, 150)".
function inkOn(back) {
  const [red, green, blue] = back.match(/[\d.]+/g).map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff"; // where both are as good
}

const ruler = document.createElement("canvas").getContext("2d");
const fontFamily = getComputedStyle(document.body).fontFamily;

function widthOf(text, size) {
  ruler.font = `${size}px ${fontFamily}`;
  return ruler.measureText(text).width;
}

// The text with its middle left out as far as the room demands; empty if little would be left.
function fitted(text, size, room, least = 6) {
  if (widthOf(text, size) <= room) return text;
  let most = Math.min(text.length, Math.ceil(room / (0.3 * size)));
  while (most >= least && widthOf(shortened(text, most), size) > room) most -= 1;
  return most >= least ? shortened(text, most) : "";
}

const tip = document.getElementById("tip");

// lines: pairs of words and figures; a line without figures stands alone.
function showTip(event, title, lines, css) {
  const head = element("b", css ? {} : { class: "plain" }, title);
  if (css) head.style.setProperty("--c", `var(--${css})`);
  tip.replaceChildren(head);
  for (const [word, figure] of lines) {
    const line = element("div");
    line.append(element("span", {}, word), element("span", {}, figure ?? ""));
    tip.append(line);
  }
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = event.clientX + 16 + width > innerWidth - 8 ? event.clientX - 16 - width : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight - 8 ? event.clientY - 14 - height : event.clientY + 18;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

function hideTip() {
  tip.hidden = true;
}

const narrow = () => innerWidth < 620;
const MOST_LABELS = 300; // of a picture, along boxes and upwards
const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls the page, it does not zoom

function axis(more = {}) {
  const line = colour("line");
  return {
    gridcolor: colour("grid"),
    zeroline: false,
    linecolor: line,
    tickcolor: line,
    ticks: "outside",
    ticklen: 4,
    tickfont: { color: colour("muted"), size: 11 },
    automargin: false,
    ...more,
    title: { text: more.title, standoff: 8, font: { size: 12, color: colour("muted") } },
  };
}

function layoutOf(title, left, room, more) {
  const size = narrow() ? 11.5 : 12.5;
  return {
    title: {
      text: escaped(fitted(title, size, room)),
      font: { size, color: colour("muted") },
      ...{ x: 0, xref: "container", xanchor: "left", y: 1, yref: "container", yanchor: "top", pad: { l: left, t: 6 } },
    },
    paper_bgcolor: colour("card"),
    plot_bgcolor: colour("card"),
    font: { family: fontFamily, size: 12, color: colour("ink") },
    showlegend: false,
    hovermode: false,
    dragmode: coarse ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("accent") },
    ...more,
  };
}

function configOf(name, showAll) {
  const reset = { name: "all", title: "Show all", icon: Plotly.Icons.home, click: showAll };
  return {
    displaylogo: false,
    doubleClick: false,
    displayModeBar: narrow() ? false : "hover",
    modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", reset]],
    toImageButtonOptions: { filename: name, scale: 3 },
  };
}

const legendOf = (div) => div.closest("figure").querySelector(".legend");

// entries: [colour, words, class]
function writeLegend(div, entries) {
  const list = legendOf(div);
  list.replaceChildren(
    ...entries.map(([css, words, kind]) => {
      const entry = element("li", kind ? { class: kind } : {}, words);
      entry.style.setProperty("--c", `var(--${css})`);
      return entry;
    }),
  );
  list.hidden = entries.length === 0;
}

/* A picture. Subclasses give layout(), traces() and, if they have boxes, boxes and kinds. One trace holds all boxes of a
   kind, whatever their number: its outline is made anew for each zoom, so that wide ones have gaps between them and hairs
   stay visible. */
class Picture {
  constructor(div, title) {
    this.div = div;
    this.title = title;
    this.view = {}; // ranges that the reader chose
    this.kinds = [];
    this.boxes = { x0: [], x1: [], y0: [], y1: [], kind: [] };
  }

  // What is drawn beside the boxes.
  traces() {
    return [];
  }

  draw() {
    if (this.div.clientWidth === 0) return;
    const empty = this.kinds.map(([kind, css]) => ({
      type: "scatter",
      mode: "none", // lines would be an element a box
      name: kind,
      x: [],
      y: [],
      fill: "toself",
      fillcolor: colour(css),
      hoverinfo: "skip",
    }));
    const text = { type: "scatter", mode: "text", x: [], y: [], text: [], textfont: { size: 11 }, hoverinfo: "skip" };
    const traces = this.kinds.length ? [...empty, text, ...this.traces()] : this.traces();
    const own = this.layout();
    const { l, r } = own.margin;
    const left = narrow() ? 2 : l;
    const layout = layoutOf(this.title, left, this.div.clientWidth - left - (narrow() ? r : 130), own); // beside buttons
    for (const [key, range] of Object.entries(this.view)) layout[key].range = range;
    this.annotations = own.annotations ?? [];
    Plotly.react(this.div, traces, layout, configOf(this.title, () => this.showAll()));
    this.width = this.div.clientWidth;
    this.tell();
    this.refresh();
    if (!this.listens) this.listen();
  }

  // To readers who cannot see it the picture is one image with its caption; the buttons beside it stay theirs.
  tell() {
    const caption = this.div.closest("figure").querySelector("figcaption").id;
    this.div.querySelectorAll(".main-svg").forEach((layer, at) => {
      if (at) layer.setAttribute("aria-hidden", "true");
      else Object.entries({ role: "img", "aria-labelledby": caption }).forEach((pair) => layer.setAttribute(...pair));
    });
  }

  listen() {
    this.listens = true;
    this.div.on("plotly_doubleclick", () => this.showAll());
    this.div.on("plotly_relayout", () => {
      for (const key of ["xaxis", "yaxis"]) this.view[key] = [...this.div._fullLayout[key].range];
      this.refresh();
      this.zoomed?.();
    });
    this.div.addEventListener("pointermove", (event) => this.point(event));
    this.div.addEventListener("pointerdown", (event) => this.point(event));
    this.div.addEventListener("pointerleave", () => this.leave());
  }

  // Undo every zoom.
  showAll() {
    const { xaxis, yaxis } = this.layout();
    Plotly.relayout(this.div, { "xaxis.range": xaxis.range, "yaxis.range": yaxis.range });
  }

  zoomTo(range) {
    const now = this.div._fullLayout?.xaxis.range;
    const near = (one, other) => Math.abs(one - other) <= 1e-9 * Math.max(1e-300, range[1] - range[0]);
    if (now && !(near(now[0], range[0]) && near(now[1], range[1]))) Plotly.relayout(this.div, { "xaxis.range": range });
  }

  // The outlines for what is seen now, and names in the boxes that are wide enough.
  refresh() {
    if (!this.kinds.length) return;
    const { xaxis, yaxis } = this.div._fullLayout;
    const [left, right] = xaxis.range;
    const [bottom, top] = [Math.min(...yaxis.range), Math.max(...yaxis.range)];
    const px = xaxis._length / (right - left || 1);
    const py = yaxis._length / (top - bottom || 1);
    const { x0, x1, y0, y1, kind } = this.boxes;
    const outlines = this.kinds.map(() => ({ x: [], y: [] }));
    const hairs = this.kinds.map(() => new Map()); // by row of pixels, the last one, which others may join
    const labels = [];
    for (let at = 0; at < x0.length; at += 1) {
      if (x1[at] < left || x0[at] > right || y1[at] < bottom || y0[at] > top) continue;
      const [wide, high] = [(x1[at] - x0[at]) * px, (y1[at] - y0[at]) * py];
      const [gapX, gapY] = [wide > 3 ? 0.5 / px : 0, high > 4 && this.gaps ? 0.4 / py : 0];
      const begin = Math.max(x0[at] + gapX, left - 2 / px);
      const end = Math.min(Math.max(x1[at] - gapX, x0[at] + 0.8 / px), right + 2 / px);
      let [low, up] = [y0[at] + gapY, y1[at] - gapY];
      if (high < 1) {
        low = bottom + Math.floor(((low + up) / 2 - bottom) * py) / py;
        up = low + 1 / py;
      }
      const { x, y } = outlines[kind[at]];
      if (wide < 2 || high < 1) {
        const hair = hairs[kind[at]].get(low);
        if (hair && hair.up === up && begin - hair.end < 0.3 / px && hair.begin - end < 0.3 / px) {
          hair.begin = Math.min(hair.begin, begin);
          hair.end = Math.max(hair.end, end);
          x[hair.at] = x[hair.at + 3] = x[hair.at + 4] = hair.begin;
          x[hair.at + 1] = x[hair.at + 2] = hair.end;
          continue;
        }
        hairs[kind[at]].set(low, { at: x.length, begin, end, up });
      }
      x.push(begin, end, end, begin, begin, null);
      y.push(low, low, up, up, low, null);
      const [from, to] = [Math.max(x0[at], left), Math.min(x1[at], right)];
      const found = this.labelIn(at, (to - from) * px - 4, (Math.min(y1[at], top) - Math.max(y0[at], bottom)) * py - 4);
      if (found) labels.push({ ...found, x: (from + to) / 2, y: (Math.max(y0[at], bottom) + Math.min(y1[at], top)) / 2, kind: kind[at] });
    }
    this.write(outlines, labels, py);
  }

  // A name for a box with so much room, along it or upwards; null if none fits. names() gives groups, the best first.
  labelIn(at, wide, high) {
    if (!this.names || Math.min(wide, high) < 10) return null;
    for (const names of this.names(at)) {
      const along = high >= 12 && names.find((name) => widthOf(name, 11) <= wide);
      if (along) return { text: along, upright: false };
      const upwards = names.find((name) => widthOf(name, 10) <= high);
      if (upwards) return { text: upwards, upright: true };
    }
    const last = this.names(at).at(-1).at(-1);
    const along = high >= 12 ? fitted(last, 11, wide, 8) : "";
    const text = along || fitted(last, 10, high, 8);
    return text ? { text, upright: !along } : null;
  }

  write(outlines, labels, py) {
    const inks = this.kinds.map(([, css]) => inkOn(colour(css)));
    const along = labels.filter((label) => !label.upright).slice(0, MOST_LABELS);
    const upright = labels.filter((label) => label.upright).slice(0, MOST_LABELS);
    const blank = this.kinds.map(() => "");
    Plotly.update(
      this.div,
      {
        x: [...outlines.map((one) => one.x), along.map((label) => label.x)],
        y: [...outlines.map((one) => one.y), along.map((label) => label.y)],
        text: [...blank, along.map((label) => escaped(label.text))],
        "textfont.color": [...blank, along.map((label) => inks[label.kind])],
      },
      {
        annotations: [
          ...this.annotations,
          ...upright.map(({ text, x, y, kind }) => ({
            ...{ text: escaped(text), x, y, xref: "x", yref: "y", textangle: -90, showarrow: false, borderpad: 0 },
            font: { size: 10, color: inks[kind] },
          })),
        ],
        ...this.ticks?.(py),
      },
      [...this.kinds.keys(), this.kinds.length],
    );
  }

  // Where the pointer is, in the units of an axis; null outside of it.
  at(event, y = "yaxis") {
    const layout = this.div._fullLayout;
    const place = this.div.getBoundingClientRect();
    const [x, across] = [event.clientX - place.left - layout.xaxis._offset, layout.xaxis._length];
    const [down, length] = [event.clientY - place.top - layout[y]._offset, layout[y]._length];
    if (x < 0 || x > across || down < -2 || down > length + 2) return null;
    return { x: layout.xaxis.p2c(x), y: layout[y].p2c(down), px: across / Math.abs(layout.xaxis.range[1] - layout.xaxis.range[0]) };
  }

  // The smallest box under a point, with two pixels of patience for hairs.
  boxAt({ x, y, px }) {
    const { x0, x1, y0, y1 } = this.boxes;
    let [found, least] = [-1, Infinity];
    for (let at = 0; at < x0.length; at += 1) {
      if (y < y0[at] || y > y1[at]) continue;
      const miss = Math.max(x0[at] - x, x - x1[at], 0) * px;
      const cost = miss > 0 ? 1e9 + miss : (x1[at] - x0[at]) * px;
      if (miss <= 2 && cost < least) [found, least] = [at, cost];
    }
    return found;
  }

  point(event) {
    const where = this.at(event);
    const found = where ? this.boxAt(where) : -1;
    if (found < 0) return this.leave();
    const [title, lines] = this.describe(found);
    showTip(event, title, lines, this.kinds[this.boxes.kind[found]][1]);
  }

  leave() {
    hideTip();
  }
}
