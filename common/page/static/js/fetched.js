// What was fetched from whom the page asks, and whose clock counts.

/** path -> {data, error, ...}: what was fetched last; `store.js` of each side puts it here. */
export const resources = new Map();

let skew = 0; // the other clock minus ours, in seconds

/** Takes the time that an answer says it is, in Unix seconds. */
export function setClock(unix) {
  if (typeof unix === "number") skew = unix - Date.now() / 1000;
}

/** The time of whom the page asks, in Unix seconds. */
export const now = () => Date.now() / 1000 + skew;

/** What was fetched from a path, or null. */
export const data = (path) => resources.get(path)?.data ?? null;

export const errorOf = (path) => resources.get(path)?.error ?? null;

/** Forgets all but these paths where there are more than `most`. */
export function forgetAllBut(paths, most) {
  if (resources.size > most) for (const path of [...resources.keys()]) if (!paths.includes(path)) resources.delete(path);
}
