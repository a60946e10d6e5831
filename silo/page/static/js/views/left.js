// What left this site, and when: by day, study and kind, and line by line; as files too.

import { h } from "../dom.js";
import { bar } from "../charts.js";
import * as format from "../format.js";
import { button, card, empty, folded, head, table, tile, tiles, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, data, store } from "../store.js";

const PAGE = 30;
const DAYS = 14;
/** Kinds of the record in words, as `silo status` has them too; docs/federation.md says more. */
export const KINDS = {
  update: "update", abstention: "abstention", refusal: "refusal", announcement: "announcement", check: "silo check",
  enrolment: "enrolment", renewal: "renewal of the certificate", leaving: "leaving", evaluation: "evaluation", model: "question for a model",
  secure_step: "step of a secure sum", study_card: "signature of a card",
};

export const title = () => "What left";

const filter = () => (store.ui.left ??= { study: null, kind: "", before: [] });

function asked() {
  const { study, kind, before } = filter();
  return { ...chosen(study, kind), before: before.at(-1) ?? 0, limit: PAGE };
}

const chosen = (study, kind) => ({ study, kind });

/** A study of no name is asked for by an empty word, which a query would drop. */
const path = (make, extra = {}) => make({ ...asked(), ...extra });

export const needs = () => [api.left(), path(api.disclosures)];

export function view() {
  const facts = data(api.left());
  const shown = data(path(api.disclosures));
  const heading = head("What left", { below: "Every line is on this site's disk before the first byte that it tells of is sent." });
  if (!facts) return [heading, h("p", { class: "loading" }, "Loading …")];
  const { record } = facts;
  if (record.lines === 0 && record.whole && record.broken_count === 0) return [heading, empty("Nothing has left yet", h("p", null, "Enrolling, announcing this silo, updates, refusals: each will stand here with its size and its SHA-256."))];
  const updates = record.kinds.find(({ name }) => name === "update");
  const today = facts.days.at(-1);
  return [
    heading,
    record.whole ? null : trouble("work", "The record is still being read", h("p", null, `${format.count(record.lines)} lines so far. The sums below grow until all is read.`)),
    record.broken_count ? trouble("bad", `${format.plural(record.broken_count, "line")} of the record cannot be read`, h("ul", null, record.broken.map(({ number, reason }) => h("li", { key: number }, `Line ${number}: ${reason}`)))) : null,
    tiles(
      tile("Updates", updates ? format.count(updates.lines) : "0", updates ? `${format.bytes(updates.bytes)} of weights and statistics` : "none has left"),
      tile("Everything else", format.bytes(record.bytes - (updates?.bytes ?? 0)), `${format.plural(record.lines - (updates?.lines ?? 0), "message")} about this silo, refusals, steps`),
      today ? tile("On the wire today", format.bytes(today.sent_bytes + today.received_bytes), facts.limit_bytes ? `of ${format.bytes(facts.limit_bytes)} a day, both ways` : "both ways, no limit", facts.limit_bytes && today.sent_bytes + today.received_bytes >= facts.limit_bytes ? "warn" : "") : null),
    byDay(facts),
    h("div", { class: "pair", key: "sums" }, sums("By study", record.studies, (name) => (name ? h("a", { href: to.study(name) }, name) : "about this silo itself")), sums("By kind", record.kinds, (name) => KINDS[name] ?? name)),
    lines(record, shown),
  ];
}

/** What left, as the record has it, beside what the kernel counted on the connection. */
function byDay({ record, days, limit_bytes: limit }) {
  const wire = new Map(days.filter((day) => day.sent_bytes + day.received_bytes > 0).map((day) => [day.day, day]));
  const left = new Map(record.days.map((day) => [day.day, day]));
  const all = [...new Set([...wire.keys(), ...left.keys()])].sort().reverse();
  const rows = all.map((day) => ({ day, left: left.get(day), wire: wire.get(day) }));
  if (rows.length === 0) return null;
  const of = ({ sent_bytes: sent, received_bytes: received }) => sent + received;
  const most = Math.max(limit, ...rows.map((row) => (row.wire ? of(row.wire) : 0)), 1);
  const columns = [
    { name: "Day", cell: ({ day }) => day || "time cannot be read" },
    { name: "Left, as recorded", class: "digits", cell: (row) => (row.left ? [format.bytes(row.left.bytes), h("small", { class: "block note" }, format.plural(row.left.lines, "line"))] : format.DASH) },
    { name: limit ? `On the wire, of ${format.bytes(limit)}` : "On the wire", class: "digits wide-bar", cell: (row) => (row.wire ? [`${row.wire.estimated ? "about " : ""}${format.bytes(of(row.wire))}`, bar([[row.wire.sent_bytes / most, "up"], [row.wire.received_bytes / most, "first"]])] : format.DASH) },
    { name: "Sent", class: "digits", cell: (row) => (row.wire ? format.bytes(row.wire.sent_bytes) : format.DASH) },
    { name: "Received", class: "digits", cell: (row) => (row.wire ? format.bytes(row.wire.received_bytes) : format.DASH) },
  ];
  return card("By day", { id: "days", note: "The record tells of what was handed over: payloads and messages. The wire is what the connection carried both ways, with encryption and repetitions; the limit of silo.toml counts that. Days that were before this version kept count have no number." },
    table("What left, day by day", columns, rows.slice(0, DAYS), { key: ({ day }) => day, cards: true }),
    rows.length > DAYS ? folded("all-days", `All ${rows.length} days`, () => table("What left, every day", columns, rows, { key: ({ day }) => day })) : null);
}

