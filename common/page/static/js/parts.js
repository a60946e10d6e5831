// Pieces that several views share: headings, states, tiles, tables, figures, empty states, times that tick.

import { h } from "./dom.js";
import { icon } from "./icons.js";
import * as format from "./format.js";
import { changed, now, store } from "./store.js";

/** State of a study, round, task or silo -> [word, tone]; those of silos are listed in coordinator/monitoring/silo_state.py. A tone is a colour and a shape, so that nobody depends on the colour. */
const STATES = {
  queued: ["queued", "idle"], preparing: ["preparing", "work"], waiting: ["waiting for silos", "warn"],
  running: ["running", "work"], paused: ["paused", "warn"], completed: ["completed", "good"], failed: ["failed", "bad"],
  stopped: ["stopped", "idle"],
  collecting: ["collecting", "work"], aggregating: ["aggregating", "work"], evaluating: ["evaluating", "work"],
  cancelled: ["cancelled", "idle"],
  open: ["open", "work"], updated: ["updated", "good"], abstained: ["abstained", "idle"], refused: ["refused", "bad"],
  next: ["next", "idle"], expired: ["expired", "warn"], answered: ["answered", "work"],
  connected: ["connected", "good"], working: ["working", "work"], late: ["late", "warn"], away: ["away", "warn"],
  "away by policy": ["away by policy", "warn"], silent: ["silent", "bad"],
  revoked: ["revoked", "bad"], left: ["left", "idle"], "set aside": ["set aside", "warn"], enrolled: ["enrolled", "idle"], joined: ["joined", "idle"],
  approved: ["approved", "work"], signed: ["signed", "good"], declined: ["declined", "bad"],
  put_off: ["put off", "warn"], dropped: ["dropped", "idle"], unwanted: ["not wanted any more", "idle"],
};
const SHAPES = { good: "M4 8.4 7 11.4 12 5", warn: "M8 4v5M8 11.6v.2", bad: "M5 5l6 6M11 5l-6 6", work: "M6.2 4.6v6.8L11.4 8z", idle: "M4.8 8h6.4" };

export const wordOf = (state) => STATES[state]?.[0] ?? format.words(state);
export const toneOf = (state) => STATES[state]?.[1] ?? "idle";

export function glyph(tone) {
  return h("svg", { class: `glyph ${tone}`, viewBox: "0 0 16 16", width: 15, height: 15, "aria-hidden": "true" },
    h("circle", { cx: 8, cy: 8, r: 7.5 }),
    h("path", { d: SHAPES[tone], fill: "none", "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round" }));
}

/** A state as shape, colour and word; `words` say more where that is known, such as how far the work is. */
export function badge(state, words = null) {
  return h("span", { class: `badge ${toneOf(state)}` }, glyph(toneOf(state)), h("span", null, words ?? wordOf(state)));
}

// Times ----------------------------------------------------------------------------------------------------------------

/** "35 s ago", which goes on by itself. */
export function ago(unix) {
  return typeof unix === "number"
    ? h("time", { "data-ago": unix, title: format.moment(unix), datetime: new Date(1000 * unix).toISOString() }, format.ago(unix, now()))
    : h("span", null, "never");
}

/** Time left until a moment, which goes on by itself; `over` is what stands there afterwards. */
export function until(unix, over = "over") {
  return h("time", { "data-until": unix, "data-over": over, title: format.moment(unix), datetime: new Date(1000 * unix).toISOString() }, left(unix, over));
}

const left = (unix, over) => (unix - now() > 0 ? format.duration(unix - now()) : over);

/** Time since a moment, which goes on by itself. */
export function since(unix) {
  return h("time", { "data-since": unix, title: format.moment(unix), datetime: new Date(1000 * unix).toISOString() }, format.duration(Math.max(0, now() - unix)));
}

/** Writes all ticking times anew; called every second. */
export function tick() {
  for (const element of document.querySelectorAll("time[data-ago]")) write(element, format.ago(Number(element.dataset.ago), now()));
  for (const element of document.querySelectorAll("time[data-since]")) write(element, format.duration(Math.max(0, now() - Number(element.dataset.since))));
  for (const element of document.querySelectorAll("time[data-clock]")) write(element, format.clock(now(), now()).slice(0, 5));
  for (const element of document.querySelectorAll("time[data-until]")) write(element, left(Number(element.dataset.until), element.dataset.over));
}

function write(element, text) {
  if (element.firstChild && element.firstChild.data !== text) element.firstChild.data = text;
}

// Pieces ---------------------------------------------------------------------------------------------------------------

/** The head of a view: one h1, a line below it, and what can be done at the right. */
export function head(title, { over = null, state = null, words = null, below = null, actions = null } = {}) {
  return h("header", { class: "head" },
    h("div", { class: "head-words" },
      over ? h("p", { class: "over" }, over) : null,
      h("h1", { id: "title", tabindex: "-1" }, title, state ? [" ", badge(state, words)] : null),
      below ? h("p", { class: "below" }, below) : null),
    actions && (!Array.isArray(actions) || actions.some(Boolean)) ? h("div", { class: "head-actions" }, actions) : null);
}

