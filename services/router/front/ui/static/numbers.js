// Numbers as people read them, what grows per second, and small helpers for elements.

export const ms = (value) => {
  const seconds = Math.round(value / 1000);
  if (value >= 59950) return `${Math.floor(seconds / 60)}m ${seconds % 60}s`;
  if (value >= 999.5) return `${(value / 1000).toFixed(value >= 9995 ? 1 : 2)} s`;
  return `${Math.round(value)} ms`;
};
export const bytes = (value) => {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  return `${Math.round(value)} B`;
};
export const mbit = (value) => (value * 8 >= 9.995e8 ? `${(value * 8e-9).toFixed(2)} Gbit/s` : `${(value * 8e-6).toFixed(value * 8e-6 >= 100 ? 0 : 1)} Mbit/s`);
export const count = (value) => Math.round(value).toLocaleString("en");
export const percent = (part, whole) => (whole > 0 ? `${Math.round((100 * part) / whole)}%` : "–");
export const perSecond = (value) => (value >= 100 ? count(value) : value.toFixed(1));

export const by = (id) => document.getElementById(id);

/** An element with a class and children (texts or elements). */
export function make(tag, cls = "", ...children) {
  const element = document.createElement(tag);
  if (cls) element.className = cls;
  element.append(...children);
  return element;
}

/** Set a text only where it differs: what does not change is neither drawn nor read out again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Children of a box, one for each item, made once and kept: `build(item)` makes one, `fill(child, item)` updates it. */
export function keyed(box, items, key, build, fill) {
  const known = new Map([...box.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const name = key(item);
    let child = known.get(name);
    if (!child) {
      child = build(item);
      child.dataset.key = name;
    }
    known.delete(name);
    if (box.children[at] !== child) box.insertBefore(child, box.children[at] ?? null);
    fill(child, item);
  });
  for (const child of known.values()) child.remove();
}

/** Set an attribute only where it differs. */
export function tell(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Values by time: the last two minutes of counters and gauges, for rates and small charts. */
export class History {
  constructor(keep = 120000) {
    this.keep = keep;
    this.rows = [];
  }

  add(at, values) {
    const last = this.rows.at(-1);
    if (last?.at === at) return; // seen already, before a reconnect
    if (last && (at < last.at || Object.keys(values).some((name) => name.startsWith("+") && values[name] < (last.values[name] ?? 0)))) this.rows = []; // something began anew
    this.rows.push({ at, values });
    while (this.rows[0].at < at - this.keep) this.rows.shift();
  }

  /** Growth over the last `span` milliseconds. */
  growth(name, span = 60000) {
    const last = this.rows.at(-1);
    const first = this.rows.find((row) => row.at >= last.at - span && name in row.values);
    return first && name in last.values ? last.values[name] - first.values[name] : 0;
  }

  /** Growth per second over the last `span` milliseconds. */
  rate(name, span = 5000) {
    const last = this.rows.at(-1);
    const first = this.rows.find((row) => row.at >= last.at - span && name in row.values);
    return first && last.at > first.at ? (1000 * (last.values[name] - first.values[name])) / (last.at - first.at) : 0;
  }

  /** A counter's growth per second from row to row, or a gauge's values: [[at, value]]. */
  series(name) {
    const rows = this.rows.filter((row) => name in row.values);
    if (!name.startsWith("+")) return rows.map((row) => [row.at, row.values[name]]);
    return rows.slice(1).map((row, at) => [row.at, (1000 * (row.values[name] - rows[at].values[name])) / (row.at - rows[at].at)]);
  }
}
