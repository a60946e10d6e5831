// A screen on a wall: large letters, no controls. Follows the study that runs, or shows the one in its address; the Escape
// key leaves it.

import { bar } from "../charts.js";
import { byAccuracy, currentStudy, measured, measureHeading, notMeasured } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, glyph, since, toneOf, until, wordOf } from "../parts.js";
import { api, to } from "../routes.js";
import { asSent, sentWords } from "../sent.js";
import { data, now, store } from "../store.js";
import { TONES } from "./alerts.js";

const MOST_SILOS = 10;
const MOST_ALERTS = 3;

export const title = (route) => `${shown(route) ?? "Wall"}`;
export const needs = (route) => (shown(route) ? [api.study(shown(route))] : []);

/** The study in the address; else the one that runs at the moment, whatever was looked at before. */
function shown(route) {
  if (route.study) return route.study;
  const studies = store.federation?.studies ?? [];
  return studies.find(({ state }) => ["running", "paused", "waiting", "preparing"].includes(state))?.name ?? currentStudy({});
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && location.hash.startsWith("#/wall")) location.hash = to.overview(null);
});

export function view(route) {
  const { federation } = store.federation;
  const name = shown(route);
  const study = name ? asSent(data(api.study(name))) : null;
  return [
    h("header", { class: "wall-head", key: "head" },
      h("h1", { id: "title", tabindex: "-1" }, name ?? federation, study ? [" ", badge(study.state)] : null),
      h("p", { class: "wall-place" }, federation, " · ", h("time", { "data-clock": "1" }, clock()), store.connection === "lost" ? h("strong", { class: "wall-lost" }, " not connected") : null)),
    alerts(),
    !name ? h("p", { class: "wall-empty" }, "No study yet.") : study ? [numbers(study), h("div", { class: "wall-pair", key: "pair" }, chart(study), silos())] : h("p", { class: "loading" }, "Loading …"),
    h("a", { class: "wall-leave", key: "leave", href: to.overview(name) }, "Leave the wall screen (Esc)"),
  ];
}

const clock = () => format.clock(now(), now()).slice(0, 5);

const number = (name, value, note, tone = "") => h("div", { class: `wall-number ${tone}`, key: name }, h("dt", null, name), h("dd", null, h("span", { class: "wall-value" }, value), note ? h("span", { class: "wall-note" }, note) : null));

function numbers(study) {
  const { measure } = study.choice;
  const shown = measured(study).find(({ number }) => number === study.numbers_round);
  const open = study.open_round;
  const interval = shown ? format.interval(shown.test_interval, measure) : "";
  return h("dl", { class: "wall-numbers", key: "numbers" },
    number("Round", [String(open?.number ?? study.rounds_completed), h("small", null, ` of ${study.rounds_planned}`)], [open?.deadline_unix && open.state === "collecting" && study.state !== "paused" ? ["deadline in ", until(open.deadline_unix, "no time")] : open ? ["open for ", since(open.opened_unix)] : wordOf(study.state), bar([[study.rounds_planned ? study.rounds_completed / study.rounds_planned : 0, "first"]])]),
    number(measureHeading(study), format.score(study.test_score, measure), aboutScore(study, interval)),
    number("Against labels alone", study.gain === null ? format.DASH : withUnit(study.gain_text), study.gain === null ? study.no_gain || "not known" : [study.gain_interval_text, study.gain_verdict].filter(Boolean).join(", "), study.gain_interval?.low > 0 ? "good" : ""),
    number(study.ended_unix ? "Took" : "Ends in about", study.ended_unix ? format.seconds(study.seconds) : study.state === "running" ? format.estimate(study.seconds_left) : format.DASH, `${format.bytes(study.cost.wire.down + study.cost.wire.up)} ${sentWords()}${study.ended_unix ? "" : " so far"}`));
}

