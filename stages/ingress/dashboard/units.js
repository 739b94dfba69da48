// Numbers with their units, as text. A value that is not there is a dash, never a zero.

const NONE = "–";
// Narrow, and no place to break a line.
const THIN = "\u202f";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const digits = (value, places) =>
  value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });

const asCount = (value) => (isNumber(value) ? digits(value, 0) : NONE);
const asShare = (value) => (isNumber(value) ? asParts(value, share).join(THIN) : NONE);
const asSeconds = (value) => (isNumber(value) ? asParts(value, seconds).join(THIN) : NONE);
const asRate = (value) => (isNumber(value) ? asParts(value, rate).join("") : NONE);

/** Return [number, unit] of a value in a scale; a dash and no unit where there is none. */
function asParts(value, scale) {
  return isNumber(value) ? scale(value) : [NONE, ""];
}

function share(value) {
  const percent = value * 100;
  // 99.96 is not "100": what is said to be all of it is all of it.
  const shown = percent > 99 && percent < 100 ? Math.min(percent, 99.9) : percent;
  return [digits(shown, shown > 0 && (shown < 10 || shown > 99) && shown !== 100 ? 1 : 0), "%"];
}

function seconds(value) {
  if (value < 0.0095) return [digits(value * 1e3, value === 0 ? 0 : 1), "ms"];
  if (value < 0.9995) return [digits(value * 1e3, 0), "ms"];
  if (value < 9.995) return [digits(value, 2), "s"];
  if (value < 99.5) return [digits(value, value < 59.95 ? 1 : 0), "s"];
  if (value < 5970) return [digits(value / 60, value < 600 ? 1 : 0), "min"];
  if (value < 170000) return [digits(value / 3600, 1), "h"];
  return [digits(value / 86400, 1), "d"];
}

function rate(value) {
  if (value === 0) return ["0", ""];
  if (value < 9.95) return [digits(value, value < 0.995 ? 2 : 1), ""];
  if (value < 9999.5) return [digits(value, 0), ""];
  if (value < 999500) return [digits(value / 1e3, value < 99950 ? 1 : 0), "k"];
  return [digits(value / 1e6, value < 99.95e6 ? 1 : 0), "M"];
}

function plain(value) {
  return [digits(value, 0), ""];
}

function asClock(epochSeconds) {
  return isNumber(epochSeconds) ? new Date(epochSeconds * 1e3).toLocaleTimeString("en-GB") : NONE;
}
