"use strict";
// Figures as memsched.support.formats writes them; a test compares the two.

function rounded(value, digits) {
  if (value === 0) return "0";
  const places = (x) => Math.max(0, digits - 1 - Math.floor(Math.log10(x)));
  const nearest = halfEven(value, digits - 1 - Math.floor(Math.log10(value)));
  const text = nearest.toFixed(Math.min(100, places(nearest)));
  const same = text.includes(".") && Math.abs(Number(text) - value) <= 1e-12 * Math.max(Math.abs(Number(text)), value);
  return same ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

// Rounded to so many places, ties to even, as Python's round does.
function halfEven(value, places) {
  if (places < 0) {
    const unit = 10 ** -places;
    const below = Math.floor(value / unit);
    const rest = value - below * unit;
    return (rest > unit / 2 || (rest === unit / 2 && below % 2 === 1) ? below + 1 : below) * unit;
  }
  const at = Math.min(100, places);
  const up = Number(value.toFixed(at));
  const digits = value.toFixed(Math.min(100, at + 60));
  const rest = digits.slice(digits.indexOf(".") + 1 + at);
  if (!/^50*$/.test(rest)) return up;
  const kept = digits.slice(0, digits.indexOf(".") + 1 + at).replace(/\.$/, "");
  return Number(kept.at(-1)) % 2 === 0 ? Number(kept) : up;
}

function formatBytes(count, digits = 3, [base, units] = data.byte_units) {
  const sign = count < 0 ? "-" : "";
  count = Math.abs(count);
  let power = 0;
  const most = () => (power ? 1000 : base);
  while (power + 1 < units.length && Number(rounded(count / base ** power, Math.max(digits, 4))) >= most()) power += 1;
  const amount = count / base ** power;
  return `${sign}${rounded(amount, amount >= 1000 ? Math.max(digits, 4) : digits)} ${units[power]}`;
}

function formatBandwidth(bandwidth) {
  if (bandwidth === 0) return "no link";
  if (bandwidth === Infinity) return "a free link";
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  let power = 0;
  while (power + 1 < units.length && Number(rounded(bandwidth / 1000 ** power, 4)) >= 1000) power += 1;
  return `${rounded(bandwidth / 1000 ** power, 4)} ${units[power]}`;
}

function formatSeconds(seconds, digits = 4) {
  if (seconds === Infinity) return "inf";
  if (seconds < 0) return `-${formatSeconds(-seconds, digits)}`;
  if (seconds === 0) return "0 s";
  for (const [power, unit] of [[0, "s"], [3, "ms"], [6, "us"]]) {
    const amount = seconds * 10 ** power;
    if (Number(rounded(amount, digits)) >= 1) return `${rounded(amount, digits)} ${unit}`;
  }
  return `${rounded(seconds * 1e9, digits)} ns`;
}

function formatPercent(fraction) {
  if (fraction > 0 && fraction < 0.00005) return "< 0.01 %";
  return Number.isFinite(fraction) ? `${halfEven(100 * fraction, 2).toFixed(2)} %` : "inf %";
}

// A value of one of the kinds of memsched.report.tables.
function shown(kind, value) {
  if (value === null || value === undefined) return "";
  if (value === "inf") value = Infinity;
  if (kind === "bytes") return formatBytes(value);
  if (kind === "seconds") return formatSeconds(value);
  if (kind === "bandwidth") return formatBandwidth(value);
  if (kind === "percent") return formatPercent(value);
  if (kind === "ratio") return Number.isFinite(value) ? halfEven(value, 4).toFixed(4) : "inf";
  if (kind === "yes") return value ? "yes" : "";
  return String(value);
}

const UNITS = { bytes: " bytes", seconds: " s", bandwidth: " bytes per second" };

// Plotly reads a few tags in its texts; names are no markup.
function escaped(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// The name of an op or a tensor without what only PyTorch needs in it, as memsched.plot has it; a test compares the two.
const NOISE = /^_+|(?<![a-z])native_|scaled_dot_product_(?=\w*attention)|_legit(_functional|_no_training)?|_for_cpu/g;
const readable = (name) => name.replace(NOISE, "") || name;

// What a bar may be called, the longest first, as memsched.plot has it; a test compares the two.
function barNames(name, layer) {
  if (layer) return [`${name} ${layer}`, name];
  const slash = name.lastIndexOf("/");
  const cut = (text) => [12, 8].filter((most) => [...text].length > most).map((most) => `${[...text].slice(0, most - 1).join("")}…`);
  if (slash < 1) return [readable(name), ...cut(readable(name))];
  const module = name.slice(0, slash);
  const parts = module.split(".");
  const words = parts.findLastIndex((part) => !/^\d+$/.test(part)); // numbers alone tell nothing
  const inner = parts.slice(1, Math.max(0, words) + 1).map((_, at) => `…${parts.slice(at + 1).join(".")}`);
  return [`${module}/${readable(name.slice(slash + 1))}`, module, ...(inner.length ? inner : cut(module))];
}

function shortened(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - 1 - head)).join("")}`;
}
