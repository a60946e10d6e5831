// Words that do not flicker: a silo between two tasks, or whose call is late by a moment, keeps its state until another
// one has held for a while. What is good or final shows at once.

const HOLD = new Map([["connected", 4_000], ["away", 6_000]]);
const CALM = new Set(["connected", "working"]);

const shown = new Map(); // name -> {state, doing, next, since}

/** The silos as they are to be shown at a moment (ms), and whether one of them is about to change. */
export function steadied(silos, at) {
  let waits = false;
  const steady = silos.map((silo) => {
    const known = shown.get(silo.name);
    const hold = HOLD.get(silo.state);
    const calmer = known && CALM.has(known.state) && known.state !== silo.state && hold !== undefined;
    if (!calmer) {
      shown.set(silo.name, { state: silo.state, doing: silo.doing, next: null, since: 0 });
      return silo;
    }
    if (known.next !== silo.state) Object.assign(known, { next: silo.state, since: at });
    if (at - known.since >= hold) {
      shown.set(silo.name, { state: silo.state, doing: silo.doing, next: null, since: 0 });
      return silo;
    }
    waits = true;
    return { ...silo, state: known.state, doing: known.doing };
  });
  return { steady, waits };
}
