// Requests as bars over time: above where their time goes, below what crosses the lines for them.

import { by, bytes, count, make, ms, percent, say } from "./numbers.js";

export const STAGES = {
  queue: ["queue", "waits for a place or its turn", true],
  prefill: ["prefill", "the prompt is computed", false],
  lan: ["LAN", "waits for KV at the relay", true],
  wan: ["WAN", "waits for KV at main decode", true],
  relay: ["relay", "the relay draws", false],
  cut: ["cut", "main decode computes what it lacks", false],
  decode: ["decode", "main decode draws", false],
};
const STEPS = [5000, 10000, 15000, 20000, 30000, 45000, 60000, 90000, 120000, 180000, 300000];

export class Timeline {
  constructor() {
    this.rows = new Map(); // id -> {element, bars, request}
    this.picked = null; // id of the row that the keyboard is on
    for (const [stage, [name, about, waits]] of Object.entries(STAGES)) {
      const item = make("li", "", make("span", `key ${stage}${waits ? " wait" : ""}`), name);
      item.title = about;
      by("stage-legend").append(item);
    }
    by("stage-legend").append(make("li", "faint", "thin: KV on its way"));
    by("timeline").addEventListener("keydown", (event) => this.key(event));
    by("timeline").addEventListener("click", (event) => this.open(event.target.closest("tr")?.dataset.id));
    by("timeline").addEventListener("focusin", (event) => this.pick(event.target.closest("tr[data-id]")?.dataset.id));
    for (const id of ["find", "window"]) by(id).addEventListener("input", () => this.picture && this.draw());
  }

  /** `at`: when the picture came, by performance.now(). */
  show(requests, at) {
    this.picture = requests;
    this.at = at;
    this.draw();
  }

  /** Draw again: time goes on between two pictures. */
  draw(now = performance.now()) {
    const later = Math.max(0, now - this.at);
    const { rows, ended, live } = this.picture;
    const running = rows.filter((row) => this.fits(row));
    const over = ended.filter((row) => this.fits(row));
    const span = Number(by("window").value) || this.span(running, over, later);
    this.axis(span);
    const kept = new Set([...this.fill(by("running"), running, span, later, true), ...this.fill(by("ended"), over, span, later, false)]);
    for (const [id, row] of this.rows) if (!kept.has(id)) this.drop(id, row);
    const hidden = live - rows.length;
    const waiting = this.picture.waiting ? `, ${count(this.picture.waiting)} of them for room` : "";
    const shown = hidden > 0 ? `; the ${rows.length} oldest are shown, ${count(hidden)} newer ones are not` : "";
    say(by("requests-count"), `${count(live)} running${waiting}${shown}`);
    by("ended-head").hidden = !over.length;
    by("none").hidden = running.length + over.length > 0;
    say(by("none"), by("find").value ? "Nothing fits what is sought." : "No request runs.");
    this.rove();
    if (this.opened && by("details").open) this.details(this.opened, later);
  }

  fits(row) {
    const sought = by("find").value.trim().toLowerCase();
    return !sought || [row.id, row.tenant, row.pipeline, row.state, row.model, ...Object.values(row.nodes)].some((text) => text.toLowerCase().includes(sought));
  }

  /** A window that holds nearly everything that runs, in round numbers. */
  span(running, over, later) {
    const ages = (running.length ? running.map((row) => row.age_ms + later) : over.map((row) => row.age_ms + row.ago_ms + later)).sort((a, b) => a - b);
    const most = ages[Math.floor(0.9 * (ages.length - 1))] ?? 0;
    return STEPS.find((step) => step >= most) ?? STEPS.at(-1);
  }

  axis(span) {
    if (this.drawn === span) return;
    this.drawn = span;
    const marks = [0, 1, 2, 3, 4, 5].map((at) => {
      const mark = make("span", "", at === 5 ? "now" : `−${(span * (5 - at)) / 5000} s`);
      mark.style.left = `${20 * at}%`;
      return mark;
    });
    by("axis").replaceChildren(...marks);
  }

  fill(body, requests, span, later, runs) {
    requests.forEach((request, at) => {
      const row = this.rows.get(request.id) ?? this.add(request.id);
      row.request = request;
      this.paint(row, span, later, runs);
      if (body.children[at] !== row.element) body.insertBefore(row.element, body.children[at] ?? null);
    });
    return requests.map((request) => request.id);
  }

  add(id) {
    const cells = ["", "", "n", "n", "n", "n"].map((cls) => make("td", cls));
    const lane = make("span", "lane");
    lane.setAttribute("role", "img");
    const element = make("tr", "", ...cells, make("td", "time", lane));
    element.dataset.id = id;
    element.tabIndex = -1;
    const row = { element, cells, lane, bars: [] };
    this.rows.set(id, row);
    return row;
  }

  drop(id, row) {
    if (row.element.contains(document.activeElement)) by("requests").focus({ preventScroll: true });
    row.element.remove();
    this.rows.delete(id);
  }

