// All silos: who is there, what they do, what they bring. Stays usable with hundreds: filter, sort, plain rows.

import { heatStrip, sparkline } from "../charts.js";
import { invite, revoke } from "../actions.js";
import { currentStudy } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { ago, badge, button, card, commands, empty, glyph, head, table, trouble, until, wordOf } from "../parts.js";
import { api, to } from "../routes.js";
import { changed, data, store } from "../store.js";

export const title = () => "Silos";

export function needs(route) {
  const study = currentStudy(route);
  return study ? [api.study(study)] : [];
}

const GROUPS = [["all", "All"], ["here", "Here"], ["attention", "Need a look"], ["gone", "Not taking part"]];
const GROUP_OF = { connected: "here", working: "here", joined: "here", late: "attention", away: "attention", "away by policy": "attention", silent: "attention", enrolled: "attention", "set aside": "gone", revoked: "gone", left: "gone" };
/** What was refused needs a look, whatever its silo does now. */
const groupOf = ({ state, refused }) => (refused ? "attention" : GROUP_OF[state]);
const RANK = ["silent", "late", "away", "away by policy", "working", "connected", "joined", "enrolled", "set aside", "left", "revoked"];
/** Order of rows: who needs a look first. Working and waiting are alike, or rows would change places all the time. */
const URGENCY = { silent: 0, late: 0, away: 1, "away by policy": 1, working: 2, connected: 2, joined: 2, enrolled: 3, "set aside": 3, left: 4, revoked: 5 };

export function view(route) {
  const { silos, invitations, read_only: readOnly } = store.federation;
  const study = currentStudy(route);
  const detail = study ? data(api.study(study)) : null;
  const inStudy = new Map((detail?.silos ?? []).map((silo) => [silo.name, silo]));
  const rows = silos.map((silo) => ({ ...silo, study: inStudy.get(silo.name) ?? null, lastDrift: drifted(inStudy.get(silo.name)), refused: refusalOf(silo, detail) }));
  if (detail && readOnly) for (const silo of detail.silos) if (!silos.some(({ name }) => name === silo.name)) rows.push({ name: silo.name, state: "joined", study: silo, lastDrift: drifted(silo), methods: [] });
  const actions = readOnly ? null : button("Invite a silo", { name: "plus", tone: "main", key: "invite", on: () => invite() });
  const headline = head("Silos", { over: store.federation.federation, below: summary(rows), actions });
  if (rows.length === 0) return [headline, inviteHelp(), invitationList(invitations)];
  return [headline, invitationList(invitations), silosCard(rows, study, readOnly), strips(rows, detail)];
}

function summary(rows) {
  const counts = {};
  for (const { state } of rows) counts[state] = (counts[state] ?? 0) + 1;
  return RANK.filter((state) => counts[state]).map((state) => `${format.count(counts[state])} ${wordOf(state)}`).join(" · ");
}

/** Rounds marked as drift, newest first. */
export function drifted(silo) {
  return Object.entries(silo?.drift ?? {}).filter(([, { marked }]) => marked).map(([number, { distance, threshold }]) => ({ number: Number(number), distance, threshold })).sort((a, b) => b.number - a.number);
}

export function inviteHelp() {
  return empty("No silo yet",
    h("p", null, "A hospital joins with one line of text. At the hub:"),
    commands("coordinator invite hospital-a"),
    h("p", null, "Send the line over a channel that you trust. At the hospital, run three commands. Its firewall only needs to allow outgoing connections:"),
    commands("silo enroll LINE", "silo check", "silo join --data /scans"),
    h("p", null, "It appears here as soon as it has enrolled."));
}

function invitationList(invitations) {
  if (invitations.length === 0) return null;
  return card("Open invitations", { id: "invitations" }, h("ul", { class: "plain" }, invitations.map(({ silo, expires_unix: expires }) =>
    h("li", { key: silo }, h("strong", null, silo), " has not used its line yet; ", until(expires, "no time"), " left"))));
}

