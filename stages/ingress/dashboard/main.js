// Puts it together: snapshots in, sections out; what the page knows between two of them is here.

const CHARTS = [
  { title: "Output", floor: 1, show: (value) => `${asRate(value)}${isNumber(value) ? `${THIN}tok/s` : ""}`,
    series: [{ key: "a", name: "generated", of: (now) => now.completion }] },
  { title: "First token", floor: 0.01, show: asSeconds,
    series: [{ key: "a", name: "p50", of: (now) => now.ttft.p50 }, { key: "b", name: "p99", of: (now) => now.ttft.p99 }] },
  { title: "Requests", floor: 1, show: asCount,
    series: [{ key: "a", name: "running", of: (now) => now.running }, { key: "c", name: "queued", of: (now) => now.queued }] },
];
const MEMORY = { title: "Device memory in use", floor: 1, most: 1, show: asShare,
  series: [{ key: "a", name: "pages held", of: (now) => now.pagesHeld }, { key: "b", name: "with cache", of: (now) => now.pagesUsed }] };
// In place of the memory of an engine that is another's.
const PROMPTS = { title: "Prompts", floor: 1, show: CHARTS[0].show, series: [{ key: "a", name: "read", of: (now) => now.prompt }] };
const LATENCIES = [["ttft", "First token"], ["itl", "Between tokens"], ["e2e", "Whole request"], ["queue", "In the queue"]];
const RATES = [["calls", "Requests", "/s"], ["prompt", "Prompt", " tok/s"], ["cached", "… from cache", " tok/s"], ["completion", "Output", " tok/s"]];
const FRESH_ERROR_S = 60;
// How many snapshots are kept to see how a stage does.
const KEPT = 12;

