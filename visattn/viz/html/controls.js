// Groups of buttons, rows of numbers, and the desk: how maps are drawn, their scale, and the swipe of two maps.

/** A probability, as format_percent of visattn/results/values.py writes it. */
function percent(share) {
  if (share > 0 && share < 0.01) return "<1 %";
  return share > 0.99 && share < 1 ? ">99 %" : `${Math.round(100 * share)} %`;
}

function numbered(value) {
  const size = Math.abs(value), text = size >= 100 && size < 1e5 ? value.toFixed(0) : value.toPrecision(2);
  return value === 0 ? "0" : text.replaceAll("-", "\u2212");
}

/** Where a key leads from one of `count` places, or null if it leads nowhere. */
function stepped({ key, ctrlKey, altKey, metaKey }, from, count) {
  if (ctrlKey || altKey || metaKey) return null;
  const to = { ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1,
    Home: 0, End: count - 1 }[key];
  return to === undefined ? null : (Math.max(to, -1) + count) % count;
}

/** A group of buttons of which one is chosen; arrow keys, Home and End go from one to the next. */
class Choice {
  constructor(group, choose) {
    this.group = group;
    this.buttons = [...group.children];
    group.addEventListener("click", (event) => {
      const at = this.buttons.indexOf(event.target.closest("[role=radio]"));
      if (at >= 0) choose(at);
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

const radio = (style, ...inside) => made("button", { type: "button", role: "radio", class: style }, ...inside);

/** A bar filled to a share, with a mark on it. */
function bar(share, mark = null) {
  const fill = made("i"), whole = made("span", { class: "bar" }, fill);
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  if (mark === null) return whole;
  const tick = made("em");
  tick.style.left = `${100 * mark}%`;
  whole.append(tick);
  return whole;
}

/** A row of a readout: a name, a bar where there is a share, a text. */
function factRow({ name, text, share = null, mark = null, kind = "" }) {
  const bars = share === null ? [] : [bar(share, mark)];
  return [made("dt", {}, name), made("dd", { class: kind }, ...bars, made("span", { class: "number" }, text))];
}

const peakOf = (map) => map.reduce((most, value) => Math.max(most, value), 0);

/** Where the largest value of a map lies on the photo, in words: "lower right". */
function peakPlace({ values, grid: [rows, columns], geometry = page.geometry }) {
  const at = values.reduce((best, value, cell) => (Math.abs(value) > Math.abs(values[best]) ? cell : best), 0);
  if (!values[at]) return "";
  const cell = { x: ((at % columns) + 0.5) / columns, y: (Math.floor(at / columns) + 0.5) / rows };
  const { x, y } = pointOf(geometry, cell), [height, width] = geometry.image_size;
  const third = (share, names) => names[Math.min(Math.max(Math.floor(3 * share), 0), 2)];
  const words = [third(y / height, ["upper", "", "lower"]), third(x / width, ["left", "center", "right"])];
  return words.filter(Boolean).join(" ");
}

/** What is said of any map: its peak or its ends, the place of the peak on the photo, and over how many cells it is spread. */
function mapFacts(view) {
  const { values, even, signed } = view, peak = peakOf(values), place = peakPlace(view);
  const uniform = even ? ` \u00b7 ${(peak / even).toFixed(1)}\u00d7 uniform` : "";
  const sum = values.reduce((all, value) => all + Math.max(value, 0), 0);
  const entropy = -values.reduce((all, value) => all + (value > 0 ? (value / sum) * Math.log(value / sum) : 0), 0);
  return [
    signed ? { name: "Values", text: `${numbered(Math.min(...values))} to ${numbered(peak)}` }
      : { name: "Peak", text: `${numbered(peak)}${uniform}` },
    place && { name: "Peak position", text: place },
    !signed && sum > 0 && { name: "Spread", text: `about ${Math.round(Math.exp(entropy))} of ${values.length} cells` },
  ].filter(Boolean);
}

const STYLES = ["heat", "light"], CELLS = [true, false], ENDS = ["shared", "own", "greatest"];
const drawing = { opacity: page.opacity, threshold: 0, style: page.style, smooth: page.smooth, ends: "shared" };

/** How a map is drawn, with all that the page is set to. */
function optionsOf({ scale: [low, high], signed, cells }) {
  return { ...drawing, smooth: drawing.smooth && !cells, low: low + drawing.threshold * (high - low), high, signed };
}

/** A map with the upper end of its colors: that of all maps of its kind, its own peak, or their greatest. */
function scaled(view) {
  const [low, high] = view.scale, [, greatest] = view.range, own = peakOf(view.values.map(Math.abs));
  const top = { shared: high, own, greatest }[drawing.ends];
  const most = drawing.ends === "own" ? own : greatest;
  return { ...view, scale: [low, top > low ? top : high], range: [view.range[0], most] };
}

/** The name of a map, with both ends of its scale. */
function titleOf(view) {
  if (!view) return "photo alone";
  const { title, scale: [low, high], range: [, most], signed } = view;
  return `${title} (${numbered(signed ? -high : low)} to ${most > high * 1.00001 ? "\u2265 " : ""}${numbered(high)})`;
}

/** The photo with one map, or with two on both sides of a line, and the controls beside it. */
class Desk {
  /** `changed` is called when maps are to be drawn anew, `pointed` with the place under a mouse or finger, or null. */
  constructor(changed, pointed) {
    Object.assign(this, { changed, view: null, held: null, stage: new Stage($("overlay")), second: new Stage($("second")) });
    for (const [name, values] of [["style", STYLES], ["smooth", CELLS], ["ends", ENDS]]) {
      const group = new Choice($(name), (index) => this.set({ [name]: values[index] }));
      this[name] = () => group.mark(values.indexOf(drawing[name]));
    }
    for (const name of ["opacity", "threshold"]) {
      $(name).addEventListener("input", () => this.set({ [name]: Number($(name).value) / 100 }));
    }
    const read = (at) => { this.readValue(at); pointed(at); };
    $("frame").addEventListener("pointermove", (event) => read(placeOf(event)));
    $("frame").addEventListener("pointerdown", (event) => read(placeOf(event)));
    $("frame").addEventListener("pointerleave", (event) => event.pointerType === "mouse" && read(null));
    $("divider").addEventListener("input", () => this.divide());
    $("hold").addEventListener("click", () => {
      this.held = this.held ? null : this.view;
      changed();
    });
  }

  set(changes) {
    Object.assign(drawing, changes);
    for (const name of ["style", "smooth", "ends"]) this[name]();
    for (const name of ["opacity", "threshold"]) {
      $(name).value = Math.round(100 * drawing[name]);
      $(`${name}-out`).textContent = drawing[name] || name === "opacity" ? percent(drawing[name]) : "off";
    }
    $("opacity").disabled = drawing.style === "light"; // light has all of its own
    this.changed();
  }

  /** Show a map, or the photo alone, with boxes that are known and those of the map. */
  show(view, known = [], ofMap = []) {
    const { held } = this;
    this.view = view;
    this.stage.show(view, view && optionsOf(view));
    this.second.show(held, held && optionsOf(held));
    outline(known, ofMap);
    if (view) this.legend(view);
    for (const id of ["divider", "titles"]) $(id).hidden = !held;
    $("hold").disabled = !view && !held;
    $("hold").textContent = held ? "Unpin the map" : "Pin this map";
    $("views").classList.toggle("swipe", Boolean(held));
    [$("first-title").textContent, $("second-title").textContent] = [titleOf(view), held ? titleOf(held) : ""];
    this.divide();
    this.readValue();
  }

  divide() {
    $("second").style.clipPath = `inset(0 0 0 ${$("divider").value}%)`;
    $("views").style.setProperty("--border", `${$("divider").value}%`);
  }

  /** The colors of the scale, painted as the photo is; its ends say whether values lie beyond them. */
  legend(view) {
    const { scale: [low, high], range: [lowest, highest], signed, unit, even, note } = view;
    const bottom = signed ? -high : low, width = $("ramp").width, left = (100 * (even - low)) / (high - low);
    const ramp = Float32Array.from({ length: width }, (_, x) => bottom + ((x + 0.5) / width) * (high - bottom));
    paintPlain($("ramp"), ramp, [1, width], { ...optionsOf(view), smooth: true });
    const slack = 1e-5 * Math.max(Math.abs(bottom), Math.abs(high)); // float32 rounds the ends
    $("low").textContent = (lowest < bottom - slack ? "\u2264 " : "") + numbered(bottom);
    $("high").textContent = (highest > high + slack ? "\u2265 " : "") + numbered(high);
    $("note").textContent = note ?? "";
    $("unit").textContent = unit;
    $("even").hidden = $("evenly").hidden = !(even && left >= 0 && left <= 100);
    $("even").style.left = `${left}%`;
    const { x, y } = this.stage.place(view, true);
    $("unseen").hidden = !x.seen.includes(0) && !y.seen.includes(0);
  }

  /** Write the value under a mouse or finger: that of the map which is seen there. */
  readValue(at = null) {
    const view = at && (this.held && 100 * at.x > Number($("divider").value) ? this.held : this.view);
    $("value").hidden = !view;
    if (!view) return;
    const [height, width] = page.geometry.image_size, value = this.stage.under(at, view, optionsOf(view).smooth);
    const text = Number.isNaN(value) ? "not seen by the model" : numbered(value);
    $("value").textContent = `${text} \u00b7 x ${Math.floor(at.x * width)}, y ${Math.floor(at.y * height)}`;
  }
}
