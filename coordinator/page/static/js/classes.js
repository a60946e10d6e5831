// A model class by class: how many images of each class it finds, with the interval, and what it takes for what.

import { names } from "./actions.js";
import { scale } from "./charts.js";
import { h } from "./dom.js";
import * as format from "./format.js";
import { card, table } from "./parts.js";

/** More classes than these make no table that one reads: then the most frequent mistakes stand there. */
const MOST_IN_MATRIX = 20;

/** `found` as the coordinator gives it, null where nothing was measured; `href` of the round that it is about. */
export function classesCard(found, { href = null } = {}) {
  if (!found) return null;
  const about = found.labels_alone ? "labels alone" : found.round === 0 ? "the preparation" : `round ${found.round}`;
  const images = found.images ?? found.classes.reduce((sum, each) => sum + (each.images ?? 0), 0);
  const note = ["Model of ", href ? h("a", { href }, about) : about, found.handed_over ? ", which is handed over" : "", images ? `, on ${format.count(images)} test images` : ", on the test images", "."];
  return card("Class by class", { id: "by-class", note }, h("div", { class: "by-class" }, found.findings.length ? [areas(found), answers(found.findings)] : recalls(found), found.confusion.length ? matrix(found) : null));
}

function recalls({ classes, intervals_by: by }) {
  const known = classes.filter(({ recall }) => recall !== null);
  const worst = lowest(known, ({ recall }) => recall);
  const width = Math.min(16, Math.max(...classes.map(({ name }) => name.length))) + 1;
  return h("div", { class: "by-class-part" },
    h("h3", null, "Recall"),
    h("p", { class: "note" }, `Share of the images of a class that the model finds, with the 95 % interval ${by}.`, worst.length ? [" Lowest: ", h("strong", null, namesOf(worst)), `, ${format.percentage(worst[0].recall)}.`] : null),
    h("dl", { class: "recall", style: { "--name": `${width}ch` } }, classes.map((each) => h("div", { key: each.name }, h("dt", { title: each.name }, each.name), h("dd", null,
      whisker(each, worst.includes(each)), h("span", { class: "digits" }, format.percentage(each.recall)), h("span", { class: "digits note" }, each.interval ? format.interval(each.interval) : each.images === 0 ? "no image" : ""))))));
}

/** The classes that are worst; none where all are equal. */
function lowest(classes, of) {
  const least = Math.min(...classes.map(of));
  const found = classes.filter((each) => of(each) === least);
  return found.length === classes.length ? [] : found;
}

const namesOf = (classes) => names(classes.map(({ name }) => name));

/** Where images may show several classes or none: how well each is told from its absence. */
function areas({ findings, intervals_by: by }) {
  const known = findings.filter(({ auroc }) => auroc !== null);
  const worst = lowest(known, ({ auroc }) => auroc);
  const width = Math.min(16, Math.max(...findings.map(({ name }) => name.length))) + 1;
  const score = (value) => format.score(value, "auroc");
  return h("div", { class: "by-class-part whole" },
    h("h3", null, "AUROC"),
    h("p", { class: "note" }, `How often an image that shows the class is ranked above one that does not, with the 95 % interval ${by}; guessing has 0.5.`, worst.length ? [" Lowest: ", h("strong", null, namesOf(worst)), `, ${score(worst[0].auroc)}.`] : null),
    h("dl", { class: "recall", style: { "--name": `${width}ch` } }, findings.map((each) => h("div", { key: each.name }, h("dt", { title: each.name }, each.name), h("dd", null,
      whisker({ recall: each.auroc, interval: each.auroc_interval }, worst.includes(each)), h("span", { class: "digits" }, score(each.auroc)), h("span", { class: "digits note" }, each.auroc_interval ? format.interval(each.auroc_interval, "auroc") : each.images === 0 ? "no image" : ""))))));
}

/** Of each class by itself what is found and missed; null where it was not counted. */
function answers(findings) {
  if (findings.every(({ found }) => found === null)) return null;
  const count = (name, key) => ({ name, class: "digits", cell: (each) => format.count(each[key]) });
  return h("div", { class: "by-class-part whole" }, h("h3", null, "Confusion of every class"),
    h("p", { class: "note" }, "In images, at a probability of 0.5. The model that is exported has a threshold for each class, chosen on validation images."),
    table("Confusion of every class", [{ name: "Class", cell: ({ name }) => name }, count("Found", "found"), count("Missed", "missed"), count("Falsely found", "falsely_found"), count("Rightly without", "spared"),
      { name: "Sensitivity", class: "digits", cell: (each) => format.percentage(each.sensitivity) }, { name: "Specificity", class: "digits", cell: (each) => format.percentage(each.specificity) },
      { name: "Calibration error", class: "digits", cell: (each) => format.percentage(each.calibration_error) }], findings, { key: ({ name }) => name }));
}

/** A bar with its interval as a line across. */
function whisker({ recall, interval }, marked) {
  const per = (value) => `${(100 * value).toFixed(2)}%`;
  return h("span", { class: "bar tall", "aria-hidden": "true" }, h("span", { class: `bar-part ${marked ? "warn" : "first"}`, style: { width: per(recall ?? 0) } }),
    interval ? h("span", { class: "whisker", style: { left: per(interval.low), width: per(interval.high - interval.low) } }) : null);
}

function matrix({ classes, confusion, mistakes }) {
  if (classes.length > MOST_IN_MATRIX) return h("div", { class: "by-class-part" }, h("h3", null, "Taken for another class"), mistakesTable(mistakes));
  const shares = confusion.map((row) => { const sum = row.reduce((a, b) => a + b, 0); return row.map((count) => (sum ? count / sum : 0)); });
  const most = Math.max(0, ...shares.flatMap((row, label) => row.filter((_, other) => other !== label)));
  const strength = (share, right) => (right ? share : most ? share / most : 0).toFixed(3);
  const columns = [{ name: "Class", cell: (row) => className(row.name) }, ...classes.map(({ name }, other) => ({ name: className(name), class: "confused", cell: ({ label }) => {
    const count = confusion[label][other];
    return h("span", { class: `cell ${label === other ? "right" : "wrong"}`, style: { "--share": strength(shares[label][other], label === other) }, title: `${classes[label].name} taken for ${name}: ${format.plural(count, "image")}, ${format.share(shares[label][other])}` }, count || h("span", { class: "none" }, "·"));
  } }))];
  return h("div", { class: "by-class-part" }, h("h3", null, "Confusion"),
    h("p", { class: "note" }, "A row is what the images are, a column what the model says; in images."),
    h("div", { class: "confusion" }, table("Confusion of classes", columns, classes.map(({ name }, label) => ({ name, label })), { key: ({ label }) => label })),
    h("div", { class: "scales" }, scale("right, of the class", "0 %", "100 %", "first"), most ? scale("taken for another", "0 %", format.share(most), "level") : null));
}

/** As long as there is room for; pointing at it shows all of it. */
const className = (name) => h("span", { class: "class-name", title: name }, name);

function mistakesTable(mistakes) {
  return table("Most frequent mistakes", [
    { name: "Is", cell: (each) => each.true }, { name: "Taken for", cell: (each) => each.predicted },
    { name: "Images", class: "digits", cell: (each) => format.count(each.images) }, { name: "Of the class", class: "digits", cell: (each) => format.share(each.share) }],
  mistakes, { key: (each) => `${each.true} ${each.predicted}`, empty: "None: every test image is found." });
}
