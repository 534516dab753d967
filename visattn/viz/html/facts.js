/** A row of a readout: a name, a bar with a mark on it, a number. */
function barRow(name, share, text, mark = null) {
  const fill = made("i"), bar = made("span", { class: "bar" }, fill);
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  if (mark !== null) {
    const tick = made("em");
    tick.style.left = `${100 * mark}%`;
    bar.append(tick);
  }
  return [made("dt", {}, name), made("dd", {}, bar, made("span", { class: "number" }, text))];
}

function textRow(name, text) {
  return [made("dt", {}, name), made("dd", {}, made("span", { class: "number" }, text))];
}

/** Over how many cells attention is spread: e to the power of its entropy. */
function spread(map) {
  const sum = map.reduce((all, value) => all + Math.max(value, 0), 0);
  let entropy = 0;
  for (const value of map) if (value > 0) entropy -= (value / sum) * Math.log(value / sum);
  return Math.exp(entropy);
}

function mapRows(map) {
  const peak = map.reduce((most, value) => Math.max(most, value), 0);
  return [
    ...textRow("Peak", `${peak.toPrecision(2)} \u00b7 ${(peak * map.length).toFixed(1)}\u00d7 even`),
    ...textRow("Spread", `about ${Math.round(spread(map))} of ${map.length} cells`),
  ];
}
