// The page of a silo: what frames its views, and which views there are.

import { signedIn } from "./actions.js";
import { signOut, token } from "./api.js";
import { toast } from "./dialog.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { button } from "./parts.js";
import { to } from "./routes.js";
import * as shell from "./shell.js";
import { changed, invalidate, store } from "./store.js";
import * as asked from "./views/asked.js";
import * as left from "./views/left.js";
import * as overview from "./views/overview.js";
import * as rules from "./views/rules.js";
import * as studies from "./views/studies.js";
import * as study from "./views/study.js";
import * as trust from "./views/trust.js";

const VIEWS = { asked, left, overview, rules, studies, study, trust };
const PLACES = [["overview", "Overview", "overview"], ["studies", "Studies", "studies"], ["left", "What left", "cost"], ["asked", "Asked", "audit"], ["rules", "Rules", "clock"], ["trust", "Trust", "key"]];

const frame = (route, here, content) => shell.framed(route, { bar: bar(here), side: side(route, here), content });

function bar(here) {
  const name = here.silo || "not enrolled";
  return [
    shell.brand(name, here.federation ? `silo of ${here.federation}` : "silo", `semisilo, silo ${name}: overview`),
    connection(here),
    h("div", { class: "bar-tools" },
      token() ? button("Sign out", { name: "key", tone: "bare", key: "out", label: "Sign out", on: () => { signOut(); toast("Signed out: this tab can only look."); invalidate(); changed(); } })
        : button("Sign in", { name: "key", tone: "bare", key: "in", label: "Sign in", on: login }),
      shell.themeButton()),
  ];
}

function side(route, here) {
  const at = route.view === "study" ? "studies" : VIEWS[route.view] ? route.view : "overview";
  return [
    h("ul", null, PLACES.map(([name, words, picture]) => h("li", { key: name, class: `place-${name}-of-silo` }, shell.placeLink({
      href: to[name](), here: at === name, picture, words, count: name === "studies" ? here.waiting.length : 0,
      title: `${format.plural(here.waiting.length, "study", "studies")} to be decided`, what: "to be decided" })))),
    h("p", { class: "side-foot" }, `semisilo ${here.version}`),
  ];
}

function connection(here) {
  if (store.connection === "lost") return shell.connection("bad", "not connected", "The page does not answer.");
  return here.agent.running ? shell.connection("good", "running", "silo join runs; this page follows it.")
    : shell.connection("idle", "not running", "The silo's folder is shown as it stands.");
}

/** Important changes only: whether the agent runs, the round, studies to be decided, the connection. */
const noted = (here) => ({ lost: store.connection === "lost", running: here.agent.running, study: here.agent.study, round: here.agent.round, waiting: here.waiting.join(", ") });

function said(before, after) {
  const lines = [];
  if (before.lost !== after.lost) lines.push(after.lost ? "Not connected to the page." : "Connected again.");
  if (before.running !== after.running) lines.push(after.running ? "silo join runs." : "silo join does not run any more.");
  if (after.round !== before.round && after.round && after.study) lines.push(`Study ${after.study}: round ${after.round}.`);
  if (after.waiting !== before.waiting && after.waiting) lines.push(`To be decided: ${after.waiting}.`);
  return lines;
}

async function login() {
  if (await signedIn()) toast("Signed in: this tab can decide.");
  changed();
}

shell.run({ views: VIEWS, facts: () => store.here, frame, place: ({ silo }) => silo || "silo", noted, said });
