// Addresses within the page (after #) and the paths of the interface.

import { part, query, wordsOf } from "./addresses.js";

export const to = {
  overview: (study) => (study ? `#/study/${part(study)}` : "#/"),
  rounds: (study) => `#/study/${part(study)}/rounds`,
  round: (study, number) => `#/study/${part(study)}/round/${number}`,
  studies: () => "#/studies",
  silos: () => "#/silos",
  silo: (name) => `#/silo/${part(name)}`,
  cost: (study) => (study ? `#/cost/${part(study)}` : "#/cost"),
  audit: () => "#/audit",
  alerts: () => "#/alerts",
  logs: () => "#/logs",
  wall: (study) => (study ? `#/wall/${part(study)}` : "#/wall"),
  compare: (studies) => `#/compare${studies.map((name) => `/${part(name)}`).join("")}`,
};

export const api = {
  study: (study) => `/api/studies/${part(study)}`,
  round: (study, number) => `/api/studies/${part(study)}/rounds/${number}`,
  silo: (study, silo) => `/api/studies/${part(study)}/silos/${part(silo)}`,
  compare: (studies) => `/api/compare?${studies.map((name) => `study=${part(name)}`).join("&")}`,
  logs: ({ level, text, before }) => `/api/logs?${new URLSearchParams({ level, text, before: before || "0" })}`,
  choices: () => "/api/choices",
  events: (filter) => query("/api/events", filter),
  file: (study, name) => `/api/studies/${part(study)}/files/${name}`,
  auditFile: (form, study) => `/api/audit.${form}${study ? `?study=${part(study)}` : ""}`,
};

/** {view, study, number, silo} of an address; unknown ones are the overview. */
export function parse(hash) {
  const words = wordsOf(hash);
  const [first, second, third, fourth] = words;
  if (first === "study" && second) {
    if (third === "rounds") return { view: "rounds", study: second };
    if (third === "round" && /^\d{1,9}$/.test(fourth ?? "")) return { view: "round", study: second, number: Number(fourth) };
    return { view: "overview", study: second };
  }
  if (first === "silo" && second) return { view: "silo", silo: second };
  if (first === "compare") return { view: "compare", studies: [...new Set(words.slice(1).filter(Boolean))].slice(0, 8) };
  if (first === "wall") return { view: "wall", study: second || null };
  if (first === "cost") return { view: "cost", study: second || null };
  if (["studies", "silos", "audit", "alerts", "logs", "login"].includes(first)) return { view: first };
  return { view: "overview", study: null };
}
