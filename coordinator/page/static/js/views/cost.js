// What the study costs on the wire, where the bytes go, what each encoding saves and what it will have cost at the end.

import { bar } from "../charts.js";
import { currentStudy } from "../current.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { card, commands, empty, head, table, tile, tiles } from "../parts.js";
import { api, to } from "../routes.js";
import { asSent, isSimulation, sentHeading } from "../sent.js";
import { changed, data, now, store } from "../store.js";
import { unknown } from "./overview.js";

export const title = (route) => `Cost of ${currentStudy(route) ?? "nothing"}`;

export function needs(route) {
  const study = currentStudy(route);
  return study ? [api.study(study)] : [];
}

const both = ({ down, up }) => down + up;

export function view(route) {
  const name = currentStudy(route);
  if (!name) return [head("Cost"), empty("No study yet", h("p", null, "Bytes are counted from the first study on."), commands("coordinator new first", "coordinator queue first"))];
  const study = asSent(data(api.study(name)));
  if (!study) return unknown(name);
  const { cost } = study;
  const wire = both(cost.wire);
  const top = head("Cost", { over: h("a", { href: to.overview(name) }, name), state: study.state, below: isSimulation() ? "Payloads as real silos would have exchanged them; in a simulation nothing crosses a network." : cost.estimated ? "Wire bytes are estimated from the messages here, because the kernel's counters were not available." : "Wire bytes are what the kernel counted on the connections, including TLS, HTTP/2 and retransmissions." });
  if (wire === 0 && both(cost.payload) === 0) return [top, empty("Nothing sent yet", h("p", null, "The first round sends the model to the silos."))];
  return [
    top,
    h("section", { "aria-label": "Sums", key: "sums" }, tiles(
      tile(sentHeading(), format.bytes(wire), `↓ ${format.bytes(cost.wire.down)}  ↑ ${format.bytes(cost.wire.up)}`),
      tile("Of dense", format.share(cost.share_of_dense), `dense would be ${format.bytes(cost.dense_total)}`, cost.share_of_dense < 1 ? "good" : ""),
      ...(isSimulation() ? [] : [tile("Outside of tasks", format.bytes(both(cost.overhead)), "waiting, heartbeats, enrollment"), forecastTile(cost, study)]),
      tile("Per round", study.rounds_completed ? format.bytes(wire / study.rounds_completed) : format.DASH, "mean, both directions together"))),
    h("div", { class: "pair", key: "first-pair" }, ladder(cost), directions(cost)),
    encodings(cost),
    isSimulation() ? byGroup(cost) : [h("div", { class: "pair", key: "second-pair" }, byGroup(cost), byRpc(cost)), bySilo(cost)],
  ];
}

function forecastTile(cost, study) {
  const { forecast } = cost;
  if (!forecast) return tile("At the end", study.ended_unix ? "ended" : format.DASH, study.ended_unix ? format.moment(study.ended_unix) : "known after the first round");
  return tile("At the end", format.bytes(forecast.wire_bytes_at_end), [`in about ${format.estimate(forecast.seconds_left)}`, forecast.unix_at_end ? `, ${format.clock(forecast.unix_at_end, now()).slice(0, -3)}` : ""]);
}

/** From dense to wire: each step says what it adds or saves. */
function ladder(cost) {
  const steps = [["Dense tensors", cost.dense_total, "quiet", "what the papers call 100 %"], ["Payload", both(cost.payload), "first", "encoded tensors"],
    ["Messages", both(cost.message), "first", "with headers, progress, waiting"], ["Wire", both(cost.wire), "strong", "with TLS, HTTP/2, TCP"]].slice(0, isSimulation() ? 2 : 4);
  const most = Math.max(1, ...steps.map(([, size]) => size));
  return card(isSimulation() ? "From dense to payload" : "From dense to wire", { id: "ladder" }, h("dl", { class: "ladder" }, steps.map(([name, size, tone, meaning]) =>
    h("div", { key: name }, h("dt", null, name, h("span", { class: "note block" }, meaning)), h("dd", null, bar([[size / most, tone]]), h("span", { class: "digits ladder-size" }, format.bytes(size)), h("span", { class: "digits note ladder-share" }, cost.dense_total ? format.share(size / cost.dense_total) : ""))))));
}

