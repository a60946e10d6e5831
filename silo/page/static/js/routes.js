// Addresses within the page (after #) and the paths of the interface.

import { part, query, wordsOf } from "./addresses.js";

export const to = {
  overview: () => "#/",
  studies: () => "#/studies",
  study: (study) => `#/study/${part(study)}`,
  left: () => "#/left",
  asked: () => "#/asked",
  rules: () => "#/rules",
  trust: () => "#/trust",
};

export const api = {
  studies: () => "/api/studies",
  study: (study) => `/api/studies/${part(study)}`,
  left: () => "/api/left",
  disclosures: (filter) => query("/api/disclosures", filter),
  disclosuresFile: (form, filter) => query(`/api/disclosures.${form}`, filter),
  asked: (filter) => query("/api/asked", filter),
  evaluations: () => "/api/evaluations",
  policy: () => "/api/policy",
  trust: () => "/api/trust",
};

/** {view, study} of an address; unknown ones are the overview. */
export function parse(hash) {
  const words = wordsOf(hash);
  const [first, second] = words;
  if (first === "study" && second) return { view: "study", study: second };
  if (["studies", "left", "asked", "rules", "trust"].includes(first)) return { view: first };
  return { view: "overview" };
}
