// silo.toml in plain words: what is permitted, how much, when, and what a study must have.

import { h } from "../dom.js";
import { signedIn } from "../actions.js";
import { bar } from "../charts.js";
import * as format from "../format.js";
import { card, folded, head, trouble } from "../parts.js";
import { api } from "../routes.js";
import { data, store } from "../store.js";
import { words } from "./overview.js";

const DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const DAY_MINUTES = 1440;

export const title = () => "Rules";

export const needs = () => [api.policy()];

export function view() {
  const facts = data(api.policy());
  if (!facts) return [head("Rules"), h("p", { class: "loading" }, "Loading …")];
  return [
    head("Rules", { below: facts.changed_unix ? `silo.toml as it is now, last changed ${format.moment(facts.changed_unix)}. What it does not permit does not leave this site.` : "There is no silo.toml here, so the defaults hold." }),
    facts.error === "" ? null : trouble("bad", "silo.toml cannot be used", words(facts.error), h("p", null, "silo join does not start with it.")),
    facts.newer ? trouble("warn", "silo.toml has changed since silo join has read it", h("p", null, "Restart silo join for these rules to hold.")) : null,
    facts.error === "" ? week(facts) : null,
    used(),
    h("div", { class: "rules", key: "rules" }, facts.rules.map((table) => card(table.title, { id: `rules-${table.table}`, note: table.note || null, aside: h("code", { class: "note" }, table.table === "others" ? "" : `[${table.table}]`) },
      h("dl", { class: "facts wide" }, table.rules.map((rule) => h("div", { key: rule.key }, h("dt", { title: rule.key }, rule.name), h("dd", null, rule.value, rule.names.length ? folded(`rule-${rule.key}`, "which", () => h("ul", { class: "names" }, rule.names.map((name) => h("li", { key: name }, name)))) : null))))))),
    facts.text === null ? h("p", { class: "note reveal", key: "file" }, "The file itself may name folders of this site: ", h("button", { type: "button", class: "link", on: { click: () => signedIn() } }, "sign in to read it"), ". It is changed with an editor, at the silo; this page only shows it.")
      : folded("silo-toml", "silo.toml, word for word", () => h("pre", { class: "json", tabindex: "0", "aria-label": "silo.toml" }, facts.text)),
  ];
}

const clock = (minutes) => `${String(Math.floor(minutes / 60)).padStart(2, "0")}:${String(minutes % 60).padStart(2, "0")}`;

/** The hours of a week as seven strips, and in words for who does not see them. */
function week(facts) {
  const { hours } = store.here;
  return card("Working hours", { id: "week", note: hours?.text ? `${hours.text[0].toUpperCase()}${hours.text.slice(1)}.` : null },
    h("ul", { class: "week" }, DAYS.map((day, index) => {
      const spans = facts.week.filter((span) => span.day === index);
      const inWords = spans.length ? spans.map(({ begins, ends }) => (begins === 0 && ends === DAY_MINUTES ? "all day" : `${clock(begins)} to ${clock(ends)}`)).join(", ") : "no task";
      return h("li", { key: day }, h("span", { class: "week-day" }, day), h("span", { class: "week-track", "aria-hidden": "true" }, spans.map(({ begins, ends }) => h("span", { key: begins, class: "week-span", style: { left: `${(100 * begins) / DAY_MINUTES}%`, width: `${(100 * (ends - begins)) / DAY_MINUTES}%` } }))), h("span", { class: "week-words" }, inWords));
    })),
    h("p", { class: "week-axis", "aria-hidden": "true" }, ["00", "06", "12", "18", "24"].map((hour) => h("span", { key: hour }, hour))));
}

/** How much of the limits is used up. */
function used() {
  const { budget, privacy } = store.here;
  const rows = [];
  if (budget?.limit_bytes) rows.push(["Bytes today", budget.used_bytes / budget.limit_bytes, `${format.bytes(budget.used_bytes)} of ${format.bytes(budget.limit_bytes)}, until ${budget.ends_text}`]);
  if (privacy?.max_epsilon) rows.push(["Privacy budget", privacy.epsilon / privacy.max_epsilon, `epsilon ${format.number(privacy.epsilon)} of ${format.number(privacy.max_epsilon)}, for good`]);
  if (rows.length === 0) return null;
  return card("Used up", { id: "used" }, h("dl", { class: "ladder used" }, rows.map(([name, part, text]) => h("div", { key: name }, h("dt", null, name), h("dd", null, bar([[part, part >= 1 ? "bad" : part > 0.9 ? "warn" : "first"]], `${name}: ${format.share(part)} used`), h("span", null, format.share(part)), h("span", { class: "note" }, text))))));
}

