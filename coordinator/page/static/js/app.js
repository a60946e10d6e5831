// The shell: navigation, connection, theme, operator; and which view is drawn.

import { signOut, token } from "./api.js";
import { chooseNext, theme, themeWord } from "./colours.js";
import { currentStudy } from "./current.js";
import { signedIn, toast } from "./dialogs.js";
import { h, render } from "./dom.js";
import * as format from "./format.js";
import { icon, logo } from "./icons.js";
import { button, since, tick, trouble, wordOf } from "./parts.js";
import { parse, to } from "./routes.js";
import { announceAlerts } from "./notify.js";
import { changed, now, refreshAll, start, store } from "./store.js";
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

const VIEWS = { alerts, audit, compare, cost, logs, overview, round, rounds, silo, silos, studies, wall };

let route = parse(location.hash);
let waiting = false;

const current = () => VIEWS[route.view] ?? overview;

function draw() {
  if (waiting) return;
  waiting = true;
  const later = document.hidden ? (then) => setTimeout(then, 200) : requestAnimationFrame;
  later(() => {
    waiting = false;
    drawNow();
  });
}

function drawNow() {
  const { federation } = store;
  if (route.study && route.view !== "wall") store.ui.study = route.study;
  const shell = document.getElementById("shell");
  if (!federation) {
    render(shell, h("main", { id: "main", class: "alone", key: "alone" }, store.connection === "lost"
      ? trouble("warn", "The coordinator cannot be reached", h("p", null, "Is it running? ", h("code", null, "coordinator serve"), ". This page tries again every few seconds."))
      : h("p", { class: "loading" }, "Loading …")));
    return;
  }
  const view = current();
  document.documentElement.classList.toggle("on-wall", route.view === "wall");
  if (route.view === "wall") {
    render(shell, h("main", { id: "main", key: "wall", class: "wall" }, view.view(route)));
    document.title = `${view.title(route)} · ${federation.federation} · semisilo`;
    announce(federation);
    arrive();
    return;
  }
  render(shell, bar(federation), h("div", { class: "body", key: "body" }, side(federation),
    h("main", { id: "main", key: "main", class: `main view-${route.view}` }, banner(), strip(federation), h("div", { class: "view", key: viewKey() }, view.view(route)))));
  document.title = `${view.title(route)} · ${federation.federation} · semisilo`;
  announce(federation);
  announceAlerts(federation.federation, federation.alerts, (alert) => { location.hash = alert.silo ? to.silo(alert.silo) : alert.study ? to.overview(alert.study) : to.alerts(); });
  arrive();
}

/** Another view is another tree: nothing of the old one is used again. */
const viewKey = () => JSON.stringify([route.view, route.study ?? null, route.number ?? null, route.silo ?? null, route.view === "compare"]);

// Shell ----------------------------------------------------------------------------------------------------------------

const PLACES = [["overview", "Overview"], ["rounds", "Rounds"], ["silos", "Silos"], ["cost", "Cost"], ["audit", "Audit"], ["studies", "Studies"]];
const BELONGS = { compare: "studies", logs: "audit", round: "rounds", silo: "silos" };

function bar(federation) {
  const signed = Boolean(token());
  return h("header", { class: "bar-top", key: "top" },
    h("a", { class: "brand", href: "#/", "aria-label": `semisilo, federation ${federation.federation}: overview` }, logo(), h("span", { class: "brand-words" }, h("span", { class: "brand-name" }, federation.federation), h("span", { class: "brand-place" }, federation.address))),
    connection(),
    h("div", { class: "bar-tools" },
      federation.read_only ? null : bell(federation),
      h("a", { class: "button bare wall-link", key: "wall", href: to.wall(route.study), "aria-label": "Screen for a wall", title: "Screen for a wall: large letters, no controls" }, icon("wall", 18)),
      federation.read_only ? h("span", { class: "readonly" }, "read only") : signed
        ? button("Sign out", { name: "key", tone: "bare", key: "out", label: "Sign out", on: () => { signOut(); toast("Signed out: this tab can only watch."); changed(); } })
        : button("Sign in", { name: "key", tone: "bare", key: "in", label: "Sign in", on: login }),
      h("button", { type: "button", class: "button bare", key: "theme", "aria-label": `Colours: ${themeWord()}. Change`, title: `Colours: ${themeWord()}`, on: { click: nextTheme } }, icon({ light: "sun", dark: "moon" }[theme()] ?? "auto", 18))));
}

function bell(federation) {
  const pressing = federation.alerts.filter(({ severity }) => severity !== "info");
  const words = pressing.length ? `${format.plural(pressing.length, "thing")} ${pressing.length === 1 ? "needs" : "need"} a person` : "Nothing needs a person";
  return h("a", { class: "button bare bell", key: "bell", href: to.alerts(), "aria-label": words, title: words, "aria-current": route.view === "alerts" ? "page" : null }, icon("bell", 18),
    pressing.length ? h("span", { class: `bell-count ${pressing.some(({ severity }) => severity === "critical") ? "bad" : "warn"}`, "aria-hidden": "true" }, pressing.length) : null);
}

const MOST_IN_STRIP = 2;

/** On every view, that a hospital is off or that nothing goes on, with what to do; the overview has it at length. */
function strip(federation) {
  if (["alerts", "overview", "silo"].includes(route.view)) return null;
  const pressing = federation.alerts.filter(({ severity, kind }) => severity === "critical" || kind === "silo_silent");
  if (pressing.length === 0) return null;
  return h("div", { class: "strip-alerts", key: "strip" }, pressing.slice(0, MOST_IN_STRIP).map((alert) => h("p", { key: alert.id, class: alert.severity === "critical" ? "bad" : "warn" }, icon("warning", 18),
    h("span", null, h("strong", null, `${alert.title}. `), alert.remedy))),
  pressing.length > MOST_IN_STRIP ? h("p", { key: "more" }, h("a", { href: to.alerts() }, `All ${pressing.length}`)) : null);
}

