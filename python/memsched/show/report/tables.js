// Tables that are sorted and searched. Rows are written as they are scrolled to.

const CHUNK = 100;
const LONG = 42; // letters from which on a cell has several lines
const SMALL = 12; // rows up to which a table needs no search

function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function cellOf(column, value, most) {
  const text = shown(column.kind, value);
  const cell = element("td", { class: text.length > LONG ? `${column.kind} long` : column.kind }, text);
  if (value === null || column.kind === "text" || column.kind === "yes") return cell;
  cell.dataset.value = String(value);
  cell.title = `${value}${UNITS[column.kind] || ""}`;
  if (column.bar && most > 0 && Number.isFinite(value)) {
    cell.classList.add("bar");
    cell.style.setProperty("--share", (value / most).toFixed(4));
  }
  return cell;
}

const CSV_UNITS = { bytes: "bytes", seconds: "seconds", bandwidth: "bytes per second", percent: "fraction" };

// A value of a CSV file; a text that a spreadsheet would take for a formula has an apostrophe before it.
function spreadsheet(value) {
  return typeof value === "string" && /^'*[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
}

function compareCells(one, other) {
  const infinite = (value) => (value === "inf" ? Infinity : value === true ? 1 : value === false ? 0 : value);
  one = infinite(one);
  other = infinite(other);
  if (typeof one === "string" && typeof other === "string") return one.localeCompare(other, "en", { numeric: true });
  return one < other ? -1 : one > other ? 1 : 0;
}

class Table {
  constructor(holder, data) {
    this.data = data;
    this.body = holder.querySelector("tbody");
    this.order = data.rows.map((_, at) => at);
    this.found = this.order;
    this.sorted = null; // [column, direction]
    this.marked = new Set(data.marked);
    this.most = data.columns.map((_, k) =>
      data.rows.reduce((most, row) => (Number.isFinite(row[k]) ? Math.max(most, row[k]) : most), 0),
    );
    this.scroll = element("div", { class: "scroll", tabindex: "0" });
    this.frame = element("div", { class: "frame" });
    this.hint = element("p", { class: "hint", hidden: "" }, "Scroll sideways to see all columns →");
    this.frame.append(this.scroll);
    holder.append(this.hint, this.frame);
    this.scroll.append(holder.querySelector("table"));
    this.scroll.addEventListener("scroll", () => {
      this.fill();
      this.shade();
    });
    new ResizeObserver(() => this.shade()).observe(this.scroll);
    this.written = this.body.children.length;
    this.heads = [...holder.querySelectorAll("th")];
    this.heads.forEach((head, k) => {
      head.classList.add("sorts");
      head.tabIndex = 0;
      head.addEventListener("click", () => this.sort(k));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter") this.sort(k);
      });
    });
    if (data.rows.length > SMALL) this.addSearch(holder);
  }

  addSearch(holder) {
    const tools = element("div", { class: "tools" });
    this.input = element("input", { type: "search", placeholder: "search", "aria-label": "search the table" });
    this.count = element("span", { class: "found" });
    const copy = element("button", { type: "button", title: "The rows that are found, as CSV" }, "CSV");
    tools.append(this.input, this.count, copy);
    holder.prepend(tools);
    this.input.addEventListener("input", () => this.search());
    copy.addEventListener("click", () => this.download(holder.dataset.table));
    this.say();
  }

  // A shadow where columns go on beyond an edge, and words while any do.
  shade() {
    const { scrollLeft, clientWidth, scrollWidth } = this.scroll;
    this.hint.hidden = scrollWidth <= clientWidth + 1;
    this.frame.classList.toggle("before", scrollLeft > 1);
    this.frame.classList.toggle("after", scrollLeft + clientWidth < scrollWidth - 1);
  }

  say() {
    if (!this.count) return;
    const all = this.data.rows.length;
    this.count.textContent = this.found.length === all ? `${all} rows` : `${this.found.length} of ${all} rows`;
  }

  // Every word must occur in the row; texts are made when they are first searched.
  search() {
    const kinds = this.data.columns.map((column) => column.kind);
    this.texts ??= this.data.rows.map((row) => row.map((value, k) => shown(kinds[k], value)).join("\n").toLowerCase());
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.found = this.order.filter((at) => words.every((word) => this.texts[at].includes(word)));
    this.say();
    this.write();
  }

  sort(k) {
    const direction = this.sorted?.[0] === k ? -this.sorted[1] : this.data.columns[k].kind === "text" ? 1 : -1;
    this.sorted = [k, direction];
    const rows = this.data.rows;
    this.order = rows.map((_, at) => at);
    this.order.sort((one, other) => {
      const empty = (rows[one][k] === null) - (rows[other][k] === null); // empty cells stay last
      return empty || direction * compareCells(rows[one][k], rows[other][k]) || one - other;
    });
    this.heads.forEach((head, at) => {
      if (at === k) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    if (this.input?.value) this.search();
    else {
      this.found = this.order;
      this.write();
    }
  }

  write() {
    this.body.replaceChildren();
    this.written = 0;
    this.scroll.scrollTop = 0;
    this.fill();
  }

  fill() {
    const near = () => this.scroll.scrollTop + this.scroll.clientHeight > this.scroll.scrollHeight - 400;
    while (this.written < this.found.length && (this.written === 0 || near())) {
      const rows = this.found.slice(this.written, this.written + CHUNK).map((at) => this.row(at));
      this.body.append(...rows);
      this.written += rows.length;
      if (this.scroll.clientHeight === 0) break; // not shown
    }
    this.shade();
  }

  row(at) {
    const row = element("tr", this.marked.has(at) ? { class: "marked" } : {});
    row.append(...this.data.rows[at].map((value, k) => cellOf(this.data.columns[k], value, this.most[k])));
    return row;
  }

  download(name) {
    const quoted = (value) => `"${spreadsheet(value ?? "").replaceAll('"', '""')}"`;
    const heads = this.data.columns.map(({ title, kind }) => ((CSV_UNITS[kind] ?? title) === title ? title : `${title} (${CSV_UNITS[kind]})`));
    const lines = [heads, ...this.found.map((at) => this.data.rows[at])];
    const text = lines.map((line) => line.map(quoted).join(",")).join("\r\n");
    const [what, of] = name.split("-");
    const file = `${of === undefined ? document.title : named(data.results[of])} ${what}`.replace(/[^\p{L}\p{N}._]+/gu, "-");
    const link = element("a", { download: `${file}.csv` });
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}
