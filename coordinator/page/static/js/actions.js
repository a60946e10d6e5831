// What an operator can do. Each asks first and says what will happen; what the coordinator answers is shown.

import { h } from "./dom.js";
import { act, fetchFile } from "./api.js";
import { toast } from "./dialog.js";
import { showLine, signedIn } from "./dialogs.js";
import { button } from "./parts.js";
import * as format from "./format.js";
import { confirmSigned } from "./sign_in.js";
import { invalidate, now, store } from "./store.js";

const ACTIVE = new Set(["queued", "preparing", "waiting", "running", "paused"]);

/** The buttons that fit a study's state. */
export function studyButtons(study) {
  if (!study || store.federation?.read_only) return [];
  const { state, open_round: open } = study;
  const name = study.name;
  return [
    ["preparing", "waiting", "running"].includes(state) ? button("Pause", { name: "pause", key: "pause", on: () => pause(name) }) : null,
    state === "paused" ? button("Resume", { name: "play", tone: "main", key: "resume", on: () => resume(name) }) : null,
    state === "running" || state === "paused" ? button("Extend deadline", { name: "clock", key: "extend", off: !hasDeadline(open), on: () => (hasDeadline(open) ? extend(name, open) : toast("No silo works at this moment, so there is no deadline.", "idle")) }) : null,
    state === "failed" || state === "stopped" ? button("Queue again", { name: "play", key: "queue", on: () => queueStudy(name) }) : null,
    ACTIVE.has(state) ? button("Stop", { name: "stop", tone: "danger", key: "stop", on: () => stop(study) }) : null,
  ].filter(Boolean);
}

const hasDeadline = (open) => Boolean(open?.deadline_unix) && open.state === "collecting";

const asked = (question) => confirmSigned(signedIn, question);

