// The study at a glance: where it stands now, what each silo does, what it is worth and what it has cost.

import { bar } from "../charts.js";
import { classesCard } from "../classes.js";
import { addNote, names, studyButtons, take } from "../actions.js";
import { byAccuracy, currentStudy, measureHeading, measured, notMeasured, withAccuracy } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { ago, badge, button, card, commands, empty, figure, folded, glyph, head, since, table, tile, tiles, toneOf, trouble, until, wordOf } from "../parts.js";
import { api, to } from "../routes.js";
import { asSent, isSimulation, sentHeading, sentWords } from "../sent.js";
import { data, errorOf, store } from "../store.js";
import { inviteHelp, silentNotice } from "./silos.js";

export const title = (route) => currentStudy(route) ?? "Overview";

export function needs(route) {
  const study = currentStudy(route);
  return study ? [api.study(study)] : [];
}

export function view(route) {
  const name = currentStudy(route);
  if (!name) return noStudy();
  const study = asSent(data(api.study(name)));
  if (!study) return unknown(name);
  return [
    head(study.name, {
      over: "Study", state: study.state,
      below: [study.participation.text ? h("strong", null, capital(study.participation.text)) : null, study.method, scenario(study.scenario)].filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part])),
      actions: studyButtons(study),
    }),
    notice(study),
    nowCard(study),
    outcome(study),
    numbers(study),
    charts(study),
    classesCard(study.by_class, { href: study.by_class && !study.by_class.labels_alone ? to.round(study.name, study.by_class.round) : null }),
    beside(study),
    sites(study),
    lastRounds(study),
    notes(study),
    about(study),
  ];
}

export function unknown(name) {
  const error = errorOf(api.study(name));
  if (error?.status === 404) {
    return [head(name, { over: "Study" }), empty(`There is no study ${name}`, h("p", null, h("a", { href: to.studies() }, "All studies of this federation")))];
  }
  return [head(name, { over: "Study" }), error ? trouble("bad", error.text, h("p", null, error.remedy)) : h("p", { class: "loading" }, "Loading …")];
}

const scenario = (word) => ({ "labels-at-coordinator": "labels at the coordinator", "labels-at-silo": "labels at the silos", "labels-at-both": "labels at the coordinator and at silos" })[word] ?? format.words(word);

function noStudy() {
  const { federation, read_only: readOnly } = store.federation;
  return [
    head(federation, { over: "Federation" }),
    empty("No study yet",
      h("p", null, "A study is one training job: which images, which model, which method, how many rounds. ",
        readOnly ? "" : "Create one at the hub, in the federation folder, edit it, then queue it:"),
      commands("coordinator new first", "$EDITOR studies/first/study.toml", "coordinator queue first"),
      h("p", null, "It starts automatically when ", h("code", null, "coordinator serve"), " runs and enough silos have joined.")),
    store.federation.silos.length === 0 ? inviteHelp() : null,
  ];
}

// What is wrong, or what is being waited for ---------------------------------------------------------------------------

/** Of silos that are silent; the others are among all silos. */
const MOST_NOTICES = 8;

