/** A probability, as format_percent of visattn/results/values.py writes it. */
function percent(share) {
  if (share > 0 && share < 0.01) return "<1 %";
  return share > 0.99 && share < 1 ? ">99 %" : `${Math.round(100 * share)} %`;
}

/** A group of buttons of which one is chosen; arrow keys, Home and End go from one to the next. */
class Choice {
  constructor(group, choose) {
    this.group = group;
    this.buttons = [];
    group.addEventListener("click", (event) => {
      const button = event.target.closest("[role=radio]");
      if (button) choose(this.buttons.indexOf(button));
    });
    group.addEventListener("keydown", (event) => {
      const from = this.buttons.indexOf(document.activeElement);
      const to = stepped(event, from, this.buttons.length);
      if (from < 0 || to === null) return;
      event.preventDefault();
      event.stopPropagation();
      choose(to);
      this.buttons[to].focus();
    });
  }

  fill(buttons) {
    this.buttons = buttons;
    this.group.replaceChildren(...buttons);
  }

  /** Mark one as chosen; the Tab key leads to it, or to the first where none is. */
  mark(chosen) {
    this.buttons.forEach((button, index) => {
      button.setAttribute("aria-checked", String(index === chosen));
      button.tabIndex = index === Math.max(chosen, 0) ? 0 : -1;
    });
  }
}

/** Return where a key leads from one of `count` places, or null if it leads nowhere. */
function stepped({ key, ctrlKey, altKey, metaKey }, from, count) {
  if (ctrlKey || altKey || metaKey) return null;
  const to = { ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1,
    Home: 0, End: count - 1 }[key];
  return to === undefined ? null : (Math.max(to, -1) + count) % count;
}

/** Buttons of a page that stand for the values of a setting; return the group. */
function segmented(id, values, now, chosen) {
  const group = new Choice($(id), (index) => {
    group.mark(index);
    chosen(values[index]);
  });
  group.buttons = [...$(id).querySelectorAll("button")];
  group.mark(values.indexOf(now));
  return group;
}

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

function peakOf(map) {
  return map.reduce((most, value) => Math.max(most, value), 0);
}

/** Rows about a map: its peak, the place of it on the photo, and its spread. */
function mapRows(map, place, sumsToOne = true) {
  const peak = peakOf(map);
  const uniform = sumsToOne ? ` \u00b7 ${(peak * map.length).toFixed(1)}\u00d7 uniform` : "";
  return [
    ...textRow("Peak", `${numbered(peak)}${uniform}`),
    ...(place ? textRow("Peak position", place) : []),
    ...textRow("Spread", `about ${Math.round(spread(map))} of ${map.length} cells`),
  ];
}

const UPRIGHT = ["upper", "", "lower"], ACROSS = ["left", "center", "right"];

/** Where the largest value of a map lies on the photo, in words: "lower right". */
function peakPlace({ values, grid: [rows, columns], geometry = pageData.geometry }) {
  let at = 0;
  values.forEach((value, cell) => { if (Math.abs(value) > Math.abs(values[at])) at = cell; });
  if (!values[at]) return "";
  const cell = { x: ((at % columns) + 0.5) / columns, y: (Math.floor(at / columns) + 0.5) / rows };
  const { x, y } = pointOf(geometry, cell), [height, width] = geometry.image_size;
  const third = (share) => Math.min(Math.max(Math.floor(3 * share), 0), 2);
  return [UPRIGHT[third(y / height)], ACROSS[third(x / width)]].filter(Boolean).join(" ");
}

/** The ramp of a scale, painted as the photo is; its ends say whether values lie beyond them. */
function paintRamp([bottom, top], [lowest, highest], { low, high, ...options }) {
  const canvas = $("ramp"), { width, height } = canvas;
  const painter = (paintRamp.painter ??= plainPainter(height, width));
  const geometry = { matrix: [[1, 0, 0], [0, 1, 0]], input_size: [height, width],
    image_size: [height, width], region: [0, 0, width, height] };
  const ramp = Float32Array.from({ length: width }, (_, x) => bottom + ((x + 0.5) / width) * (top - bottom));
  const place = placement(geometry, [1, width], height, width, true);
  canvas.getContext("2d").putImageData(painter.paint(ramp, place, { low, high, ...options }), 0, 0);
  const slack = 1e-5 * Math.max(Math.abs(bottom), Math.abs(top)); // float32 rounds the ends
  $("low").textContent = (lowest < bottom - slack ? "\u2264 " : "") + numbered(bottom);
  $("high").textContent = (highest > top + slack ? "\u2265 " : "") + numbered(top);
}

function numbered(value) {
  const size = Math.abs(value), text = size >= 100 && size < 1e5 ? value.toFixed(0) : value.toPrecision(2);
  return value === 0 ? "0" : text.replaceAll("-", "\u2212");
}
