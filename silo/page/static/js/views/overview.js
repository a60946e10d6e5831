// The silo at a glance: what is wrong, what it does now, who it is, and how good the model is here.

import { h } from "../dom.js";
import { signedIn } from "../actions.js";
import { bar } from "../charts.js";
import * as format from "../format.js";
import { ago, card, empty, figure, head, table, tile, tiles, trouble, until } from "../parts.js";
import { api, to } from "../routes.js";
import { data, now, store } from "../store.js";
import { KINDS } from "./left.js";

const DAY = 86_400;
/** Without a word for so long, the agent is not called connected: it calls every 25 seconds. */
const QUIET_SECONDS = 90;

export const title = () => "Overview";

export const needs = () => [api.evaluations()];

export function view() {
  const { here } = store;
  if (!here.enrolled && here.identity_error === "") {
    return [head("Not enrolled", { over: "This silo" }), gone(here),
      empty("This folder holds no identity", h("p", null, "Ask the coordinator's operator for an invitation, then run:"), h("pre", { class: "commands" }, h("code", null, "silo enroll LINE\nsilo check\nsilo join --data /scans")),
        here.last_disclosure ? h("p", null, "What this site has recorded before is still here: ", h("a", { href: to.left() }, "what left"), ", ", h("a", { href: to.studies() }, "studies"), ".") : null)];
  }
  const [state, words] = stateOf(here);
  return [
    head(here.silo || "This silo", { over: "This silo", state, words, below: here.federation ? `of ${here.federation} at ${here.address}` : null }),
    ...troubles(here),
    doing(here),
    numbers(here),
    h("div", { class: "pair", key: "pair" }, identity(here), lately(here)),
    atHome(here),
  ];
}

function gone(here) {
  return here.policy_error === "" ? null : trouble("bad", "silo.toml cannot be used", words(here.policy_error));
}

function stateOf({ agent, hours }) {
  if (!agent.running) return ["stopped", "not running"];
  if (agent.stage) return ["working", agent.stage];
  if (agent.last_error !== "") return ["late", "in trouble"];
  if (hours && !hours.open) return ["away by policy", "outside working hours"];
  if (/waits for a person: /.test(agent.state)) return ["away by policy", "waits for a decision"];
  if (/connected, but takes no task: /.test(agent.state)) return ["away by policy", "takes no task"];
  return now() - agent.last_contact_unix < QUIET_SECONDS ? ["connected", "connected"] : ["late", "no answer from the coordinator"];
}

// What is wrong --------------------------------------------------------------------------------------------------------

/** What may name files of this site is read after signing in. */
export function hidden() {
  return h("p", { class: "reveal" }, "The words may name files of this site. ", h("button", { type: "button", class: "link", on: { click: () => signedIn() } }, "Sign in to read them"), ", or run ", h("code", null, "silo status"), ".");
}

/** What is wrong in words; null where they are for who has the token. */
export const words = (text) => (text === null ? hidden() : h("p", null, text));

function troubles(here) {
  const { agent, certificate } = here;
  const found = here.waiting.map((study) => trouble("warn", `${study} waits for a decision`, h("p", null, "This silo does no task of it before. ", h("a", { href: to.study(study) }, "Look at its card"), " and approve or decline it.")));
  if (here.identity_error !== "") found.push(trouble("bad", "The identity cannot be used", words(here.identity_error)));
  if (here.policy_error !== "") found.push(trouble("bad", "silo.toml cannot be used", words(here.policy_error)));
  if (here.cards_error !== "") found.push(trouble("bad", "A study card cannot be read", words(here.cards_error)));
  if (here.privacy_error !== "") found.push(trouble("bad", "The privacy budget is not known", words(here.privacy_error)));
  if (here.audit_problems) found.push(trouble("bad", "The coordinator's audit trail contradicts itself", h("p", null, `${format.plural(here.audit_problems, "time")}. The proof is kept here: `, h("a", { href: to.trust() }, "look"), ", and ask the coordinator's operator.")));
  if (agent.last_error !== "") {
    // Whoever stopped it did so while a call was being repeated: that is no fault.
    const stopped = !agent.running && agent.state.startsWith("stopped; ");
    found.push(trouble(stopped ? "idle" : "bad", stopped ? sentence(agent.state) : agent.running ? "In trouble" : "The agent has ended in trouble", words(agent.last_error)));
  }
  if (agent.refusals) found.push(trouble("bad", `This silo has refused the last ${format.plural(agent.refusals, "task")}: ${agent.refusal_code}`, words(agent.last_refusal), h("p", null, h("a", { href: to.asked() }, "What was asked"), "; ", h("code", null, "silo check"), " says what is in the way.")));
  if (agent.warning) found.push(trouble("warn", "The coordinator warns", h("p", null, agent.warning)));
  if (certificate) {
    const left = certificate.not_after_unix - now();
    if (left <= 0) found.push(trouble("bad", "The certificate has expired", h("p", null, "Ask the coordinator's operator to run ", h("code", null, `coordinator invite ${here.silo}`), ". What this silo remembers is kept.")));
    else if (left < 5 * DAY) found.push(trouble("warn", `The certificate ends in ${format.seconds(left)}`, h("p", null, "silo join renews it automatically; where it does not run, a new invitation is needed afterwards.")));
  }
  if (here.policy_newer) found.push(trouble("warn", "silo.toml has changed since silo join has read it", h("p", null, "Restart silo join: what you see under Rules is the file as it is now.")));
  if (!agent.running && here.enrolled && agent.last_error === "") found.push(trouble("idle", "silo join does not run here", h("p", null, "Nothing leaves and nothing is asked. To take part: ", h("code", null, "silo join"))));
  return found;
}