function notice(study) {
  const { serving, read_only: readOnly, silos } = store.federation;
  const found = [];
  if (study.state === "failed") found.push(trouble("bad", "The study has failed", h("p", null, study.reason || "No reason was recorded."), h("p", null, "When the cause is fixed, ", isSimulation() ? "start the simulation again" : ["queue it again: ", h("code", null, `coordinator queue ${study.name}`)], ". It continues from the last committed round.")));
  if (study.state === "stopped") found.push(trouble("idle", "An operator has stopped this study", h("p", null, study.rounds_completed ? "Its model stays. To continue it from the last committed round: " : "No round was committed. To continue it: ", h("code", null, `coordinator queue ${study.name}`))));
  if (study.state === "paused") found.push(trouble("warn", study.reason ? "Paused by the coordinator" : "Paused", study.reason ? h("p", null, capital(study.reason), ".") : null, h("p", null, study.paused_unix ? ["Paused for ", since(study.paused_unix), ". "] : null, study.open_round ? "The open round stays open; nothing new starts until it is resumed." : "Nothing new starts until it is resumed.")));
  const back = study.rollbacks?.at(-1);
  if (back) found.push(trouble("idle", `The study ${back.text}`, h("details", { class: "folded", key: `past-${study.rollbacks.length}` }, h("summary", null, "Rounds that no longer count"), table("Rounds that no longer count", [
    { name: "Round", cell: (round) => round.number }, { name: "State", cell: (round) => badge(round.state) },
    { name: measureHeading(study), class: "digits", cell: (round) => format.score(round.test_score, study.choice.measure) },
    { name: "Ended", class: "nowrap", cell: (round) => (round.closed_unix ? ago(round.closed_unix) : format.DASH) }],
  study.rollbacks.flatMap(({ rounds }, index) => rounds.map((round) => ({ ...round, key: `${index}-${round.number}` }))), { key: ({ key }) => key }))));
  if (study.notices?.length) found.push(trouble("warn", "Silos that stand out", h("ul", null, study.notices.slice(0, MOST_NOTICES).map((each) => h("li", { key: `${each.silo}-${each.kind}` }, h("a", { href: to.silo(each.silo) }, each.silo), each.line.slice(each.silo.length)))), study.notices.length > MOST_NOTICES ? h("p", null, h("a", { href: to.silos() }, "All silos")) : null));
  if (study.state === "queued") found.push(trouble("idle", "Waiting in the queue", h("p", null, "It starts when the studies before it have ended.")));
  if (study.state === "waiting") {
    const wanted = study.settings?.study?.start_with;
    const joined = silos.filter(({ state }) => !["revoked", "left", "set aside", "enrolled"].includes(state)).length;
    found.push(trouble("warn", wanted ? `Waiting for silos: ${joined} of ${wanted} have joined` : "Waiting for silos", h("p", null, "The first round opens as soon as enough have joined. ", h("a", { href: to.silos() }, "See and invite silos"))));
  }
  const live = store.federation.live;
  if (live?.study === study.name && live.trouble) {
    found.push(trouble("bad", "The study waits", h("p", null, `${live.trouble} It continues automatically.`)));
  }
  if (study.state === "running" && live?.study === study.name && live.reason === "waiting_for_silos" && live.text) {
    found.push(trouble("warn", "Waiting for silos", h("p", null, `${live.text}. The next round opens as soon as there are enough. `, h("a", { href: to.silos() }, "See and invite silos"))));
  }
  for (const { silo, rounds, reason } of study.participation.refusing) found.push(trouble("bad", `${silo} refused every round (${rounds})`, h("p", null, reason || "No reason was given.", " ", h("a", { href: to.silo(silo) }, "See the silo"))));
  if (!readOnly) found.push(...silos.filter(({ state }) => state === "silent").slice(0, MOST_NOTICES).map(silentNotice));
  const active = ["queued", "preparing", "waiting", "running", "paused"].includes(study.state);
  if (!serving && !readOnly && active) found.push(trouble("warn", "The coordinator is not serving", h("p", null, "Silos cannot connect until it runs again: ", h("code", null, "coordinator serve"))));
  return found;
}

// Now ------------------------------------------------------------------------------------------------------------------

const STEPS = [["preparing", "Prepare", "tasks written"], ["collecting", "Collect", "silos work"], ["aggregating", "Aggregate", "updates folded"], ["evaluating", "Evaluate", "model measured"]];