function directions(cost) {
  const rows = [["Payload", cost.payload], ["Messages", cost.message], ["Wire", cost.wire], ["of it outside of tasks", cost.overhead]].slice(0, isSimulation() ? 1 : 4);
  const most = Math.max(1, ...rows.flatMap(([, ways]) => [ways.down, ways.up]));
  return card("By direction", { id: "directions" }, table("Bytes by direction", [
    { name: "Bytes", cell: ([name]) => name },
    { name: "Down, to silos", class: "digits", cell: ([, ways]) => [format.bytes(ways.down), bar([[ways.down / most, "down"]])] },
    { name: "Up, from silos", class: "digits", cell: ([, ways]) => [format.bytes(ways.up), bar([[ways.up / most, "up"]])] },
    { name: "Both", class: "digits", cell: ([, ways]) => format.bytes(both(ways)) }], rows, { key: ([name]) => name }));
}

function encodings(cost) {
  const rows = [...(cost.by_encoding ?? [])].sort((a, b) => b.saved_bytes - a.saved_bytes);
  if (rows.length === 0) return null;
  const most = Math.max(1, ...rows.map(({ dense_bytes: dense, bytes }) => Math.max(dense, bytes)));
  return card("What each encoding saved", { id: "encodings", note: "Every block of a tensor is sent in the encoding that was chosen for it. Savings are relative to the same blocks as dense 32-bit tensors." },
    table("Bytes by encoding", [
      { name: "Encoding", cell: (row) => [row.text || format.words(row.encoding), row.text && row.text !== row.encoding ? h("code", { class: "note block" }, row.encoding) : null] },
      { name: "Direction", cell: ({ direction }) => direction },
      { name: "Blocks", class: "digits", cell: ({ blocks }) => (blocks ? format.count(blocks) : format.DASH) },
      { name: "Bytes", class: "digits", cell: ({ bytes }) => format.bytes(bytes) },
      { name: "Dense", class: "digits", cell: ({ dense_bytes: dense }) => format.bytes(dense) },
      { name: "Saved", class: "digits", cell: ({ saved_bytes: saved }) => (saved < 0 ? `−${format.bytes(-saved)}` : format.bytes(saved)) },
      { name: "Sent of dense", class: "wide-bar", cell: ({ bytes, dense_bytes: dense }) => bar([[bytes / most, "first"], [Math.max(0, dense - bytes) / most, "saved"]], dense ? `${format.share(bytes / dense)} of dense` : "nothing dense to compare with") },
    ], rows, { key: ({ encoding, direction }) => `${encoding} ${direction}` }));
}

function byGroup(cost) {
  return card("Payload by tensor group", { id: "groups" }, ways("Payload bytes by tensor group", "Group", cost.by_group, ({ group }) => h("code", null, group)));
}

function byRpc(cost) {
  return card("Messages by call", { id: "calls" }, ways("Message bytes by call", "Call", cost.by_rpc, ({ rpc }) => h("code", null, rpc)));
}

function ways(label, name, rows, cell) {
  const most = Math.max(1, ...rows.flatMap(({ down, up }) => [down, up]));
  return table(label, [{ name, cell },
    { name: "Down", class: "digits", cell: ({ down }) => [format.bytes(down), bar([[down / most, "down"]])] },
    { name: "Up", class: "digits", cell: ({ up }) => [format.bytes(up), bar([[up / most, "up"]])] }], rows, { key: (row) => row.group ?? row.rpc ?? row.silo });
}

const MOST = 20;

function bySilo(cost) {
  const rows = [...cost.by_silo].sort((a, b) => both(b) - both(a));
  const all = store.ui.allSilosCost || rows.length <= MOST + 5;
  const shown = all ? rows : rows.slice(0, MOST);
  const most = Math.max(1, ...rows.map(both));
  return card("Wire by silo", { id: "by-silo", aside: all ? null : h("button", { type: "button", class: "link", on: { click: () => { store.ui.allSilosCost = true; changed(); } } }, `Show all ${rows.length}`) },
    table("Wire bytes by silo", [
      { name: "Silo", cell: ({ silo }) => (silo ? h("a", { href: to.silo(silo) }, silo) : h("span", { class: "note" }, "no silo in particular")) },
      { name: "Down", class: "digits", cell: ({ down }) => format.bytes(down) },
      { name: "Up", class: "digits", cell: ({ up }) => format.bytes(up) },
      { name: "Down and up", class: "wide-bar half", cell: ({ down, up }) => bar([[down / most, "down"], [up / most, "up"]]) },
    ], shown, { key: ({ silo }) => silo || " " }));
}
