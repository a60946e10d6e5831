// The queue: all studies of the federation in the order in which they run.

import { bar } from "../charts.js";
import { byAccuracy } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { badge, card, commands, empty, head, table } from "../parts.js";
import { to } from "../routes.js";
import { store } from "../store.js";

export const title = () => "Studies";
export const needs = () => [];

export function view() {
  const { studies, federation, read_only: readOnly } = store.federation;
  const columns = [
    { name: "Study", cell: (study) => h("a", { href: to.overview(study.name) }, study.name) },
    { name: "State", cell: (study) => [badge(study.state), study.participation.text ? h("p", { class: study.participation.refusing.length ? "reason refusal" : "note" }, study.participation.text) : null, study.reason ? h("p", { class: "reason" }, study.reason) : null] },
    { name: "Method", cell: (study) => [study.method, h("span", { class: "note block" }, format.words(study.scenario).replaceAll("-", " "))] },
    { name: "Rounds", class: "digits", cell: (study) => [h("span", { class: "block" }, `${study.round} of ${study.rounds}`), bar([[study.rounds ? study.round / study.rounds : 0, "first"]])] },
    { name: studies.every(byAccuracy) ? "Accuracy" : "Measure", class: "digits", cell: (study) => [format.score(study.test_score, study.choice.measure), studies.every(byAccuracy) ? null : h("span", { class: "note block" }, study.choice.title), typeof study.labels_alone_test_score === "number" ? h("span", { class: "note block" }, `alone ${format.score(study.labels_alone_test_score, study.choice.measure)}`) : null, study.labels_alone ? h("span", { class: "note block" }, `labels alone: ${study.labels_alone}`) : null, study.choice.text ? h("span", { class: "note block" }, `model of ${study.choice.text}`) : null] },
    { name: "On the wire", class: "digits", cell: (study) => format.bytes(study.wire_bytes) },
    { name: "Time left", class: "digits", cell: (study) => (study.seconds_left === null ? format.DASH : `about ${format.seconds(study.seconds_left)}`) },
  ];
  return [
    head("Studies", { over: federation, below: "They run one after another, in this order." }),
    studies.length === 0 ? empty("No study yet", h("p", null, "Create one in the federation folder, edit it, then queue it:"), commands("coordinator new first", "$EDITOR studies/first/study.toml", "coordinator queue first"))
      : card("Queue", { id: "queue" }, table("Studies of the federation", columns, studies, { key: ({ name }) => name, cards: true })),
    studies.length && !readOnly ? card("Another study", { id: "another" }, commands("coordinator new second", "$EDITOR studies/second/study.toml", "coordinator queue second")) : null,
  ];
}
