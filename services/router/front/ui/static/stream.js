// The stream of pictures: read with fetch, so that a refused key and a lost connection can be told apart.

const SILENCE = 6000; // milliseconds without a picture after which the connection counts as lost
const FIRST = 500, MOST = 8000; // waits between two attempts

export class Stream {
  /** `on`: {picture(data), state(name, detail)}; states: connecting, live, lost, refused. */
  constructor(address, on) {
    this.address = address;
    this.on = on;
    this.running = 0; // number of the run in force; 0: stopped
    this.runs = 0;
  }

  start() {
    if (!this.running) this.run((this.running = ++this.runs));
  }

  stop() {
    this.running = 0;
    this.abort?.abort();
    this.wake?.();
  }

  /** Try again at once, where the stream waits. */
  hurry() {
    this.wake?.();
  }

  async run(number) {
    let wait = FIRST;
    this.on.state("connecting");
    while (this.running === number) {
      const end = await this.read(() => (wait = FIRST));
      if (this.running !== number) return;
      if (end.refused) {
        this.running = 0;
        this.on.state("refused");
        return;
      }
      const pause = Math.max(wait, end.after || 0);
      wait = Math.min(MOST, wait * 2);
      for (let left = pause; left > 0 && this.running === number; left -= 1000) {
        this.on.state("lost", `${end.why}; trying again in ${Math.ceil(left / 1000)} s`);
        if (await this.sleep(Math.min(1000, left))) break;
      }
    }
  }

  /** Read one connection to its end: {refused} or {why, after}. */
  async read(alive) {
    const abort = (this.abort = new AbortController());
    let timer = setTimeout(() => abort.abort(), SILENCE);
    try {
      const answer = await fetch(this.address, { signal: abort.signal, cache: "no-store", credentials: "same-origin" });
      if (answer.status === 401) return { refused: true };
      if (!answer.ok) {
        const said = await answer.json().catch(() => ({}));
        return { why: said.error?.message || `status ${answer.status}`, after: 1000 * (answer.headers.get("retry-after") || 0) };
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return { why: "the router has closed the connection" };
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENCE);
        const events = (text + value).split("\n\n");
        text = events.pop();
        for (const event of events) this.take(event);
        alive();
      }
    } catch {
      return { why: "the router does not answer" };
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  take(event) {
    const [head, ...rest] = event.split("\n");
    if (head !== "event: picture") return;
    this.on.state("live");
    this.on.picture(JSON.parse(rest.join("").slice("data: ".length)));
  }

  /** Wait; true where `hurry` or `stop` ended it. */
  sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  }
}
