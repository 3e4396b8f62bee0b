// The addresses of a plan.

const ROLES = ["input", "weight", "activation", "gradient", "workspace", "buffer"];

class Addresses extends Picture {
  constructor(div, result) {
    super(div, `${named(result)}: addresses`);
    const columns = result.figures.addresses;
    const [factor, unit] = columns.in_time ? result.figures.time_unit : [1, null];
    const scale = columns.unit[0];
    Object.assign(this, { result, columns, factor, gaps: true });
    this.along = columns.along ?? (unit ? `time (${unit})` : "ops, in the order of the plan");
    this.kinds = columns.kinds ?? ROLES.filter((role) => columns.kind.includes(role)).map((role) => [role, role]);
    const low = columns.low.map((bytes) => bytes / scale);
    const high = columns.low.map((bytes, at) => (bytes + columns.bytes[at]) / scale);
    this.boxes = boxesOf(columns, factor, low, high, this.kinds);
  }

  called(at) {
    return this.columns.name[at] ?? (this.columns.along ? "a buffer without a name" : "workspace");
  }

  names(at) {
    return [[readable(this.called(at))]];
  }

  layout() {
    const { height, capacity, top, unit: [scale, size], axis_end } = this.columns;
    const said = { xref: "paper", showarrow: false, yanchor: "bottom", font: { size: 11.5, color: colour("ink") } };
    const both = capacity <= top && capacity !== height;
    return {
      ...wide(this.result, this.along, axis_end, this.factor),
      yaxis: axis({ title: narrow() ? "" : `address (${size})`, ticksuffix: narrow() ? ` ${size}` : "", range: [0, (1.1 * top) / scale || 1] }),
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
    const { kind, start, end, low, bytes, in_time: timed } = this.columns;
    const when = timed ? formatSeconds : (moment) => (this.columns.along ? String(moment) : `op ${moment}`);
    return [
      this.called(at),
      [
        [kind[at], formatBytes(bytes[at])],
        ["address", String(low[at])],
        ["from", when(start[at])],
        ["until", when(end[at])],
      ],
    ];
  }
}