function silosCard(rows, study, readOnly) {
  const ui = store.ui.silos ?? (store.ui.silos = { filter: "", group: "all", by: "state", direction: 1 });
  const wanted = ui.filter.toLowerCase();
  const shown = rows.filter((row) => row.name.includes(wanted) && (ui.group === "all" || groupOf(row) === ui.group));
  shown.sort((a, b) => ui.direction * compare(a, b, ui.by) || (a.name < b.name ? -1 : 1));
  const sort = { by: ui.by, direction: ui.direction, choose: (by) => {
    ui.direction = ui.by === by ? -ui.direction : by === "name" || by === "state" ? 1 : -1;
    ui.by = by;
    changed();
  } };
  const tools = h("div", { class: "tools", key: "tools" },
    h("label", { class: "search" }, h("span", { class: "unseen" }, "Filter by name"), h("input", { type: "search", placeholder: "Filter by name", autocomplete: "off", spellcheck: "false", prop: { value: ui.filter }, on: { input: (event) => { ui.filter = event.target.value; changed(); } } })),
    h("div", { class: "chips", role: "group", "aria-label": "Which silos" }, GROUPS.map(([group, words]) => {
      const count = group === "all" ? rows.length : rows.filter((row) => groupOf(row) === group).length;
      return h("button", { type: "button", key: group, class: "chip", "aria-pressed": ui.group === group ? "true" : "false", on: { click: () => { ui.group = group; changed(); } } }, words, h("span", { class: "chip-count" }, count));
    })));
  return h("section", { class: "card", "aria-label": "Silos of the federation", key: "silos" }, tools,
    table("Silos", columns(study, readOnly), shown, { key: ({ name }) => name, sort, cards: true, empty: "No silo fits the filter." }));
}

function compare(a, b, by) {
  if (by === "name") return a.name < b.name ? -1 : 1;
  const value = { state: (row) => (row.refused ? 0 : URGENCY[row.state] ?? 2), seen: (row) => row.seen_unix ?? 0, images: (row) => (row.unlabelled_count ?? 0) + (row.labelled_count ?? 0), ratio: (row) => lastRatio(row.study) ?? -1,
    drift: (row) => row.lastDrift[0]?.number ?? -1, today: (row) => (row.bytes_today_down ?? 0) + (row.bytes_today_up ?? 0), contribution: (row) => row.study?.contribution ?? -1 }[by];
  return value(a) - value(b);
}

export const ratioPoints = (silo) => Object.entries(silo?.label_ratio ?? {}).map(([round, value]) => [Number(round), value]).sort((a, b) => a[0] - b[0]);
const lastRatio = (silo) => ratioPoints(silo).at(-1)?.[1] ?? null;

function columns(study, readOnly) {
  return [
    { name: "Silo", sort: "name", class: "name-cell", cell: (row) => h("a", { href: to.silo(row.name) }, row.name) },
    { name: "State", sort: "state", class: "state-cell", cell: (row) => [badge(row.state, doing(row)), row.away_reason || row.set_aside_reason ? h("span", { class: "note block" }, row.away_reason || row.set_aside_reason) : null, refusalCell(row.refused)] },
    { name: "Last seen", sort: "seen", class: "nowrap", cell: (row) => ago(row.seen_unix) },
    { name: "Images", sort: "images", class: "digits", cell: (row) => h("span", { title: row.labelled_count ? `${format.count(row.labelled_count)} with a label` : null }, images(row)) },
    { name: "Label ratio", sort: "ratio", class: "nowrap", cell: (row) => {
      const points = ratioPoints(row.study);
      return points.length ? h("span", { class: "with-spark" }, sparkline(points), h("span", { class: "digits" }, format.share(points.at(-1)[1]))) : format.DASH;
    } },
    { name: "Drift", sort: "drift", class: "nowrap", cell: (row) => driftCell(row) },
    { name: "Contribution", sort: "contribution", class: "digits", cell: (row) => (row.study ? format.share(row.study.contribution) : format.DASH) },
    { name: "Bytes today", sort: "today", class: "digits nowrap", cell: (row) => today(row) },
    ...(readOnly ? [] : [{ name: "Actions", class: "row-actions", cell: (row) => (row.state === "revoked" || row.state === "left"
      ? button("Invite again", { small: true, tone: "bare", label: `Invite ${row.name} again`, on: () => invite(row.name) })
      : button("Revoke", { small: true, tone: "bare danger", label: `Revoke ${row.name}`, on: () => revoke(row.name) })) }]),
  ];
}

/** What a silo refused last, in red with its reason; of the study that is looked at also after its end. */
export function refusalOf(row, study) {
  const all = study?.participation.refusing.find(({ silo }) => silo === row.name);
  if (all) return { words: `refused every round of ${study.name} (${all.rounds})`, reason: all.reason };
  return row.refusal ? { words: `refused round ${row.refusal.round} of ${row.refusal.study}`, reason: row.refusal.reason } : null;
}

function refusalCell(refused) {
  return refused ? h("span", { class: "note block refusal" }, glyph("bad"), ` ${refused.words}: ${refused.reason || "no reason given"}`) : null;
}