  paint({ cells, lane, bars, request }, span, later, runs) {
    const age = request.age_ms + (runs ? later : 0);
    const end = runs ? 0 : request.ago_ms + later; // how long ago the bar ends
    const name = request.id.split(".").at(-1);
    [
      request.tenant ? `#${name} ${request.tenant}` : `#${name}`,
      (runs ? request.pipeline || request.state : request.pipeline || "–") + (runs || ["stop", "length"].includes(request.state) ? "" : " ✕"),
      count(request.prompt_tokens),
      percent(request.hit_tokens, request.prompt_tokens),
      `${count(request.made)}/${count(request.most)}`,
      ms(age),
    ].forEach((text, at) => say(cells[at], text));
    const parts = request.stages.map(([stage, from], at) => ({ cls: `seg ${stage}${STAGES[stage]?.[2] ? " wait" : ""}`, from, to: request.stages[at + 1]?.[1] ?? age, open: runs && at === request.stages.length - 1 }));
    for (const kv of request.crossings) parts.push({ cls: `kv ${kv.kind}`, from: kv.start_ms, to: kv.end_ms ?? age });
    while (bars.length > parts.length) bars.pop().remove();
    parts.forEach((part, at) => {
      const bar = bars[at] ?? (bars[at] = lane.appendChild(make("span")));
      const cls = part.cls + (part.open ? " open" : "");
      if (bar.className !== cls) bar.className = cls;
      bar.style.left = `${100 * (1 - (end + age - part.from) / span)}%`;
      bar.style.width = `${(100 * Math.max(0, part.to - part.from)) / span}%`;
    });
    const told = spans(request, age).map(([stage, , took]) => `${STAGES[stage]?.[0] ?? stage} ${ms(took)}`).join(", ");
    if (lane.getAttribute("aria-label") !== told) {
      lane.setAttribute("aria-label", told);
      lane.title = told + (request.note ? `\n${request.note}` : "");
    }
  }

  // --- keyboard ---

  order() {
    return [...by("running").children, ...by("ended").children];
  }

  /** One row at a time can be reached with Tab. */
  rove() {
    const rows = this.order();
    const picked = rows.find((row) => row.dataset.id === this.picked) ?? rows[0];
    for (const row of rows) row.tabIndex = row === picked ? 0 : -1;
  }

  pick(id) {
    if (id) {
      this.picked = id;
      this.rove();
    }
  }

  key(event) {
    const rows = this.order();
    const at = rows.indexOf(event.target.closest("tr[data-id]"));
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (at >= 0 && next !== undefined) rows[Math.min(rows.length - 1, Math.max(0, next))].focus();
    else if (at >= 0 && (event.key === "Enter" || event.key === " ")) this.open(rows[at].dataset.id);
    else return;
    event.preventDefault();
  }

  // --- one request ---

  open(id) {
    const row = this.rows.get(id);
    if (!row) return;
    this.opened = id;
    this.details(id, 0);
    by("details").showModal();
  }

  details(id, later) {
    const request = this.rows.get(id)?.request;
    if (!request) return;
    const age = request.age_ms + (request.ago_ms ? 0 : later);
    say(by("details-title"), `Request ${request.id}`);
    const drawn = Object.entries(request.tokens).map(([role, made]) => `${count(made)} by ${role.replace("_", " ")}`);
    const kv = request.crossings.map(({ kind, start_ms, end_ms, bytes: size }) => `${kind.toUpperCase()}${size ? ` ${bytes(size)}` : ""} ${end_ms === null ? "on its way" : `in ${ms(end_ms - start_ms)}`}`);
    const facts = {
      State: request.ago_ms ? `ended: ${request.state}` : request.state,
      Road: request.pipeline || "not settled",
      Tenant: request.tenant || "–",
      Workers: Object.entries(request.nodes).map(([role, node]) => `${node} (${role.replace("_", " ")})`).join(", ") || "–",
      Prompt: `${count(request.prompt_tokens)} tokens, ${count(request.hit_tokens)} of them cached at main decode`,
      Answer: `${count(request.made)} of at most ${count(request.most)} tokens${drawn.length ? `: ${drawn.join(", ")}` : ""}`,
      "KV sent": kv.join(", ") || "none",
      Note: request.note || "–",
    };
    by("details-facts").replaceChildren(...Object.entries(facts).flatMap(([name, text]) => [make("dt", "", name), make("dd", "", text)]));
    by("details-stages").replaceChildren(...spans(request, age).map(([stage, from, took]) => make("tr", "", make("td", "", make("span", `key ${stage}${STAGES[stage]?.[2] ? " wait" : ""}`), ` ${STAGES[stage]?.[0] ?? stage}: ${STAGES[stage]?.[1] ?? ""}`), make("td", "n", ms(from)), make("td", "n", ms(took)))));
  }
}

/** [stage, began, took] in order. */
function spans(request, age) {
  return request.stages.map(([stage, from], at) => [stage, from, Math.max(0, (request.stages[at + 1]?.[1] ?? age) - from)]);
}