function nowCard(study) {
  const open = study.open_round ?? between(study);
  if (!open) return null;
  const live = store.federation.live?.study === study.name ? store.federation.live : null;
  return h("section", { class: "now card", "aria-labelledby": "now-title", key: "now" },
    h("div", { class: "now-round" },
      h("h2", { id: "now-title", class: "now-title" }, open.number === 0 ? "Preparation" : ["Round ", h("span", { class: "now-number" }, open.number), h("span", { class: "now-of" }, ` of ${study.rounds_planned}`)]),
      bar([[study.rounds_planned ? study.rounds_completed / study.rounds_planned : 0, "first"]], `${study.rounds_completed} of ${study.rounds_planned} rounds committed`),
      open.number === 0 ? null : h("ol", { class: "steps" }, STEPS.map(([state, word, meaning]) => h("li", { key: state, class: stepClass(state, open.state), "aria-current": state === open.state ? "step" : null }, h("span", null, word), h("small", null, meaning)))),
      activity(study, open, live),
      h("dl", { class: "facts" },
        open.number > 0 ? [
          fact("Phase", open.phase ? format.words(open.phase) : format.DASH),
          fact("Until the deadline", deadline(study, open)),
          fact("Quorum", open.quorum ? `${format.plural(open.quorum, "answer")} of ${asked(open)}` : format.DASH)] : null,
        fact("Round open for", open.state === BETWEEN ? format.DASH : since(open.opened_unix)),
        typeof study.seconds_left === "number" && study.state === "running" ? fact("Study ends in about", format.estimate(study.seconds_left)) : null)),
    h("div", { class: "now-silos" }, siloLanes(study, open)));
}

const BETWEEN = "between rounds";

/** A study that runs has its card always, also for the moment between two rounds, so that nothing jumps. */
function between(study) {
  const last = study.rounds.at(-1);
  if (!last || !["running", "paused"].includes(study.state)) return null;
  return { number: last.number, state: BETWEEN, phase: "", opened_unix: last.opened_unix, deadline_unix: null, limit_unix: null, quorum: 0, tasks: {}, waiting_for: [] };
}

const fact = (name, value) => h("div", { key: name }, h("dt", null, name), h("dd", null, value));

/** One line of what goes on now; it is always there, so that nothing moves when the round goes on. */
function activity(study, open, live) {
  const collecting = open.state === "collecting";
  const share = collecting ? answered(open) / Math.max(1, asked(open)) : live?.fraction ?? 0;
  const words = collecting ? `${answered(open)} of ${format.plural(asked(open), "silo")} have answered` : live?.text || (live?.activity ? format.words(live.activity) : study.state === "paused" ? "paused" : open.state === BETWEEN ? "the next round is prepared" : wordOf(open.state));
  return h("p", { class: "activity" }, h("span", null, words), bar([[share, "first"]]), h("span", { class: "digits" }, format.progress(share)));
}

function deadline(study, open) {
  if (!open.deadline_unix || open.state !== "collecting") return format.DASH;
  return study.state === "paused" ? "suspended" : until(open.deadline_unix, "passed");
}

const asked = ({ tasks }) => Object.values(tasks).reduce((sum, count) => sum + count, 0);

const answered = ({ tasks }) => Object.entries(tasks).reduce((sum, [state, count]) => sum + (state === "open" ? 0 : count), 0);

function stepClass(step, state) {
  const order = state === BETWEEN ? STEPS.length : STEPS.findIndex(([name]) => name === state);
  const position = STEPS.findIndex(([name]) => name === step);
  return position < order ? "done" : position === order ? "here" : "";
}

const MOST_LANES = 12;

function siloLanes(study, open) {
  const round = study.rounds.find(({ number }) => number === open.number);
  // While the tasks of a round are written, those of the round before stand there: the list does not come and go.
  const before = study.rounds.findLast(({ number }) => number === open.number - 1)?.outcomes ?? {};
  const preparing = Object.keys(round?.outcomes ?? {}).length === 0 && open.number > 0 && Object.keys(before).length > 0;
  const outcomes = preparing ? Object.fromEntries(Object.keys(before).map((name) => [name, "next"])) : round?.outcomes ?? {};
  const sampled = Object.keys(outcomes);
  if (sampled.length === 0) return [h("h3", null, "Silos"), h("p", { class: "nothing" }, open.number === 0 ? "No silo works in the preparation: the coordinator trains on its own labels." : "No silo has a task at this moment.")];
  const known = new Map(store.federation.silos.map((silo) => [silo.name, silo]));
  const rows = sampled.map((name) => ({ name, outcome: outcomes[name], silo: known.get(name) }));
  const heading = h("h3", null, "Silos of this round");
  if (rows.length > MOST_LANES) return [heading, matrix(rows, open)];
  return [heading, h("ul", { class: "lanes" }, rows.map((row) => lane(row, open)))];
}