/** That a silo is silent, and how to leave it out; for the study's page and its own. */
export function silentNotice(line) {
  return trouble("bad", `${line.name} is silent`,
    h("p", null, "Last heard ", ago(line.silent_unix), ` (${format.moment(line.silent_unix)}). No round asks it or waits for it until it calls again; then it takes part again automatically. At the hospital, `, h("code", null, "silo status"), " and ", h("code", null, "silo check"), " say more."),
    store.federation.folder_option ? [h("p", null, "To exclude it until you take it back, run at the hub:"), commands(`coordinator set-aside ${line.name}${store.federation.folder_option}`)] : null);
}

/** All images of a silo, or a dash while it has not told. */
export const images = (row) => (row.labelled_count || row.unlabelled_count ? format.count(row.labelled_count + row.unlabelled_count) : format.DASH);

/** "training 40 %", or null while it does nothing. It stands in the badge, so that rows keep their height. */
export const doing = (row) => (row.doing && row.state === "working" ? `${row.doing.stage} ${format.progress(row.doing.fraction)}` : null);

function driftCell(row) {
  if (row.lastDrift.length === 0) return Object.keys(row.study?.drift ?? {}).length ? h("span", { class: "note" }, "none") : format.DASH;
  const [last] = row.lastDrift;
  return h("a", { class: "drift", href: to.silo(row.name) }, h("span", { class: "drift-mark", "aria-hidden": "true" }), `round ${last.number}`, row.lastDrift.length > 1 ? h("span", { class: "note" }, ` +${row.lastDrift.length - 1}`) : null);
}

export function today(row) {
  if (!row.bytes_today_down && !row.bytes_today_up) return format.DASH;
  return h("span", { class: "ways" }, h("span", { title: "down, to the silo" }, h("span", { class: "way" }, "↓ "), format.bytes(row.bytes_today_down ?? 0)), h("span", { title: "up, from the silo" }, h("span", { class: "way" }, "↑ "), format.bytes(row.bytes_today_up ?? 0)));
}

const MOST_STRIPS = 12;

function strips(rows, study) {
  if (!study || study.classes.length === 0) return null;
  const having = rows.filter((row) => Object.keys(row.study?.class_histogram ?? {}).length);
  if (having.length === 0) return null;
  const marked = having.filter((row) => row.lastDrift.length);
  const shown = having.length <= MOST_STRIPS ? [...having].sort((a, b) => (a.name < b.name ? -1 : 1)) : marked.slice(0, MOST_STRIPS);
  if (shown.length === 0) return null;
  // One scale for all of them: the same colour is the same share.
  const most = Math.max(1e-9, ...shown.flatMap((row) => Object.values(row.study.class_histogram).flat()));
  return card("Pseudo-labels by class", { id: "pseudo-labels", note: [driftWords(), having.length > MOST_STRIPS ? ` Shown are silos with a marked round; every silo's page has its own.` : null] },
    h("div", { class: "strips" }, shown.map((row) => h("article", { class: "strip", key: row.name },
      h("h3", null, h("a", { href: to.silo(row.name) }, row.name), row.lastDrift.length ? h("span", { class: "drift" }, h("span", { class: "drift-mark", "aria-hidden": "true" }), `drift in round ${row.lastDrift.slice(0, 3).map(({ number }) => number).join(", ")}`) : null),
      strip(row.study, study.classes, 11, most)))));
}

export function driftWords() {
  return ["Each row is a class and each column a round. A stronger colour means more pseudo-labels. A round is marked ", h("span", { class: "drift-mark", "aria-hidden": "true" }), " where the classes are spread differently than in the silo's rounds before (Jensen-Shannon distance above what chance would give): other images may have come in, or the model is collapsing."];
}

/** The strip of one silo, with a description of its last round for those who cannot see it. */
export function strip(silo, classes, row = 14, most = 0) {
  const rounds = Object.entries(silo.class_histogram).map(([number, shares]) => ({ number: Number(number), shares, marked: Boolean(silo.drift?.[number]?.marked) })).sort((a, b) => a.number - b.number);
  const names = rounds[0].shares.map((_, index) => classes[index] ?? String(index));
  const last = rounds.at(-1);
  const top = last.shares.map((share, index) => [share, names[index]]).sort((a, b) => b[0] - a[0]).slice(0, 5).map(([share, name]) => `${name} ${format.share(share)}`).join(", ");
  const marks = rounds.filter(({ marked }) => marked).map(({ number }) => number);
  return heatStrip(rounds, names, { row, most, share: format.share, label: `Share of each class among the pseudo-labels of ${silo.name}, rounds ${rounds[0].number} to ${last.number}. Round ${last.number}: ${top}. ${marks.length ? `Drift in round ${marks.join(", ")}.` : "No drift."}` });
}

