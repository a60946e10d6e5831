// Which study is looked at: the one in the address, else the one looked at last, else the one that runs, else the last.

import { store } from "./store.js";

const ACTIVE = ["running", "paused", "waiting", "preparing"];

export function currentStudy(route) {
  if (route?.study) return route.study;
  const studies = store.federation?.studies ?? [];
  if (store.ui.study && studies.some(({ name }) => name === store.ui.study)) return store.ui.study;
  const active = studies.find(({ state }) => ACTIVE.includes(state));
  if (active) return active.name;
  const begun = studies.filter(({ state }) => state !== "queued");
  return (begun.at(-1) ?? studies[0])?.name ?? null;
}

/** Rounds whose model was measured on test images, in order; round 0 is the preparation. */
export const measured = (study) => study.rounds.filter((round) => round.state === "completed" && typeof round.test_score === "number");

/** What a study is drawn and judged by is plain accuracy, which then needs no line of its own. */
export const byAccuracy = (study) => study.choice.measure === "accuracy";

/** There is an accuracy beside the study's measure; where images may have several labels or none there is none. */
export const withAccuracy = (study) => !byAccuracy(study) && study.rounds.some(({ accuracy }) => typeof accuracy === "number");

/** What stands where the study's measure on the test images would; another word once none will come. */
export function notMeasured(study) {
  if (study.rounds_completed > 0 && measured(study).length === 0) return byAccuracy(study) ? "no test images" : "no test images that give it";
  return study.ended_unix ? "not measured" : "not measured yet";
}

/** The study's measure at the beginning of a line: "Balanced accuracy". */
export const measureHeading = (study) => study.choice.title[0].toUpperCase() + study.choice.title.slice(1);
