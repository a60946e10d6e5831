// One round: its phases and when each silo worked in them, every answer with its reason, numbers and bytes.

import { rollback } from "../actions.js";
import { classesCard } from "../classes.js";
import { byAccuracy, measureHeading } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, button, card, empty, folded, glyph, head, since, table, tile, tiles, toneOf, trouble, until, wordOf } from "../parts.js";
import { icon } from "../icons.js";
import { api, to } from "../routes.js";
import { isSimulation } from "../sent.js";
import { data, errorOf, now, store } from "../store.js";

export const title = (route) => `Round ${route.number} of ${route.study}`;
export const needs = (route) => [api.study(route.study), api.round(route.study, route.number)];

export function view(route) {
  const round = data(api.round(route.study, route.number));
  const study = data(api.study(route.study));
  const over = [h("a", { href: to.overview(route.study) }, route.study), " / ", h("a", { href: to.rounds(route.study) }, "Rounds")];
  const name = route.number === 0 ? "Round 0, preparation" : `Round ${route.number}`;
  if (!round) {
    const error = errorOf(api.round(route.study, route.number));
    return [head(name, { over }), error?.status === 404 ? noSuchRound(route, study) : error ? trouble("bad", error.text, h("p", null, error.remedy)) : h("p", { class: "loading" }, "Loading …")];
  }
  const line = study?.rounds.find(({ number }) => number === route.number);
  const last = study?.rounds.at(-1)?.number ?? route.number;
  const { traffic } = round;
  return [
    head(name, { over, state: round.state, below: ["Opened ", format.moment(round.opened_unix), round.closed_unix ? `, ${format.seconds(round.closed_unix - round.opened_unix)} long` : [", open for ", since(round.opened_unix)]],
      actions: [canGoBack(study, round) ? button("Go back to this round", { name: "left", tone: "danger", on: () => rollback(study, route.number), key: "rollback" }) : null, step("left", "Earlier round", route.number > 0 ? to.round(route.study, route.number - 1) : null), step("right", "Later round", route.number < last ? to.round(route.study, route.number + 1) : null)] }),
    round.reason ? trouble(round.state === "failed" ? "bad" : "warn", round.state === "failed" ? "The round has failed" : "Note", h("p", null, round.reason)) : null,
    h("section", { "aria-label": "Numbers of the round", key: "numbers" }, tiles(
      worth(study, line, round),
      tile("Down", wire(traffic, "down"), `${format.plural(traffic.downloads, "download")}, payload ${format.bytes(traffic.payload.down)}`),
      tile("Up", wire(traffic, "up"), `${format.plural(traffic.uploads, "update")}, payload ${format.bytes(traffic.payload.up)}`),
      tile("Of dense", ofDense(traffic), `dense would be ${format.bytes(traffic.dense_total)}`))),
    round.phases.map((phase, index) => phaseCard(phase, index, round)),
    round.phases.length === 0 ? h("p", { class: "nothing", key: "no-phase" }, round.number === 0 ? "No silo works in the preparation: the coordinator trains on its own labels and measures the result." : "No phase has begun yet.") : null,
    classesCard(round.by_class),
    metrics(round.metrics, round.by_class?.findings.length ? OF_FINDINGS : OF_CLASSES),
  ];
}

function noSuchRound(route, study) {
  const all = study?.state === "completed" ? study.rounds_completed : study?.rounds_planned ?? Infinity;
  return route.number <= all ? empty("There is no such round yet", h("p", null, "It opens when the rounds before it are over."))
    : empty("There is no such round", h("p", null, `This study has ${format.plural(all, "round")}.`));
}

/** A study goes back while it is paused or over. */
/** The coordinator says which rounds still have all their files. */
function canGoBack(study, round) {
  return study && !store.federation?.read_only && study.returns?.includes(round.number);
}

/** The study's measure of the round's model; accuracy while the study is not known. */
function worth(study, line, round) {
  const when = round.state === "completed" ? "after this round" : "measured at its end";
  const accuracy = line?.accuracy ?? round.metrics.accuracy;
  if (!study || byAccuracy(study)) return tile("Accuracy", format.percentage(accuracy), when);
  return tile(measureHeading(study), format.score(line?.test_score, study.choice.measure), typeof accuracy === "number" ? `${when}; accuracy ${format.percentage(accuracy)}` : when);
}

