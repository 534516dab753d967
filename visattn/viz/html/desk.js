// What pages of a photo share: how maps are drawn, their scale, the value under the pointer, and the address of what is shown.

const STYLES = ["heat", "light"];
const drawing = { opacity: pageData.opacity, threshold: 0, style: pageData.style, smooth: pageData.smooth };

/** How a map is drawn, with all that the page is set to. */
function optionsOf({ scale: [low, high], grid, geometry, signed }) {
  return { ...drawing, low: low + drawing.threshold * (high - low), high, grid, geometry, signed };
}

/** What is shown, in the address of the page: restored from it, and never a step of the browser's history. */
class Address {
  constructor(read, restore) {
    Object.assign(this, { read, restore, first: null });
    addEventListener("hashchange", () => restore(this.fields()));
  }

  fields() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  text() {
    const known = Object.entries(this.read()).filter(([, value]) => value !== null && value !== undefined);
    return new URLSearchParams(known).toString().replaceAll("%2C", ",");
  }

  begin() {
    this.first = this.text();
    if (location.hash.length > 1) this.restore(this.fields());
  }

  write() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      const text = this.text();
      if (this.first === null || text === location.hash.slice(1) || (text === this.first && !location.hash)) return;
      history.replaceState(null, "", `#${text}`);
    }, 250); // browsers refuse many changes a second
  }
}

/** A whole number of an address, within its range; null for anything else. */
function numberIn(text, from, to) {
  const number = /^\d+$/.test(text ?? "") ? Number(text) : NaN;
  return number >= from && number <= to ? number : null;
}

/**
 * The controls beside the photo.
 *
 * @param page What differs between pages: `stages()` with the part of a map that lies on each, `show()`, which calls
 *   `desk.show`, `address()` and `restore(fields)` for links, `title()`, two lines for figures, and of several
 *   photos `photo()`, the name of the one in the frame, whose stage is the first.
 */
class Desk {
  constructor(page) {
    this.page = page;
    this.view = null;
    this.style = segmented("style", STYLES, drawing.style, (style) => this.set({ style }));
    this.cells = segmented("cells", [true, false], drawing.smooth, (smooth) => this.set({ smooth }));
    for (const id of ["opacity", "threshold"]) {
      $(id).addEventListener("input", () => this.set({ [id]: Number($(id).value) / 100 }));
    }
    this.address = new Address(() => this.fields(), (fields) => this.restore(fields));
    this.zoom = new Zoom(() => this.address.write());
    this.zoom.add($("frame"));
    this.comparison = new Comparison(this);
    this.point($("frame"), () => this.page.stages()[0].stage);
    new Exports(this);
  }

  /** Show a map, or the photo alone, with boxes that are known and those of the map. */
  show(view, known = [], ofMap = []) {
    const stages = this.page.stages(), [{ stage: { grid, geometry }, part: onPhoto }] = stages;
    this.view = view && { grid, geometry, ...view, values: onPhoto(view.values) };
    for (const { stage, part } of stages) {
      stage.show(view && part(view.values), view ? optionsOf(view) : {});
      stage.outline(known, ofMap);
    }
    if (view) this.legend(this.view);
    this.comparison.show();
    this.pointed();
    this.address.write();
  }

  legend(view) {
    const { scale: [low, high], range, signed, unit, even, note } = view, left = (100 * (even - low)) / (high - low);
    paintRamp([signed ? -high : low, high], range, optionsOf(view));
    $("note").textContent = note ?? "";
    $("unit").textContent = unit;
    $("even").hidden = $("evenly").hidden = !(left >= 0 && left <= 100);
    $("even").style.left = `${left}%`;
    const { x, y } = this.page.stages()[0].stage.place(true, view.grid, view.geometry);
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
    this.page.show();
  }

  /** Write the value under a mouse or finger in a frame. */
  point(frame, stage) {
    const at = (event) => this.pointed(stage().pointed(event));
    frame.addEventListener("pointermove", at);
    frame.addEventListener("pointerdown", at);
    frame.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.pointed());
  }

  pointed(place = null) {
    const views = [this.view, this.comparison.view].filter(Boolean);
    $("value").hidden = !place || !views.length;
    if ($("value").hidden) return;
    const [{ stage }] = this.page.stages(), [height, width] = views[0].geometry?.image_size ?? pageData.geometry.image_size;
    const values = views.map((view) => stage.under(place, [view.values], optionsOf(view)));
    const texts = values.map((value) => value ? numbered(value[0]) : "not seen by the model");
    const where = `x ${Math.floor(place.x * width)}, y ${Math.floor(place.y * height)}`;
    $("value").textContent = `${[...new Set(texts)].length === 1 ? texts[0] : texts.join(" | ")} \u00b7 ${where}`;
  }

  fields() {
    const { x, y, scale } = this.zoom;
    return {
      ...this.page.address(),
      style: drawing.style === pageData.style ? null : drawing.style,
      cells: drawing.smooth === pageData.smooth ? null : Number(!drawing.smooth),
      opacity: drawing.opacity === pageData.opacity ? null : Math.round(100 * drawing.opacity),
      threshold: drawing.threshold ? Math.round(100 * drawing.threshold) : null,
      zoom: scale > 1 ? [scale, x, y].map((number) => Number(number.toFixed(3))).join() : null,
      ...this.comparison.fields(),
    };
  }

  async restore(fields) {
    const share = (name, most) => (numberIn(fields[name], 0, most) ?? 100 * pageDefaults[name]) / 100;
    const cells = numberIn(fields.cells, 0, 1);
    await this.page.restore(fields); // which may load another photo
    this.set({
      style: STYLES.includes(fields.style) ? fields.style : pageData.style,
      smooth: cells === null ? pageData.smooth : !cells,
      opacity: share("opacity", 100),
      threshold: share("threshold", 95),
    });
    const [scale, x, y] = (fields.zoom ?? "1,0,0").split(",").map(Number);
    if ([scale, x, y].every(Number.isFinite)) this.zoom.to(Math.min(Math.max(scale, FARTHEST), CLOSEST), x, y);
    this.comparison.restore(fields);
  }
}

const pageDefaults = { opacity: pageData.opacity, threshold: 0 };
