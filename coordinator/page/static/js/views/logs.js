// The last lines of the coordinator's log, newest first; only for operators.

import { getAsOperator, isLetIn, token } from "../api.js";
import { signedIn } from "../dialogs.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { button, empty, head, table, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, store } from "../store.js";
import { zone } from "./audit.js";

const EVERY = 3_000;
const LEVELS = [["debug", "everything"], ["info", "info and above"], ["warning", "warnings and errors"], ["error", "errors"]];
const TONES = { debug: "idle", info: "work", warning: "warn", error: "bad", critical: "bad" };

export const title = () => "Log";

export function needs() {
  look();
  return [];
}

const state = { level: "info", text: "", before: 0, earlier: [], page: null, error: null, asked: 0, busy: false, wanted: "", letIn: null };
let timer = null;

/** Asks for the lines that are wanted now, at most every few seconds, as long as this view is open. */
function look(atOnce = false) {
  if (timer === null) timer = setInterval(() => { if (location.hash === to.logs() && !document.hidden) look(); }, EVERY);
  const wanted = api.logs(state);
  if (state.busy || (!atOnce && wanted === state.wanted && Date.now() - state.asked < EVERY - 100)) return;
  fetchLines(wanted);
}

async function fetchLines(wanted) {
  state.busy = true;
  if (!token() && state.letIn === null) state.letIn = await isLetIn();
  if (token() || state.letIn) {
    try {
      state.page = await getAsOperator(wanted);
      state.error = null;
    } catch (error) {
      state.error = error;
    }
  } else state.page = null;
  Object.assign(state, { busy: false, asked: Date.now(), wanted });
  changed();
}

export function view() {
  const { federation, read_only: readOnly } = store.federation;
  const top = head("Log of the coordinator", { over: [h("a", { href: to.audit() }, "Audit"), ` / ${federation}`], below: `The last lines of coordinator serve since it was started, newest first. Times are this browser's (${zone()}).` });
  if (readOnly) return [top, empty("No log here", h("p", null, "This page shows a study; no coordinator runs behind it."))];
  if (!token() && !state.letIn) {
    return [top, empty("For operators", h("p", null, "The log holds more than the rest of the page, so it needs the operator's token."), h("p", null, button("Sign in", { name: "key", tone: "main", on: async () => { if (await signedIn()) look(true); changed(); } })))];
  }
  const { page, error } = state;
  return [top, h("div", { class: "card", key: "lines" }, filters(), error ? trouble("bad", error.text, h("p", null, error.remedy)) : null,
    page ? [table("Lines of the log", columns(), page.lines, { key: ({ number }) => number, cards: true, empty: "No line fits." }), pager(page)] : error ? null : h("p", { class: "loading" }, "Loading …"))];
}

function filters() {
  const set = (name) => (event) => {
    Object.assign(state, { [name]: event.target.value, before: 0, earlier: [] });
    changed();
    look(true);
  };
  return h("div", { class: "tools", key: "tools" },
    h("label", { class: "field inline" }, h("span", null, "Level"), h("select", { prop: { value: state.level }, on: { change: set("level") } }, LEVELS.map(([value, words]) => h("option", { key: value, value }, words)))),
    h("label", { class: "field inline search" }, h("span", null, "With the text"), h("input", { type: "search", autocomplete: "off", spellcheck: "false", prop: { value: state.text }, on: { input: set("text") } })));
}

function columns() {
  return [
    { name: "No.", class: "digits narrow", cell: ({ number }) => number },
    { name: "When", class: "nowrap", cell: ({ unix }) => h("time", { datetime: new Date(1000 * unix).toISOString() }, format.moment(unix)) },
    { name: "Level", cell: ({ level }) => h("span", { class: `badge ${TONES[level]}` }, h("span", { class: "pad" }, level)) },
    { name: "Line", class: "log-text", cell: ({ text }) => text },
  ];
}

function pager(page) {
  return h("nav", { class: "pager", "aria-label": "Pages of the log", key: "pager" },
    button("Newest", { key: "newest", small: true, disabled: !state.before, on: () => { Object.assign(state, { before: 0, earlier: [] }); look(true); } }),
    button("Newer", { key: "newer", small: true, disabled: !state.before, on: () => { state.before = state.earlier.pop() ?? 0; look(true); } }),
    button("Older", { key: "older", small: true, disabled: !page.more, on: () => { state.earlier.push(state.before); state.before = page.lines.at(-1).number; look(true); } }),
    h("span", { class: "note" }, page.dropped ? `The last ${format.count(page.kept)} lines are kept; older ones are in the log at the hub.` : `${format.plural(page.kept, "line")} since the start.`));
}