/** The wire is settled when a phase closes; until then there is no number, and 0 would be a wrong one. */
const wire = ({ wire: counted, payload }, way) => (isSimulation() ? format.bytes(payload[way]) : counted[way] === 0 && payload[way] > 0 ? format.DASH : format.bytes(counted[way]));

function ofDense({ wire: { down, up }, payload, share_of_dense: share, dense_total: dense }) {
  if (isSimulation()) return dense ? format.share((payload.down + payload.up) / dense) : format.DASH;
  return down + up ? format.share(share) : format.DASH;
}

function step(name, words, href) {
  return href ? h("a", { class: "button quiet", href, key: name, "aria-label": words, title: words }, icon(name, 16)) : h("span", { class: "button quiet off", key: name, "aria-hidden": "true" }, icon(name, 16));
}

const MOST_LANES = 40;

function phaseCard(phase, index, round) {
  const open = phase.closed_unix === null;
  const heading = round.phases.length > 1 ? `Phase ${index + 1}: ${format.words(phase.name)}` : `Phase: ${format.words(phase.name)}`;
  const answered = phase.tasks.filter(({ state }) => state !== "open").length;
  const reasons = phase.tasks.filter(({ reason }) => reason);
  return card(heading, { id: `phase-${index}`, key: `phase-${index}`, note: [`${answered} of ${phase.tasks.length} have answered, quorum ${phase.quorum}. `, open ? ["Deadline in ", until(phase.deadline_unix, "the past"), "."] : `Closed after ${format.seconds(phase.closed_unix - phase.opened_unix)}.`] },
    phase.tasks.length <= MOST_LANES ? timeline(phase) : null,
    reasons.length ? h("ul", { class: "reasons" }, reasons.slice(0, 50).map((task) => h("li", { key: task.silo }, glyph(toneOf(task.state)), h("span", null, h("a", { href: to.silo(task.silo) }, task.silo), ` ${wordOf(task.state)}: `, h("span", { class: "reason" }, format.reason(task.reason)))))) : null,
    table(`Tasks of ${heading}`, taskColumns(), phase.tasks, { key: ({ silo }) => silo, cards: true, empty: "No silo was asked." }),
    perSilo(phase, round));
}

/** When each silo had its task: from being told to its answer, the part that it says it trained darker. */
function timeline(phase) {
  const end = phase.closed_unix ?? now();
  const from = phase.opened_unix;
  const span = Math.max(0.001, ...phase.tasks.map(({ closed_unix: closed }) => (closed ?? end) - from), end - from);
  const offset = (unix) => `${(100 * Math.min(1, Math.max(0, (unix - from) / span))).toFixed(2)}%`;
  return h("div", { class: "timeline", role: "img", "aria-label": `When each silo worked, over ${format.seconds(span)}; the table below has the times.` },
    phase.tasks.map((task) => {
      const given = task.given_unix;
      const closed = task.closed_unix ?? end;
      const trained = Math.min(task.training_seconds ?? 0, Math.max(0, closed - (given ?? closed)));
      return h("div", { class: "timeline-row", key: task.silo },
        h("span", { class: "timeline-name" }, task.silo),
        h("span", { class: "timeline-track" }, given === null ? null : h("span", { class: `timeline-bar ${toneOf(task.state)}`, style: { left: offset(given), width: `${(100 * Math.max(0.004, (closed - given) / span)).toFixed(2)}%` } },
          trained ? h("span", { class: "timeline-trained", style: { width: `${(100 * trained / Math.max(0.001, closed - given)).toFixed(1)}%` } }) : null)));
    }),
    h("div", { class: "timeline-axis", "aria-hidden": "true" }, h("span", null, "0"), h("span", null, format.seconds(span))));
}