function sums(words, rows, name) {
  return card(words, { id: words.toLowerCase().replace(" ", "-") }, table(`What left, ${words.toLowerCase()}`, [
    { name: words.slice(3, 4).toUpperCase() + words.slice(4), cell: (row) => name(row.name) },
    { name: "Lines", class: "digits", cell: (row) => format.count(row.lines) },
    { name: "Bytes", class: "digits", cell: (row) => format.bytes(row.bytes) },
  ], [...rows].sort((a, b) => b.bytes - a.bytes), { key: (row) => row.name || "-" }));
}

// Line by line ---------------------------------------------------------------------------------------------------------

function choose(change) {
  store.ui.left = { ...filter(), before: [], ...change };
  changed();
}

function lines(record, shown) {
  const { study, kind, before } = filter();
  const studies = record.studies.map(({ name }) => name).filter(Boolean);
  const file = (form) => api.disclosuresFile(form, chosen(study, kind));
  return h("section", { class: "card", key: "lines", "aria-labelledby": "lines" },
    h("div", { class: "card-head" }, h("h2", { id: "lines" }, "Line by line"),
      h("div", { class: "head-actions" }, h("a", { class: "button small", href: file("csv"), download: "disclosures.csv" }, "CSV"), h("a", { class: "button small", href: file("json"), download: "disclosures.json" }, "JSON"))),
    h("div", { class: "tools" },
      h("label", { class: "field inline" }, h("span", null, "Study"), h("select", { prop: { value: study ?? "" }, on: { change: (event) => choose({ study: event.target.value || null }) } }, h("option", { key: "", value: "" }, "all"), studies.map((name) => h("option", { key: name, value: name }, name)))),
      h("label", { class: "field inline" }, h("span", null, "Kind"), h("select", { prop: { value: kind }, on: { change: (event) => choose({ kind: event.target.value }) } }, h("option", { key: "", value: "" }, "all"), record.kinds.map(({ name }) => h("option", { key: name, value: name }, KINDS[name] ?? name)))),
      shown ? h("p", { class: "note" }, format.plural(shown.total, "line")) : null),
    shown ? table("What left, newest first", [
      { name: "When", cell: (line) => (line.unix === null ? line.time : h("time", { datetime: line.time }, format.moment(line.unix))) },
      { name: "What", cell: (line) => [KINDS[line.kind] ?? line.kind, line.study ? h("small", { class: "block" }, `${line.study}${line.round ? `, round ${line.round}` : ""}${line.phase ? `, ${line.phase}` : ""}`) : null] },
      { name: "Content", class: "details", cell: content },
      { name: "Bytes", class: "digits", cell: (line) => format.bytes(line.bytes) },
      { name: "SHA-256", cell: (line) => h("code", { class: "hash nowrap", title: line.digest }, line.digest.slice(0, 12), h("span", { class: "unseen" }, line.digest.slice(12))) },
    ], shown.lines, { key: (line) => line.number, cards: true, empty: "Nothing of the kind has left." }) : h("p", { class: "loading" }, "Loading …"),
    shown && (shown.before || before.length) ? h("div", { class: "pager" },
      button("Newer", { name: "left", small: true, key: "newer", off: !before.length, on: () => { if (before.length) choose({ before: before.slice(0, -1) }); } }),
      button("Older", { name: "right", small: true, key: "older", off: !shown.before, on: () => { if (shown.before) choose({ before: [...before, shown.before] }); } })) : null);
}

function content(line) {
  const numbers = Object.entries(line.metrics);
  const rest = Object.entries(line.content);
  const words = line.kind === "update" ? [line.groups.join(", "), line.num_examples ? format.plural(line.num_examples, "example") : null].filter(Boolean).join("; ")
    : line.text || rest.map(([name, value]) => `${format.words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ") || format.DASH;
  const more = [...numbers.map(([name, value]) => [name, format.number(value)]), ...rest.map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") : String(value)])];
  return [h("span", { class: "reason" }, format.reason(words)), more.length ? folded(`line-${line.number}`, line.kind === "update" ? format.plural(numbers.length, "number") : "all of it", () => h("dl", { class: "facts wide" }, more.map(([name, value]) => h("div", { key: name }, h("dt", null, format.words(name)), h("dd", null, value))), h("div", { key: "digest" }, h("dt", null, "SHA-256"), h("dd", null, h("code", { class: "hash" }, line.digest))))) : null];
}