const base = location.pathname.replace(/\/dashboard\/*$/, "");
const history = new History();
const narrow = matchMedia("(max-width: 640px)");
narrow.addEventListener("change", schedule);
let newest = null;
let before = [];
let progress = { tokens: null, t: 0 };
let linkState = "connecting";
let isDue = false;

function take(snapshot) {
  const view = read(snapshot, before);
  before = [...before, snapshot].slice(-KEPT);
  if (view.numRunning === 0 || view.tokensSoFar !== progress.tokens) progress = { tokens: view.tokensSoFar, t: view.now };
  newest = { view, seenAt: Date.now(), stalledFor: view.now - progress.t };
  history.add(view.now, view.live);
  schedule();
}

function schedule() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

function draw() {
  if (!newest) return;
  const { view, stalledFor, seenAt } = newest;
  const said = judge(view, stalledFor);
  drawVerdict(isOld() ? oldNews(seenAt) : said);
  mark(document.body, "data-old", isOld() ? "" : null);
  mark(document.body, "data-empty", null);
  drawFacts(view);
  drawKey(byId("key-figures"), keyFigures(view));
  drawPipeline(byId("pipeline"), view, said.neck, !isOld() && view.live.completion > 0);
  drawCharts(byId("charts"), [...CHARTS, view.maps.length ? MEMORY : PROMPTS], history);
  drawLatency(view);
  drawRates(view);
  drawRequests("running", view.running);
  drawRequests("queued", view.queued);
  drawTiers(view);
  drawTrouble(view);
  drawDays(view);
  drawSpeculation(view);
}

const isOld = () => linkState === "lost" || linkState === "locked";

function oldNews(seenAt) {
  const at = new Date(seenAt).toLocaleTimeString("en-GB");
  return { level: "unknown", headline: "No figures", because: `the server has not been heard since ${at}; what is below is as of then` };
}

function drawVerdict({ level, headline, because, hasList, others = [] }) {
  mark(byId("verdict"), "data-level", level);
  say(byId("headline"), headline);
  const more = others.length ? `. Also: ${others.join(", ").toLowerCase()}` : "";
  say(byId("because"), because.charAt(0).toUpperCase() + because.slice(1) + more);
  mark(byId("see"), "hidden", hasList ? null : "");
  document.title = `${{ ok: "●", warn: "▲", bad: "✖", unknown: "?" }[level]} ${headline} · TrnRT`;
}

function drawFacts(view) {
  say(byId("model"), view.model);
  say(byId("facts"), [...view.facts, `up ${asSeconds(view.uptime)}`].filter(Boolean).join(" · "));
  const { calls, prompt_tokens: prompt, completion_tokens: completion } = view.sinceStart;
  const lost = view.lost ? ` · ${asCount(view.lost)} records were lost on their way: figures are that much too low` : "";
  say(byId("footer"), `As of ${asClock(view.now)} · since the start ${asRate(calls)} requests, ${asRate(prompt)} tokens read, ${asRate(completion)} generated${lost}`);
}

function keyFigures(view) {
  const [minute] = view.windows;
  const { ttft, itl } = minute.latency;
  return [
    { name: "Output", value: isNumber(view.live.completion) ? [asRate(view.live.completion), "tok/s"] : [NONE, ""] },
    { name: "Running", value: [asCount(view.numRunning), view.maxRunning ? `of ${asCount(view.maxRunning)}` : ""] },
    { name: "Queued", value: [asCount(view.numQueued), view.maxQueued ? `of ${asCount(view.maxQueued)}` : ""] },
    { name: "First token p99", value: asParts(ttft.p99, seconds) },
    { name: "Between tokens p99", value: asParts(itl.p99, seconds) },
    { name: "Cache hits", value: asParts(minute.hitRate, share) },
  ];
}

function drawLatency(view) {
  const which = narrow.matches ? ["p50", "p99"] : ["p50", "p90", "p99"];
  keep(
    byId("latency-windows"),
    ["", ...view.windows.map(({ label }) => label)],
    () => make("th", { scope: "colgroup" }),
    (cell, label, index) => {
      say(cell, label);
      mark(cell, "colspan", index ? which.length : null);
    },
  );
  mark(byId("latency"), "data-each", which.length);
  drawTable(byId("latency"), ["percentile", ...view.windows.flatMap(() => which)], LATENCIES.map(([key, name]) => ({
    name,
    cells: view.windows.flatMap(({ latency }) => which.map((one) => asSeconds(latency[key][one]))),
  })));
}

function drawRates(view) {
  drawTable(byId("rates"), ["per second", ...view.windows.map(({ label }) => label)], [
    ...RATES.map(([key, name, unit]) => ({ name, cells: view.windows.map(({ rates }) => (isNumber(rates[key]) ? asRate(rates[key]) + unit : NONE)) })),
    { name: "Cache hits", cells: view.windows.map(({ hitRate }) => asShare(hitRate)) },
  ]);
}

function drawDays(view) {
  drawTable(byId("days"), ["UTC day", "requests", "errors", "503s", "prompt tok", "cached", "output tok", "first token p99"], view.days.map((day) => ({
    name: day.date,
    cells: [
      asCount(day.calls), asCount(day.outcomes.error ?? 0), asCount(total(day.unavailable)), asRate(day.prompt_tokens),
      asShare(day.cache_hit_rate), asRate(day.completion_tokens), asSeconds(day.time_to_first_token.p99_s),
    ],
  })));
}

function drawRequests(id, { total: size, rows }) {
  const more = size - rows.length;
  say(byId(`n-${id}`), more > 0 ? `${asCount(size)}, of which the ${asCount(rows.length)} oldest` : asCount(size));
  drawTable(
    byId(id),
    ["request", "age", "prompt tok", "cached tok", "output tok"],
    rows.map(({ id: name, age, prompt, cached, completion }) => ({
      name, title: name, cells: [asSeconds(age), asCount(prompt), asCount(cached), asCount(completion)],
    })),
    id === "running" ? "Nothing runs." : "Nothing waits.",
  );
}

function drawTiers(view) {
  mark(byId("cache-card"), "hidden", view.maps.length ? null : "");
  const [device, host] = view.windows[0].hitRates;
  say(byId("n-cache"), `${view.cacheNote} · hits in the last minute: device ${asShare(device)}, host ${asShare(host)}`);
  keep(byId("tiers"), view.maps, () => make("figure", { class: "tier" }), drawOwners);
}

function drawTrouble(view) {
  const causes = [...new Set(view.windows.flatMap(({ refused }) => Object.keys(refused)))].sort();
  drawTable(
    byId("refused"),
    ["cause", ...view.windows.map(({ label }) => label)],
    causes.map((cause) => ({ name: wordsOf(cause), cells: view.windows.map(({ refused }) => asCount(refused[cause] ?? 0)), tone: view.windows[0].refused[cause] ? "bad" : null })),
    "Nobody was refused.",
  );
  say(byId("n-errors"), view.failures.length ? `the newest ${asCount(view.failures.length)}` : "0");
  drawTable(
    byId("errors"),
    ["request", "at", "status", "cause"],
    view.failures.map(({ id, time, status, cause, isServers }) => ({
      name: id, title: id, cells: [asClock(time), String(status ?? NONE), wordsOf(cause ?? NONE)],
      tone: isServers && view.now - time < FRESH_ERROR_S ? "bad" : null,
    })),
    "None.",
  );
}

function drawSpeculation({ speculation }) {
  mark(byId("speculation-card"), "hidden", speculation ? null : "");
  if (speculation) drawKey(byId("speculation"), speculation);
}

const feed = new Feed(`${base}/v1/stats/stream`, `trnrt-key:${base}`, {
  snapshot: take,
  state(name, detail) {
    linkState = name;
    mark(byId("link"), "data-state", name);
    say(byId("link").children[1], detail);
    if (!newest && name === "lost") drawVerdict({ level: "unknown", headline: "No figures", because: detail });
    schedule();
  },
  needsKey(wasRefused) {
    say(byId("ask-wrong"), wasRefused ? "The server does not take this key." : "");
    byId("ask-key").value = "";
    if (!byId("ask").open) byId("ask").showModal();
    byId("ask-key").focus();
  },
});

byId("ask").addEventListener("cancel", (event) => event.preventDefault());
byId("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  byId("ask").close();
  feed.useKey(byId("ask-key").value.trim());
  byId("ask-key").value = "";
});
if (document.hidden) feed.pause();
else feed.resume();