// Now ------------------------------------------------------------------------------------------------------------------

function doing(here) {
  const { agent, hours, budget } = here;
  return h("section", { class: "card now", "aria-labelledby": "now", key: "now" },
    h("div", null,
      h("h2", { id: "now", class: "now-title" }, agent.study ? [agent.running ? "Takes part in " : "Took part in ", h("a", { href: to.study(agent.study) }, agent.study)] : "No study at the moment"),
      agent.study && agent.round ? h("p", null, h("span", { class: "now-number" }, agent.round), h("span", { class: "now-of" }, agent.rounds ? ` of ${format.plural(agent.rounds, "round")}` : " round")) : null,
      agent.stage ? h("div", { class: "activity" }, h("span", null, agent.stage_text.startsWith(agent.stage) ? agent.stage_text : [agent.stage, agent.stage_text ? ` · ${agent.stage_text}` : ""]), bar([[agent.stage_fraction, "first"]]), h("span", { class: "digits" }, format.progress(agent.stage_fraction)))
        : h("p", { class: "now-state" }, agent.state)),
    h("div", { class: "now-silos" }, h("dl", { class: "facts" },
      fact("Coordinator last answered", ago(agent.last_contact_unix || null)),
      fact("Running since", agent.since_unix ? format.clock(agent.since_unix) : format.DASH),
      fact("Working hours", hours ? hours.text : format.DASH),
      fact("Today, both ways", budget ? [format.bytes(budget.used_bytes), budget.limit_bytes ? ` of ${format.bytes(budget.limit_bytes)}` : ", no limit"] : format.DASH),
      fact("Last task", agent.last_task ? [agent.last_task, agent.last_outcome ? `: ${agent.last_outcome}` : ""] : "none yet"),
      fact("Answered in all", format.plural(agent.tasks_answered, "task")))));
}

const fact = (name, ...value) => h("div", { key: name }, h("dt", null, name), h("dd", null, value));

function numbers(here) {
  const { agent, budget, privacy, evaluation } = here;
  const about = agent.bytes_estimated ? "about " : "";
  return tiles(
    tile("Images", format.count(agent.labelled_count + agent.unlabelled_count), agent.labelled_count ? `${format.count(agent.labelled_count)} with a label` : "none has a label"),
    tile("Left today", budget ? format.bytes(budget.sent_bytes) : format.DASH, budget ? `${format.bytes(budget.received_bytes)} arrived` : null),
    tile("Since enrolment", `${about}${format.bytes(agent.sent_bytes)}`, `sent; ${about}${format.bytes(agent.received_bytes)} received`),
    privacy ? tile("Privacy spent", `ε ${format.number(privacy.epsilon)}`, privacy.max_epsilon ? `of ${format.number(privacy.max_epsilon)} permitted` : "no limit", privacy.max_epsilon && privacy.epsilon > 0.9 * privacy.max_epsilon ? "warn" : "") : null,
    evaluation ? tile(`${sentence(wordsOf(measureOf(evaluation)))} here`, format.score(estimateOf(evaluation)?.value, measureOf(evaluation)), `round ${evaluation.round}, ${interval(estimateOf(evaluation), measureOf(evaluation))}`) : null);
}

// Who it is ------------------------------------------------------------------------------------------------------------

function identity(here) {
  const { certificate } = here;
  return card("Identity", { id: "identity" }, h("dl", { class: "facts wide" },
    fact("Name", here.silo || format.DASH),
    fact("Federation", here.federation || format.DASH),
    fact("Coordinator", here.address || format.DASH),
    certificate ? fact("Certificate", `${format.day(certificate.not_before_unix)} to ${format.moment(certificate.not_after_unix)} (`, until(certificate.not_after_unix, "expired"), certificate.not_after_unix > now() ? " left)" : ")") : null,
    certificate ? fact("Renews from", format.moment(certificate.renew_unix)) : null,
    certificate ? fact("Fingerprint", h("code", { class: "hash" }, certificate.fingerprint)) : null,
    fact("Folder", h("code", null, here.home))));
}

