// Elements out of values. Everything is text: whatever a client named itself is shown, never run.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

/** Return a new element with attributes and children; `text` is its text. */
function make(tag, { text, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set a text if it differs: what does not change is not laid out again. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Make the children of `parent` as many as `items`, each drawn by `draw(child, item, index)`. */
function keep(parent, items, create, draw) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (index === parent.children.length) parent.append(create(item));
    draw(parent.children[index], item, index);
  });
}

// -- figures ---------------------------------------------------------------------------------------------------------

/** Draw figures [{name, value: [number, unit], hint}] as a description list. */
function drawKey(list, figures) {
  keep(
    list,
    figures,
    () => make("div", {}, make("dt"), make("dd", {}, make("b"), make("span"))),
    (box, { name, value }) => {
      const [term, detail] = box.children;
      say(term, name);
      say(detail.children[0], value[0]);
      say(detail.children[1], value[1]);
    },
  );
}

/** Draw a table whose head is [names] and whose rows are {name, cells, swatch}; a cell is text or {text, tone}. */
function drawTable(table, head, rows, none = "") {
  if (!table.tHead) table.append(make("thead"));
  if (!table.tBodies.length) {
    table.tHead.append(make("tr"));
    table.append(make("tbody"));
  }
  keep(
    [...table.tHead.rows].at(-1),
    head,
    (_) => make("th", { scope: "col" }),
    (cell, name) => say(cell, name),
  );
  const body = table.tBodies[0];
  const shown = rows.length || !none ? rows : [{ name: none, cells: [], isNone: true }];
  keep(
    body,
    shown,
    () => make("tr"),
    (row, { name, cells, isNone, title, tone }) => {
      mark(row, "data-none", isNone);
      mark(row, "data-tone", tone);
      keep(
        row,
        [name, ...cells],
        (_) => (row.children.length ? make("td") : make("th", { scope: "row" })),
        (cell, text) => say(cell, text),
      );
      mark(row.children[0], "colspan", isNone ? head.length : null);
      mark(row.children[0], "title", title);
    },
  );
}

// -- pipeline --------------------------------------------------------------------------------------------------------

function makeStage() {
  return make(
    "li",
    { class: "stage" },
    make("div", { class: "pipe", "aria-hidden": "true" }),
    make(
      "div",
      { class: "box" },
      make("h3", {}, make("span"), make("em", { text: "neck" })),
      make("div", { class: "tube", "aria-hidden": "true" }, make("i"), make("u")),
      make("p", { class: "depth" }, make("b"), make("span"), make("small")),
      make("dl", {}, make("div", {}, make("dt", { text: "wait" }), make("dd")), make("div", {}, make("dt", { text: "busy" }), make("dd"))),
    ),
  );
}

/** Draw the stages in order; the neck is marked, and a pipe moves while tokens do. */
function drawPipeline(list, view, neck, isFlowing) {
  keep(list, view.stages, makeStage, (item, stage) => {
    const [pipe, box] = item.children;
    const [heading, tube, depth, figures] = box.children;
    const filled = fillOf(stage);
    const isNeck = neck?.key === stage.key;
    mark(item, "data-stage", stage.key);
    mark(item, "data-neck", isNeck ? (neck.isTight ? "tight" : "busiest") : null);
    const pressed = stage.capacity >= FEW_PLACES ? filled : 0;
    mark(item, "data-under-way", stage.isUnderWay ? "" : null);
    mark(item, "data-press", pressed >= NEARLY_FULL ? "bad" : pressed >= 0.5 ? "warn" : null);
    mark(pipe, "data-flows", isFlowing ? "" : null);
    say(heading.children[0], stage.title);
    say(heading.children[1], isNeck && !neck.isTight ? "busiest" : "neck");
    tube.children[0].style.setProperty("width", `${filled * 100}%`);
    tube.children[1].style.setProperty("left", `${fillOf({ ...stage, depth: stage.high }) * 100}%`);
    mark(tube.children[1], "hidden", isNumber(stage.high) && stage.high > 0 ? null : "");
    say(depth.children[0], asCount(stage.depth));
    say(depth.children[1], stage.capacity ? ` of ${asCount(stage.capacity)}` : stage.isUnderWay ? " calls" : " waiting");
    say(depth.children[2], isNumber(stage.high) ? `most ${asCount(stage.high)}` : "");
    const [wait, busy] = figures.children;
    say(wait.children[1], asSeconds(stage.wait));
    say(busy.children[1], asShare(stage.busy));
    busy.style.setProperty("--busy", isNumber(stage.busy) ? Math.min(stage.busy, 1) : 0);
  });
}

/** Return how full an inbox looks, 0 to 1: of its places, or where it has no end on a scale that nears 1. */
function fillOf({ depth, capacity }) {
  if (!depth) return 0;
  return capacity ? Math.min(depth / capacity, 1) : 0.75 * (depth / (depth + 32));
}

// -- cache -----------------------------------------------------------------------------------------------------------

const MAP_COLUMNS = 48;
const MAP_ROWS = 4;

/** Draw who owns what of one tier, as a map of cells and as a list of counts. */
function drawOwners(figure, { title, unit, total: size, owners, note }) {
  if (!figure.children.length)
    figure.append(make("figcaption", {}, make("b"), make("span")), makeSvg("svg", { class: "map", "aria-hidden": "true" }), make("ul"));
  const [caption, map, list] = figure.children;
  say(caption.children[0], title);
  say(caption.children[1], `${asCount(size)} ${unit}${note ? ` · ${note}` : ""}`);
  drawMap(map, size, owners);
  keep(
    list,
    owners,
    () => make("li", {}, make("i", { "aria-hidden": "true" }), make("span"), make("b"), make("small")),
    (item, { key, title: name, count }) => {
      mark(item, "data-owner", key);
      say(item.children[1], name);
      say(item.children[2], asCount(count));
      say(item.children[3], size ? asShare(count / size) : "");
    },
  );
}

function drawMap(map, size, owners) {
  const num = Math.min(Math.max(size, 1), MAP_COLUMNS * MAP_ROWS);
  const rows = Math.ceil(num / MAP_COLUMNS);
  mark(map, "viewBox", `0 0 ${MAP_COLUMNS * 10} ${rows * 10}`);
  const cells = cellsOf(owners, size, num);
  let at = 0;
  keep(
    map,
    owners,
    () => makeSvg("path"),
    (path, { key }, index) => {
      let shape = "";
      for (const end = at + cells[index]; at < end; at++)
        shape += `M${(at % MAP_COLUMNS) * 10 + 0.75} ${Math.floor(at / MAP_COLUMNS) * 10 + 0.75}h8.5v8.5h-8.5z`;
      mark(path, "data-owner", key);
      mark(path, "d", shape);
    },
  );
}

/** Share `num` cells out by count, at least one to whoever has anything. */
function cellsOf(owners, size, num) {
  if (!size) return owners.map(() => 0);
  const exact = owners.map(({ count }) => (count / size) * num);
  const cells = exact.map((value) => (value > 0 ? Math.max(1, Math.floor(value)) : 0));
  let left = num - cells.reduce((sum, value) => sum + value, 0);
  const byRest = exact.map((value, index) => [value - cells[index], index]).sort((a, b) => b[0] - a[0]);
  for (let turn = 0; left > 0 && turn < byRest.length; turn++, left--) if (exact[byRest[turn][1]] > 0) cells[byRest[turn][1]]++;
  for (; left < 0; left++) cells[cells.indexOf(Math.max(...cells))]--;
  return cells;
}
