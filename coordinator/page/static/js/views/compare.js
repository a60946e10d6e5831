// Studies side by side: curves over rounds, bytes or time in one chart, ends in one table, settings that differ.

import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, card, empty, figure, head, table, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, data, errorOf, store } from "../store.js";

const MOST = 8;

export const title = (route) => (route.studies.length ? `Compare ${route.studies.join(", ")}` : "Compare");

export const needs = (route) => (route.studies.length > 1 ? [api.compare(route.studies)] : []);

export function view(route) {
  const { studies, federation } = store.federation;
  const found = route.studies.length > 1 ? data(api.compare(route.studies)) : null;
  const error = route.studies.length > 1 ? errorOf(api.compare(route.studies)) : null;
  return [
    head("Compare studies", { over: h("a", { href: to.studies() }, federation), below: "Choose two or more." }),
    h("div", { class: "chips", key: "chips", role: "group", "aria-label": "Studies to compare" }, studies.map(({ name }) => {
      const chosen = route.studies.includes(name);
      return h("button", { type: "button", key: name, class: "chip", "aria-pressed": chosen ? "true" : "false", disabled: !chosen && route.studies.length >= MOST, on: { click: () => {
        location.hash = to.compare(chosen ? route.studies.filter((other) => other !== name) : [...route.studies, name]);
      } } }, name);
    })),
    error && !found ? trouble("bad", error.text, h("p", null, error.remedy)) : null,
    found ? [found.remarks.map((text) => trouble("warn", text)), curves(found), ends(found), differences(found)]
      : error ? null : route.studies.length > 1 ? h("p", { class: "loading" }, "Loading …") : empty("Nothing to compare yet", h("p", null, studies.length > 1 ? "Choose at least two studies above." : "This federation has no two studies.")),
  ];
}

const OVER = [["round", "Rounds"], ["bytes", "Bytes"], ["time", "Time"]];
const tone = (index) => `tone-${index + 1}`;

function curves(found) {
  const over = store.ui.compareOver ?? "round";
  const { studies, measure } = found;
  const score = (value) => format.score(value, measure);
  const having = studies.map((study, index) => ({ ...study, index })).filter(({ points }) => points.length);
  if (having.length === 0) return empty("No curve yet", h("p", null, `None of them has a round that was measured in ${found.title} on test images.`));
  const all = having.flatMap(({ points }) => points);
  const [unit, name] = over === "bytes" ? format.unitOf(Math.max(1, ...all.map(({ wire_bytes: wire }) => wire))) : over === "time" ? spanOf(Math.max(1, ...all.map(({ seconds }) => seconds))) : [1, "round"];
  const x = { round: ({ round }) => round, bytes: ({ wire_bytes: wire }) => wire / unit, time: ({ seconds }) => seconds / unit }[over];
  const words = { round: "round", bytes: `${name} on the wire, both directions`, time: `${name} since the start` }[over];
  const tip = { round: (value) => `round ${value}`, bytes: (value) => format.bytes(value * unit), time: (value) => format.seconds(value * unit) }[over];
  const label = `Lines: test ${found.title} by ${over}; ${having.map(({ name: study, points }) => `${study} ends at ${score(points.at(-1).score)}`).join(", ")}.`;
  return h("div", { class: "card", key: "curves" },
    figure(`Test ${found.title}`, h("line-chart", { key: `compare-${over}`, prop: { data: {
      label, y: { text: (value, exact) => (exact ? score(value) : score(value).replace(".0 ", " ")), least: 0.06, share: true, name: `test ${found.title}` }, height: 380,
      series: having.map(({ name: study, points, index }) => ({ name: study, end: study, tone: tone(index), points: points.map((point) => [x(point), point.score]) })),
      x: { name: words, text: (value) => String(Number(value.toPrecision(4))), whole: over === "round", low: 0, tip } } } }),
    { id: "curves", key: having.map(({ name: study, index }) => [study, tone(index)]),
      note: h("span", { class: "chips", role: "group", "aria-label": "Over what" }, OVER.map(([value, text]) => h("button", { type: "button", key: value, class: "chip", "aria-pressed": over === value ? "true" : "false", on: { click: () => { store.ui.compareOver = value; changed(); } } }, text))),
      columns: [{ name: "Study", cell: ([study]) => study }, { name: "Round", class: "digits", cell: ([, point]) => point.round }, { name: `Test ${found.title}`, class: "digits", cell: ([, point]) => score(point.score) },
        { name: "95 % interval", class: "digits", cell: ([, point]) => format.interval(point.interval, measure) || format.DASH }, { name: "On the wire so far", class: "digits", cell: ([, point]) => format.bytes(point.wire_bytes) }, { name: "Time so far", class: "digits", cell: ([, point]) => format.seconds(point.seconds) }],
      rows: having.flatMap(({ name: study, points }) => points.map((point) => [study, point])) }));
}

function spanOf(largest) {
  if (largest >= 2 * 86_400) return [86_400, "days"];
  if (largest >= 7200) return [3600, "hours"];
  return largest >= 120 ? [60, "minutes"] : [1, "seconds"];
}

function ends(found) {
  const { measure } = found;
  const columns = [
    { name: "Study", cell: (study) => [h("span", { class: `swatch ${study.tone}`, "aria-hidden": "true" }), h("a", { href: to.overview(study.name) }, study.name)] },
    { name: "State", cell: (study) => badge(study.state) },
    { name: "Method", cell: (study) => study.method },
    { name: capital(found.title), class: "digits", cell: (study) => [format.score(study.score, measure), h("span", { class: "note block" }, format.interval(study.interval, measure)), study.numbers_of ? h("span", { class: "note block" }, study.numbers_of) : null] },
    { name: "Labels alone", class: "digits", cell: (study) => format.score(study.labels_alone, measure) },
    { name: "Gain", class: "gain", cell: (study) => study.gain || (study.no_gain ? h("span", { class: "note" }, study.no_gain) : format.DASH) },
    { name: "Rounds", class: "digits", cell: (study) => `${study.rounds_completed} of ${study.rounds_planned}` },
    { name: "On the wire", class: "digits", cell: (study) => format.bytes(study.wire_bytes) },
    { name: "Payload", class: "digits", cell: (study) => format.bytes(study.payload_bytes) },
    { name: "Time", class: "digits", cell: (study) => format.seconds(study.seconds) },
  ];
  return card("Where they stand", { id: "ends", note: "Once a study is over, of the round that is handed over, else of its last one; on the test images, with 95 % intervals. Two intervals that overlap may still differ; the gain has its own." },
    table("Ends of the studies", columns, found.studies.map((study, index) => ({ ...study, tone: tone(index) })), { key: ({ name }) => name, cards: true }));
}

const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function differences(found) {
  const columns = [{ name: "Setting", cell: ({ setting }) => h("code", null, setting) }, ...found.studies.map(({ name }, index) => ({ name, cell: ({ values }) => (values[index] ? h("code", null, values[index]) : format.DASH) }))];
  return card("What they were set to differently", { id: "differences" }, table("Settings that differ", columns, found.differences, { key: ({ setting }) => setting, empty: "All settings are the same." }));
}
