// Key figures, pipelines' shares, lines and workers.

import { by, bytes, count, keyed, make, mbit, ms, percent, perSecond, say, tell } from "./numbers.js";

const ROLES = { prefill: "prefill", relay: "relay", main_decode: "main decode" };
const CHART = "http://www.w3.org/2000/svg";

/** What the history keeps of a picture: names that begin with `+` only grow. */
export function figures(picture) {
  const sum = (rows, name) => rows.reduce((total, row) => total + row[name], 0);
  const mains = picture.workers.filter((one) => one.role === "main_decode");
  const values = {
    running: picture.requests.live,
    waiting: picture.requests.waiting,
    first: median(firstTokens(picture.requests)) ?? 0,
    "+tokens": Object.values(picture.tokens).reduce((total, made) => total + made, 0),
    "+finished": picture.finished,
    "+refused": picture.refused,
    "+broken": picture.broken,
    "+hit": sum(mains, "hit_tokens"),
    "+asked": sum(mains, "looked_up_tokens"),
  };
  for (const line of picture.lines) values[`+line ${line.name}`] = line.sent;
  for (const [name, made] of Object.entries(picture.tokens)) values[`+by ${name}`] = made;
  for (const [name, placed] of Object.entries(picture.pipelines)) values[`+road ${name}`] = placed;
  for (const one of picture.workers) {
    values[`+hit ${one.node}`] = one.hit_tokens;
    values[`+asked ${one.node}`] = one.looked_up_tokens;
  }
  return values;
}

/** Milliseconds to the first token of all requests that have one, in order of size. */
function firstTokens({ ended, rows }) {
  const drawing = ["lan", "wan", "relay", "decode"];
  const found = [...ended, ...rows].map((row) => row.stages.find(([stage]) => drawing.includes(stage))?.[1]);
  return found.filter((value) => value !== undefined).sort((a, b) => a - b);
}

const quantile = (sorted, part) => sorted[Math.floor(part * (sorted.length - 1))];
const median = (sorted) => quantile(sorted, 0.5);

export function overview(picture, history) {
  tiles(picture, history);
  const roads = Object.keys(picture.pipelines).map((name) => [name, name, history.growth(`+road ${name}`)]);
  const lately = roads.some(([, , placed]) => placed);
  say(by("roads-when"), lately ? "requests of the last minute" : "requests since the router started");
  stack("shares", lately ? roads : Object.entries(picture.pipelines).map(([name, placed]) => [name, name, placed]), count);
  const drawn = Object.entries(picture.tokens).map(([name, made]) => [name, ROLES[name] ?? name, lately ? history.growth(`+by ${name}`) : made]);
  stack("drawn", drawn, count);
  keyed(by("line-cards"), picture.lines, (line) => line.name, lineCard, (card, line) => fillLine(card, line, history));
  say(by("workers-count"), `${picture.workers.length} with a session`);
  keyed(by("worker-rows"), picture.workers, (one) => one.node, workerRow, (row, one) => fillWorker(row, one, history));
}

// --- key figures ---

function tiles(picture, history) {
  const { requests } = picture;
  const first = firstTokens(requests);
  const shown = [
    ["Running", count(requests.live), requests.waiting ? `${count(requests.waiting)} wait for room, ${ms(requests.oldest_wait_ms)} the longest` : "none waits for room", "running"],
    ["Tokens per second", perSecond(history.rate("+tokens")), `${count(history.growth("+tokens"))} in the last minute`, "+tokens"],
    ["Requests per second", perSecond(history.rate("+finished", 15000)), `${count(picture.finished)} finished so far`, "+finished"],
    ["Time to first token", first.length ? ms(median(first)) : "–", first.length ? `median of ${first.length}; P90 ${ms(quantile(first, 0.9))}` : "no request yet", "first"],
    ["Hit rate", percent(history.growth("+hit"), history.growth("+asked")), "at main decode, last minute", "+hit"],
    ["Refused, broken", `${count(history.growth("+refused"))}, ${count(history.growth("+broken"))}`, `last minute; ${count(picture.refused)}, ${count(picture.broken)} in all`, "+refused"],
  ];
  const list = by("tiles");
  shown.forEach(([name, value, more, series], at) => {
    const tile = list.children[at] ?? list.appendChild(make("div", "tile", make("dt", "", name), make("dd"), make("dd")));
    say(tile.children[1], value);
    say(tile.children[2], more);
    chart(tile, history.series(series), history.keep);
  });
}

/** A small chart at the end of an element: up to two minutes, less while it is young. `most` draws a line there. */
function chart(element, series, keep, most = 0) {
  let svg = element.querySelector("svg");
  if (!svg) {
    svg = element.appendChild(document.createElementNS(CHART, "svg"));
    svg.setAttribute("class", "spark");
    svg.setAttribute("viewBox", "0 0 100 26");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    for (const kind of ["polygon", "polyline", "line"]) svg.append(document.createElementNS(CHART, kind));
  }
  const [area, stroke, cap] = svg.children;
  const end = series.at(-1)?.[0] ?? 0;
  keep = Math.min(keep, Math.max(20000, end - (series[0]?.[0] ?? end)));
  const top = Math.max(most, ...series.map(([, value]) => value), 1e-9) * 1.05;
  const points = series.map(([at, value]) => `${(100 * (1 - (end - at) / keep)).toFixed(2)},${(26 - (25 * value) / top).toFixed(2)}`);
  stroke.setAttribute("points", points.join(" "));
  area.setAttribute("points", points.length ? `${points[0].split(",")[0]},26 ${points.join(" ")} 100,26` : "");
  for (const [name, value] of Object.entries({ x1: 0, x2: most ? 100 : 0, y1: 26 - (25 * most) / top, y2: 26 - (25 * most) / top })) cap.setAttribute(name, value);
}