/** A section with a heading, on a card of its own. */
export function card(title, props, ...children) {
  const id = props?.id ?? `card-${title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}`;
  return h("section", { class: `card ${props?.class ?? ""}`.trim(), "aria-labelledby": id, key: props?.key ?? id },
    h("div", { class: "card-head" }, h("h2", { id }, title), props?.aside ?? null),
    props?.note ? h("p", { class: "note" }, props.note) : null,
    children);
}

/** A number that matters, with its name and what it means. */
export function tile(name, value, note = null, tone = "") {
  return h("div", { class: `tile ${tone}`, key: name }, h("dt", null, name), h("dd", null, h("span", { class: "tile-value" }, value), note ? h("span", { class: "tile-note" }, note) : null));
}

export function tiles(...entries) {
  return h("dl", { class: "tiles" }, entries);
}

/** Icon and words; `tone` "quiet", "main" or "danger". `off`: nothing to do now, but it keeps its place and the focus. */
export function button(words, { on, name = null, tone = "quiet", label = null, disabled = false, off = false, key = null, id = null, small = false }) {
  return h("button", { type: "button", class: `button ${tone}${small ? " small" : ""}`, "aria-label": label, disabled, "aria-disabled": off ? "true" : null, key, id, on: { click: on } },
    name ? icon(name, 16) : null, h("span", null, words));
}

/**
 * A table that scrolls within itself. `columns`: [{name, class, cell(row), head}]; the first is the row's heading.
 * `cards` makes cards of the rows where there is little room.
 */
export function table(label, columns, rows, { key = (row, index) => index, sort = null, cards = false, empty = "Nothing yet." } = {}) {
  if (rows.length === 0) return h("p", { class: "nothing" }, empty);
  const id = `table-${label.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-")}`;
  return h("div", { class: "table-room", role: "region", tabindex: "0", "aria-labelledby": id, key: id },
    h("table", { class: cards ? "as-cards" : null },
      h("caption", { class: "unseen", id }, label),
      h("thead", null, h("tr", null, columns.map((column) => headCell(column, sort)))),
      h("tbody", null, rows.map((row, index) => h("tr", { key: key(row, index), class: row.rowClass ?? null }, columns.map((column, position) => {
        const content = column.cell(row);
        return position === 0 ? h("th", { scope: "row", class: column.class }, content)
          : h("td", { class: column.class, "data-name": cards ? column.name : null }, content);
      }))))));
}

function headCell(column, sort) {
  if (!sort || !column.sort) return h("th", { scope: "col", class: column.class }, column.name);
  const direction = sort.by === column.sort ? sort.direction : null;
  return h("th", { scope: "col", class: column.class, "aria-sort": direction === null ? null : direction > 0 ? "ascending" : "descending" },
    h("button", { type: "button", class: "sort", on: { click: () => sort.choose(column.sort) } }, column.name,
      h("span", { class: "arrow", "aria-hidden": "true" }, direction === null ? "" : direction > 0 ? " ↑" : " ↓")));
}

/** Details whose content is made when they are opened, and which stay open over updates. */
export function folded(name, summary, content) {
  const open = store.ui.open ?? (store.ui.open = new Set());
  return h("details", { key: name, class: "folded", once: open.has(name) ? { open: true } : {}, on: { toggle: (event) => {
    if (event.target.open === open.has(name)) return;
    if (event.target.open) open.add(name);
    else open.delete(name);
    changed();
  } } }, h("summary", null, summary), open.has(name) ? content() : null);
}

/** A chart with its title, key and the same numbers as a table; `last` is the newest value, with its interval. */
export function figure(title, chart, { id, key = [], note = null, last = null, columns, rows }) {
  return h("figure", { class: "figure", key: id },
    h("figcaption", null, h("span", { class: "figure-title" }, title), key.length ? h("span", { class: "key" }, key.map(([name, tone]) => h("span", { class: `key-entry ${tone}` }, name))) : null),
    last ? h("p", { class: "figure-last" }, last) : null,
    note ? h("p", { class: "note" }, note) : null,
    chart,
    folded(`numbers-${id}`, "The numbers as a table", () => table(title, columns, rows)));
}

export function commands(...lines) {
  return h("pre", { class: "commands" }, h("code", null, lines.join("\n")));
}

/** What stands where there is nothing yet: what it is, what to do. */
export function empty(title, ...children) {
  return h("section", { class: "empty", key: `empty-${title}` }, h("h2", null, title), children);
}

/** A line that says that something is wrong, and how to fix it. */
export function trouble(tone, title, ...children) {
  return h("div", { class: `trouble ${tone}`, key: `trouble-${title}` }, glyph(tone), h("div", null, h("p", { class: "trouble-title" }, title), children));
}
