// The one place that knows the shape of /v1/stats (docs/API.md); the rest of the page sees only the view made here.

const TITLES = { ingress: "Ingress", prompt: "Prompt", grammar: "Grammar", queue: "Queue", scheduler: "Scheduler", executor: "Executor", detokenizer: "Detokenizer", engine: "Engine" };
// Not in a request's way: what it loses is told, but it is no part of the pipeline.
const OBSERVERS = new Set(["stats"]);
// Whose depth is work under way, not what waits for it.
const UNDER_WAY = new Set(["ingress", "executor", "engine"]);
const SPANS = [["last_1m", "1 min"], ["last_5m", "5 min"], ["last_15m", "15 min"]];
const LATENCY_FIELDS = { ttft: "time_to_first_token", itl: "inter_token", e2e: "end_to_end", queue: "queue_wait" };
const RECENT_S = 12;

/** Return the view of a snapshot; `before` are earlier ones, rising, of which those of the last seconds are used. */
function read(snapshot, before) {
  const { engine } = snapshot;
  const windows = SPANS.map(([name, label]) => windowOf(snapshot.windows[name], label));
  const queue = snapshot.stages.find(({ name }) => name === "queue");
  const recent = [...before.filter(({ unix_s: at }) => at > snapshot.unix_s - RECENT_S && at < snapshot.unix_s), snapshot];
  const running = callsOf(snapshot.running, snapshot.num_calls - snapshot.waiting.length);
  const queued = callsOf(snapshot.waiting, snapshot.num_calls - snapshot.running.length);
  const queueWait = waitOf(snapshot, windows[0]);
  const pages = engine?.device.pages;
  const ofPages = (count) => (pages?.total ? count / pages.total : null);
  return {
    now: snapshot.unix_s,
    uptime: snapshot.uptime_s,
    status: snapshot.status,
    paused: engine?.is_paused ?? false,
    model: snapshot.model,
    facts: [snapshot.role === "serve" ? "" : snapshot.role, snapshot.worker === null ? "" : `worker ${snapshot.worker}`, snapshot.version === "unknown" ? "" : snapshot.version],
    numRunning: engine?.running ?? running.total,
    maxRunning: engine?.max_running ?? null,
    queueWait,
    numQueued: queue?.depth ?? queued.total,
    maxQueued: queue?.capacity ?? null,
    stages: snapshot.stages.filter(({ name }) => !OBSERVERS.has(name)).map((stage) => stageOf(stage, recent, queueWait)),
    windows,
    live: {
      completion: snapshot.completion_tokens_per_s,
      prompt: snapshot.prompt_tokens_per_s,
      ttft: windows[0].latency.ttft,
      running: engine?.running ?? running.total,
      queued: queue?.depth ?? queued.total,
      pagesHeld: pages ? ofPages(pages.running) : null,
      pagesUsed: pages ? ofPages(pages.running + pages.cached) : null,
    },
    tokensSoFar: snapshot.windows.since_start.completion_tokens,
    running,
    queued,
    maps: engine ? mapsOf(engine) : [],
    sparePages: pages?.total ? (pages.cached + pages.free) / pages.total : null,
    cacheNote: engine ? `a page is ${asCount(engine.page_size_tokens)} tokens` : "",
    speculation: snapshot.speculation && speculationOf(snapshot.speculation),
    failures: snapshot.failures.map(({ request_id: id, unix_s: time, status, cause, outcome }) => ({
      id, time, status, cause: cause ?? outcome, isServers: status === null || status >= 500 || outcome === "error",
    })),
    lost: total(snapshot.lost),
    sinceStart: snapshot.windows.since_start,
    days: snapshot.days,
  };
}

