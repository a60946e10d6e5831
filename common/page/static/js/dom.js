// A small virtual tree: views return what should stand there, `patch` changes only what differs. What the operator is
// doing on the page (focus, scroll position, open details, half-typed text) therefore survives an update.
// Text is set as text, never parsed as markup: names, reasons and versions come from silos.

const SVG = "http://www.w3.org/2000/svg";

/**
 * A node of the tree. Properties: `class`, `key`, `on` ({event: function}), `style` (through the CSSOM, because the
 * page's policy forbids style attributes), `prop` (properties of the element), `once` (attributes set only when it is
 * made, such as `open`); everything else is an attribute. Children that are null or false are left out.
 */
export function h(tag, props, ...children) {
  const flat = [];
  flatten(children, flat);
  return { tag, props: props ?? {}, key: props?.key ?? null, children: flat, element: null };
}

function flatten(children, into) {
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true || child === "") continue;
    if (Array.isArray(child)) flatten(child, into);
    else if (typeof child === "object") into.push(child);
    else into.push({ text: String(child), key: null, element: null });
  }
}

/** Makes the children of `parent` what `next` says; `parent` keeps the last tree itself. */
export function render(parent, ...next) {
  const flat = [];
  flatten(next, flat);
  patchChildren(parent, parent.semisiloTree ?? [], flat, false);
  parent.semisiloTree = flat;
}

function kindOf(node) {
  return node.tag === undefined ? "#text" : node.tag;
}

function patchChildren(parent, before, after, svg) {
  const keyed = new Map();
  const free = new Map();
  for (const node of before) {
    if (node.key !== null) keyed.set(`${node.tag} ${node.key}`, node);
    else if (free.has(kindOf(node))) free.get(kindOf(node)).push(node);
    else free.set(kindOf(node), [node]);
  }
  for (const list of free.values()) list.reverse();
  const matched = after.map((node) => {
    if (node.key === null) return free.get(kindOf(node))?.pop() ?? null;
    const name = `${node.tag} ${node.key}`;
    const found = keyed.get(name) ?? null;
    keyed.delete(name);
    return found;
  });
  for (const node of keyed.values()) node.element.remove();
  for (const list of free.values()) for (const node of list) node.element.remove();
  let next = parent.firstChild;
  after.forEach((node, index) => {
    const old = matched[index];
    if (old) update(old, node, svg);
    else create(node, svg);
    if (node.element === next) next = next.nextSibling;
    else parent.insertBefore(node.element, next);
  });
}

function create(node, svg) {
  if (node.tag === undefined) {
    node.element = document.createTextNode(node.text);
    return;
  }
  const inside = svg || node.tag === "svg";
  node.element = inside ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  for (const [name, value] of Object.entries(node.props.once ?? {})) setAttribute(node.element, name, value);
  setProps(node.element, {}, node.props);
  patchChildren(node.element, [], node.children, inside);
  setProperties(node.element, {}, node.props.prop ?? {}); // after the children: a select needs its options
}

function update(old, node, svg) {
  node.element = old.element;
  if (node.tag === undefined) {
    if (old.text !== node.text) node.element.data = node.text;
    return;
  }
  const inside = svg || node.tag === "svg";
  setProps(node.element, old.props, node.props);
  patchChildren(node.element, old.children, node.children, inside);
  setProperties(node.element, old.props.prop ?? {}, node.props.prop ?? {});
}

const OWN = new Set(["key", "on", "style", "prop", "once"]);

function setProps(element, before, after) {
  for (const name of Object.keys(before)) {
    if (!OWN.has(name) && !(name in after)) element.removeAttribute(name === "class" ? "class" : name);
  }
  for (const [name, value] of Object.entries(after)) {
    if (!OWN.has(name) && before[name] !== value) setAttribute(element, name, value);
  }
  setStyle(element, before.style ?? {}, after.style ?? {});
  setListeners(element, before.on ?? {}, after.on ?? {});
}

function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

function setStyle(element, before, after) {
  for (const name of Object.keys(before)) if (!(name in after)) element.style.removeProperty(name);
  for (const [name, value] of Object.entries(after)) {
    if (before[name] !== value) element.style.setProperty(name, String(value));
  }
}

function setProperties(element, before, after) {
  for (const [name, value] of Object.entries(after)) {
    // What is typed belongs to the one who types: `value` is compared with the element, objects with the last tree.
    if (typeof value === "object" ? before[name] !== value : element[name] !== value) element[name] = value;
  }
}

// One listener per element and event; it looks up the function of the newest tree.
const listeners = new WeakMap();

function setListeners(element, before, after) {
  const names = Object.keys(after);
  if (names.length === 0 && Object.keys(before).length === 0) return;
  const known = listeners.get(element) ?? {};
  for (const name of Object.keys(before)) if (!(name in after)) known[name] = null;
  for (const name of names) {
    if (!(name in known)) element.addEventListener(name, (event) => listeners.get(element)[name]?.(event));
    known[name] = after[name];
  }
  listeners.set(element, known);
}