function lane({ name, outcome, silo }, open) {
  const doing = outcome === "open" ? silo?.doing : null;
  const state = laneState(outcome, silo, open);
  const done = outcome === "open" ? overall(doing) : outcome === "next" ? 0 : 1;
  return h("li", { class: "lane", key: name, "data-silo": name },
    h("a", { class: "lane-name", href: to.silo(name) }, glyph(toneOf(state)), h("span", null, name)),
    bar([[done, barTone(outcome, state)]]),
    h("span", { class: "lane-words" }, laneWords(outcome, state, doing, silo)));
}

/** What a silo with an open task is: the state of the roster says whether anything is heard of it. */
export function laneState(outcome, silo, open) {
  if (outcome !== "open") return outcome;
  if (["late", "away", "away by policy", "silent", "revoked", "left", "set aside"].includes(silo?.state)) return silo.state;
  return open?.waiting_for && silo?.state === "working" ? "working" : "open";
}

const STAGE = { downloading: [0, 0.1], training: [0.1, 0.8], uploading: [0.9, 0.1] };

/** The three stages as one bar: most of a silo's time is training. */
function overall(doing) {
  if (!doing) return 0;
  const [from, length] = STAGE[doing.stage] ?? [0, 1];
  return from + length * doing.fraction;
}

const barTone = (outcome, state) => (outcome === "updated" ? "good" : outcome === "open" ? (toneOf(state) === "warn" ? "warn" : "first") : toneOf(outcome));

function laneWords(outcome, state, doing, silo) {
  if (outcome === "next") return "gets its next task";
  if (outcome !== "open") return wordOf(outcome);
  if (["late", "away", "silent"].includes(state)) return [wordOf(state), silo?.seen_unix ? [", heard ", ago(silo.seen_unix)] : null];
  if (["away by policy", "revoked", "left", "set aside"].includes(state)) return wordOf(state);
  if (!doing) return "has not begun";
  return `${doing.stage} ${format.progress(doing.fraction)}`;
}

function matrix(rows, open) {
  const groups = new Map();
  for (const row of rows) {
    const state = laneState(row.outcome, row.silo, open);
    groups.set(state, [...(groups.get(state) ?? []), row]);
  }
  return [
    h("ul", { class: "matrix-key" }, [...groups].map(([state, list]) => h("li", { key: state }, glyph(toneOf(state)), `${list.length} ${wordOf(state)}`))),
    h("div", { class: "matrix", role: "img", "aria-label": [...groups].map(([state, list]) => `${list.length} ${wordOf(state)}`).join(", ") },
      rows.map((row) => {
        const state = laneState(row.outcome, row.silo, open);
        const share = row.outcome === "open" ? overall(row.silo?.doing) : 1;
        return h("span", { key: row.name, class: `dot ${toneOf(state)}`, title: `${row.name}: ${wordOf(state)}`, "data-silo": row.name }, h("span", { class: "dot-fill", style: { height: `${(100 * share).toFixed(0)}%` } }));
      })),
    open.waiting_for.length ? h("p", { class: "note" }, `Waiting for ${names(open.waiting_for, 6)}. `, h("a", { href: to.silos() }, "All silos")) : null,
  ];
}

// What it has come to --------------------------------------------------------------------------------------------------

