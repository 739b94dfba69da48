// Lines over the last five minutes, of what this page has seen. Where it saw nothing there is a gap.

const SPAN_S = 300;
const GAP_S = 3;
const WIDE = 300;
const HIGH = 72;

/** What was seen: points {t, values}, rising in t, none older than SPAN_S. */
class History {
  points = [];

  add(t, values) {
    // A server that began anew counts its seconds from elsewhere.
    if (this.points.length && t < this.points.at(-1).t) this.points = [];
    if (this.points.length && t === this.points.at(-1).t) this.points.pop();
    this.points.push({ t, values });
    while (this.points[0].t < t - SPAN_S) this.points.shift();
  }
}

function makeChart({ title, series }) {
  const chart = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img" });
  chart.append(makeSvg("path", { class: "grid", d: `M0 ${HIGH / 2}H${WIDE}M0 .5H${WIDE}M0 ${HIGH - 0.5}H${WIDE}` }));
  series.forEach(({ key }, index) => {
    if (!index) chart.append(makeSvg("path", { class: "area", "data-series": key }));
    chart.append(makeSvg("path", { class: "line", "data-series": key }));
  });
  chart.append(makeSvg("path", { class: "cursor" }));
  const legend = make("p", { class: "legend" });
  for (const { key, name } of series)
    legend.append(make("span", { "data-series": key }, make("i", { "aria-hidden": "true" }), make("span", { text: name }), make("b")));
  return make(
    "figure",
    { class: "chart" },
    make("figcaption", {}, make("b", { text: title }), make("span", { class: "top" })),
    make("div", { class: "plot" }, chart),
    make("p", { class: "axis", "aria-hidden": "true" }, make("span", { text: "−5 min" }), make("span", { class: "at" }), make("span", { text: "now" })),
    legend,
  );
}

/** Draw each chart {title, unit, floor, series: [{key, name, of}]}; a pointer on a plot reads the values there. */
function drawCharts(parent, charts, history) {
  const titles = charts.map(({ title }) => title).join();
  // Another server may answer the next time, with other charts.
  if (parent.dataset.titles !== titles) parent.replaceChildren();
  parent.dataset.titles = titles;
  keep(parent, charts, makeChartRead, (figure, chart) => drawChart(figure, chart, history));
}

function makeChartRead(chart) {
  const figure = makeChart(chart);
  const plot = figure.querySelector(".plot");
  const move = (event) => {
    const { left, width } = plot.getBoundingClientRect();
    figure.readAt = Math.min(Math.max((event.clientX - left) / width, 0), 1);
    figure.redraw?.();
  };
  plot.addEventListener("pointermove", move);
  plot.addEventListener("pointerleave", () => {
    figure.readAt = undefined;
    figure.redraw?.();
  });
  return figure;
}

function drawChart(figure, chart, history) {
  figure.redraw = () => drawChart(figure, chart, history);
  const { points } = history;
  const end = points.at(-1)?.t ?? 0;
  const valuesOf = ({ of }) => points.map(({ t, values }) => [t, of(values)]);
  const lines = chart.series.map(valuesOf);
  const most = Math.max(chart.floor, ...lines.flat().map(([, value]) => (isNumber(value) ? value : 0)));
  const top = chart.most ?? niceTop(most);
  say(figure.querySelector(".top"), chart.show(top));
  chart.series.forEach((one, index) => {
    const [line, area] = pathsOf(lines[index], end, top);
    mark(figure.querySelector(`.line[data-series=${one.key}]`), "d", line);
    if (!index) mark(figure.querySelector(".area"), "d", area);
  });
  const at = figure.readAt === undefined ? points.at(-1) : nearest(points, end - SPAN_S * (1 - figure.readAt));
  const isRead = figure.readAt !== undefined && at;
  const x = isRead ? WIDE * (1 - (end - at.t) / SPAN_S) : 0;
  mark(figure.querySelector(".cursor"), "d", isRead ? `M${x.toFixed(1)} 0V${HIGH}` : "");
  say(figure.querySelector(".at"), isRead ? `${asSeconds(end - at.t)} ago` : "");
  const told = chart.series.map(({ of, name }) => [name, at ? chart.show(of(at.values)) : NONE]);
  [...figure.querySelector(".legend").children].forEach((item, index) => say(item.children[2], told[index][1]));
  mark(figure.querySelector("svg"), "aria-label", `${chart.title}: ${told.map(([name, value]) => `${name} ${value}`).join(", ")}`);
}

function pathsOf(line, end, top) {
  let path = "";
  let area = "";
  let first = null;
  let last = null;
  const close = () => {
    if (last) area += `L${last[0]} ${HIGH}L${first} ${HIGH}Z`;
  };
  let before = -Infinity;
  for (const [t, value] of line) {
    if (!isNumber(value)) continue;
    const x = (WIDE * (1 - (end - t) / SPAN_S)).toFixed(1);
    const y = (HIGH - 1.5 - (HIGH - 4) * Math.min(value / top, 1)).toFixed(1);
    const isNew = t - before > GAP_S;
    if (isNew) {
      close();
      first = x;
    }
    path += `${isNew ? "M" : "L"}${x} ${y}`;
    area += `${isNew ? "M" : "L"}${x} ${y}`;
    last = [x, y];
    before = t;
  }
  close();
  return [path, area];
}

function nearest(points, t) {
  return points.reduce((best, point) => (Math.abs(point.t - t) < Math.abs(best.t - t) ? point : best), points[0]);
}

/** Return the next round number: a scale that does not jump with every value. */
function niceTop(most) {
  const ten = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * ten).find((value) => value >= most * 0.999);
}
