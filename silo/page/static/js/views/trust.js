// Whom this silo trusts, and what it has checked of the coordinator.

import { h } from "../dom.js";
import * as format from "../format.js";
import { ago, badge, card, head, table, trouble } from "../parts.js";
import { api } from "../routes.js";
import { data, store } from "../store.js";
import { words } from "./overview.js";

const TONES = { "this silo": "joined", pinned: "connected", seen: "waiting", "pinned, and seen with another key": "refused" };

export const title = () => "Trust";

export const needs = () => [api.trust()];

export function view() {
  const facts = data(api.trust());
  const heading = head("Trust", { below: "Keys that engineers compare by telephone, and the coordinator's audit trail as this silo has seen it." });
  if (!facts) return [heading, h("p", { class: "loading" }, "Loading …")];
  return [heading, audit(facts), peers(facts)];
}

function audit({ audit: found, audit_error: error }) {
  return card("The coordinator's audit trail", { id: "audit", note: "A signed head of the trail comes with every task. As long as the trail only grows, no head contradicts another; two that do are kept here, signed: a proof." },
    error === "" ? null : trouble("bad", "The heads cannot be checked", words(error)),
    !found && error === "" ? h("p", { class: "nothing" }, "No head has come yet: the first comes with the first task.") : null,
    found ? trouble(found.problems.length ? "bad" : "good", found.problems.length ? "It contradicts itself" : "No contradiction", h("p", null, found.text), h("p", { class: "note" }, "Signatures and order were checked ", ago(found.checked_unix), ", and are again when a head comes. Against the whole trail: ", h("code", null, "silo disclosures --check --coordinator-export FILE")),
      found.problems.length ? h("ul", null, found.problems.map((line) => h("li", { key: line }, line))) : null,
      found.notes.length ? h("ul", { class: "note" }, found.notes.map((line) => h("li", { key: line }, line))) : null) : null);
}

function peers({ peers: found, peers_error: error }) {
  const fresh = found.filter(({ state }) => state === "seen");
  return card("Silos that this one knows", { id: "peers", note: "Secure aggregation hides this site's update among those of silos that it trusts. Read the numbers to each other: equal ones mean that nobody sits in between." },
    error === "" ? null : trouble("bad", "The keys cannot be read", words(error)),
    found.length ? table("Silos and their numbers", [
      { name: "Silo", class: "nowrap", cell: ({ silo }) => silo },
      { name: "Number", cell: ({ number }) => h("code", { class: "number" }, number) },
      { name: "State", cell: ({ state }) => badge(TONES[state] ?? "joined", state) },
      { name: "Fingerprint", cell: ({ fingerprint }) => h("code", { class: "hash" }, fingerprint) },
    ], found, { key: ({ silo }) => silo, cards: true }) : error !== "" ? null : h("p", { class: "nothing" }, store.here.enrolled ? "No key yet: silo join makes this silo's when it starts." : "This silo is not enrolled."),
    found.length === 1 ? h("p", { class: "note" }, "No other silo was seen yet: that comes with the first round of a study with secure aggregation.") : null,
    fresh.length ? trouble("warn", `${format.plural(fresh.length, "silo")} not pinned yet`, h("p", null, "Where the numbers are equal, put these lines into silo.toml:"), h("pre", { class: "commands", tabindex: "0" }, h("code", null, ["[peers]", ...fresh.map(({ silo, fingerprint }) => `${silo} = "${fingerprint}"`)].join("\n")))) : null);
}
