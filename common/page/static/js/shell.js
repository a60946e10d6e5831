// The frame of a page, whichever side serves it: which view is drawn, the bar at the top, what stands where nobody
// answers, and how one goes from view to view. `app.js` of each side says what is its own.

import { chooseNext, theme, themeWord } from "./colours.js";
import { h, render } from "./dom.js";
import * as format from "./format.js";
import { icon, logo } from "./icons.js";
import { button, since, tick, trouble } from "./parts.js";
import { COMMAND, WHO } from "./place.js";
import { parse } from "./routes.js";
import { changed, now, refreshAll, start, store } from "./store.js";

let draw = () => {};

/**
 * Draws the page from now on.
 *
 * `views`: name -> {title(route), view(route), needs(route)}. `facts()`: what is known of whose page this is, null
 * before it was heard. `frame(route, facts, content)`: the page around what `content()` gives, as elements.
 * `place(facts)`: the words of the window's title. `noted(facts)`: what matters to those who do not see the page, and
 * `said(before, after)`: the lines that tell them of it. `arriving(route)`: may give another route in the place of this
 * one. `drawn(route, facts)`: called after each drawing.
 */
export function run({ views, facts, frame, place, noted, said, arriving = (route) => route, drawn = () => {} }) {
  let route = arriving(parse(location.hash));
  let waiting = false;
  let arrived = true;
  let before = null;
  let version = null;
  const current = () => views[route.view] ?? views.overview;

  draw = () => {
    if (waiting) return;
    waiting = true;
    const later = document.hidden ? (then) => setTimeout(then, 200) : requestAnimationFrame;
    later(() => {
      waiting = false;
      drawNow();
    });
  };

  function drawNow() {
    const found = facts();
    const shell = document.getElementById("shell");
    if (!found) {
      render(shell, h("main", { id: "main", class: "alone", key: "alone" }, store.connection === "lost"
        ? trouble("warn", `${WHO} cannot be reached`, h("p", null, "Is it running? ", h("code", null, COMMAND), ". This page tries again every few seconds."))
        : h("p", { class: "loading" }, "Loading …")));
      return;
    }
    if (isOutdated(found)) {
      location.reload();
      return;
    }
    const view = current();
    render(shell, frame(route, found, () => view.view(route)));
    document.title = `${view.title(route)} · ${place(found)} · semisilo`;
    const after = noted(found);
    const lines = before === null ? [] : said(before, after);
    if (lines.length) document.getElementById("said").textContent = lines.join(" ");
    before = after;
    drawn(route, found);
    arrive();
  }

  /** Whoever serves the page was upgraded while it was open, as on a wall for months: these scripts may not understand
   * what they are told from now on. A dialog is left to whoever types in it. */
  function isOutdated(found) {
    version ??= found.version;
    return found.version !== version && !document.querySelector("dialog[open]");
  }

  /** After a change of view, focus goes to its heading: that is where one reads on. */
  function arrive() {
    if (arrived) return;
    arrived = true;
    scrollTo(0, 0);
    document.getElementById("title")?.focus({ preventScroll: true });
  }

  addEventListener("hashchange", () => {
    if (location.hash === "#main") return;
    route = arriving(parse(location.hash));
    arrived = false;
    changed();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("title")?.focus();
  });
  start(() => (facts() ? current().needs(route) : []), draw);
  setInterval(tick, 1000);
  draw();
}

/** Bar, places, and a view below what is said above every view. Another view is another tree: nothing is used again. */
export const framed = (route, { bar, side, above = null, content }) => [
  h("header", { class: "bar-top", key: "top" }, bar),
  h("div", { class: "body", key: "body" }, h("nav", { class: "side", key: "side", "aria-label": "Views" }, side),
    h("main", { id: "main", key: "main", class: `main view-${route.view}` }, lost(), above,
      h("div", { class: "view", key: JSON.stringify({ ...route, studies: undefined }) }, content()))),
];

// Pieces of the frame --------------------------------------------------------------------------------------------------

/** Name and whereabouts at the left of the bar; `label` is what a screen reader says. */
export const brand = (name, whereabouts, label) => h("a", { class: "brand", href: "#/", "aria-label": label }, logo(),
  h("span", { class: "brand-words" }, h("span", { class: "brand-name" }, name), h("span", { class: "brand-place" }, whereabouts)));

/** How the page stands with whom it asks, in a word. */
export const connection = (tone, words, meaning) => h("p", { class: `connection ${tone}`, title: meaning, key: "connection" },
  h("span", { class: "pulse", "aria-hidden": "true" }), h("span", null, words));

/** Light, dark, or as the system. */
export const themeButton = () => h("button", { type: "button", class: "button bare", key: "theme", "aria-label": `Colours: ${themeWord()}. Change`, title: `Colours: ${themeWord()}`, on: { click: () => { chooseNext(); draw(); } } },
  icon({ light: "sun", dark: "moon" }[theme()] ?? "auto", 18));

/** A line at the side that leads to a view; `count` is how much there waits for a person, `what` says of what. */
export const placeLink = ({ href, here, picture, words, count = 0, title = "", what = "" }) => h("a", { href, "aria-current": here ? "page" : null }, icon(picture, 20), h("span", null, words),
  count ? h("span", { class: "count", title }, h("span", { class: "unseen" }, `, ${what}: `), count) : null);

/** Says that nobody answers, while nobody does. */
function lost() {
  if (store.connection !== "lost") return null;
  return h("div", { class: "lost", key: "lost" }, icon("warning", 20), h("p", null, h("strong", null, `Not connected since ${format.clock(store.heard / 1000)}`), " (", since(store.heard / 1000 + now() - Date.now() / 1000), "). What you see is from then. The page tries again every few seconds; is ", h("code", null, COMMAND), " running?"),
    button("Try now", { small: true, on: refreshAll }));
}