function windowOf(span, label) {
  const latency = Object.fromEntries(
    Object.entries(LATENCY_FIELDS).map(([key, name]) => [key, { p50: span[name].p50_s, p90: span[name].p90_s, p99: span[name].p99_s }]),
  );
  const cached = span.cached_device_tokens + span.cached_host_tokens;
  return {
    label,
    latency,
    rates: {
      calls: span.calls_per_s,
      prompt: span.prompt_tokens_per_s,
      cached: span.span_s > 0 ? cached / span.span_s : 0,
      completion: span.completion_tokens_per_s,
    },
    hitRate: span.cache_hit_rate,
    hitRates: span.prompt_tokens ? [span.cached_device_tokens / span.prompt_tokens, span.cached_host_tokens / span.prompt_tokens] : [null, null],
    calls: span.calls,
    // Refused for what is wrong with them: coming again would not help.
    wrong: Math.max((span.outcomes.refused ?? 0) - total(span.unavailable), 0),
    refused: span.unavailable,
    errors: span.outcomes.error ?? 0,
  };
}

/** Return what half of the queue waits at least: of those that got through it, or, if longer, of those still in it. */
function waitOf(snapshot, minute) {
  const ages = snapshot.waiting.filter(({ phase }) => phase === "waiting").map(({ age_s: age }) => age).sort((a, b) => a - b);
  const { p50 } = minute.latency.queue;
  return ages.length ? Math.max(ages[ages.length >> 1], p50 ?? 0) : p50;
}

/** Return a stage; how long an item waits there is what stands there over what is taken a second, of the last seconds. */
function stageOf({ name, depth, high_water: high, capacity, busy }, recent, queueWait) {
  const seen = recent.map((snapshot) => [snapshot.unix_s, snapshot.stages.find((stage) => stage.name === name)]).filter(([, stage]) => stage);
  const [[since, first], [until, last]] = [seen[0], seen.at(-1)];
  const taken = isNumber(last.received) && until > since ? (last.received - first.received) / (until - since) : null;
  const mean = seen.reduce((sum, [, stage]) => sum + stage.depth, 0) / seen.length;
  let wait = UNDER_WAY.has(name) || taken === null ? null : mean === 0 ? 0 : taken > 0 ? mean / taken : null;
  if (name === "queue") wait = queueWait;
  return { key: name, title: TITLES[name] ?? name, depth, high, capacity, busy, taken, wait, isUnderWay: UNDER_WAY.has(name) };
}

function callsOf(calls, most) {
  return {
    // Of a list that is cut off only the other's length tells how many there are.
    total: Math.max(calls.length, calls.length < 100 ? 0 : most),
    rows: calls.map((call) => ({
      id: call.request_id, age: call.age_s, prompt: call.prompt_tokens, cached: call.cached_tokens, completion: call.completion_tokens, phase: call.phase,
    })),
  };
}

function mapsOf(engine) {
  const owners = (pool, running) => [
    { key: "running", title: running, count: pool.running },
    { key: "cached", title: "cached", count: pool.cached },
    { key: "free", title: "free", count: pool.free },
  ];
  const ofTier = (tier, title, running) => [
    { title: `${title} pages`, unit: "pages", total: tier.pages.total, owners: owners(tier.pages, running), note: `${asCount(tier.pages.total * engine.page_size_tokens)} tokens` },
    { title: `${title} snapshots`, unit: "snapshots", total: tier.snapshots.total, owners: owners(tier.snapshots, running) },
  ];
  const states = {
    title: "Device states", unit: "states", total: engine.total_slots,
    owners: [{ key: "running", title: "of requests", count: engine.used_slots }, { key: "free", title: "free", count: engine.total_slots - engine.used_slots }],
  };
  const [pages, snapshots] = ofTier(engine.device, "Device", "requests and sessions");
  return [pages, snapshots, ...(engine.host ? ofTier(engine.host, "Host", "under way") : []), states].filter(({ total: size }) => size > 0);
}

function speculationOf({ drafted_tokens: drafted, accepted_tokens: accepted, accept_rate: rateOf, accept_length: length }) {
  return [
    { name: "Drafted", value: [asRate(drafted), "tok"] },
    { name: "Accepted", value: [asRate(accepted), "tok"] },
    { name: "Accept rate", value: asParts(rateOf, share) },
    { name: "Tokens a step", value: isNumber(length) ? [digits(length, 2), "tok"] : [NONE, ""] },
  ];
}
