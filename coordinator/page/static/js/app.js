// The operator page: what frames its views, and which views there are.

import { signOut, token } from "./api.js";
import { currentStudy } from "./current.js";
import { toast } from "./dialog.js";
import { signedIn } from "./dialogs.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./icons.js";
import { announceAlerts } from "./notify.js";
import { button, wordOf } from "./parts.js";
import { parse, to } from "./routes.js";
import * as shell from "./shell.js";
import { changed, store } from "./store.js";
import * as alerts from "./views/alerts.js";
import * as audit from "./views/audit.js";
import * as compare from "./views/compare.js";
import * as cost from "./views/cost.js";
import * as logs from "./views/logs.js";
import * as overview from "./views/overview.js";
import * as round from "./views/round.js";
import * as rounds from "./views/rounds.js";
import * as silo from "./views/silo.js";
import * as silos from "./views/silos.js";
import * as studies from "./views/studies.js";
import * as wall from "./views/wall.js";

const PLACES = [["overview", "Overview"], ["rounds", "Rounds"], ["silos", "Silos"], ["cost", "Cost"], ["audit", "Audit"], ["studies", "Studies"]];
const BELONGS = { compare: "studies", logs: "audit", round: "rounds", silo: "silos" };
const VIEWS = { alerts, audit, compare, cost, logs, overview, round, rounds, silo, silos, studies, wall };
const NEEDS_HELP = ["late", "away", "away by policy", "silent"];

function frame(route, federation, content) {
  if (route.study && route.view !== "wall") store.ui.study = route.study;
  document.documentElement.classList.toggle("on-wall", route.view === "wall");
  if (route.view === "wall") return h("main", { id: "main", key: "wall", class: "wall" }, content());
  return shell.framed(route, { bar: bar(route, federation), side: side(route, federation), above: strip(route, federation), content });
}

function bar(route, federation) {
  return [
    shell.brand(federation.federation, federation.address, `semisilo, federation ${federation.federation}: overview`),
    connection(federation),
    h("div", { class: "bar-tools" },
      federation.read_only ? null : bell(route, federation),
      h("a", { class: "button bare wall-link", key: "wall", href: to.wall(route.study), "aria-label": "Screen for a wall", title: "Screen for a wall: large letters, no controls" }, icon("wall", 18)),
      federation.read_only ? h("span", { class: "readonly" }, "read only") : token()
        ? button("Sign out", { name: "key", tone: "bare", key: "out", label: "Sign out", on: () => { signOut(); toast("Signed out: this tab can only watch."); changed(); } })
        : button("Sign in", { name: "key", tone: "bare", key: "in", label: "Sign in", on: login }),
      shell.themeButton()),
  ];
}

function bell(route, federation) {
  const pressing = federation.alerts.filter(({ severity }) => severity !== "info");
  const words = pressing.length ? `${format.plural(pressing.length, "thing")} ${pressing.length === 1 ? "needs" : "need"} a person` : "Nothing needs a person";
  return h("a", { class: "button bare bell", key: "bell", href: to.alerts(), "aria-label": words, title: words, "aria-current": route.view === "alerts" ? "page" : null }, icon("bell", 18),
    pressing.length ? h("span", { class: `bell-count ${pressing.some(({ severity }) => severity === "critical") ? "bad" : "warn"}`, "aria-hidden": "true" }, pressing.length) : null);
}

const MOST_IN_STRIP = 2;

/** On every view, that a hospital is off or that nothing goes on, with what to do; the overview has it at length. */
function strip(route, federation) {
  if (["alerts", "overview", "silo"].includes(route.view)) return null;
  const pressing = federation.alerts.filter(({ severity, kind }) => severity === "critical" || kind === "silo_silent");
  if (pressing.length === 0) return null;
  return h("div", { class: "strip-alerts", key: "strip" }, pressing.slice(0, MOST_IN_STRIP).map((alert) => h("p", { key: alert.id, class: alert.severity === "critical" ? "bad" : "warn" }, icon("warning", 18),
    h("span", null, h("strong", null, `${alert.title}. `), alert.remedy))),
  pressing.length > MOST_IN_STRIP ? h("p", { key: "more" }, h("a", { href: to.alerts() }, `All ${pressing.length}`)) : null);
}