// --- shares ---

/** A bar of parts, and its legend with numbers. `parts`: [class, name, value]. */
function stack(id, parts, write) {
  const whole = parts.reduce((total, [, , value]) => total + value, 0);
  bar(by(id), parts, whole);
  tell(by(id), "aria-label", parts.map(([, name, value]) => `${name} ${percent(value, whole)}`).join(", "));
  legend(by(`${id}-legend`), parts, (value) => [percent(value, whole), write(value)]);
}

/** The parts of a bar, as wide as their share of the whole. */
function bar(box, parts, whole) {
  const shown = parts.filter(([, , value]) => value > 0);
  keyed(box, shown, ([cls]) => cls, ([cls]) => make("span", cls), (piece, [, , value]) => {
    piece.style.width = `${(100 * value) / (whole || 1)}%`;
  });
}

/** `write(value)`: what stands in bold, and what stands behind it. */
function legend(list, parts, write) {
  const build = ([cls, name]) => make("li", "", make("span", `key ${cls}`), name, make("b"), make("span", "faint"));
  keyed(list, parts, ([cls]) => cls, build, (item, [, , value]) => {
    const [strong, faint = ""] = write(value);
    say(item.children[1], strong);
    say(item.children[2], faint);
  });
}

// --- lines ---

function lineCard() {
  const image = make("div", "gauge", make("i"), make("b"));
  const queue = make("div", "stack");
  for (const one of [image, queue]) one.setAttribute("role", "img");
  return make("div", "line", make("h3", "", make("strong"), make("span")), image, make("p", "facts"), make("div"), queue, make("ul", "legend"));
}

function fillLine(card, line, history) {
  const [head, gauge, facts, graph, queue, list] = card.children;
  const rate = history.rate(`+line ${line.name}`, 3000);
  const [one, other] = line.between;
  const ends = one === other ? `inside ${one}` : `${one} ⇄ ${other}`;
  const waiting = Object.values(line.classes).reduce((total, size) => total + size, 0);
  say(head.children[0], line.name);
  say(head.children[1], line.rtt_ms ? `${ends}, ${line.rtt_ms.toFixed(1)} ms round trip` : ends);
  gauge.hidden = !line.cap;
  if (line.cap) {
    gauge.children[0].style.width = `${Math.min(100, (100 * rate) / line.cap)}%`;
    gauge.children[1].style.left = `calc(${Math.min(100, (100 * line.estimate) / line.cap)}% - 1px)`;
    tell(gauge, "title", `estimate ${mbit(line.estimate)}`);
    tell(gauge, "aria-label", `${mbit(rate)} of ${mbit(line.cap)}, estimate ${mbit(line.estimate)}`);
  }
  const told = [["rate", mbit(rate)], ["cap", line.cap ? mbit(line.cap) : "none"]];
  if (line.estimate) told.push(["estimate", mbit(line.estimate)]);
  told.push(["waiting", bytes(Math.max(waiting, line.outstanding))]);
  if (line.oldest_ms) told.push(["oldest", ms(line.oldest_ms)]);
  keyed(facts, told, ([name]) => name, ([name]) => make("span", "", `${name} `, make("b")), (fact, [, text]) => say(fact.children[0], text));
  chart(graph, history.series(`+line ${line.name}`), history.keep, line.cap);
  const parts = Object.entries(line.classes).map(([name, size]) => [name, name, size]);
  queue.hidden = !waiting;
  bar(queue, parts, waiting);
  tell(queue, "aria-label", `waiting: ${parts.map(([, name, size]) => `${name} ${bytes(size)}`).join(", ")}`);
  const named = parts.filter(([, , size]) => size > 0);
  legend(list, line.cap && !named.length ? parts : named, (size) => [bytes(size)]);
}

// --- workers ---

function workerRow(one) {
  const meters = [0, 1].map(() => make("span", "meter"));
  for (const meter of meters) meter.setAttribute("role", "img");
  const [load, pool] = meters.map((meter) => make("td", "", meter, make("span")));
  const [node, role, site, state] = [make("td"), make("td", `role role-${one.role}`), make("td"), make("td")];
  return make("tr", "", node, role, site, state, load, make("td", "n"), pool, make("td", "n"), make("td", "n"), make("td", "n"));
}

function fillWorker(row, one, history) {
  const [node, role, site, state, load, queued, pool, hit, speed, rtt] = row.children;
  const used = Math.max(0, one.blocks - one.free - one.promised);
  say(node, one.node);
  say(role, ROLES[one.role] ?? one.role);
  say(site, one.datacenter);
  say(state, one.state);
  state.className = one.state === "ok" ? "good" : "bad";
  bar(load.children[0], [["used", "", one.running]], one.most);
  tell(load.children[0], "aria-label", `${one.running} of ${one.most} running`);
  say(load.children[1], `${one.running}/${one.most}`);
  say(queued, one.queued_tokens ? `${count(one.queued)} (${count(one.queued_tokens)} tok)` : count(one.queued));
  bar(pool.children[0], [["used", "", used], ["promised", "", one.promised]], one.blocks);
  tell(pool.children[0], "aria-label", `${used} of ${one.blocks} blocks in use, ${one.promised} promised`);
  say(pool.children[1], `${percent(one.blocks - one.free, one.blocks)} of ${count(one.blocks)}`);
  say(hit, percent(history.growth(`+hit ${one.node}`), history.growth(`+asked ${one.node}`)));
  say(speed, one.role === "prefill" ? `${count(one.prefill_rate)} tok/s` : `${one.step_ms.toFixed(1)} ms/step`);
  say(rtt, `${one.rtt_ms.toFixed(1)} ms`);
}
