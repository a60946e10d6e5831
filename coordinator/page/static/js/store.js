// What the page knows, and how it stays current: one stream says that something changed, and what is shown is fetched
// anew. When the stream breaks the page asks every five seconds, and says since when it hears nothing.

import { get } from "./api.js";
import { forgetAllBut, resources, setClock } from "./fetched.js";
import { steadied } from "./steady.js";

const POLL = 5_000;
const RETRY = 4_000;
const QUIET = 40_000; // longer without a word than this, the stream is doubted and the coordinator asked
const LEAST_GAP = 900;
const PROGRESS_EVERY = 2_000;
const MOST_KEPT = 40;

export { data, errorOf, now } from "./fetched.js";

export const store = {
  federation: null,
  /** "connecting", "live" (stream), "polling" (no stream, but answers) or "lost". */
  connection: "connecting",
  /** When the coordinator last answered or spoke, in ms of this machine's clock. */
  heard: 0,
  /** What the operator chose on the page: filters, sort orders, open details. Views own its keys. */
  ui: {},
};

let needs = () => [];
let onChange = () => {};
let revision = null;

/** Begins: `wanted` returns the paths that the shown view needs, `changed` draws. */
export function start(wanted, changed) {
  needs = wanted;
  onChange = changed;
  refresh(ALL);
  listen();
  setInterval(watch, POLL);
  setInterval(progress, PROGRESS_EVERY);
  addEventListener("online", () => { refresh(ALL); listen(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) watch(true); });
}

/** Draws after a change of `store.ui`, and fetches what the view now needs. */
export function changed() {
  onChange();
  refresh(MISSING);
}

const MISSING = 0; // what the view needs and has not got
const PROGRESS = 1; // and how far silos and tasks are
const ALL = 2;

/** Fetches everything that is shown. */
export function refreshAll() {
  refresh(ALL);
}

let busy = false;
let again = -1;
let notBefore = 0;

/** Calls that come while it runs are served after it, the widest of them. */
function refresh(level) {
  if (busy) again = Math.max(again, level);
  else run(level);
}

async function run(level) {
  busy = true;
  const begun = performance.now();
  if (level === ALL && begun < notBefore) await new Promise((done) => setTimeout(done, notBefore - begun));
  const paths = ["/api/federation", ...needs()];
  const asked = performance.now();
  const results = await Promise.all(paths.map((path) => load(path, level)));
  // A large study on a slow machine is asked for less often, so that the page never does nothing else.
  if (level === ALL) notBefore = performance.now() + Math.max(LEAST_GAP, 4 * (performance.now() - asked));
  if (results.includes("unreachable")) unreachable();
  forgetAllBut(paths, MOST_KEPT);
  busy = false;
  onChange();
  if (needs().some((path) => !resources.has(path)) && store.connection !== "lost") {
    run(MISSING); // what a view cannot do without comes before what is merely newer
    return;
  }
  const next = again;
  again = -1;
  if (next >= 0) run(next);
}

let looking = null;

/** A state that is about to change is looked at once more, though nothing new may be told until then. */
function lookAgain() {
  if (looking !== null) return;
  looking = setTimeout(() => {
    looking = null;
    refresh(PROGRESS);
  }, PROGRESS_EVERY);
}

const moves = (path) => path === "/api/federation" || path.includes("/rounds/");

async function load(path, level) {
  const known = resources.get(path);
  if (known && !known.stale && (level === MISSING || (level === PROGRESS && !moves(path)))) return "kept";
  try {
    const answer = await get(path);
    resources.set(path, { data: answer, error: null, stale: false });
    if (path === "/api/federation") {
      const { steady, waits } = steadied(answer.silos, Date.now());
      store.federation = { ...answer, silos: steady };
      if (waits) lookAgain();
      setClock(answer.now_unix);
    }
    heard();
    return "fetched";
  } catch (error) {
    if (error.status === 0) return "unreachable";
    resources.set(path, { data: error.status === 404 ? null : known?.data ?? null, error, stale: true });
    return "refused";
  }
}

/** After an action: fetch everything again, whatever the stream says. */
export function invalidate() {
  for (const resource of resources.values()) resource.stale = true;
  notBefore = 0;
  refresh(ALL);
}

function heard() {
  store.heard = Date.now();
  if (store.connection === "lost" || store.connection === "connecting") {
    store.connection = source?.readyState === EventSource.OPEN ? "live" : "polling";
    onChange();
  }
}

function unreachable() {
  if (store.connection !== "lost") {
    store.connection = "lost";
    revision = null;
    onChange();
  }
}

// The stream ------------------------------------------------------------------------------------------------------------

let source = null;
let retry = null;

function listen() {
  clearTimeout(retry);
  retry = null;
  source?.close();
  source = new EventSource("/api/stream");
  source.addEventListener("open", () => {
    store.connection = "live";
    heard();
    onChange();
  });
  source.addEventListener("state", (message) => {
    heard();
    let said;
    try {
      said = JSON.parse(message.data);
    } catch {
      return;
    }
    if (store.connection !== "live") store.connection = "live";
    if (said.live !== undefined && store.federation) store.federation = { ...store.federation, live: said.live };
    if (said.revision !== revision) {
      revision = said.revision;
      refresh(ALL);
    } else onChange();
  });
  source.addEventListener("error", () => {
    revision = null;
    if (store.connection === "live") {
      store.connection = "polling";
      onChange();
    }
    refresh(ALL); // tells whether the coordinator is gone or only the stream
    if (source.readyState === EventSource.CLOSED) {
      clearTimeout(retry);
      retry = setTimeout(listen, RETRY);
    }
  });
}

/** While somebody works, how far it is; nothing otherwise. */
function progress() {
  const { federation } = store;
  if (document.hidden || store.connection !== "live" || !federation?.serving) return;
  if (federation.silos.some(({ doing, state }) => doing || state === "late")) refresh(PROGRESS);
}

function watch(atOnce = false) {
  const quiet = Date.now() - store.heard;
  if (store.connection !== "live" || quiet > QUIET || atOnce) refresh(ALL);
  if (store.connection !== "live" && source?.readyState === EventSource.CLOSED && retry === null) listen();
}