function outcome(study) {
  if (!study.ended_unix || !study.choice.conclusion) return null;
  const files = store.federation?.read_only ? [] : [
    h("a", { class: "button quiet", href: api.file(study.name, "report.html"), download: `${study.name}-report.html` }, h("span", null, "Report")),
    button("Model card", { key: "card", on: () => take(study.name, "model_card.html") }),
    button("Model", { key: "model", on: () => take(study.name, "model.safetensors") }),
  ];
  return card("Result", { id: "outcome" },
    h("p", null, study.choice.conclusion),
    study.next_command && !isSimulation() ? h("p", { class: "note" }, "Next, at the hub: ", h("code", null, study.next_command)) : null,
    files.length ? h("p", { class: "files" }, files.flatMap((file, index) => (index ? [" ", file] : [file]))) : null);
}

// Numbers --------------------------------------------------------------------------------------------------------------

function numbers(study) {
  const { cost } = study;
  const wire = cost.wire.down + cost.wire.up;
  const saved = cost.dense_total - wire;
  const score = (value) => format.score(value, study.choice.measure);
  const { live, studies } = store.federation;
  const alone = (live?.study === study.name && live.labels_alone) || studies.find(({ name }) => name === study.name)?.labels_alone || "";
  return h("section", { "aria-label": "Numbers of the study", key: "numbers" }, tiles(
    tile(measureHeading(study), score(study.test_score), study.test_score === null ? notMeasured(study) : `on test images: ${study.numbers_of}${byAccuracy(study) || study.accuracy === null ? "" : `; accuracy ${format.percentage(study.accuracy)}`}`),
    study.labels_alone_test_score === null && study.scenario === "labels-at-silo" ? null : againstLabelsAlone(study, alone),
    study.choice.round === null ? null : tile("Model handed over", study.choice.labels_alone ? "labels alone" : `round ${study.choice.round}`, study.choice.text),
    tile("Rounds", `${study.rounds_completed} / ${study.rounds_planned}`, study.seconds === null ? "not begun" : `in ${format.seconds(study.seconds)}`),
    tile(sentHeading(), format.bytes(wire), isSimulation() ? "encoded tensors, both directions" : cost.forecast ? `about ${format.bytes(cost.forecast.wire_bytes_at_end)} at the end` : cost.estimated ? "estimated" : "counted by the kernel"),
    tile("Of dense", format.share(cost.share_of_dense), cost.share_of_dense === null ? "nothing sent yet" : saved >= 0 ? `${format.bytes(saved)} saved` : `${format.bytes(-saved)} more than dense`)));
}

/** What the silos have brought, as every other reader says it. */
function againstLabelsAlone(study, note) {
  const name = "Against labels alone";
  const alone = `labels alone ${format.score(study.labels_alone_test_score, study.choice.measure)}`;
  if (study.labels_alone_test_score === null) return tile(name, format.DASH, note ? `labels alone: ${note}` : "not measured");
  const marked = note ? `${alone}, ${note}` : alone;
  if (study.gain !== null) {
    const said = [study.gain_interval_text, study.gain_verdict].filter(Boolean).join(", ");
    return tile(name, study.gain_text, `${marked}; ${said}`, study.gain_interval?.low > 0 ? "good" : "");
  }
  return tile(name, format.DASH, study.no_gain ? `${study.no_gain}; ${marked}` : marked);
}

/** What the model is worth on the own test images of each site, and which sites have not said so. */
function sites(study) {
  if (!study.sites?.length) return null;
  const titles = [...new Set(study.sites.flatMap(({ texts }) => Object.keys(texts)))];
  const model = (site) => site.round === null ? "sent none" : `${site.labels_alone ? "labels alone" : `round ${site.round}`}${site.handed_over ? ", handed over" : ""}`;
  const columns = [
    { name: "Silo", cell: ({ silo }) => silo },
    { name: "Model", cell: model },
    { name: "Test images", class: "digits", cell: ({ scores }) => scores ? format.count(scores.count) : format.DASH },
    ...titles.map((title) => ({ name: capital(title), class: "digits", cell: ({ texts }) => texts[title] ?? format.DASH })),
  ];
  return card("At the sites", { id: "sites", note: "The model on each silo’s own test images, as the silo says, with 95 % intervals by image." },
    table("The model at each site", columns, study.sites, { key: ({ silo }) => silo }));
}

