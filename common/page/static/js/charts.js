// Charts as SVG in the page's own tree: they take their colours from the style sheet (light, dark, forced colours), are
// drawn in real pixels for the width that there is, and change in place when numbers arrive.

import { h, render } from "./dom.js";

const LEFT_PAD = 10;
const TOP = 30;
const RIGHT = 18;
const BOTTOM = 40;
const CHARACTER = 6.7; // width of a digit at the size of tick labels

/** Round numbers between two bounds, about `wanted` of them. */
export function ticks(low, high, wanted, whole = false) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) found.push(index * step);
  return found;
}

function bounds(values, { low = null, high = null, least = 0, share = false } = {}) {
  let from = low ?? Math.min(...values);
  let to = high ?? Math.max(...values);
  if (to - from < least) {
    const middle = (from + to) / 2;
    from = middle - least / 2;
    to = middle + least / 2;
    if (share) {
      const over = Math.max(0, to - 1) - Math.max(0, -from);
      from -= over;
      to -= over;
    }
  }
  return [from, to];
}

/**
 * <line-chart>, told what to draw by its property `data`:
 * {label, series: [{name, tone, points: [[x, y]], band: [[x, low, high]]}], level: {y, name} | null,
 *  x: {name, text, whole, low}, y: {name, text, low, high, least, share}, height, pick(x)}. `text` writes a value;
 *  `tone` is a class of the style sheet; a band is the interval of each value; of a `share` no tick
 *  is below 0 or above 1. The last value of every line stands beside its end.
 */
class LineChart extends HTMLElement {
  #data = null;
  #near = null;
  #observer = new ResizeObserver(() => this.#draw());

  set data(value) {
    this.#data = value;
    if (this.isConnected) this.#draw();
  }

  get data() {
    return this.#data;
  }

