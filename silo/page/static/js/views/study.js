// One study: what its card says, what this site has said to it, what it has cost here.

import { h } from "../dom.js";
import * as format from "../format.js";
import { card, empty, folded, head, table, tile, tiles, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { data, errorOf, store } from "../store.js";
import { answers, saidBy, shield, stateBadge } from "./studies.js";

const TABLES = { "": "The study", image: "Images", augmentation: "Augmentation", settings: "Settings of the method", model: "Network", numerics: "Numerics", privacy: "Privacy", uplink: "Form of updates", sends: "Leaves", receives: "Arrives" };
const MEANINGS = { values: "its values", difference: "the difference to what was received", overwrite: "some of its values" };

export const title = (route) => route.study;

export const needs = (route) => [api.study(route.study)];

export function view(route) {
  const found = data(api.study(route.study));
  const back = h("a", { href: to.studies() }, "Studies");
  if (!found) {
    const error = errorOf(api.study(route.study));
    return [head(route.study, { over: back }), error ? empty("There is no card of this study", h("p", null, error.text), error.remedy ? h("p", null, error.remedy) : null) : h("p", { class: "loading" }, "Loading …")];
  }
  const { facts, settings } = found;
  return [
    h("div", { class: "with-state", key: "head" }, head(route.study, { over: back, below: [stateBadge(facts), " ", saidBy(facts)], actions: answers(facts) })),
    facts.changed ? trouble("warn", "It has changed since it was signed before", h("p", null, facts.changed)) : null,
    tiles(
      tile("Rounds", format.count(facts.rounds), store.here.agent.study === facts.study && store.here.agent.round ? `now in round ${store.here.agent.round}` : null),
      tile("Left so far", format.bytes(facts.bytes), format.plural(facts.lines, "line of the record", "lines of the record")),
      tile("Updates leave", facts.secure_aggregation ? "masked" : "in the clear", facts.secure_aggregation ? "nobody sees them singly" : "the coordinator sees them singly"),
      tile("Epsilon spent", facts.epsilon === null ? format.DASH : format.number(facts.epsilon), facts.dp_unit ? `differential privacy of ${facts.dp_unit}s` : "no differential privacy")),
    h("div", { class: "pair", key: "pair" },
      card("What leaves", { id: "leaves", note: facts.discloses }, h("dl", { class: "facts wide" },
        Object.entries(facts.sends).map(([group, meaning]) => h("div", { key: group }, h("dt", null, h("code", null, group)), h("dd", null, MEANINGS[meaning] ?? meaning))),
        h("div", { key: "shield" }, h("dt", null, "How"), h("dd", null, shield(facts)))),
      folded(`numbers-${facts.study}`, `${format.plural(facts.numbers.length, "number")} that may leave with an update`, () => h("ul", { class: "names" }, facts.numbers.map((name) => h("li", { key: name }, h("code", null, name)))))),
      card("The card", { id: "card" }, h("dl", { class: "facts wide" },
        h("div", { key: "digest" }, h("dt", null, "SHA-256"), h("dd", null, h("code", { class: "hash" }, facts.digest))),
        h("div", { key: "earlier" }, h("dt", null, "Signed before"), h("dd", null, facts.earlier ? format.plural(facts.earlier, "other card") : "no other card")),
        h("div", { key: "terminal" }, h("dt", null, "At a terminal"), h("dd", null, h("code", null, `silo studies --show ${facts.study}`)))))),
    whole(settings),
  ];
}

/** All that the card says, table by table. */
function whole(settings) {
  const tables = new Map();
  for (const [name, key, value] of settings) {
    const at = key === "" ? "" : name;
    if (!tables.has(at)) tables.set(at, []);
    tables.get(at).push({ key: key === "" ? name : key, value });
  }
  return h("section", { class: "card", key: "whole", "aria-labelledby": "whole" }, h("div", { class: "card-head" }, h("h2", { id: "whole" }, "All that it says")),
    h("p", { class: "note" }, "What this site signs, word for word. A task that says something else is refused."),
    h("div", { class: "groups-of-settings" }, [...tables].map(([name, rows]) => folded(`card-${name}`, TABLES[name] ?? format.words(name), () => table(TABLES[name] ?? format.words(name), [
      { name: "Setting", cell: ({ key }) => format.words(key) },
      { name: "Value", cell: ({ value }) => h("code", null, value) }], rows, { key: ({ key }) => key })))));
}