function side(route, federation) {
  const study = currentStudy(route);
  const here = BELONGS[route.view] ?? (VIEWS[route.view] ? route.view : "overview");
  const shown = federation.studies.find(({ name }) => name === study);
  const attention = federation.silos.filter(({ state, refusal }) => refusal || NEEDS_HELP.includes(state)).length;
  return [
    federation.studies.length > 1 ? h("label", { class: "study-choice" }, h("span", null, "Study"), h("select", { prop: { value: study ?? "" }, on: { change: (event) => chooseStudy(route, event.target.value) } }, federation.studies.map(({ name, state }) => h("option", { key: name, value: name }, `${name} (${wordOf(state)})`))))
      : shown ? h("p", { class: "study-choice" }, h("span", null, "Study"), h("strong", null, shown.name)) : null,
    h("ul", null, PLACES.map(([name, words]) => {
      if (name === "rounds" && !study) return null;
      const href = name === "overview" ? to.overview(study) : name === "rounds" ? to.rounds(study) : name === "cost" ? to.cost(study) : to[name]();
      return h("li", { key: name, class: `place-${name}` }, shell.placeLink({ href, here: here === name, picture: name, words, count: name === "silos" ? attention : 0,
        title: `${format.plural(attention, "silo")} late, away, silent or refusing`, what: "late, away, silent or refusing" }));
    })),
    h("p", { class: "side-foot" }, `semisilo ${federation.version}`),
  ];
}

function chooseStudy(route, name) {
  store.ui.study = name;
  if (route.view === "rounds" || route.view === "round") location.hash = to.rounds(name);
  else if (route.view === "cost") location.hash = to.cost(name);
  else if (route.view === "overview" || route.view === "studies") location.hash = to.overview(name);
  changed();
}

const OVER = ["completed", "failed", "stopped"];

function connection({ serving, read_only: readOnly, studies }) {
  const state = store.connection;
  if (state === "lost") return shell.connection("bad", "not connected", "The coordinator does not answer.");
  if (state === "polling") return shell.connection("warn", "every 5 s", "The live stream is interrupted; the page polls every five seconds.");
  if (state === "connecting") return shell.connection("idle", "connecting", "");
  if (serving) return shell.connection("good", "live", "Changes appear at once.");
  const words = !readOnly ? "not serving" : studies.every(({ state }) => OVER.includes(state)) ? "finished study" : "as recorded";
  return shell.connection("idle", words, "The page shows the current ledger.");
}

/** Important changes only: a study's state, a committed round, silos that fall silent, the connection. */
const noted = (federation) => ({
  connection: store.connection === "lost" ? "lost" : "there",
  studies: Object.fromEntries(federation.studies.map(({ name, state, round: number }) => [name, { state, number }])),
  silos: Object.fromEntries(federation.silos.map(({ name, state }) => [name, [...NEEDS_HELP, "revoked", "left", "set aside"].includes(state) ? state : "here"])),
});

function said(before, after) {
  const lines = [];
  if (before.connection !== after.connection) lines.push(after.connection === "lost" ? "Not connected to the coordinator." : "Connected again.");
  for (const [name, { state, number }] of Object.entries(after.studies)) {
    const old = before.studies[name];
    if (old && old.state !== state) lines.push(`Study ${name}: ${wordOf(state)}.`);
    else if (old && number > old.number) lines.push(`Study ${name}: round ${number} begins.`);
  }
  const changedSilos = Object.entries(after.silos).filter(([name, state]) => name in before.silos && before.silos[name] !== state);
  if (changedSilos.length > 3) lines.push(`${changedSilos.length} silos have changed their state.`);
  else for (const [name, state] of changedSilos) lines.push(`Silo ${name}: ${state === "here" ? "is back" : wordOf(state)}.`);
  return lines;
}

async function login() {
  if (await signedIn()) toast("Signed in: this tab can act.");
  changed();
}

/** "#/login" is no view: it asks for the token over the overview. */
function arriving(route) {
  if (route.view !== "login") return route;
  history.replaceState(null, "", "#/");
  login();
  return parse("");
}

function drawn(route, federation) {
  if (route.view === "wall") return;
  announceAlerts(federation.federation, federation.alerts, (alert) => { location.hash = alert.silo ? to.silo(alert.silo) : alert.study ? to.overview(alert.study) : to.alerts(); });
}

shell.run({ views: VIEWS, facts: () => store.federation, frame, place: ({ federation }) => federation, noted, said, arriving, drawn });
