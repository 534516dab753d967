// What pages of a photo share: how maps are drawn, their scale, the value under the pointer, and the swipe of two maps.

const STYLES = ["heat", "light"];
const drawing = { opacity: pageData.opacity, threshold: 0, style: pageData.style, smooth: pageData.smooth };

/** How a map is drawn, with all that the page is set to. */
function optionsOf({ scale: [low, high], grid, geometry, signed, cells }) {
  return { ...drawing, smooth: drawing.smooth && !cells, low: low + drawing.threshold * (high - low), high, grid, geometry, signed };
}

/** The name of a map, with both ends of its scale. */
function titleOf(view) {
  if (!view) return "photo alone";
  const { name, scale: [low, high], range: [, most], signed } = view;
  return `${name} (${numbered(signed ? -high : low)} to ${most > high * 1.00001 ? "\u2265 " : ""}${numbered(high)})`;
}

/** The controls beside the photo; `changed` is called when maps are to be drawn anew. */
class Desk {
  constructor(stage, changed) {
    Object.assign(this, { stage, changed, view: null, swipe: new Swipe(this) });
    this.style = segmented("style", STYLES, drawing.style, (style) => this.set({ style }));
    this.cells = segmented("cells", [true, false], drawing.smooth, (smooth) => this.set({ smooth }));
    for (const id of ["opacity", "threshold"]) {
      $(id).addEventListener("input", () => this.set({ [id]: Number($(id).value) / 100 }));
    }
    const at = (event) => this.pointed(stage.pointed(event));
    $("frame").addEventListener("pointermove", at);
    $("frame").addEventListener("pointerdown", at);
    $("frame").addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.pointed());
  }

  /** Show a map, or the photo alone, with boxes that are known and those of the map. */
  show(view, known = [], ofMap = []) {
    this.view = view;
    this.stage.show(view && view.values, view ? optionsOf(view) : {});
    this.stage.outline(known, ofMap);
    if (view) this.legend(view);
    this.swipe.show();
    this.pointed();
  }

  legend(view) {
    const { scale: [low, high], range, signed, unit, even, note } = view, left = (100 * (even - low)) / (high - low);
    paintRamp([signed ? -high : low, high], range, optionsOf(view));
    $("note").textContent = note ?? "";
    $("unit").textContent = unit;
    $("even").hidden = $("evenly").hidden = !(left >= 0 && left <= 100);
    $("even").style.left = `${left}%`;
    const { x, y } = this.stage.place(true, view.grid, view.geometry);
    $("unseen").hidden = !x.seen.includes(0) && !y.seen.includes(0);
  }

  /** Say what is shown to those who cannot see it, once it stays. */
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { $("spoken").textContent = text; }, 300);
  }

  set(changes) {
    Object.assign(drawing, changes);
    this.style.mark(STYLES.indexOf(drawing.style));
    this.cells.mark(drawing.smooth ? 0 : 1);
    $("opacity").value = Math.round(100 * drawing.opacity);
    $("threshold").value = Math.round(100 * drawing.threshold);
    $("opacity").disabled = drawing.style === "light"; // light has all of its own
    $("opacity-out").textContent = percent(drawing.opacity);
    $("threshold-out").textContent = drawing.threshold ? percent(drawing.threshold) : "off";
    this.changed();
  }

  /** Write the value under a mouse or finger: that of the map which is seen there. */
  pointed(place = null) {
    const view = place && this.swipe.shownAt(place.x);
    $("value").hidden = !view;
    if (!view) return;
    const [height, width] = pageData.geometry.image_size, value = this.stage.under(place, [view.values], optionsOf(view));
    const where = `x ${Math.floor(place.x * width)}, y ${Math.floor(place.y * height)}`;
    $("value").textContent = `${value ? numbered(value[0]) : "not seen by the model"} \u00b7 ${where}`;
  }
}

/** Two maps of the photo: left of a line the one that is chosen, right of it one that is held. */
class Swipe {
  constructor(desk) {
    Object.assign(this, { desk, held: null, stage: new Stage({ canvas: $("second") }) });
    $("hold").addEventListener("click", () => {
      this.held = this.held ? null : this.desk.view;
      this.desk.changed();
    });
    $("divider").addEventListener("input", () => this.divide());
  }

  show() {
    const { held, desk: { view } } = this;
    $("hold").disabled = !view && !held;
    $("hold").textContent = held ? "Unpin the map" : "Pin this map";
    for (const id of ["second", "divider", "titles"]) $(id).hidden = !held;
    $("views").classList.toggle("swipe", Boolean(held));
    if (!held) return;
    this.stage.show(held.values, optionsOf(held));
    $("first-title").textContent = titleOf(view);
    $("second-title").textContent = titleOf(held);
    this.divide();
  }

  divide() {
    $("second").style.clipPath = `inset(0 0 0 ${$("divider").value}%)`;
    $("views").style.setProperty("--border", `${$("divider").value}%`);
  }

  /** The map that is seen at a share of the width of the photo. */
  shownAt(x) {
    return this.held && 100 * x > Number($("divider").value) ? this.held : this.desk.view;
  }
}
