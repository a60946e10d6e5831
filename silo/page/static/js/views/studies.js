// Studies whose cards have come, and what this site has said to them.

import { h } from "../dom.js";
import { approve, decline } from "../actions.js";
import * as format from "../format.js";
import { ago, badge, button, empty, head, since, table, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { data } from "../store.js";
import { words } from "./overview.js";

export const title = () => "Studies";

export const needs = () => [api.studies()];

export function view() {
  const facts = data(api.studies());
  if (!facts) return [head("Studies"), h("p", { class: "loading" }, "Loading …")];
  const waiting = facts.studies.filter(({ state, over }) => state === "waiting" && !over);
  return [
    head("Studies", { below: facts.approval ? "A person approves each study before its first task, and again when it changes: [require] approval in silo.toml." : "This silo signs the cards of studies that silo.toml permits. A person may decline them at any time; with [require] approval in silo.toml a person must approve them first." }),
    facts.error === "" ? null : trouble("bad", "A study card cannot be read", words(facts.error)),
    waiting.map((card) => decision(card)),
    facts.studies.length ? h("section", { class: "card", key: "cards", "aria-labelledby": "cards" }, h("div", { class: "card-head" }, h("h2", { id: "cards" }, "Cards")), h("p", { class: "note" }, "A card says what a study asks from its first round to its last. Every task is held against the one that is signed."), table("Studies and their cards", [
      { name: "Study", cell: ({ study }) => h("a", { href: to.study(study) }, study) },
      { name: "State", class: "state-cell", cell: (card) => [stateBadge(card), h("small", { class: "block" }, saidBy(card))] },
      { name: "Method", cell: ({ method }) => method },
      { name: "Rounds", class: "digits", cell: ({ rounds }) => format.count(rounds) },
      { name: "Updates leave", cell: (card) => shield(card) },
      { name: "Epsilon spent", class: "digits", cell: ({ epsilon }) => (epsilon === null ? format.DASH : format.number(epsilon)) },
      { name: "Left so far", class: "digits", cell: ({ bytes }) => format.bytes(bytes) },
    ], facts.studies, { key: ({ study }) => study, cards: true }))
      : empty("No study card has come yet", h("p", null, "A card comes with the first task that ", h("code", null, "silo join"), " is given. It is held against every task, and stays here when the study is over.")),
  ];
}

/** A study that waits, with what a person must know and the two answers. */
export function decision(card) {
  return h("section", { class: "decision", key: `decision-${card.study}`, "aria-label": `Decide on ${card.study}` },
    h("div", { class: "decision-words" },
      h("h2", null, h("a", { href: to.study(card.study) }, card.study), " ", stateBadge(card)),
      card.changed ? h("p", null, h("strong", null, "Changed since it was signed: "), card.changed) : null,
      h("p", null, `${card.method}, ${format.plural(card.rounds, "round")}, network ${card.model}. Its updates leave ${shield(card)}.`),
      card.discloses ? h("p", { class: "note" }, card.discloses) : null),
    h("div", { class: "head-actions" }, answers(card)));
}

export function answers(card) {
  return [
    card.state === "waiting" || card.state === "declined" ? button("Approve", { name: "check", tone: "main", key: "approve", on: () => approve(card) }) : null,
    card.state === "declined" ? null : button("Decline", { name: "close", tone: "danger", key: "decline", on: () => decline(card) })];
}

export function stateBadge({ state, over }) {
  if (over) return badge("left", "not approved; the study is over");
  return state === "waiting" ? badge("waiting", "waits for a decision") : badge(state);
}

export function saidBy(card) {
  const when = ago(card.unix);
  if (card.over) return ["came ", when];
  if (card.state === "waiting") return ["for ", since(card.unix)];
  const who = card.by_policy ? "by silo.toml" : `by ${card.by}`;
  if (card.state === "approved") return [`${who}, `, when, "; signed with its next task"];
  return [`${who}, `, when, card.state === "signed" && !card.told ? "; the coordinator has not heard of it yet" : ""];
}

export function shield({ secure_aggregation: secure, dp_unit: unit }) {
  return `${secure ? "behind masks" : "in the clear"}${unit ? `, with differential privacy of ${unit}s` : ""}`;
}
