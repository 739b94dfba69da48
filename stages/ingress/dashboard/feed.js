// The stream of snapshots, by fetch: an EventSource can carry no key. It reconnects by itself, stops while the tab is
// hidden, and takes a connection that has gone silent for lost.

const SILENT_S = 6;
const RETRY_S = [0.5, 1, 2, 4, 8];

class Feed {
  /** `on` has snapshot(value), state(name, detail), and needsKey(wasRefused). */
  constructor(url, keyName, on) {
    Object.assign(this, { url, keyName, on, tries: 0, abort: null, timer: 0, isStopped: false });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    addEventListener("pagehide", () => this.pause());
    addEventListener("pageshow", (event) => event.persisted && this.resume());
    addEventListener("online", () => this.resume());
  }

  pause() {
    this.#cut();
    this.on.state("paused", "paused while the tab is hidden");
  }

  resume() {
    if (document.hidden || this.isStopped) return;
    this.tries = 0;
    this.#connect();
  }

  useKey(key) {
    sessionStorage.setItem(this.keyName, key);
    this.isStopped = false;
    this.resume();
  }

  #cut() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  async #connect() {
    this.#cut();
    const abort = (this.abort = new AbortController());
    // Whatever comes of a connection that was cut is nobody's business any more.
    const isMine = () => this.abort === abort;
    const key = sessionStorage.getItem(this.keyName);
    let lost = "the connection ended";
    this.on.state("connecting", this.tries ? "reconnecting" : "connecting");
    const silence = { timer: 0 };
    const heard = () => {
      clearTimeout(silence.timer);
      silence.timer = setTimeout(() => abort.abort(), SILENT_S * 1e3);
    };
    try {
      heard();
      const answer = await fetch(this.url, {
        headers: { accept: "text/event-stream", ...(key === null ? {} : { authorization: `Bearer ${key}` }) },
        cache: "no-store",
        credentials: "same-origin",
        signal: abort.signal,
      });
      if (!isMine()) return;
      if (answer.status === 401 || answer.status === 403) {
        this.#askForKey(key !== null);
        return;
      }
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      for await (const data of eventsOf(answer.body, heard)) {
        if (!isMine()) return;
        this.tries = 0;
        const snapshot = JSON.parse(data);
        this.on.state("live", "live");
        this.on.snapshot(snapshot);
      }
    } catch (error) {
      // Only silence aborts a connection that is still ours.
      if (abort.signal.aborted) lost = `silent for ${SILENT_S} s`;
      else if (error.message.startsWith("the server answers")) lost = error.message;
      else if (error instanceof SyntaxError) lost = "an event is not JSON";
      else lost = "no connection";
    } finally {
      clearTimeout(silence.timer);
    }
    if (isMine()) this.#retry(lost);
  }

  #askForKey(wasRefused) {
    this.#cut();
    this.isStopped = true;
    sessionStorage.removeItem(this.keyName);
    this.on.state("locked", "needs a key");
    this.on.needsKey(wasRefused);
  }

  #retry(lost) {
    this.#cut();
    const wait = RETRY_S[Math.min(this.tries++, RETRY_S.length - 1)] * (0.8 + 0.4 * Math.random());
    this.on.state("lost", `${lost}; trying again`);
    this.timer = setTimeout(() => this.#connect(), wait * 1e3);
  }
}

/** Give the data of each event of a body; `heard` is told of every byte, pings too. */
async function* eventsOf(body, heard) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    heard();
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}
