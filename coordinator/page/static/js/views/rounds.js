// Round by round.

import { currentStudy } from "../current.js";
import { h } from "../dom.js";
import { card, head, table, trouble } from "../parts.js";
import { api, to } from "../routes.js";
import { asSent } from "../sent.js";
import { changed, data, store } from "../store.js";
import { roundColumns, unknown } from "./overview.js";

export const title = (route) => `Rounds of ${currentStudy(route)}`;

export function needs(route) {
  const study = currentStudy(route);
  return study ? [api.study(study)] : [];
}

export function view(route) {
  const name = currentStudy(route);
  const study = asSent(data(api.study(name)));
  if (!study) return unknown(name);
  const ui = store.ui.rounds ?? (store.ui.rounds = { by: "number", direction: -1 });
  const rounds = [...study.rounds].sort((a, b) => ui.direction * ((a[ui.by] ?? -1) - (b[ui.by] ?? -1)) || b.number - a.number);
  const failed = study.rounds.filter(({ state }) => state === "failed");
  return [
    head("Rounds", { over: h("a", { href: to.overview(name) }, name), state: study.state, below: `${study.rounds_completed} of ${study.rounds_planned} committed` }),
    failed.length ? trouble("warn", `${failed.length === 1 ? "One round has" : `${failed.length} rounds have`} failed`, h("p", null, `Round ${failed.at(-1).number}: ${(failed.at(-1).reason || "the quorum was not reached").replace(/\.$/, "")}. The model stayed as it was.`)) : null,
    card("All rounds", { id: "all-rounds" }, table("All rounds of the study", roundColumns(study), rounds, { key: ({ number }) => number, empty: "No round has been opened yet.",
      sort: { by: ui.by, direction: ui.direction, choose: (by) => { ui.direction = ui.by === by ? -ui.direction : -1; ui.by = by; changed(); } } })),
  ];
}
