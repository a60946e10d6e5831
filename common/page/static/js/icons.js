// Icons as parts of the tree, 20 x 20, drawn with the colour of the text. They are decoration: names are beside them.

import { h } from "./dom.js";

const PATHS = {
  overview: "M3 16V9m4.7 7V4m4.6 12v-5m4.7 5V7",
  rounds: "M16.5 10a6.5 6.5 0 1 1-2-4.7M16.8 2.8v3.4h-3.4",
  silos: "M3.5 4.5h13v4h-13zM3.5 11.5h13v4h-13zM6 6.5h.01M6 13.5h.01",
  cost: "M6 3.5v12m0 0-3-3m3 3 3-3M14 16.5v-12m0 0-3 3m3-3 3 3",
  audit: "M5 2.5h7l3.5 3.5v11.5H5zM8 9h5M8 12h5M8 15h3",
  studies: "M3 5h14M3 10h14M3 15h9",
  wall: "M2.5 4h15v9.5h-15zM7 16.5h6M10 13.5v3",
  bell: "M10 2.8a4.6 4.6 0 0 0-4.6 4.6v3.4L4 13.8h12l-1.4-3V7.4A4.6 4.6 0 0 0 10 2.8zM8.3 16.4a1.8 1.8 0 0 0 3.4 0",
  key: "M4.5 9h11v7.5h-11zM6.8 9V6.6a3.2 3.2 0 0 1 6.4 0V9",
  sun: "M10 6.4a3.6 3.6 0 1 1 0 7.2 3.6 3.6 0 0 1 0-7.2zM10 1.8v1.6m0 13.2v1.6M1.8 10h1.6m13.2 0h1.6M4.2 4.2l1.1 1.1m9.4 9.4 1.1 1.1m0-11.6-1.1 1.1m-9.4 9.4-1.1 1.1",
  moon: "M16.8 12.2A7.2 7.2 0 0 1 7.8 3.2a7.2 7.2 0 1 0 9 9z",
  auto: "M10 2.8a7.2 7.2 0 1 1 0 14.4zM10 2.8a7.2 7.2 0 0 0 0 14.4",
  pause: "M7 4.5v11M13 4.5v11",
  play: "M6.5 4.2v11.6l9-5.8z",
  stop: "M5 5h10v10H5z",
  clock: "M10 2.8a7.2 7.2 0 1 1 0 14.4 7.2 7.2 0 0 1 0-14.4zM10 6v4.2l2.8 1.8",
  plus: "M10 4v12M4 10h12",
  copy: "M7 7h9.5v9.5H7zM13 7V3.5H3.5V13H7",
  close: "m5 5 10 10M15 5 5 15",
  left: "m12.5 4.5-5.5 5.5 5.5 5.5",
  right: "m7.5 4.5 5.5 5.5-5.5 5.5",
  warning: "M10 3 18 16.8H2zM10 8v4.2m0 2.3h.01",
  check: "m4 10.5 4 4 8-9",
  link: "M8.5 11.5a3 3 0 0 0 4.3 0l3-3a3 3 0 0 0-4.3-4.3l-1 1M11.5 8.5a3 3 0 0 0-4.3 0l-3 3a3 3 0 0 0 4.3 4.3l1-1",
};

export function icon(name, size = 18) {
  return h("svg", { class: "icon", viewBox: "0 0 20 20", width: size, height: size, "aria-hidden": "true", focusable: "false" },
    h("path", { d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.6", "stroke-linecap": "round", "stroke-linejoin": "round" }));
}

export function logo() {
  return h("svg", { class: "logo", viewBox: "0 0 32 32", width: 26, height: 26, "aria-hidden": "true", focusable: "false" },
    h("path", { d: "M7 12a9 9 0 0 1 18 0", fill: "none", stroke: "#7cc4e8", "stroke-width": "2.8", "stroke-linecap": "round" }),
    h("rect", { x: 5, y: 15, width: 5.4, height: 11, rx: 1.6, fill: "#fff" }),
    h("rect", { x: 13.3, y: 15, width: 5.4, height: 11, rx: 1.6, fill: "#fff" }),
    h("rect", { x: 21.6, y: 15, width: 5.4, height: 11, rx: 1.6, fill: "#fff", "fill-opacity": ".45" }));
}
