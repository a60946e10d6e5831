// The audit trail: every event of the ledger, newest first, and whether their chain of hashes holds.

import { h } from "../dom.js";
import * as format from "../format.js";
import { button, head, table, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, data, errorOf, now, store } from "../store.js";

const PAGE = 100;

export const title = () => "Audit trail";

function settings() {
  return store.ui.audit ?? (store.ui.audit = { study: "", silo: "", kind: "", before: "", earlier: [] });
}

const path = (ui) => api.events({ study: ui.study, silo: ui.silo, kind: ui.kind, before: ui.before, limit: PAGE });

export const needs = () => [path(settings())];

export function view() {
  const ui = settings();
  const page = data(path(ui));
  const error = errorOf(path(ui));
  if (page) ui.known = { kinds: page.kinds ?? [], intact: page.chain_intact, problem: page.chain_problem, checked: page.checked };
  return [
    head("Audit trail", { over: store.federation.federation, below: "Entries are written once and never changed. Each entry contains a hash of itself and of the previous entry. Times are in the time zone of this browser (" + zone() + ").", actions: store.federation.read_only ? null : [h("a", { class: "button quiet", key: "log", href: to.logs() }, "Log of the coordinator")] }),
    chain(ui.known),
    h("div", { class: "card", key: "events" }, filters(ui), error && !page ? trouble("bad", error.text, h("p", null, error.remedy)) : null,
      page ? table("Events", columns(), page.events, { key: ({ number }) => number, cards: true, empty: "No event fits the filter." }) : error ? null : h("p", { class: "loading" }, "Loading …"),
      page ? pager(ui, page) : null),
  ];
}

/** "UTC+1": in which time zone moments are written. */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const rest = Math.abs(minutes) % 60;
  return `UTC${minutes < 0 ? "−" : "+"}${Math.floor(Math.abs(minutes) / 60)}${rest ? `:${String(rest).padStart(2, "0")}` : ""}`;
}

function chain(known) {
  if (!known) return null;
  if (known.intact === false) return trouble("bad", "The chain of hashes is broken", h("p", null, known.problem || "An entry was changed after it was written."), h("p", null, "Someone or something has changed the ledger. Keep this file, restore a backup next to it and compare."));
  if (known.intact === null || known.intact === undefined) return trouble("work", "The chain is being checked", h("p", null, "All entries are checked once."));
  return trouble("good", "The chain of hashes holds", h("p", null, `${format.plural(known.checked, "entry", "entries")} checked: between the first and the last none was changed, left out or put in later. To check whether the end was cut off, run: coordinator verify.`));
}

function filters(ui) {
  const choose = (name) => (event) => {
    Object.assign(ui, { [name]: event.target.value.trim(), before: "", earlier: [] });
    changed();
  };
  const { studies, silos } = store.federation;
  const select = (name, words, values) => h("label", { class: "field inline" }, h("span", null, words), h("select", { prop: { value: ui[name] }, on: { change: choose(name) } }, h("option", { value: "" }, "all"), values.map((value) => h("option", { key: value, value }, name === "kind" ? format.words(value) : value))));
  return h("div", { class: "tools", key: "tools" },
    select("kind", "Kind", ui.known?.kinds ?? []), select("study", "Study", studies.map(({ name }) => name)), select("silo", "Silo", silos.map(({ name }) => name)),
    h("span", { class: "note", key: "files" }, "Save as ", h("a", { href: api.auditFile("csv", ui.study), download: "audit.csv" }, "CSV"), " or ", h("a", { href: api.auditFile("json", ui.study), download: "audit.json" }, "JSON")),
    ui.kind || ui.study || ui.silo ? button("Clear", { small: true, key: "clear", on: () => { Object.assign(ui, { kind: "", study: "", silo: "", before: "", earlier: [] }); changed(); } }) : null);
}

function columns() {
  return [
    { name: "No.", class: "digits narrow", cell: ({ number }) => number },
    { name: "When", class: "nowrap", cell: ({ unix }) => h("time", { title: format.ago(unix, now()), datetime: new Date(1000 * unix).toISOString() }, format.moment(unix)) },
    { name: "What", class: "what", cell: ({ kind, detail }) => [format.words(kind), detail?.reason ? h("p", { class: `reason ${/refused|failed|left_out/.test(kind) ? "refusal" : ""}` }, String(detail.reason)) : null] },
    { name: "Who", cell: ({ detail }) => (detail?.by ? String(detail.by) : format.DASH) },
    { name: "Study", cell: ({ study }) => (study ? h("a", { href: to.overview(study) }, study) : format.DASH) },
    { name: "Details", class: "details", cell: (event) => details(event) },
    { name: "Hash", cell: ({ chain }) => h("code", { class: "hash", title: chain }, chain.slice(0, 10)) },
  ];
}

/** Short values as words; long ones behind a fold, as the ledger has them. */
function details({ detail, study, number }) {
  const entries = Object.entries(detail ?? {}).filter(([name, value]) => !["by", "reason"].includes(name) && value !== "" && value !== null && (typeof value !== "object" || Object.keys(value).length));
  if (entries.length === 0) return format.DASH;
  const short = entries.filter(([, value]) => typeof value !== "object" && String(value).length <= 80);
  const long = entries.filter(([, value]) => typeof value === "object" || String(value).length > 80);
  return [
    short.map(([name, value]) => h("span", { class: "pair-value", key: name }, h("span", { class: "note" }, `${format.words(name.replace(/_unix$/, ""))} `), valueOf(name, value, study))),
    long.length ? h("details", { class: "folded small", key: `long-${number}` }, h("summary", null, long.map(([name]) => format.words(name)).join(", ")), h("pre", { class: "json" }, JSON.stringify(Object.fromEntries(long), null, 2))) : null,
  ];
}

function valueOf(name, value, study) {
  if (name === "silo") return h("a", { href: to.silo(value) }, value);
  if (name === "round" && study) return h("a", { href: to.round(study, value) }, value);
  if (name.endsWith("_unix") && typeof value === "number") return format.moment(value);
  if (/digest|update_id|serial/.test(name)) return h("code", { class: "hash", title: String(value) }, String(value).slice(0, 10));
  return typeof value === "number" ? format.number(value) : String(value);
}

function pager(ui, page) {
  return h("nav", { class: "pager", "aria-label": "Pages of the audit trail", key: "pager" },
    button("Newest", { key: "newest", small: true, disabled: ui.before === "", on: () => { Object.assign(ui, { before: "", earlier: [] }); changed(); } }),
    button("Newer", { key: "newer", small: true, disabled: ui.before === "", on: () => { ui.before = ui.earlier.pop() ?? ""; changed(); } }),
    button("Older", { key: "older", small: true, disabled: !page.more, on: () => { ui.earlier.push(ui.before); ui.before = page.first_number; changed(); } }),
    page.events.length ? h("span", { class: "note" }, `${page.events.at(-1).number} to ${page.events[0].number}`) : null);
}

