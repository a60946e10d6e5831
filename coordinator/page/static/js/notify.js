// Notices of the browser for what needs a person, while the page is open in some tab. Whoever wants them asks for them
// once; what was there before is not announced, and nothing twice.

const WANTED = "semisilo-notify";
const KNOWN = "semisilo-notified";
const MOST_KNOWN = 300;
const HOLD = 10_000;

const since = new Map(); // id -> when this tab first saw it, ms

/** "on", "off", "denied" (by the browser's settings) or "absent" (no notices here, or no safe connection). */
export function notices() {
  if (!("Notification" in globalThis) || !globalThis.isSecureContext) return "absent";
  if (Notification.permission === "denied") return "denied";
  return Notification.permission === "granted" && read(WANTED) === "on" ? "on" : "off";
}

/** Asks the browser; must be called from a click. */
export async function switchOn(alerts) {
  if (!("Notification" in globalThis)) return;
  if (await Notification.requestPermission() !== "granted") return;
  write(WANTED, "on");
  remember(alerts.map(({ id }) => id));
}

export function switchOff() {
  write(WANTED, "off");
}

/** Announces what is new among the alerts, once it has been there for a moment. */
export function announceAlerts(federation, alerts, open) {
  const now = Date.now();
  const there = new Set(alerts.map(({ id }) => id));
  for (const id of since.keys()) if (!there.has(id)) since.delete(id);
  for (const { id } of alerts) if (!since.has(id)) since.set(id, now);
  if (notices() !== "on") return;
  const known = new Set(remembered());
  const fresh = alerts.filter(({ id }) => !known.has(id) && now - since.get(id) >= HOLD);
  if (fresh.length === 0) return;
  remember(fresh.map(({ id }) => id)); // before showing: another tab looks there
  for (const alert of fresh) {
    const shown = new Notification(`${federation}: ${alert.title}`, { body: [alert.text, alert.remedy].filter(Boolean).join(" "), tag: alert.id, icon: "/static/favicon.svg" });
    shown.onclick = () => {
      globalThis.focus();
      open(alert);
    };
  }
}

function remembered() {
  try {
    const found = JSON.parse(read(KNOWN) ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function remember(ids) {
  write(KNOWN, JSON.stringify([...new Set([...remembered(), ...ids])].slice(-MOST_KNOWN)));
}

const held = new Map(); // where storage is blocked

function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return held.get(name) ?? null;
  }
}

function write(name, value) {
  held.set(name, value);
  try {
    localStorage.setItem(name, value);
  } catch {
    // kept in `held`
  }
}
