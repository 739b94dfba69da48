// Whether the server is well, in one sentence, and which stage is the neck. Values in, values out.

const WAITS_LONG_S = 1;
const NECK_WAIT_S = 0.05;
const STALLED_S = 10;
const DEAD_S = 30;
const NEARLY_FULL = 0.8;
const BUSY = 0.85;
// An inbox of fewer places is full in the normal course of things: one step runs, one waits.
const FEW_PLACES = 8;
// So many requests that are wrong, and such a share of all, are somebody's configuration, not a slip.
const MANY_WRONG = 5;
const SHARE_WRONG = 0.5;

/**
 * Return {level, headline, because, neck} of a view. `level` is ok, warn or bad; `stalledFor` says how many seconds
 * no token has come while something runs.
 */
function judge(view, stalledFor) {
  const minute = view.windows[0];
  const refused = total(minute.refused);
  const neck = neckOf(view);
  // What is paused stands still by order.
  if (view.paused) stalledFor = 0;
  const found = [];
  const bad = (headline, because, hasList) => found.push({ level: "bad", headline, because, hasList });
  const warn = (headline, because, hasList) => found.push({ level: "warn", headline, because, hasList });

  if (stalledFor >= DEAD_S)
    bad("Stalled", `no token for ${asSeconds(stalledFor)} while ${asCount(view.numRunning)} run`);
  if (minute.errors > 0)
    bad("Requests fail", `${asCount(minute.errors)} ended in an error in the last minute`, true);
  if (refused > 0)
    bad("Refusing requests", `${asCount(refused)} got a 503 in the last minute: ${causesOf(minute.refused)}${whyFull(view, neck)}`, true);
  if (view.status === "draining") warn("Draining", "new requests are refused, those that run may finish");
  if (view.status === "starting") warn("Starting", "no requests are taken yet");
  if (view.paused) warn("Paused", "by an administrator: what runs waits for /continue_generation");
  if (stalledFor >= STALLED_S && stalledFor < DEAD_S)
    warn("Slow", `no token for ${asSeconds(stalledFor)} while ${asCount(view.numRunning)} run`);
  const queue = view.stages.find((stage) => stage.capacity >= FEW_PLACES && stage.depth / stage.capacity >= NEARLY_FULL);
  if (queue) warn(`${queue.title} nearly full`, `${asCount(queue.depth)} of ${asCount(queue.capacity)} places taken${whyFull(view, neck)}`);
  if (view.numQueued > 0 && view.queueWait > WAITS_LONG_S)
    warn("Requests wait", `half of them for ${asSeconds(view.queueWait)} or more${whyFull(view, neck)}`);
  if (minute.wrong >= MANY_WRONG && minute.wrong >= SHARE_WRONG * minute.calls)
    warn("Requests are wrong", `${asCount(minute.wrong)} of ${asCount(minute.calls)} in the last minute were refused for what they ask`, true);

  const first = found.find(({ level }) => level === "bad") ?? found[0] ?? well(view, neck);
  return { ...first, neck, others: found.filter((one) => one !== first).map(({ headline }) => headline) };
}

function well(view, neck) {
  if (!view.running.total && !view.queued.total && !view.numQueued) return { level: "ok", headline: "Healthy", because: "idle: nothing runs, nothing waits" };
  const serving = `${asCount(view.numRunning)} running, ${asCount(view.numQueued)} queued`;
  return { level: "ok", headline: "Healthy", because: neck ? `${serving}; ${neck.because}` : serving };
}

/**
 * Return {key, because, isTight} of the stage that limits the pipeline, or null. A stage's inbox fills because the stage
 * is slow, but the queue's because something behind it has no room: then that is the neck.
 */
function neckOf(view) {
  const stageOf = (key) => view.stages.find((stage) => stage.key === key);
  const [executor, engine] = [stageOf("executor"), stageOf("engine")];
  const waiting = view.stages.filter((stage) => stage.key !== "queue" && stage.depth > 0 && (stage.wait ?? 0) > NECK_WAIT_S);
  const worst = waiting.sort((a, b) => b.wait - a.wait)[0];
  if (worst)
    return { key: worst.key, isTight: true, because: `${worst.title.toLowerCase()} is the neck: ${asCount(worst.depth)} wait there for about ${asSeconds(worst.wait)}` };
  const places = engine?.capacity ? `, ${asCount(engine.depth)} of ${asCount(engine.capacity)} places there are taken` : "";
  if (engine && (view.queueWait > WAITS_LONG_S || (engine.capacity && engine.depth / engine.capacity >= NEARLY_FULL)))
    return { key: "engine", isTight: true, because: `the engine behind this server is the neck${places}` };
  if (view.numQueued > 0) {
    const isTaken = view.maxRunning && view.numRunning >= view.maxRunning;
    const taken = `all ${asCount(view.maxRunning)} places to run are taken`;
    if (executor?.busy >= BUSY)
      return { key: "executor", isTight: true, because: `the device is the neck, ${asShare(executor.busy)} busy${isTaken ? `, and ${taken}` : ""}` };
    if (isTaken) return { key: "scheduler", isTight: true, because: taken };
    if (view.sparePages !== null && view.sparePages < 0.05)
      return { key: "scheduler", isTight: true, because: `memory is the neck: ${asShare(view.sparePages)} of the pages can be had` };
    return { key: "scheduler", isTight: false, because: "the scheduler admits them one step after another" };
  }
  const busiest = view.stages.filter((stage) => isNumber(stage.busy)).sort((a, b) => b.busy - a.busy)[0];
  if (!busiest || busiest.busy < 0.3) return null;
  return { key: busiest.key, isTight: false, because: `busiest: ${busiest.title.toLowerCase()}, ${asShare(busiest.busy)}` };
}

function whyFull(view, neck) {
  return neck?.isTight ? `; ${neck.because}` : "";
}

function causesOf(counts) {
  const named = Object.entries(counts).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  return named.slice(0, 3).map(([cause, count]) => `${wordsOf(cause)} ${asCount(count)}`).join(", ");
}

const total = (counts) => Object.values(counts).reduce((sum, count) => sum + count, 0);
const wordsOf = (code) => String(code).replaceAll("_", " ");