const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function beside(study) {
  if (!study.beside?.length) return null;
  const share = (each, value) => (each.error === null ? format.percentage(value) : `${format.percentage(value).replace(/ %$/, "")} ± ${format.percentage(each.error)}`);
  const shown = (each, value) => (value === null ? format.DASH : /auroc|average_precision/.test(each.name.split("/")[0]) ? format.area(value) : share(each, value));
  const columns = [
    { name: "Measure", cell: (each) => each.words },
    { name: capital(study.federated), class: "digits", cell: (each) => shown(each, each.federated) },
    { name: "Labels alone", class: "digits", cell: (each) => shown(each, each.labels_alone) },
  ];
  const whole = study.beside.filter(({ name }) => !name.includes("/"));
  return card("Compared with labels alone", { id: "beside" }, study.labels_alone_recipe ? h("p", { class: "note" }, `Labels alone: ${study.labels_alone_recipe}.`) : null,
    table(`Numbers of ${study.numbers_of || "the federated model"} beside those of labels alone`, columns, whole, { key: ({ name }) => name }),
    whole.length < study.beside.length ? folded(`beside-classes-${study.name}`, "Class by class", () => besideClasses(study.beside, shown)) : null);
}

/** Measures of single classes, "recall/rare", as a row for each class. */
function besideClasses(all, shown) {
  const measures = new Map();
  const classes = new Map();
  for (const each of all.filter(({ name }) => name.includes("/"))) {
    const [measure, ...rest] = each.name.split("/");
    const name = rest.join("/");
    measures.set(measure, capital(each.words.replace(` of ${name}`, "")));
    classes.set(name, { ...classes.get(name), name, [measure]: each });
  }
  const columns = [{ name: "Class", cell: ({ name }) => name }, ...[...measures].flatMap(([measure, words]) => [
    { name: words, class: "digits", cell: (row) => (row[measure] ? shown(row[measure], row[measure].federated) : format.DASH) },
    { name: `${words}, labels alone`, class: "digits", cell: (row) => (row[measure] ? shown(row[measure], row[measure].labels_alone) : format.DASH) }])];
  return table("Classes beside those of labels alone", columns, [...classes.values()], { key: ({ name }) => name });
}

