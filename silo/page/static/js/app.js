// The shell: navigation, connection, theme, sign-in; and which view is drawn.

import { signOut, token } from "./api.js";
import { signedIn } from "./actions.js";
import { chooseNext, theme, themeWord } from "./colours.js";
import { toast } from "./dialog.js";
import { h, render } from "./dom.js";
import * as format from "./format.js";
import { icon, logo } from "./icons.js";
import { button, since, tick, trouble } from "./parts.js";
import { parse, to } from "./routes.js";
import { changed, invalidate, now, refreshAll, start, store } from "./store.js";
import * as asked from "./views/asked.js";
import * as left from "./views/left.js";
import * as overview from "./views/overview.js";
import * as rules from "./views/rules.js";
import * as studies from "./views/studies.js";
import * as study from "./views/study.js";
import * as trust from "./views/trust.js";

const VIEWS = { asked, left, overview, rules, studies, study, trust };
const PLACES = [["overview", "Overview", "overview"], ["studies", "Studies", "studies"], ["left", "What left", "cost"], ["asked", "Asked", "audit"], ["rules", "Rules", "clock"], ["trust", "Trust", "key"]];

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
  const { here } = store;
  const shell = document.getElementById("shell");
  if (!here) {
    render(shell, h("main", { id: "main", class: "alone", key: "alone" }, store.connection === "lost"
      ? trouble("warn", "The page cannot be reached", h("p", null, "Is it running? ", h("code", null, "silo page"), ". It is asked again every few seconds."))
      : h("p", { class: "loading" }, "Loading …")));
    return;
  }
  const view = current();
  render(shell, bar(here), h("div", { class: "body", key: "body" }, side(here),
    h("main", { id: "main", key: "main", class: `main view-${route.view}` }, banner(), h("div", { class: "view", key: JSON.stringify([route.view, route.study ?? null]) }, view.view(route)))));
  document.title = `${view.title(route)} · ${here.silo || "silo"} · semisilo`;
  announce(here);
  arrive();
}

// Shell ----------------------------------------------------------------------------------------------------------------

function bar(here) {
  const name = here.silo || "not enrolled";
  return h("header", { class: "bar-top", key: "top" },
    h("a", { class: "brand", href: "#/", "aria-label": `semisilo, silo ${name}: overview` }, logo(), h("span", { class: "brand-words" }, h("span", { class: "brand-name" }, name), h("span", { class: "brand-place" }, here.federation ? `silo of ${here.federation}` : "silo"))),
    connection(here),
    h("div", { class: "bar-tools" },
      token() ? button("Sign out", { name: "key", tone: "bare", key: "out", label: "Sign out", on: () => { signOut(); toast("Signed out: this tab can only look."); invalidate(); changed(); } })
        : button("Sign in", { name: "key", tone: "bare", key: "in", label: "Sign in", on: login }),
      h("button", { type: "button", class: "button bare", key: "theme", "aria-label": `Colours: ${themeWord()}. Change`, title: `Colours: ${themeWord()}`, on: { click: () => { chooseNext(); draw(); } } }, icon({ light: "sun", dark: "moon" }[theme()] ?? "auto", 18))));
}

async function login() {
  if (await signedIn()) toast("Signed in: this tab can decide.");
  changed();
}

function side(here) {
  const at = route.view === "study" ? "studies" : VIEWS[route.view] ? route.view : "overview";
  return h("nav", { class: "side", key: "side", "aria-label": "Views" },
    h("ul", null, PLACES.map(([name, words, picture]) => h("li", { key: name, class: `place-${name}-of-silo` },
      h("a", { href: to[name](), "aria-current": at === name ? "page" : null }, icon(picture, 20), h("span", null, words),
        name === "studies" && here.waiting.length ? h("span", { class: "count", title: `${format.plural(here.waiting.length, "study", "studies")} to be decided` }, h("span", { class: "unseen" }, ", to be decided: "), here.waiting.length) : null)))),
    h("p", { class: "side-foot" }, `semisilo ${here.version}`));
}

function connection(here) {
  const [tone, words, meaning] = store.connection === "lost" ? ["bad", "not connected", "The page does not answer."]
    : here.agent.running ? ["good", "running", "silo join runs; this page follows it."] : ["idle", "not running", "The silo's folder is shown as it stands."];
  return h("p", { class: `connection ${tone}`, title: meaning, key: "connection" }, h("span", { class: "pulse", "aria-hidden": "true" }), h("span", null, words));
}

function banner() {
  if (store.connection !== "lost") return null;
  return h("div", { class: "lost", key: "lost" }, icon("warning", 20), h("p", null, h("strong", null, `Not connected since ${format.clock(store.heard / 1000)}`), " (", since(store.heard / 1000 + now() - Date.now() / 1000), "). What you see is from then; is ", h("code", null, "silo page"), " running?"),
    button("Try now", { small: true, on: refreshAll }));
}

// What is said to those who do not see it ------------------------------------------------------------------------------

let said = null;

/** Important changes only: whether the agent runs, the round, studies to be decided, the connection. */
function announce(here) {
  const facts = { lost: store.connection === "lost", running: here.agent.running, study: here.agent.study, round: here.agent.round, waiting: here.waiting.join(", ") };
  const before = said;
  said = facts;
  if (before === null) return;
  const lines = [];
  if (before.lost !== facts.lost) lines.push(facts.lost ? "Not connected to the page." : "Connected again.");
  if (before.running !== facts.running) lines.push(facts.running ? "silo join runs." : "silo join does not run any more.");
  if (facts.round !== before.round && facts.round && facts.study) lines.push(`Study ${facts.study}: round ${facts.round}.`);
  if (facts.waiting !== before.waiting && facts.waiting) lines.push(`To be decided: ${facts.waiting}.`);
  if (lines.length) document.getElementById("said").textContent = lines.join(" ");
}

// Going from view to view ----------------------------------------------------------------------------------------------

let arrived = true;

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  route = parse(location.hash);
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

start(() => (store.here ? current().needs(route) : []), draw);
setInterval(tick, 1000);
draw();