function taskColumns() {
  return [
    { name: "Silo", cell: (task) => h("a", { href: to.silo(task.silo) }, task.silo) },
    { name: "Answer", cell: (task) => badge(task.state, task.state === "open" && task.doing ? `${task.doing.stage} ${format.progress(task.doing.fraction)}` : null) },
    { name: "After", class: "digits", cell: (task) => (task.given_unix === null ? "not told yet" : task.closed_unix === null ? since(task.given_unix) : format.seconds(Math.max(0, task.closed_unix - task.given_unix))) },
    { name: "Training", class: "digits", cell: (task) => format.seconds(task.training_seconds) },
    { name: "Images", class: "digits", cell: (task) => format.count(task.example_count) },
    { name: "Label ratio", class: "digits", cell: (task) => format.share(task.metrics?.label_ratio) },
    { name: "Update", class: "digits", cell: (task) => format.bytes(task.update_bytes) },
    { name: "Norm", class: "digits", cell: (task) => (task.norm === null ? format.DASH : format.number(task.norm)) },
    { name: "Cosine to the mean", class: "digits", cell: (task) => (task.cosine === null ? format.DASH : format.number(task.cosine)) },
    { name: "By group", class: "groups", cell: (task) => (Object.keys(task.groups ?? {}).length ? Object.entries(task.groups).map(([group, size]) => h("span", { class: "block", key: group }, h("code", null, group), ` ${format.bytes(size)}`)) : format.DASH) },
  ];
}

/** All numbers that silos sent, pseudo-label counts left to the strips. */
function perSilo(phase, round) {
  const names = [...new Set(phase.tasks.flatMap((task) => Object.keys(task.metrics ?? {})))].filter((name) => !name.startsWith("pseudo_labels/") && name !== "label_ratio").sort();
  const having = phase.tasks.filter((task) => Object.keys(task.metrics ?? {}).length);
  if (names.length === 0 || having.length === 0) return null;
  return folded(`metrics-${round.study}-${round.number}-${phase.name}`, `Numbers that silos sent (${names.length})`, () => table(`Metrics of phase ${phase.name}`, [
    { name: "Silo", cell: (task) => task.silo }, ...names.map((name) => ({ name: format.words(name), class: "digits", cell: (task) => format.number(task.metrics[name]) }))], having, { key: ({ silo }) => silo }));
}

/** Numbers of single classes that the card above shows, of images with one label and with several. */
const OF_CLASSES = /^(validation_)?recall\//;
const OF_FINDINGS = /^(validation_)?(recall|auroc|average_precision|calibration_error)\//;

const SHARES = /accuracy|ratio|calibration_error|recall|exact_match|(^|_)f1$/;
const AREAS = /^(\w+_)?(auroc|average_precision)(\/|$)/;

const valued = (name, value) => (AREAS.test(name) ? format.area(value) : SHARES.test(name) && value >= 0 && value <= 1 ? format.percentage(value) : format.number(value));

/** Numbers of the whole model as facts, those of single classes ("auroc/rare") as a table. */
function metrics(values, shown) {
  const entries = Object.entries(values).filter(([name]) => !shown.test(name)).sort(([a], [b]) => (a < b ? -1 : 1));
  if (entries.length === 0) return null;
  const single = entries.filter(([name]) => name.includes("/")).map(([name, value]) => [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1), value]);
  const measures = [...new Set(single.map(([measure]) => measure))];
  const rows = [...new Set(single.map(([, name]) => name))].map((name) => ({ name, of: Object.fromEntries(single.filter(([, other]) => other === name).map(([measure, , value]) => [measure, value])) }));
  return card("Metrics", { id: "metrics" }, h("dl", { class: "facts" }, entries.filter(([name]) => !name.includes("/")).map(([name, value]) => h("div", { key: name }, h("dt", null, format.measure(name)), h("dd", null, valued(name, value))))),
    rows.length ? folded("metrics-classes", "Class by class", () => table("Metrics of single classes", [{ name: "Class", cell: ({ name }) => name }, ...measures.map((measure) => ({ name: format.measure(measure), class: "digits", cell: ({ of }) => (measure in of ? valued(measure, of[measure]) : format.DASH) }))], rows, { key: ({ name }) => name })) : null);
}

