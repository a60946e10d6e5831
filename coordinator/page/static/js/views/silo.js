// One silo: what it is, what it labels, what it has answered, what it has cost.

import { h } from "../dom.js";
import { invite, revoke, setAside, takeBack } from "../actions.js";
import { currentStudy } from "../current.js";
import * as format from "../format.js";
import { ago, badge, button, card, empty, figure, head, table, tile, tiles, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { isSimulation } from "../sent.js";
import { changed, data, store } from "../store.js";
import { doing, drifted, driftWords, images, ratioPoints, refusalOf, silentNotice, strip } from "./silos.js";

/** A reason that a silo gave is shown for so many rounds. */
const NEWS_ROUNDS = 5;

export const title = (route) => route.silo;

export function needs(route) {
  const study = currentStudy(route);
  if (!study) return [];
  const known = data(api.study(study))?.silos.some(({ name }) => name === route.silo);
  return known ? [api.study(study), api.silo(study, route.silo)] : [api.study(study)];
}

export function view(route) {
  const study = currentStudy(route);
  const detail = study ? data(api.study(study)) : null;
  const line = store.federation.silos.find(({ name }) => name === route.silo) ?? null;
  const inStudy = (study && data(api.silo(study, route.silo))) ?? detail?.silos.find(({ name }) => name === route.silo) ?? null;
  const back = h("a", { href: to.silos() }, "Silos");
  if (!line && !inStudy) {
    return [head(route.silo, { over: back }), empty(`No silo ${route.silo}`, h("p", null, "No silo of that name has enrolled in this federation."))];
  }
  const actions = store.federation.read_only || !line ? null : [
    line.state === "revoked" || line.state === "left" ? button("Invite again", { name: "plus", on: () => invite(line.name), key: "invite" }) : button("New invitation", { name: "plus", on: () => invite(line.name), key: "invite" }),
    line.state === "revoked" || line.state === "left" ? null : line.state === "set aside" ? button("Take back", { name: "play", tone: "main", on: () => takeBack(line.name), key: "take-back" }) : button("Set aside", { name: "pause", on: () => setAside(line.name), key: "set-aside" }),
    line.state === "revoked" || line.state === "left" ? null : button("Revoke", { tone: "danger", name: "close", on: () => revoke(line.name), key: "revoke" })];
  return [
    head(route.silo, { over: back, state: line?.state ?? null, words: line ? doing(line) : null, below: line ? ["Last seen ", ago(line.seen_unix), line.version ? ` · semisilo ${line.version}` : ""] : null, actions }),
    line ? alerts(line, detail) : null,
    notices(detail, route.silo),
    line ? tiles(
      tile("Images", images(line), line.labelled_count ? `${format.count(line.labelled_count)} with a label` : "none has a label"),
      tile("Contribution", inStudy ? format.share(inStudy.contribution) : format.DASH, inStudy ? `${format.count(inStudy.examples)} images trained on, all rounds` : "not asked yet"),
      tile("Rounds", inStudy ? `${inStudy.rounds_updated} / ${inStudy.rounds_asked}` : format.DASH, "updated, of those asked"),
      ...(isSimulation() ? [] : [tile("Bytes today", format.bytes((line.bytes_today_down ?? 0) + (line.bytes_today_up ?? 0)), `↓ ${format.bytes(line.bytes_today_down ?? 0)}  ↑ ${format.bytes(line.bytes_today_up ?? 0)}`),
      tile("In this study", inStudy ? format.bytes(inStudy.wire_down + inStudy.wire_up) : format.DASH, inStudy ? `↓ ${format.bytes(inStudy.wire_down)}  ↑ ${format.bytes(inStudy.wire_up)}` : null)])) : null,
    inStudy && detail ? work(inStudy, detail) : h("p", { class: "nothing" }, study ? `It has not been asked in ${study} yet.` : "No study has asked it yet."),
    line ? card("Permits", { id: "permits" }, h("p", null, line.methods?.length ? `Methods: ${line.methods.join(", ")}.` : "It has not yet said which methods it permits. It will with its first call."), typeof line.certificate_days_left === "number" ? h("p", { class: "note" }, `Its certificate lasts ${format.plural(Math.floor(line.certificate_days_left), "more day", "more days")}; the silo renews it automatically.`) : null) : null,
  ];
}

function alerts(line, study) {
  const found = [];
  const refusal = refusalOf(line, study);
  if (refusal) found.push(trouble("bad", `It ${refusal.words}`, h("p", null, refusal.reason || "No reason was given."), h("p", null, "A refusal does not count for the quorum. The cause is at the hospital: silo status shows more.")));
  if (line.state === "silent") found.push(silentNotice(line));
  if (line.state === "late") found.push(trouble("warn", "Late", h("p", null, "It has not answered and the deadline has passed. The round continues without it when the quorum is reached. You can extend the deadline on the study's page.")));
  if (line.state === "away by policy") found.push(trouble("warn", "Away by policy", h("p", null, line.away_reason)));
  if (line.state === "away") found.push(trouble("warn", "Away", h("p", null, "The hub does not hear from it. Its agent reconnects automatically. At the hospital, silo status and silo check show more.")));
  if (line.state === "enrolled") found.push(trouble("idle", "Enrolled, but never joined", h("p", null, "At the hospital: ", h("code", null, "silo join --data /scans"))));
  if (line.state === "set aside") found.push(trouble("warn", "Set aside", h("p", null, line.set_aside_reason ? `Why: ${line.set_aside_reason}. ` : null, "It may call but gets no task. ", h("code", null, `coordinator take-back ${line.name}`), " lets it take part again.")));
  if (typeof line.certificate_days_left === "number" && line.certificate_days_left < 5 && !["revoked", "left"].includes(line.state)) found.push(trouble("warn", line.certificate_days_left < 0 ? "Its certificate has expired" : `Its certificate ends in ${format.plural(Math.floor(line.certificate_days_left), "day")}`, h("p", null, "Then it needs a new invitation; it keeps its memory.")));
  return found;
}

function work(silo, study) {
  const points = ratioPoints(silo);
  const marks = drifted(silo);
  const rounds = study.rounds.filter(({ number, outcomes }) => number > 0 && outcomes?.[silo.name]).reverse();
  const histogram = Object.keys(silo.class_histogram ?? {}).length > 0;
  const names = histogram ? Object.values(silo.class_histogram)[0].map((_, index) => study.classes[index] ?? String(index)) : [];
  const last = study.rounds_planned;
  const shown = store.ui.allAnswers ? rounds : rounds.slice(0, 12);
  return [
    points.length ? h("div", { class: "card", key: "ratio" }, figure("Label ratio by round", h("line-chart", { key: "ratio-chart", prop: { data: {
      label: `Line: share of ${silo.name}'s images that got a pseudo-label, by round; ${format.share(points[0][1])} in round ${points[0][0]}, ${format.share(points.at(-1)[1])} in round ${points.at(-1)[0]}.`,
      series: [{ name: "label ratio", tone: "first", points: points }],
      x: { name: "round", text: String, whole: true, low: 0, high: Math.max(last, points.at(-1)[0]), tip: (value) => `round ${value}` }, y: { text: (value, exact) => (exact ? format.share(value) : format.percentage(value, 0)), low: 0, high: 1, name: "images with a pseudo-label" },
      pick: (number) => { location.hash = to.round(study.name, number); } } } }),
    { id: "ratio", last: `round ${points.at(-1)[0]}: ${format.share(points.at(-1)[1])}`, note: "Share of its images that got a pseudo-label which the method kept.", columns: [{ name: "Round", cell: ([round]) => round }, { name: "Label ratio", class: "digits", cell: ([, value]) => format.share(value) }], rows: points })) : null,
    histogram ? card("Pseudo-labels by class", { id: "histogram", note: driftWords() }, strip(silo, study.classes, names.length > 20 ? 12 : 18),
      marks.length ? h("ul", { class: "marks" }, marks.slice(0, 10).map(({ number, distance, threshold }) => h("li", { key: number }, h("span", { class: "drift-mark", "aria-hidden": "true" }), h("a", { href: to.round(study.name, number) }, `Round ${number}`), `: distance ${distance.toFixed(2)}, marked above ${threshold.toFixed(2)}. ${moved(silo, number, names)}`))) : h("p", { class: "note" }, "No round is marked."),
      numbersOf(silo, names)) : null,
    card("Answers", { id: "answers", note: lastReason(silo, study) }, table(`Answers of ${silo.name}`, [
      { name: "Round", cell: (round) => h("a", { href: to.round(study.name, round.number) }, round.number) },
      { name: "Answer", cell: (round) => badge(round.outcomes[silo.name]) },
      { name: "Label ratio", class: "digits", cell: (round) => format.share(silo.label_ratio?.[round.number]) },
      { name: "Drift", class: "digits", cell: (round) => { const drift = silo.drift?.[round.number]; return drift ? [drift.marked ? h("span", { class: "drift-mark", "aria-hidden": "true" }) : null, drift.distance.toFixed(2), drift.marked ? h("span", { class: "unseen" }, " marked") : null] : format.DASH; } },
    ], shown, { key: ({ number }) => number, empty: "None yet." }), rounds.length > shown.length ? h("p", { class: "more" }, h("button", { type: "button", class: "link", on: { click: () => { store.ui.allAnswers = true; changed(); } } }, `Show all ${rounds.length} rounds`)) : null),
  ];
}

/** Unusual silos about it in the study. */
function notices(study, name) {
  const found = study?.notices?.filter(({ silo }) => silo === name) ?? [];
  return found.length ? trouble("warn", `${name} stands out`, h("ul", null, found.map((each) => h("li", { key: each.kind }, `${each.round ? `Round ${each.round}: ` : ""}${each.text}${each.times > 1 ? ` (${each.times} times)` : ""}`)))) : null;
}

/** Why it last gave no update, as long as that is news: what was fixed long ago is in the rounds. */
function lastReason(silo, study) {
  const latest = study.rounds.at(-1)?.number ?? 0;
  return silo.last_reason && latest - silo.last_reason_round < NEWS_ROUNDS ? `Last reason given, in round ${silo.last_reason_round}: ${silo.last_reason}` : null;
}

/** Which classes grew and shrank most against the mean of the up to ten rounds before. */
function moved(silo, number, names) {
  const before = Object.keys(silo.class_histogram).map(Number).filter((round) => round < number).sort((a, b) => a - b).slice(-10);
  if (before.length === 0) return "";
  const usual = (index) => before.reduce((sum, round) => sum + (silo.class_histogram[round][index] ?? 0), 0) / before.length;
  const changes = silo.class_histogram[number].map((share, index) => ({ share, before: usual(index), name: names[index] })).sort((a, b) => b.share - b.before - (a.share - a.before));
  const [more, less] = [changes[0], changes.at(-1)];
  return `More ${more.name} (${format.points(more.share, more.before)} points), less ${less.name} (${format.points(less.share, less.before)}).`;
}

function numbersOf(silo, names) {
  const rounds = Object.entries(silo.class_histogram).map(([number, shares]) => ({ number: Number(number), shares })).sort((a, b) => b.number - a.number);
  return h("details", { class: "folded", key: "histogram-numbers" }, h("summary", null, "The numbers as a table"),
    table("Pseudo-labels by class and round", [{ name: "Round", cell: ({ number }) => number }, ...names.map((name, index) => ({ name, class: "digits", cell: ({ shares }) => format.share(shares[index]) }))], rounds.slice(0, 200), { key: ({ number }) => number }));
}