function charts(study) {
  const rounds = measured(study);
  if (rounds.length === 0) {
    const why = `No ${study.choice.title}: the study has no test images${byAccuracy(study) ? "" : " that give it"}.`;
    return study.rounds_completed > 0 ? h("p", { class: "nothing", key: "no-charts" }, why) : null;
  }
  const title = `Test ${study.choice.title}`;
  const score = (value) => format.score(value, study.choice.measure);
  const byRound = rounds.map((round) => [round.number, round.test_score]);
  const accuracy = byAccuracy(study) ? [] : rounds.filter((round) => typeof round.accuracy === "number").map((round) => [round.number, round.accuracy]);
  const [unit, name] = format.unitOf(Math.max(1, ...rounds.map(({ wire_cumulative: wire }) => wire)));
  const byBytes = rounds.map((round) => [round.wire_cumulative / unit, round.test_score]);
  const alone = study.labels_alone_test_score;
  const level = alone === null ? null : { y: alone, name: `labels alone ${score(alone)}` };
  const written = (value, exact) => (exact ? score(value) : score(value).replace(".0 ", " "));
  const y = { text: written, least: 0.06, share: true, name: `test ${study.choice.title}` };
  const band = (at) => rounds.filter((round) => round.test_interval).map((round) => [at(round), round.test_interval.low, round.test_interval.high]);
  const key = [["federated", "first"], ...(alone === null ? [] : [["labels alone", "level"]])];
  const last = rounds.at(-1);
  const said = `${score(rounds[0].test_score)} in round ${rounds[0].number}, ${score(last.test_score)} in round ${last.number}${alone === null ? "" : `; labels alone ${score(alone)}`}`;
  const interval = format.interval(last.test_interval, study.choice.measure);
  const newest = `round ${last.number}: ${score(last.test_score)}${interval ? `, 95 % interval ${interval} ${study.intervals_by}` : ""}`;
  const keyOfRounds = accuracy.length ? [...key, ["accuracy", "second"]] : key;
  const columns = [
    { name: "Round", cell: (round) => h("a", { href: to.round(study.name, round.number) }, round.number) },
    { name: title, class: "digits", cell: (round) => score(round.test_score) },
    { name: "95 % interval", class: "digits", cell: (round) => format.interval(round.test_interval, study.choice.measure) || format.DASH },
    ...(!withAccuracy(study) ? [] : [{ name: "Test accuracy", class: "digits", cell: (round) => format.percentage(round.accuracy) }]),
    { name: `${sentHeading()} so far`, class: "digits", cell: (round) => format.bytes(round.wire_cumulative) },
  ];
  const pick = (number) => { location.hash = to.round(study.name, number); };
  return h("div", { class: "pair", key: "charts" },
    h("div", { class: "card" }, figure(`${title} by round`, chart("by-round", {
      label: `Line: test ${study.choice.title} by round; ${said}.${accuracy.length ? ` Second line: accuracy, ${format.percentage(accuracy.at(-1)[1])} at the end.` : ""}`, level, y, pick,
      series: [{ name: byAccuracy(study) ? "federated" : study.choice.title, tone: "first", points: byRound, band: band(({ number }) => number) }, { name: "accuracy", tone: "second", points: accuracy }],
      x: { name: "round", text: (value) => String(value), whole: true, low: 0, high: Math.max(study.rounds_planned, last.number, 1), tip: (value) => `round ${value}` },
    }), { id: "by-round", last: newest, key: keyOfRounds, columns, rows: rounds })),
    h("div", { class: "card" }, figure(`${title} by bytes ${sentWords()}`, chart("by-bytes", {
      label: `Line: test ${study.choice.title} by bytes ${sentWords()} so far; ${said}, after ${format.bytes(last.wire_cumulative)}.`, level, y,
      series: [{ name: "federated", tone: "first", points: byBytes, band: band(({ wire_cumulative: wire }) => wire / unit) }],
      x: { name: `${name}, both directions`, text: (value) => `${Number(value.toPrecision(4))}`, low: 0, tip: (value) => `${format.bytes(value * unit)}` },
    }), { id: "by-bytes", last: `${newest}, after ${format.bytes(last.wire_cumulative)}`, key, columns, rows: rounds })));
}

const chart = (key, properties) => h("line-chart", { key, prop: { data: properties } });

function lastRounds(study) {
  const rounds = study.rounds.filter(({ number }) => number > 0).slice(-5).reverse();
  if (rounds.length === 0) return null;
  return card("Last rounds", { id: "last-rounds", aside: h("a", { href: to.rounds(study.name) }, "All rounds") },
    table("Last rounds of the study", roundColumns(study), rounds, { key: ({ number }) => number }));
}