  connectedCallback() {
    this.#observer.observe(this);
    this.addEventListener("pointermove", this.#point);
    this.addEventListener("pointerdown", this.#point);
    this.addEventListener("pointerleave", this.#leave);
    this.addEventListener("click", this.#click);
    this.#draw();
  }

  disconnectedCallback() {
    this.#observer.disconnect();
  }

  #point = (event) => {
    const scale = this.#scale;
    if (!scale) return;
    const x = event.clientX - this.getBoundingClientRect().left;
    let best = null;
    for (const { points } of this.#data.series) {
      for (const [at] of points) if (best === null || Math.abs(scale.x(at) - x) < Math.abs(scale.x(best) - x)) best = at;
    }
    if (best !== this.#near) {
      this.#near = best;
      this.#draw();
    }
  };

  #leave = () => {
    this.#near = null;
    this.#draw();
  };

  #click = () => {
    if (this.#near !== null) this.#data.pick?.(this.#near);
  };

  #scale = null;

  #draw() {
    const data = this.#data;
    const width = Math.floor(this.clientWidth);
    if (!data || width < 40) return;
    const series = data.series.filter(({ points }) => points.length > 0);
    const height = data.height ?? 320;
    const xs = series.flatMap(({ points }) => points.map(([x]) => x));
    const ys = series.flatMap(({ points }) => points.map(([, y]) => y));
    if (data.level) ys.push(data.level.y);
    for (const { band = [] } of series) for (const [, low, high] of band) ys.push(low, high);
    let [x0, x1] = bounds(xs, { low: data.x.low, high: data.x.high });
    if (x1 <= x0) x1 = x0 + 1;
    let [y0, y1] = bounds(ys, data.y);
    const room = (y1 - y0) * 0.08 || 0.5;
    y0 = data.y.low ?? y0 - room;
    y1 = data.y.high ?? y1 + room;
    const yTicks = ticks(y0, y1, Math.max(2, Math.floor(height / 44)));
    const left = LEFT_PAD + CHARACTER * Math.max(...yTicks.map((tick) => data.y.text(tick).length));
    const xTicks = ticks(x0, x1, Math.max(2, Math.floor((width - left) / 72)), data.x.whole);
    const x = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - RIGHT);
    const y = (value) => height - BOTTOM - ((value - y0) / (y1 - y0)) * (height - BOTTOM - TOP);
    this.#scale = { x, y };
    render(this,
      h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": data.label, class: data.pick ? "pickable" : null },
        h("g", { class: "grid" }, yTicks.map((tick) => h("line", { x1: left, x2: width - RIGHT, y1: half(y(tick)), y2: half(y(tick)) }))),
        h("g", { class: "tick-labels" },
          yTicks.map((tick) => h("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, data.y.text(tick))),
          xTicks.map((tick) => h("text", { x: x(tick), y: height - BOTTOM + 17, "text-anchor": "middle" }, data.x.text(tick))),
          h("text", { x: width - RIGHT, y: height - 5, "text-anchor": "end", class: "axis-name" }, data.x.name),
          data.y.name ? h("text", { x: 2, y: 12, class: "axis-name" }, data.y.name) : null),
        series.map(({ tone, band = [] }, index) => (band.length > 1 ? h("path", { key: `band-${index}`, class: `band ${tone}`, d: outline(band, x, y) }) : null)),
        data.level ? this.#level(data, { x, y, left, width, series }) : null,
        series.map(({ tone, points }, index) => h("g", { key: index, class: `line ${tone}` },
          h("path", { d: path(points, x, y) }),
          points.length <= 60 ? points.map(([px, py]) => h("circle", { cx: x(px), cy: y(py), r: points.length > 30 ? 1.8 : 2.6 })) : null,
          points.length > 60 ? h("circle", { cx: x(points.at(-1)[0]), cy: y(points.at(-1)[1]), r: 3 }) : null)),
        this.#ends(data, series, { x, y, left, width, height }),
        this.#near === null ? null : h("g", { class: "cursor" },
          h("line", { x1: half(x(this.#near)), x2: half(x(this.#near)), y1: TOP - 6, y2: height - BOTTOM }),
          series.map(({ tone, points }) => at(points, this.#near).map((value) => h("circle", { class: tone, cx: x(this.#near), cy: y(value), r: 4.5 }))))),
      this.#near === null ? null : this.#tip(data, series, x, width));
  }

  #level(data, { x, y, left, width, series }) {
    const { y: value, name } = data.level;
    // The name stands at the end where the curve is farther away.
    const first = series[0]?.points ?? [];
    const away = first.length ? [Math.abs(first[0][1] - value), Math.abs(first.at(-1)[1] - value)] : [0, 1];
    const right = away[1] >= away[0];
    return h("g", { class: "level" },
      h("line", { x1: left, x2: width - RIGHT, y1: half(y(value)), y2: half(y(value)) }),
      h("text", { x: right ? width - RIGHT : left + 4, y: nameOfLevel(y(value)), "text-anchor": right ? "end" : "start" }, name));
  }

  /** The last value of every line, clear of each other and of the level's name: the nearest free place. */
  #ends(data, series, { x, y, left, width, height }) {
    const level = data.level ? y(data.level.y) : null;
    const taken = level === null ? [] : nameOfLevel(level) < level ? [level - 10, level + 4] : [level + 4, level + 15];
    return h("g", { class: "ends" }, series.map(({ tone, points, end }, index) => {
      const [px, py] = points.at(-1);
      const text = [end, data.y.text(py, true)].filter(Boolean).join(" ");
      const near = x(px) + 8 + CHARACTER * text.length > width;
      const beside = near ? [y(py) - 9, y(py) + 20] : [y(py) + 4, y(py) - 9, y(py) + 20];
      const wanted = [...beside, ...series.flatMap((_, step) => [y(py) - 9 - 13 * (step + 1), y(py) + 20 + 13 * (step + 1)])];
      const at = wanted.find((spot) => spot > TOP - 12 && spot < height - BOTTOM && taken.every((other) => Math.abs(other - spot) > 12));
      if (at === undefined) return null;
      taken.push(at);
      return h("text", { key: index, class: tone, x: near ? Math.max(left + CHARACTER * text.length, x(px) + (width - x(px) < 24 ? RIGHT - 2 : 4)) : x(px) + 7, y: at, "text-anchor": near ? "end" : "start" }, text);
    }));
  }

  #tip(data, series, x, width) {
    const lines = series.flatMap(({ name, tone, points }) => at(points, this.#near).map((value) =>
      h("span", { class: `tip-line ${tone}` }, series.length > 1 ? `${name} ` : null, h("b", null, data.y.text(value, true)))));
    const left = Math.min(Math.max(x(this.#near), 62), width - 62);
    return h("div", { class: "tip", "aria-hidden": "true", style: { left: `${left}px` } },
      h("span", { class: "tip-x" }, data.x.tip ? data.x.tip(this.#near) : `${data.x.name} ${data.x.text(this.#near, true)}`), lines);
  }
}

/** Where the name of a level stands: above its line, or below where there is no room. */
const nameOfLevel = (line) => line + (line > TOP + 18 ? -6 : 15);
const half = (value) => Math.round(value) + 0.5;
const at = (points, near) => points.filter(([x]) => x === near).map(([, y]) => y);

function path(points, x, y) {
  return points.map(([px, py], index) => `${index ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`).join("");
}

/** The outline of a band: along its upper side, and back along the lower one. */
function outline(band, x, y) {
  const upper = band.map(([at, , high]) => [at, high]);
  const lower = band.map(([at, low]) => [at, low]).reverse();
  return `${path([...upper, ...lower], x, y)}Z`;
}

customElements.define("line-chart", LineChart);

/** A line of words' size, without axes; the number beside it says where it ends. Points: [[x, y]], y from `low` to `high`. */
export function sparkline(points, { low = 0, high = 1, tone = "first", width = 84, height = 24 } = {}) {
  if (points.length === 0) return null;
  const x0 = points[0][0];
  const x1 = Math.max(points.at(-1)[0], x0 + 1);
  const x = (value) => 3 + ((value - x0) / (x1 - x0)) * (width - 6);
  const y = (value) => height - 3 - ((value - low) / (high - low || 1)) * (height - 6);
  const last = points.at(-1);
  return h("svg", { class: `spark line ${tone}`, width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    h("line", { class: "floor", x1: 0, x2: width, y1: height - 1.5, y2: height - 1.5 }),
    points.length > 1 ? h("path", { d: path(points, x, y) }) : null,
    h("circle", { cx: x(last[0]), cy: y(last[1]), r: 2.4 }));
}

const COLUMNS = 120;

/**
 * Shares of each class over rounds as a strip: a row per class, a column per round, darker is more.
 * `rounds`: [{number, shares, marked}]; with many rounds, neighbours share a column (the mean is shown). `share` writes
 * the ends of the scale, whose upper one is `most` where strips are to be compared.
 */
export function heatStrip(rounds, classes, { label, share, row = 14, compact = false, most = 0 }) {
  const columns = binned(rounds);
  const top = most || Math.max(1e-9, ...columns.flatMap(({ shares }) => shares));
  const head = 6;
  const width = columns.length * 10;
  const height = head + classes.length * row;
  return h("div", { class: compact ? "heat compact" : "heat" },
    compact ? null : h("ol", { class: "heat-names", style: { "--row": `${row}px`, "--head": `${head}px` } }, classes.map((name) => h("li", { title: name }, name))),
    h("div", { class: "heat-body" },
      h("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", style: { height: `${height}px` } },
        columns.map((column, index) => h("g", { key: index },
          h("title", null, column.title),
          column.marked ? h("rect", { class: "heat-mark", x: index * 10, y: 0, width: 10, height: head - 2 }) : null,
          column.shares.map((value, classIndex) => h("rect", { class: "heat-cell", x: index * 10, y: head + classIndex * row, width: 10, height: row - 1,
            "fill-opacity": (0.06 + 0.94 * (value / top)).toFixed(3) }))))),
      h("div", { class: "heat-axis", "aria-hidden": "true" }, h("span", null, rounds[0].number), h("span", null, "round"), h("span", null, rounds.at(-1).number)),
      scale(`share of the round's pseudo-labels`, share(0), share(top), "first")));
}

/** What the strength of a colour stands for, from its least to its most. */
export function scale(words, from, to, tone) {
  return h("p", { class: "scale", key: `scale-${tone}` }, h("span", null, words), h("span", { class: "digits" }, from), h("span", { class: `scale-bar ${tone}`, "aria-hidden": "true" }), h("span", { class: "digits" }, to));
}

function binned(rounds) {
  const per = Math.ceil(rounds.length / COLUMNS);
  const columns = [];
  for (let start = 0; start < rounds.length; start += per) {
    const part = rounds.slice(start, start + per);
    columns.push({
      marked: part.some(({ marked }) => marked),
      title: per === 1 ? `round ${part[0].number}` : `rounds ${part[0].number} to ${part.at(-1).number}`,
      shares: part[0].shares.map((_, classIndex) => part.reduce((sum, { shares }) => sum + (shares[classIndex] ?? 0), 0) / part.length),
    });
  }
  return columns;
}

/** A bar for a share of 1, with its parts one after another: [[share, tone]]. */
export function bar(parts, label = null) {
  return h("span", { class: "bar", role: label ? "img" : null, "aria-label": label, "aria-hidden": label ? null : "true" },
    parts.map(([value, tone]) => h("span", { class: `bar-part ${tone}`, style: { width: `${(100 * Math.min(1, Math.max(0, value || 0))).toFixed(2)}%` } })));
}