function lately(here) {
  const last = here.last_disclosure;
  return card("Last to leave", { id: "last" }, last ? [h("dl", { class: "facts wide" },
    fact("What", KINDS[last.kind] ?? format.words(last.kind)),
    last.study ? fact("For", h("a", { href: to.study(last.study) }, last.study), last.round ? `, round ${last.round}` : "") : null,
    fact("When", last.unix === null ? last.time : ago(last.unix)),
    fact("Bytes", format.bytes(last.bytes)),
    fact("SHA-256", h("code", { class: "hash" }, last.digest))), h("p", { class: "more" }, h("a", { href: to.left() }, "All that left this site"))]
    : h("p", { class: "nothing" }, "Nothing has left this site yet."));
}

// The model here -------------------------------------------------------------------------------------------------------

/** Where an image may show several classes or none there is no accuracy: then the study's own measure, if it has a value. */
const estimateOf = ({ accuracy, measured }) => accuracy ?? measured;
const measureOf = ({ accuracy, measure }) => (accuracy ? "accuracy" : measure);
const wordsOf = (measure) => (measure === "auroc" ? "AUROC" : measure.replaceAll("_", " "));
const sentence = (text) => text[0].toUpperCase() + text.slice(1);
const interval = (estimate, measure) => format.interval(estimate, measure) || format.DASH;

/** Each class as a question of its own. */
const findings = (classes) => [h("p", { class: "note" }, "Found, and rightly without: at a probability of 0.5."),
  table("Every class on this site's test images", [{ name: "Class", cell: ({ name }) => name }, { name: "AUROC", class: "digits", cell: ({ auroc }) => format.score(auroc, "auroc") },
    { name: "Found", class: "digits", cell: ({ images, correct }) => `${format.count(correct)} of ${format.count(images)}` },
    { name: "Rightly without", class: "digits", cell: (each) => `${format.count(each.correct_others ?? 0)} of ${format.count(each.others)}` }], classes, { key: ({ name }) => name })];

function atHome(here) {
  if (!here.evaluation) return null;
  const facts = data(api.evaluations());
  if (!facts) return null;
  const study = facts.newest.study;
  const scores = facts.scores.filter((each) => each.study === study && !each.labels_alone);
  const points = scores.filter(estimateOf).map((score) => [score.round, estimateOf(score).value]);
  const measure = scores.length ? measureOf(scores.at(-1)) : "accuracy";
  const several = Object.values(facts.newest.classes).some(({ others }) => typeof others === "number");
  const alone = facts.scores.find((each) => each.study === study && each.labels_alone);
  const words = wordsOf(measure);
  const score = (value) => format.score(value, measure);
  const classes = Object.entries(facts.newest.classes).map(([name, found]) => ({ name, ...found }));
  return h("section", { class: "card", key: "at-home", "aria-labelledby": "at-home" },
    h("h2", { id: "at-home", class: "unseen" }, "The model on this site's test images"),
    points.length ? figure(`${sentence(words)} on this site's test images, ${study}`, h("line-chart", { key: "accuracy", prop: { data: {
      label: `Line: ${words} of ${study}'s model on this site's ${scores.at(-1).count} test images by round; ${score(points[0][1])} in round ${points[0][0]}, ${score(points.at(-1)[1])} in round ${points.at(-1)[0]}.`,
      series: [{ name: words, tone: "first", points }],
      level: alone && estimateOf(alone) ? { y: estimateOf(alone).value, name: "labels alone" } : null,
      x: { name: "round", text: String, whole: true, low: 0, high: Math.max(points.at(-1)[0], 1), tip: (value) => `round ${value}` },
      y: { text: (value, exact) => (measure === "accuracy" ? format.percentage(value, exact ? 1 : 0) : score(value)), least: 0.05, share: true }, height: 200 } } }),
    { id: "accuracy", note: `${format.plural(facts.newest.count, "test image")}, never trained on; intervals ${facts.newest.intervals_by}. ${{ true: "The coordinator is told, as counts by class.", false: "The numbers stay here: silo.toml does not permit telling the coordinator." }[facts.told] ?? ""}`,
      columns: [{ name: "Round", cell: ({ round }) => round }, { name: sentence(words), class: "digits", cell: (each) => score(estimateOf(each)?.value) }, { name: "Interval (95 %)", class: "digits", cell: (each) => interval(estimateOf(each), measure) }, ...(measure === "accuracy" ? [{ name: "Balanced", class: "digits", cell: ({ balanced_accuracy: balanced }) => format.percentage(balanced?.value) }] : []), { name: "Images", class: "digits", cell: ({ count }) => format.count(count) }],
      rows: [...scores].reverse() }) : null,
    h("h3", { class: "recall-title" }, `${several ? "Found" : "Right"} of each class, round ${facts.newest.round}`),
    several ? findings(classes) : h("dl", { class: "recall", style: { "--name": `${Math.min(180, 12 + 8 * Math.max(...classes.map(({ name }) => name.length)))}px` } }, classes.map(({ name, images, correct }) => h("div", { key: name },
      h("dt", { title: name }, name), h("dd", { class: "recall-of" }, bar([[images ? correct / images : 0, "first"]]), h("span", { class: "digits" }, `${format.count(correct)} of ${format.count(images)}`))))));
}

