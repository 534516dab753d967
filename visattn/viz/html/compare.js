const FLICKER = 700; // milliseconds of one of two maps
const PAGE_DATA = /<script type="application\/json" id="page-data">([^<]*)<\/script>/; // < is escaped in the data
const MODES = ["side", "swipe", "flicker"];

/** A second map beside the first, behind a border that moves, or in turns with it. */
class Comparison {
  constructor(desk) {
    Object.assign(this, { desk, view: null, mode: "side", held: [], opened: [], turning: 0 });
    this.modes = segmented("mode", MODES, this.mode, (mode) => this.change({ mode }));
    $("other").addEventListener("change", () => this.change({ view: this.choices()[Number($("other").value)] ?? null }));
    $("hold").addEventListener("click", () => this.hold());
    $("divider").addEventListener("input", () => this.divide());
    $("opener").addEventListener("click", () => $("page-file").click());
    $("page-file").addEventListener("change", () => this.open($("page-file").files[0]));
    this.list();
  }

  /** Whether a map lies on the photo that is shown: one of its size, and of its name where both have several. */
  fits({ geometry, photo }) {
    const shown = this.desk.page.photo?.();
    return String(geometry.image_size) === String(pageData.geometry.image_size)
      && (photo === undefined || shown === undefined || photo === shown);
  }

  /** All maps that can be the second one. */
  choices() {
    return [...viewsOf(pageData), ...this.opened, ...this.held].filter((view) => this.fits(view));
  }

  list() {
    const options = this.choices().map(({ name }, index) => made("option", { value: index }, name));
    $("other").replaceChildren(made("option", { value: -1 }, "nothing"), ...options);
    $("other").value = this.choices().findIndex(({ name }) => name === this.view?.name);
    $("mode").hidden = !this.view;
  }

  hold() {
    const { view, page } = this.desk;
    if (!view) return;
    const name = `held: ${page.title().join(", ")}`;
    const held = { geometry: pageData.geometry, ...view, name, photo: page.photo?.() };
    this.held = [...this.held.filter((each) => each.name !== name), held];
    this.change({ view: this.held.at(-1) });
  }

  /** Add the maps of another page of the same photo, which is read from this computer. */
  async open(file) {
    if (!file) return;
    const [, text] = PAGE_DATA.exec(await file.text()) ?? [];
    try {
      const data = JSON.parse(text);
      const views = viewsOf(data).map((view) => ({ ...view, name: `${data.model || file.name}: ${view.name}` }));
      const fitting = views.filter((view) => this.fits(view));
      if (!fitting.length) throw new TypeError("no map of this photo");
      this.opened.push(...views);
      await this.change({ view: fitting[0] });
      $("opened").textContent = `${fitting.length} maps of ${file.name} are in the list.`;
    } catch (error) { // whatever is wrong with the data of a file that is no such page
      if (!(error instanceof TypeError || error instanceof SyntaxError || error instanceof RangeError || error instanceof DOMException)) throw error;
      $("opened").textContent = `${file.name} is not a page of visattn with maps of this photo.`;
    }
    $("page-file").value = "";
  }

  async change(changes) {
    Object.assign(this, changes);
    if (this.view && !this.stage) await this.build();
    this.list();
    this.desk.page.show();
  }

  /** Make the frame of the second map, with the photo again. */
  async build() {
    const photo = $("photo"), image = made("img", { alt: "", draggable: "false", src: photo.src });
    const canvas = made("canvas", { "aria-hidden": "true" });
    const boxes = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const frame = made("div", { class: "frame", id: "second", "aria-hidden": "true" }, made("div", { class: "pan" }, image, canvas, boxes));
    this.frame?.remove();
    this.frame = frame;
    $("frame").after(frame);
    await image.decode();
    const [{ stage }] = this.desk.page.stages(), { width, height } = stage.canvas;
    this.stage = new Stage({ image, canvas, boxes, size: [height, width] });
    this.desk.zoom.add(frame);
    this.desk.point(frame, () => this.stage);
  }

  /** The photo of the page is another one. */
  renew() {
    this.stage = null;
    this.desk.zoom.frames = this.desk.zoom.frames.filter((frame) => frame !== this.frame);
    this.change({ view: null });
  }

  show() {
    const on = this.view !== null && Boolean(this.stage);
    if (this.frame) this.frame.hidden = !on;
    for (const mode of MODES) $("views").classList.toggle(mode, on && this.mode === mode);
    this.modes.mark(MODES.indexOf(this.mode));
    $("divider").hidden = !on || this.mode !== "swipe";
    $("titles").hidden = !on;
    this.turn(on && this.mode === "flicker");
    if (!on) return;
    this.stage.show(this.view.values, optionsOf(this.view));
    $("first-title").textContent = this.desk.page.title().join(", ");
    $("second-title").textContent = `${this.view.name} (${rangeOf(this.view)})`;
    this.divide();
  }

  divide() {
    this.frame.style.clipPath = this.mode === "swipe" ? `inset(0 0 0 ${$("divider").value}%)` : "";
    $("views").style.setProperty("--border", `${$("divider").value}%`);
  }

  turn(on) {
    if (on === Boolean(this.turning)) return;
    clearInterval(this.turning);
    this.turning = on ? setInterval(() => $("views").classList.toggle("first"), FLICKER) : 0;
    $("views").classList.remove("first");
  }

  /** The second map by its name; maps of other pages and those that are held are in no link. */
  fields() {
    const known = this.view && viewsOf(pageData).some(({ name }) => name === this.view.name);
    return known ? { with: this.view.name, mode: this.mode } : {};
  }

  restore(fields) {
    const view = this.choices().find(({ name }) => name === fields.with) ?? null;
    this.change({ view, mode: MODES.includes(fields.mode) ? fields.mode : "side" });
  }
}

/** Both ends of the scale of a map. */
function rangeOf({ scale: [low, high], range: [, most], signed }) {
  return `${numbered(signed ? -high : low)} to ${most > high * 1.00001 ? "\u2265 " : ""}${numbered(high)}`;
}