async function login() {
  if (await signedIn()) toast("Signed in: this tab can act.");
  changed();
}

function side(federation) {
  const study = currentStudy(route);
  const here = BELONGS[route.view] ?? (VIEWS[route.view] ? route.view : "overview");
  const shown = federation.studies.find(({ name }) => name === study);
  const attention = federation.silos.filter(({ state, refusal }) => refusal || ["late", "away", "away by policy", "silent"].includes(state)).length;
  return h("nav", { class: "side", key: "side", "aria-label": "Views" },
    federation.studies.length > 1 ? h("label", { class: "study-choice" }, h("span", null, "Study"), h("select", { prop: { value: study ?? "" }, on: { change: (event) => chooseStudy(event.target.value) } }, federation.studies.map(({ name, state }) => h("option", { key: name, value: name }, `${name} (${wordOf(state)})`))))
      : shown ? h("p", { class: "study-choice" }, h("span", null, "Study"), h("strong", null, shown.name)) : null,
    h("ul", null, PLACES.map(([name, words]) => {
      if (name === "rounds" && !study) return null;
      const href = name === "overview" ? to.overview(study) : name === "rounds" ? to.rounds(study) : name === "cost" ? to.cost(study) : to[name]();
      return h("li", { key: name, class: `place-${name}` }, h("a", { href, "aria-current": here === name ? "page" : null }, icon(name, 20), h("span", null, words),
        name === "silos" && attention ? h("span", { class: "count", title: `${format.plural(attention, "silo")} late, away, silent or refusing` }, h("span", { class: "unseen" }, ", late, away, silent or refusing: "), attention) : null));
    })),
    h("p", { class: "side-foot" }, `semisilo ${federation.version}`));
}

function chooseStudy(name) {
  store.ui.study = name;
  if (route.view === "rounds" || route.view === "round") location.hash = to.rounds(name);
  else if (route.view === "cost") location.hash = to.cost(name);
  else if (route.view === "overview" || route.view === "studies") location.hash = to.overview(name);
  changed();
}

function connection() {
  const { federation, connection: state } = store;
  const [tone, words, meaning] = state === "lost" ? ["bad", "not connected", "The coordinator does not answer."]
    : state === "polling" ? ["warn", "every 5 s", "The live stream is interrupted; the page polls every five seconds."]
      : state === "connecting" ? ["idle", "connecting", ""]
        : federation.serving ? ["good", "live", "Changes appear at once."]
          : ["idle", federation.read_only ? "finished study" : "not serving", "The page shows the current ledger."];
  return h("p", { class: `connection ${tone}`, title: meaning, key: "connection" }, h("span", { class: "pulse", "aria-hidden": "true" }), h("span", null, words));
}

function banner() {
  if (store.connection !== "lost") return null;
  return h("div", { class: "lost", key: "lost" }, icon("warning", 20), h("p", null, h("strong", null, `Not connected since ${format.clock(store.heard / 1000)}`), " (", since(store.heard / 1000 + now() - Date.now() / 1000), "). What you see is from then. The page tries again every few seconds; is ", h("code", null, "coordinator serve"), " running?"),
    button("Try now", { small: true, on: refreshAll }));
}

// Theme ----------------------------------------------------------------------------------------------------------------

function nextTheme() {
  chooseNext();
  draw();
}

// What is said to those who do not see it ------------------------------------------------------------------------------

let said = null;

/** Important changes only: a study's state, a committed round, silos that fall silent, the connection. */
function announce(federation) {
  const facts = {
    connection: store.connection === "lost" ? "lost" : "there",
    studies: Object.fromEntries(federation.studies.map(({ name, state, round: number }) => [name, { state, number }])),
    silos: Object.fromEntries(federation.silos.map(({ name, state }) => [name, ["late", "away", "away by policy", "silent", "revoked", "left", "set aside"].includes(state) ? state : "here"])),
  };
  const before = said;
  said = facts;
  if (before === null) return;
  const lines = [];
  if (before.connection !== facts.connection) lines.push(facts.connection === "lost" ? "Not connected to the coordinator." : "Connected again.");
  for (const [name, { state, number }] of Object.entries(facts.studies)) {
    const old = before.studies[name];
    if (old && old.state !== state) lines.push(`Study ${name}: ${wordOf(state)}.`);
    else if (old && number > old.number) lines.push(`Study ${name}: round ${number} begins.`);
  }
  const changedSilos = Object.entries(facts.silos).filter(([name, state]) => name in before.silos && before.silos[name] !== state);
  if (changedSilos.length > 3) lines.push(`${changedSilos.length} silos have changed their state.`);
  else for (const [name, state] of changedSilos) lines.push(`Silo ${name}: ${state === "here" ? "is back" : wordOf(state)}.`);
  if (lines.length) document.getElementById("said").textContent = lines.join(" ");
}

// Going from view to view ----------------------------------------------------------------------------------------------

let arrived = true;

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  const next = parse(location.hash);
  if (next.view === "login") {
    history.replaceState(null, "", "#/");
    route = parse("");
    login();
  } else route = next;
  arrived = false;
  changed();
});

/** After a change of view, focus goes to its heading: that is where one reads on. */
function arrive() {
  if (arrived) return;
  arrived = true;
  scrollTo(0, 0);
  document.getElementById("title")?.focus({ preventScroll: true });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("title")?.focus();
});

start(() => (store.federation ? current().needs(route) : []), draw);
setInterval(tick, 1000);
if (route.view === "login") login();
draw();