/** Downloads a file that only an operator may have; making it takes the coordinator a moment. */
export async function take(study, file) {
  if (!await signedIn()) return;
  toast(`Preparing ${file} of ${study}.`, "idle");
  try {
    const content = await fetchFile(`/api/studies/${encodeURIComponent(study)}/files/${file}`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content);
    link.download = `${study}-${file}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } catch (error) {
    toast([error.text ?? "The file could not be downloaded.", error.remedy].filter(Boolean).join(" "), "bad");
  }
}

async function pause(study) {
  const done = await asked({
    title: `Pause ${study}?`,
    action: "Pause the study",
    says: ["Silos may finish their current work and send it; no silo gets a new task.", "No new phase or round starts, and the deadline of the open phase is suspended.", "Nothing is lost: it continues from where it was when you resume."],
    submit: () => act("pause", { study }),
  });
  after(done, `${study} is paused.`);
}

async function resume(study) {
  const done = await asked({
    title: `Resume ${study}?`,
    action: "Resume the study",
    tone: "main",
    says: ["The study continues from where it was; the deadline is extended by the length of the pause.", "Silos that are connected get their next task at once."],
    submit: () => act("resume", { study }),
  });
  after(done, `${study} continues.`);
}

async function stop(study) {
  const open = study.open_round;
  const done = await asked({
    title: `Stop ${study.name}?`,
    action: "Stop the study",
    tone: "danger",
    typed: study.name,
    says: [
      open ? `Its open round, ${open.number}, is cancelled: silos stop their work, and their updates for it are discarded.` : "No further round begins.",
      study.choice.text ? `After ${study.rounds_completed} of ${study.rounds_planned} rounds a model stays, that of ${study.choice.text}.` : "No round is committed yet, so there will be no model.",
      `coordinator queue ${study.name} would continue it${study.rounds_completed > 0 ? " from the last committed round" : ""}.`,
      "The next study of the queue begins.",
    ],
    submit: () => act("stop", { study: study.name }),
  });
  after(done, `${study.name} is stopped.`);
}

const STEPS = [[300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"], [14_400, "4 hours"], [86_400, "1 day"]];

async function extend(study, open) {
  const waiting = open.waiting_for ?? [];
  const done = await asked({
    title: "Extend the deadline?",
    action: "Extend",
    initial: { seconds: 900 },
    says: [
      `Phase ${format.words(open.phase)} of round ${open.number} waits longer for ${waiting.length ? names(waiting) : "nobody in particular"}.`,
      "It still closes as soon as every silo has answered.",
    ],
    fields: (state, draw) => h("label", { class: "field" }, h("span", null, "By how much"),
      h("select", { "data-first": true, prop: { value: String(state.seconds) }, on: { change: (event) => { state.seconds = Number(event.target.value); draw(); } } },
        STEPS.map(([seconds, words]) => h("option", { value: String(seconds) }, words))),
      h("span", { class: "note" }, `New deadline: ${format.clock(Math.max(open.deadline_unix, now()) + state.seconds, now())}`)),
    submit: (state) => act("extend", { study, seconds: state.seconds }),
  });
  after(done, "The deadline is later now.");
}

const STUDY_NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$/;
const CHECK_PATIENCE = 1_800_000; // all images of the hub are read

/** Makes a study from the template or like another one; `choices` is what the coordinator says there is. */
export async function newStudy(choices) {
  const begun = store.federation.studies.filter(({ method }) => method !== "?");
  const scenarioOf = (state) => choices.scenarios.find(({ name }) => name === state.scenario);
  const start = (state) => {
    const like = begun.find(({ name }) => name === state.like);
    const given = like ? { method: like.method, rounds: like.rounds, start_with: "", seed: "", model: "" } : scenarioOf(state);
    Object.assign(state, { method: given.method, rounds: String(given.rounds), start_with: String(given.start_with), seed: String(given.seed), model: given.model });
  };
  const methods = (state) => {
    const scenario = state.like ? begun.find(({ name }) => name === state.like)?.scenario : state.scenario;
    const fitting = choices.methods.filter(({ scenarios }) => !scenario || scenarios.includes(scenario)).map(({ name }) => name);
    return fitting.includes(state.method) ? fitting : [state.method, ...fitting];
  };
  const initial = { name: "", like: "", scenario: choices.scenarios[0].name };
  start(initial);
  const input = (state, draw, name, words, props, note) => h("label", { class: "field", key: name }, h("span", null, words),
    h("input", { autocomplete: "off", autocapitalize: "off", spellcheck: "false", ...props, prop: { value: state[name] ?? initial[name] }, on: { input: (event) => { state[name] = event.target.value.trim(); draw(); } } }),
    note ? h("span", { class: "note" }, note) : null);
  const choose = (state, draw, name, words, values, then = () => {}) => h("label", { class: "field", key: name }, h("span", null, words),
    h("select", { prop: { value: state[name] ?? initial[name] }, on: { change: (event) => { state[name] = event.target.value; then(state); draw(); } } }, values.map(([value, text]) => h("option", { key: value, value }, text))));
  const whole = (text) => (text === "" || text === undefined ? -1 : Number(text));
  const done = await asked({
    title: "New study",
    action: "Make the study",
    initial,
    ready: (state) => STUDY_NAME.test(state.name ?? "") && [state.rounds, state.start_with, state.seed].every((text) => /^\d{0,9}$/.test(text ?? "")),
    says: ["It is a file at the hub, studies/NAME/study.toml, with the defaults of coordinator new; all else can be set in it.", "Nothing runs yet: it is checked and queued in the next step."],
    fields: (state, draw) => h("div", { class: "fields" },
      input(state, draw, "name", "Name", { type: "text", "data-first": true }, "Letters, digits, - and _."),
      begun.length ? choose(state, draw, "like", "Begin with", [["", "the template"], ...begun.map(({ name, method }) => [name, `${name} (${method}): its settings and images`])], start) : null,
      state.like ? null : choose(state, draw, "scenario", "Labels", choices.scenarios.map(({ name }) => [name, SCENARIOS[name] ?? name]), start),
      choose(state, draw, "method", "Method", methods({ ...initial, ...state }).map((name) => [name, name])),
      h("div", { class: "field-row", key: "numbers" },
        input(state, draw, "rounds", "Rounds", { type: "text", inputmode: "numeric" }),
        input(state, draw, "start_with", "Begins with silos", { type: "text", inputmode: "numeric", placeholder: state.like ? "as there" : null }),
        input(state, draw, "seed", "Seed", { type: "text", inputmode: "numeric", placeholder: state.like ? "as there" : null })),
      input(state, draw, "model", "Network", { type: "text", placeholder: state.like ? "as there" : null }, "coordinator models lists them.")),
    submit: (state) => act("new", { name: state.name, like: state.like ?? "", scenario: state.like ? "" : state.scenario, method: state.method, model: state.model ?? "", rounds: whole(state.rounds), start_with: whole(state.start_with), seed: whole(state.seed) }),
  });
  if (!done) return;
  invalidate();
  if (done.images) toast(`${done.study} is made. Put its images where ${done.path} says, then queue it.`);
  else await queueStudy(done.study);
}

const SCENARIOS = { "labels-at-coordinator": "at the coordinator", "labels-at-silo": "at the silos", "labels-at-both": "at the coordinator and at silos" };

/** Checks a study with all its images, as `coordinator queue` does, and queues it. */
export async function queueStudy(name) {
  const done = await asked({
    title: `Queue ${name}?`,
    action: "Check and queue",
    says: ["Its file, network, weights and all images at the hub are checked first, which takes as long as reading them.", "It starts automatically when the studies before it have ended and enough silos have joined."],
    submit: () => act("queue", { study: name }, CHECK_PATIENCE),
  });
  after(done, `${name} is queued.`);
}

const MOST_NOTE = 1000;

export async function addNote(study) {
  const done = await asked({
    title: `Note beside ${study}`,
    action: "Keep the note",
    says: ["Everybody who reads this page, the report or the audit trail reads it, with your name and the time.", "It stays: a note cannot be changed or removed."],
    ready: (state) => Boolean(state.text?.trim()),
    fields: (state, draw) => h("label", { class: "field" }, h("span", null, "Note"),
      h("textarea", { rows: "4", maxlength: String(MOST_NOTE), "data-first": true, prop: { value: state.text ?? "" }, on: { input: (event) => { state.text = event.target.value; draw(); } } })),
    submit: (state) => act("note", { study, text: state.text.replaceAll(/\s+/g, " ").trim() }),
  });
  after(done, "The note is kept.");
}

const NAME = /^[a-z0-9][a-z0-9-]{0,62}$/;

export async function invite(silo = "") {
  const done = await asked({
    title: silo ? `Invite ${silo} again` : "Invite a silo",
    action: "Make the invitation",
    initial: { silo, life: "24h" },
    ready: (state) => NAME.test(state.silo ?? silo),
    says: silo
      ? [`${silo} gets a new certificate with this line; its old one ends when the line is used.`, "What it keeps between rounds stays with it."]
      : ["Creates one line with the hub's address, the authority's certificate and a token that works once.", "The enrolment port listens until the line is used or expires."],
    fields: (state, draw) => h("div", { class: "fields" },
      h("label", { class: "field" }, h("span", null, "Name of the silo"),
        h("input", { type: "text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "data-first": true, readonly: Boolean(silo), prop: { value: state.silo ?? silo },
          "aria-describedby": "name-rule", on: { input: (event) => { state.silo = event.target.value.trim(); draw(); } } }),
        h("span", { class: "note", id: "name-rule" }, "Lower-case letters, digits and hyphens, for example hospital-a.")),
      h("label", { class: "field" }, h("span", null, "Can be used for"),
        h("select", { prop: { value: state.life }, on: { change: (event) => { state.life = event.target.value; draw(); } } },
          [["1h", "1 hour"], ["24h", "24 hours"], ["3d", "3 days"], ["7d", "7 days"]].map(([value, words]) => h("option", { value }, words))))),
    submit: async (state) => ({ ...await act("invite", { silo: state.silo, life: state.life }), silo: state.silo }),
  });
  if (!done) return;
  invalidate();
  await showLine(done.silo, done.line, `until ${format.moment(done.expires_unix)}. `);
}

export async function revoke(silo) {
  const done = await asked({
    title: `Revoke ${silo}?`,
    action: "Revoke",
    tone: "danger",
    typed: silo,
    says: [
      "Its certificate is revoked: at its next call, and for a running call within seconds.",
      "An open task of it is cancelled, and its update of the open phase is left out; what was averaged before stays in the model.",
      "To readmit it, invite it again.",
    ],
    submit: () => act("revoke", { silo }),
  });
  after(done, `${silo} is revoked.`);
}

const reasonField = (state, draw, note) => h("label", { class: "field" }, h("span", null, "Why"),
  h("input", { type: "text", autocomplete: "off", maxlength: "200", "data-first": true, prop: { value: state.reason ?? "" }, on: { input: (event) => { state.reason = event.target.value; draw(); } } }),
  h("span", { class: "note" }, note));

export async function setAside(silo) {
  const done = await asked({
    title: `Set ${silo} aside?`,
    action: "Set aside",
    tone: "danger",
    says: [
      "It keeps its certificate and may call, but gets no task until you take it back.",
      "A task that it works on is closed at once, and no round waits for it or counts it.",
      "Updates that were averaged before stay in the model. Going back to an earlier round removes them.",
    ],
    fields: (state, draw) => reasonField(state, draw, "The silo sees it, and it appears in the audit trail."),
    submit: (state) => act("set-aside", { silo, reason: state.reason ?? "" }),
  });
  after(done, `${silo} is set aside.`);
}

export async function takeBack(silo) {
  const done = await asked({
    title: `Take ${silo} back?`,
    action: "Take back",
    tone: "main",
    says: ["It takes part again, from the next phase on."],
    submit: () => act("take-back", { silo }),
  });
  after(done, `${silo} takes part again.`);
}

export async function rollback(study, number) {
  const last = study.rounds.at(-1)?.number ?? number;
  const done = await asked({
    title: `Go back to round ${number} of ${study.name}?`,
    action: "Go back",
    tone: "danger",
    typed: study.name,
    says: [
      `${last === number + 1 ? `Round ${last} no longer counts` : `Rounds ${number + 1} to ${last} no longer count`}, neither for the model nor for any number. They can still be read.`,
      "The study is queued, and continues from there.",
    ],
    fields: (state, draw) => reasonField(state, draw, "It appears in the audit trail, here and in the report."),
    submit: (state) => act("rollback", { study: study.name, to: number, reason: state.reason ?? "" }),
  });
  after(done, `${study.name} goes back to round ${number}.`);
}

function after(done, words) {
  if (done === null) return;
  toast(words);
  invalidate();
}

/** "a, b and c", "a, b and 12 others". */
export function names(list, most = 4) {
  if (list.length === 1) return list[0];
  if (list.length <= most) return `${list.slice(0, -1).join(", ")} and ${list.at(-1)}`;
  return `${list.slice(0, most - 1).join(", ")} and ${list.length - most + 1} others`;
}

