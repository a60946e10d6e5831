// The queue: all studies of the federation in the order in which they run.

import { bar } from "../charts.js";
import { byAccuracy } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { newStudy, queueStudy } from "../actions.js";
import { badge, button, card, commands, empty, head, table } from "../parts.js";
import { icon } from "../icons.js";
import { api, to } from "../routes.js";
import { isSimulation } from "../sent.js";
import { data, store } from "../store.js";

/** So many of the last studies are compared at first. */
const MOST_AT_ONCE = 4;

export const title = () => "Studies";
export const needs = () => (store.federation?.read_only ? [] : [api.choices()]);

export function view() {
  const { studies, federation, read_only: readOnly } = store.federation;
  const columns = [
    { name: "Study", cell: (study) => h("a", { href: to.overview(study.name) }, study.name) },
    { name: "State", cell: (study) => [badge(study.state), study.participation.text ? h("p", { class: study.participation.refusing.length ? "reason refusal" : "note" }, study.participation.text) : null, study.reason ? h("p", { class: "reason" }, study.reason) : null] },
    { name: "Method", cell: (study) => (study.method === "?" ? format.DASH : [study.method, h("span", { class: "note block" }, format.words(study.scenario).replaceAll("-", " "))]) },
    { name: "Rounds", class: "digits", cell: (study) => [h("span", { class: "block" }, `${study.round} of ${study.rounds}`), bar([[study.rounds ? study.round / study.rounds : 0, "first"]])] },
    { name: studies.every(byAccuracy) ? "Accuracy" : "Measure", class: "digits", cell: (study) => [format.score(study.test_score, study.choice.measure), studies.every(byAccuracy) ? null : h("span", { class: "note block" }, study.choice.title), typeof study.labels_alone_test_score === "number" ? h("span", { class: "note block" }, `labels alone ${format.score(study.labels_alone_test_score, study.choice.measure)}`) : null, study.labels_alone ? h("span", { class: "note block" }, `labels alone: ${study.labels_alone}`) : null, study.choice.text ? h("span", { class: "note block choice" }, `model of ${study.choice.text}`) : null] },
    isSimulation() ? null : { name: "On the wire", class: "digits", cell: (study) => format.bytes(study.wire_bytes) },
    { name: "Time left", class: "digits", cell: (study) => (study.seconds_left === null ? format.DASH : `about ${format.estimate(study.seconds_left)}`) },
  ].filter(Boolean);
  const choices = readOnly ? null : data(api.choices());
  const compare = studies.length > 1 ? h("a", { class: "button quiet", key: "compare", href: to.compare(studies.slice(-MOST_AT_ONCE).map(({ name }) => name)) }, icon("overview", 16), h("span", null, "Compare")) : null;
  const actions = choices || compare ? [compare, choices && button("New study", { name: "plus", tone: "main", key: "new", on: () => newStudy(choices) })] : null;
  return [
    head("Studies", { over: federation, below: "They run one after another, in this order.", actions }),
    choices?.drafts.length ? drafts(choices.drafts) : null,
    studies.length === 0 ? empty("No study yet", h("p", null, "Create one in the federation folder, edit it, then queue it:"), commands("coordinator new first", "$EDITOR studies/first/study.toml", "coordinator queue first"))
      : card("Queue", { id: "queue" }, table("Studies of the federation", columns, studies, { key: ({ name }) => name, cards: true })),
    studies.length && !readOnly ? card("Another study", { id: "another" }, h("p", null, "With the button above, or at the hub, where all settings can be chosen:"), commands("coordinator new second", "$EDITOR studies/second/study.toml", "coordinator queue second")) : null,
  ];
}

/** Studies that have a file and were never queued. */
function drafts(names) {
  return card("Not queued yet", { id: "drafts", note: "Their files are at the hub, studies/NAME/study.toml. coordinator serve queues them too when it is started the next time." },
    h("ul", { class: "plain" }, names.map((name) => h("li", { key: name, class: "draft" }, h("strong", null, name), button("Check and queue", { small: true, label: `Check and queue ${name}`, on: () => queueStudy(name) })))));
}
