// What needs a person, what to do about it, and how to hear of it without looking here.

import { h } from "../dom.js";
import * as format from "../format.js";
import { notices, switchOff, switchOn } from "../notify.js";
import { button, card, commands, empty, head, trouble } from "../parts.js";
import { to } from "../routes.js";
import { changed, store } from "../store.js";

export const title = () => "Needs a person";
export const needs = () => [];

export const TONES = { critical: "bad", warning: "warn", info: "good" };

export function view() {
  const { alerts, federation, read_only: readOnly } = store.federation;
  const pressing = alerts.filter(({ severity }) => severity !== "info").length;
  return [
    head("Needs a person", { over: federation, below: readOnly ? "This page only shows a study." : pressing ? `${format.plural(pressing, "thing")} to look at, the most urgent first.` : "Nothing at this moment." }),
    alerts.length ? alerts.map(alertBox) : readOnly ? null : empty("Nothing needs you", h("p", null, "Failed studies and rounds, studies that wait, silos that are silent, refuse or stand out, certificates and disks near their end are listed here.")),
    readOnly ? null : ways(alerts),
  ];
}

export function alertBox(alert) {
  const place = alert.silo ? h("a", { href: to.silo(alert.silo) }, alert.silo) : alert.study ? h("a", { href: to.overview(alert.study) }, alert.study) : null;
  return h("div", { key: alert.id, "data-kind": alert.kind }, trouble(TONES[alert.severity] ?? "warn", alert.title,
    alert.text ? h("p", null, alert.text) : null, alert.remedy ? h("p", null, alert.remedy) : null,
    h("p", { class: "note" }, [place, alert.since_unix ? `since ${format.moment(alert.since_unix)}` : null].filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part])))));
}

function ways(alerts) {
  const state = notices();
  const words = {
    on: "This browser shows a notice of what is new, as long as a tab with this page is open.",
    off: "This browser can show a notice of what is new, as long as a tab with this page is open.",
    denied: "This browser's settings forbid notices from this page.",
    absent: "Browsers show notices only for pages over https or from this machine (an ssh tunnel will do).",
  }[state];
  return card("Get alerts elsewhere", { id: "ways" },
    h("h3", null, "In this browser"),
    h("p", null, words),
    state === "off" ? h("p", null, button("Show notices in this browser", { key: "on", tone: "main", on: async () => { await switchOn(alerts); changed(); } })) : null,
    state === "on" ? h("p", null, button("Stop notices", { key: "off", on: () => { switchOff(); changed(); } })) : null,
    h("h3", { class: "apart" }, "In a chat or a pager"),
    h("p", null, "The coordinator posts a JSON object to an address when something needs a person, and when it is over. In federation.toml at the hub:"),
    commands("[alerts]", 'webhook = "ADDRESS"'));
}