/** Below the study's measure: its interval, of which round it is, the accuracy beside it. */
function aboutScore(study, interval) {
  if (study.test_score === null) return notMeasured(study);
  const accuracy = typeof study.accuracy !== "number" || byAccuracy(study) ? "" : `accuracy ${format.percentage(study.accuracy)}`;
  return [[interval ? `95 % interval ${interval}` : "", study.numbers_of].filter(Boolean).join("; "), accuracy].filter(Boolean).join(", ");
}

/** "+17.2" large, "points" small. */
function withUnit(text) {
  const [value, ...unit] = text.split(" ");
  return [value, unit.length ? h("small", null, ` ${unit.join(" ")}`) : null];
}

/** What is left of the screen below the numbers. */
const chartHeight = () => Math.min(460, Math.max(260, innerHeight - 640));

function chart(study) {
  const rounds = measured(study);
  if (rounds.length === 0) return null;
  const { measure } = study.choice;
  const score = (value) => format.score(value, measure);
  const alone = study.labels_alone_test_score;
  return h("section", { class: "wall-card", key: "chart", "aria-label": `Test ${study.choice.title} by round` }, h("line-chart", { key: "wall-chart", prop: { data: {
    label: `Line: test ${study.choice.title} by round; ${score(rounds[0].test_score)} in round ${rounds[0].number}, ${score(rounds.at(-1).test_score)} in round ${rounds.at(-1).number}.`,
    series: [{ name: "federated", tone: "first", points: rounds.map((round) => [round.number, round.test_score]), band: rounds.filter((round) => round.test_interval).map((round) => [round.number, round.test_interval.low, round.test_interval.high]) }],
    level: alone === null ? null : { y: alone, name: `labels alone ${score(alone)}` }, height: chartHeight(),
    x: { name: "round", text: String, whole: true, low: 0, high: Math.max(study.rounds_planned, rounds.at(-1).number, 1) },
    y: { text: (value, exact) => (exact ? score(value) : score(value).replace(".0 ", " ")), least: 0.06, share: true, name: `test ${study.choice.title}` } } } }));
}

const URGENT = ["silent", "late", "away", "away by policy"];

function silos() {
  const all = store.federation.silos.filter(({ state }) => !["revoked", "left"].includes(state));
  if (all.length === 0) return null;
  const urgency = ({ refusal, state }) => (refusal ? -1 : URGENT.indexOf(state) < 0 ? URGENT.length : URGENT.indexOf(state));
  const rows = [...all].sort((a, b) => urgency(a) - urgency(b) || (a.name < b.name ? -1 : 1));
  const counts = new Map();
  for (const { state } of all) counts.set(state, (counts.get(state) ?? 0) + 1);
  return h("section", { class: "wall-card", key: "silos", "aria-label": "Silos" },
    all.length > MOST_SILOS ? h("p", { class: "wall-note" }, [...counts].map(([state, count]) => `${count} ${wordOf(state)}`).join(" · ")) : null,
    h("ul", { class: "wall-silos" }, rows.slice(0, MOST_SILOS).map((silo) => h("li", { key: silo.name }, glyph(silo.refusal ? "bad" : toneOf(silo.state)), h("span", { class: "wall-silo" }, silo.name),
      h("span", { class: "wall-note" }, silo.refusal ? "refuses" : silo.doing && silo.state === "working" ? `${silo.doing.stage} ${format.progress(silo.doing.fraction)}` : wordOf(silo.state))))));
}

function alerts() {
  const pressing = store.federation.alerts.filter(({ severity }) => severity !== "info");
  if (pressing.length === 0) return null;
  return h("ul", { class: "wall-alerts", key: "alerts", "aria-label": "Needs a person" }, pressing.slice(0, MOST_ALERTS).map((alert) => h("li", { key: alert.id, class: TONES[alert.severity] }, glyph(TONES[alert.severity]), h("span", null, alert.title))),
    pressing.length > MOST_ALERTS ? h("li", { key: "more", class: "more-alerts" }, `and ${pressing.length - MOST_ALERTS} more`) : null);
}
