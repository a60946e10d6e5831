// What the page knows, and how it stays current: what is shown is asked for every few seconds. The page is on the same
// machine as the silo, so asking costs next to nothing.

import { get, signOut, token } from "./api.js";
import { forgetAllBut, resources, setClock } from "./fetched.js";

const POLL = 2_500;
const HIDDEN_POLL = 20_000;
const MOST_KEPT = 30;
export const HERE = "/api/silo";

export { data, errorOf, now } from "./fetched.js";

export const store = {
  /** What /api/silo says; null before it was heard. */
  here: null,
  /** "connecting", "live" or "lost". */
  connection: "connecting",
  /** When the page last answered, in ms of this machine's clock. */
  heard: 0,
  /** What a person chose on the page: filters, open details. Views own its keys. */
  ui: {},
};

let needs = () => [];
let onChange = () => {};

/** Something that is not from the silo has changed: draws anew, and fetches what is now needed. */
export function changed() {
  onChange();
  if (needs().some((path) => !resources.has(path))) refreshAll();
}

/** Begins: `wanted` returns the paths that the shown view needs, `draw` draws. */
export function start(wanted, draw) {
  needs = wanted;
  onChange = draw;
  refreshAll();
  addEventListener("online", refreshAll);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refreshAll(); });
}

/** After an action: nothing that was known holds any more. */
export function invalidate() {
  for (const path of [...resources.keys()]) if (!needs().includes(path)) resources.delete(path);
  refreshAll();
}

let busy = false;
let again = false;
let timer = null;

/** Fetches everything that is shown. */
export async function refreshAll() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  clearTimeout(timer);
  const begun = performance.now();
  const paths = [HERE, ...needs()];
  const answers = await Promise.all(paths.map(load));
  if (answers.includes("unreachable")) store.connection = "lost";
  forgetAllBut(paths, MOST_KEPT);
  busy = false;
  onChange();
  const missing = needs().some((path) => !resources.has(path)) && store.connection !== "lost";
  const pause = Math.max(document.hidden ? HIDDEN_POLL : POLL, 4 * (performance.now() - begun));
  timer = setTimeout(refreshAll, again || missing ? 0 : pause);
  again = false;
}

async function load(path) {
  const known = resources.get(path);
  try {
    const answer = await get(path, { signed: true });
    resources.set(path, { data: answer, error: null });
    if (path === HERE) {
      store.here = answer;
      setClock(answer.now_unix);
      if (token() && answer.revealed === false) signOut(); // the token was made anew meanwhile
    }
    store.heard = Date.now();
    store.connection = "live";
    return "fetched";
  } catch (error) {
    if (error.status === 0) return "unreachable";
    resources.set(path, { data: error.status >= 500 ? known?.data ?? null : null, error });
    return "refused";
  }
}