/** Columns of a list of rounds, here and in the list of all. */
export function roundColumns(study) {
  const before = new Map(measured(study).map((round, index, all) => [round.number, index ? all[index - 1].test_score : null]));
  return [
    { name: "Round", sort: "number", cell: (round) => h("a", { href: to.round(study.name, round.number) }, round.number === 0 ? "0, preparation" : round.number) },
    { name: "State", cell: (round) => badge(round.state) },
    { name: measureHeading(study), sort: "test_score", class: "digits", cell: (round) => [format.score(round.test_score, study.choice.measure), change(round.test_score, before.get(round.number), study.choice.measure)] },
    ...(!withAccuracy(study) ? [] : [{ name: "Accuracy", sort: "accuracy", class: "digits", cell: (round) => format.percentage(round.accuracy) }]),
    { name: "Answers", cell: (round) => answers(round) },
    { name: "Time", sort: "seconds", class: "digits", cell: (round) => (round.seconds === null ? since(round.opened_unix) : format.seconds(round.seconds)) },
    { name: "Down", sort: "wire_down", class: "digits", cell: (round) => format.bytes(round.wire_down) },
    { name: "Up", sort: "wire_up", class: "digits", cell: (round) => format.bytes(round.wire_up) },
    { name: "So far", sort: "wire_cumulative", class: "digits", cell: (round) => format.bytes(round.wire_cumulative) },
    isSimulation() ? null : { name: "Of dense", sort: "share_of_dense", class: "digits", cell: (round) => (round.wire_down + round.wire_up ? format.share(round.share_of_dense) : format.DASH) },
  ].filter(Boolean);
}

function change(value, before, measure) {
  if (typeof value !== "number" || typeof before !== "number") return null;
  return h("span", { class: `change ${value >= before ? "up" : "down"}` }, ` ${format.scoreChange(value, before, measure)}`);
}

const ORDER = ["updated", "abstained", "answered", "refused", "expired", "cancelled", "open"];

/** Counts of a round's answers; outcomes stand in where counts are missing. */
export function countsOf(round) {
  if (round.counts) return round.counts;
  const counts = {};
  for (const state of Object.values(round.outcomes ?? {})) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

function answers(round) {
  const counts = countsOf(round);
  const shown = ORDER.filter((state) => counts[state]);
  if (shown.length === 0) return format.DASH;
  return h("span", { class: "answers" }, shown.map((state) => h("span", { class: "answer", key: state }, glyph(toneOf(state)), `${counts[state]} ${wordOf(state)}`)));
}

/** What operators have written beside the study. */
function notes(study) {
  const readOnly = store.federation.read_only;
  if (!study.notes.length && readOnly) return null;
  return card("Notes", { id: "notes", aside: readOnly ? null : button("Add a note", { small: true, key: "add", on: () => addNote(study.name) }) },
    study.notes.length ? h("ul", { class: "notes" }, study.notes.map((each, index) => h("li", { key: index }, h("p", null, each.text), h("p", { class: "note" }, `${each.by || "unknown"}, ${format.moment(each.unix)}`))))
      : h("p", { class: "nothing" }, "None. What should be remembered of this study, such as a new scanner at a hospital, can be written here."));
}

function about(study) {
  const settings = Object.entries(study.settings ?? {}).filter(([, values]) => Object.keys(values).length);
  return card("About this study", { id: "about" },
    h("dl", { class: "facts wide" },
      fact("Method", [study.method, study.source ? h("span", { class: "note" }, ` ${study.source}`) : null]),
      fact("Classes", study.classes.length ? `${study.classes.length}: ${study.classes.slice(0, 12).join(", ")}${study.classes.length > 12 ? " …" : ""}` : format.DASH),
      fact("Weights", study.num_parameters ? `${format.count(study.num_parameters)}; dense ${format.bytes(study.dense_bytes)}` : format.DASH),
      fact("Queued", format.moment(study.queued_unix)),
      study.started_unix ? fact("Started", format.moment(study.started_unix)) : null,
      study.ended_unix ? fact("Ended", format.moment(study.ended_unix)) : null,
      study.discloses ? fact("What it discloses", study.discloses) : null),
    h("div", { class: "groups-of-settings" }, settings.map(([name, values]) => settingsOf(name, values))));
}

function settingsOf(name, values) {
  return h("details", { class: "folded", key: name }, h("summary", null, h("code", null, `[${name}]`)),
    h("dl", { class: "settings" }, Object.entries(values).map(([key, value]) => h("div", { key }, h("dt", null, key), h("dd", null, typeof value === "object" ? JSON.stringify(value) : String(value))))));
}
