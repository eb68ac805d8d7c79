// The page: the key, the stream, and what is drawn when.

import { by, History, make, say } from "./numbers.js";
import { figures, overview } from "./overview.js";
import { Timeline } from "./requests.js";
import { Stream } from "./stream.js";

const REDRAW = 250; // milliseconds between two drawings of bars that grow
const HIDDEN = 30000; // milliseconds after which a hidden page gives up its place

const timeline = new Timeline();
let history = new History();
let paused = false;
let live = false;

const stream = new Stream("ui/events", { picture: show, state });

function show(picture) {
  if (paused) return;
  const now = performance.now();
  if (history.node !== picture.node) history = Object.assign(new History(), { node: picture.node });
  history.add(picture.at_ms, figures(picture));
  say(by("node"), picture.node);
  document.title = `${picture.node}: ${picture.requests.live} running`;
  const models = [...new Set(picture.workers.map((one) => one.model).filter(Boolean))];
  say(by("where"), `in ${picture.datacenter}${models.length ? ` · ${models.join(", ")}` : ""}`);
  const [word, cls] = picture.draining ? ["draining", "warn"] : picture.ready ? ["ready", "good"] : ["not ready", "bad"];
  say(by("ready"), word);
  by("ready").className = `pill ${cls}`;
  if (by("reasons").dataset.text !== picture.reasons.join("\n")) {
    by("reasons").dataset.text = picture.reasons.join("\n");
    by("reasons").replaceChildren(...picture.reasons.map((reason) => make("li", "", reason)));
  }
  overview(picture, history);
  timeline.show(picture.requests, now);
}

function state(name, detail = "") {
  live = name === "live";
  by("door").hidden = name !== "refused";
  by("page").hidden = name === "refused";
  by("page").classList.toggle("lost", name === "lost");
  if (name === "refused") {
    by("key").focus();
    return;
  }
  by("link").className = { live: "good", lost: "bad" }[name] ?? "warn";
  say(by("link-text"), paused && live ? "paused" : name === "lost" ? `Connection lost: ${detail}` : name);
}

by("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  say(by("key-error"), "");
  try {
    const body = JSON.stringify({ key: by("key").value });
    const answer = await fetch("ui/session", { method: "POST", headers: { "content-type": "application/json" }, body, credentials: "same-origin" });
    if (!answer.ok) {
      const said = await answer.json().catch(() => ({}));
      say(by("key-error"), said.error?.message ?? `The router answered with status ${answer.status}.`);
      by("key").select();
      return;
    }
    by("key").value = "";
    stream.start();
  } catch {
    say(by("key-error"), "The router does not answer; is it running?");
  }
});

by("leave").addEventListener("click", async () => {
  stream.stop();
  await fetch("ui/session", { method: "DELETE", credentials: "same-origin" }).catch(() => {});
  history = new History();
  state("refused");
});

by("pause").addEventListener("click", () => {
  paused = !paused;
  by("pause").setAttribute("aria-pressed", String(paused));
  say(by("pause"), paused ? "Go on" : "Pause");
  state(live ? "live" : "connecting");
});

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, dialog *")) {
    if (event.key === "Escape" && event.target.id === "find") {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
      event.target.blur();
    }
    return;
  }
  if (by("page").hidden) return;
  if (event.key === "/") by("find").focus();
  else if (event.key === "p") by("pause").click();
  else return;
  event.preventDefault();
});

let sleeping;
document.addEventListener("visibilitychange", () => {
  clearTimeout(sleeping);
  if (document.hidden) sleeping = setTimeout(() => stream.stop(), HIDDEN);
  else if (by("door").hidden) stream.start();
});
addEventListener("online", () => stream.hurry());
setInterval(() => {
  if (live && !paused && !document.hidden && timeline.picture) timeline.draw();
}, REDRAW);

stream.start();
