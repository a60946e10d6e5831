// What the coordinator asked of this silo, and what became of it.

import { h } from "../dom.js";
import { signedIn } from "../actions.js";
import * as format from "../format.js";
import { ago, badge, button, empty, folded, head, table } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, data, store } from "../store.js";

const PAGE = 30;

export const title = () => "What was asked";

const filter = () => (store.ui.asked ??= { study: "", steps: 0, offset: 0 });
const path = () => api.asked({ ...filter(), limit: PAGE });

export const needs = () => [path()];

function choose(change) {
  store.ui.asked = { ...filter(), offset: 0, ...change };
  changed();
}

export function view() {
  const facts = data(path());
  const heading = head("What was asked", { below: "Each task of the coordinator, with the settings that it had, and this silo's answer." });
  if (!facts) return [heading, h("p", { class: "loading" }, "Loading …")];
  const { study, steps, offset } = filter();
  if (facts.total === 0 && facts.steps === 0 && !study) return [heading, empty("Nothing has been asked yet", h("p", null, "Tasks are kept from this version on, as long as silo join runs: study, round, method, settings, and what became of them."))];
  return [heading, h("section", { class: "card", key: "tasks", "aria-labelledby": "tasks" },
    h("div", { class: "card-head" }, h("h2", { id: "tasks" }, "Tasks")),
    h("div", { class: "tools" },
      h("label", { class: "field inline" }, h("span", null, "Study"), h("select", { prop: { value: study }, on: { change: (event) => choose({ study: event.target.value }) } }, h("option", { key: "", value: "" }, "all"), facts.studies.map((name) => h("option", { key: name, value: name }, name)))),
      facts.steps || steps ? h("button", { type: "button", class: "chip", "aria-pressed": steps ? "true" : "false", on: { click: () => choose({ steps: steps ? 0 : 1 }) } }, "Steps of secure sums", h("span", { class: "chip-count" }, format.count(facts.steps))) : null,
      h("p", { class: "note" }, format.plural(facts.total, "task")),
      facts.revealed ? null : h("p", { class: "note reveal" }, h("button", { type: "button", class: "link", on: { click: () => signedIn() } }, "Sign in"), " to read this silo's own words about each: they may name files.")),
    table("Tasks, newest first", [
      { name: "Asked", cell: (task) => [h("span", { class: "nowrap" }, format.moment(task.unix)), task.times > 1 ? h("small", { class: "block" }, `given ${task.times} times`) : null] },
      { name: "For", cell: (task) => [h("a", { href: to.study(task.study) }, task.study), h("small", { class: "block" }, `round ${task.round} of ${task.rounds}, ${task.phase}`)] },
      { name: "Method", cell: (task) => [task.method, settings(task)] },
      { name: "Brings", class: "digits", cell: (task) => format.bytes(task.download_bytes) },
      { name: "Answer", class: "state-cell", cell: (task) => [answer(task), task.code ? h("small", { class: "block refusal" }, task.code) : null, task.text ? h("small", { class: "block reason" }, task.text) : null] },
      { name: "Took", class: "digits", cell: (task) => (task.ended_unix ? format.seconds(Math.max(0, task.ended_unix - task.unix)) : task === facts.tasks[0] && offset === 0 && store.here.agent.running ? ago(task.unix) : format.DASH) },
    ], facts.tasks, { key: ({ task_id: id }) => id, cards: true, empty: "Nothing of the kind was asked." }),
    facts.total > PAGE ? h("div", { class: "pager" },
      button("Newer", { name: "left", small: true, key: "newer", off: offset === 0, on: () => { if (offset) choose({ offset: Math.max(0, offset - PAGE) }); } }),
      button("Older", { name: "right", small: true, key: "older", off: offset + PAGE >= facts.total, on: () => { if (offset + PAGE < facts.total) choose({ offset: offset + PAGE }); } }),
      h("span", { class: "note" }, `${offset + 1} to ${Math.min(offset + PAGE, facts.total)} of ${format.count(facts.total)}`)) : null)];
}

function answer(task) {
  if (task.outcome) return badge(task.outcome);
  return store.here.agent.running && store.here.agent.last_task === task.task_id ? badge("open", "under way") : badge("dropped", "not ended");
}

function settings(task) {
  const entries = Object.entries(task.settings);
  if (entries.length === 0) return null;
  return folded(`settings-${task.task_id}`, format.plural(entries.length, "setting"), () => h("dl", { class: "facts wide" }, entries.map(([name, value]) => h("div", { key: name }, h("dt", null, format.words(name)), h("dd", null, typeof value === "object" ? JSON.stringify(value) : String(value))))));
}
