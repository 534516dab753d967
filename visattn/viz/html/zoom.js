const FARTHEST = 1, CLOSEST = 16, STEP_IN = 1.5;

/** Zoom and pan of the photo and all that lies on it, in every frame alike. */
class Zoom {
  constructor(changed) {
    Object.assign(this, { scale: 1, x: 0, y: 0, frames: [], changed });
    $("closer").addEventListener("click", () => this.by(STEP_IN));
    $("farther").addEventListener("click", () => this.by(1 / STEP_IN));
    $("whole").addEventListener("click", () => this.by(0));
    document.addEventListener("keydown", (event) => this.pressed(event), { capture: true });
  }

  /** Zoom in a frame, and be moved in it: by wheel, two fingers, or a drag of what is zoomed. */
  add(frame) {
    this.frames.push(frame);
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls; pinching sends ctrl
      event.preventDefault();
      this.by(Math.exp(-event.deltaY / 100), this.pointIn(frame, event));
    }, { passive: false });
    this.listenToDrags(frame);
    this.listenToFingers(frame);
    this.apply();
  }

  pointIn(frame, { clientX, clientY }) {
    const area = frame.getBoundingClientRect();
    return { x: (clientX - area.left) / area.width, y: (clientY - area.top) / area.height };
  }

  /** Multiply the scale and keep what lies at a point of the frame there; by 0, show all. */
  by(factor, { x, y } = { x: 0.5, y: 0.5 }) {
    const scale = Math.min(Math.max(this.scale * factor, FARTHEST), CLOSEST);
    this.to(scale, x - ((x - this.x) / this.scale) * scale, y - ((y - this.y) / this.scale) * scale);
  }

  /** Set the scale and the left upper corner of the photo, in shares of the frame. */
  to(scale, x, y) {
    const within = (shift) => Math.min(Math.max(shift, 1 - scale), 0);
    Object.assign(this, { scale, x: within(x), y: within(y) });
    this.apply();
    this.changed();
  }

  apply() {
    for (const frame of this.frames) {
      const { style } = frame.querySelector(".pan");
      style.transform = this.scale === 1 ? "" : `translate(${100 * this.x}%, ${100 * this.y}%) scale(${this.scale})`;
      frame.classList.toggle("zoomed", this.scale > 1);
    }
    $("whole").hidden = $("farther").hidden = this.scale === 1;
    $("closer").disabled = this.scale === CLOSEST;
  }

  /** What of the photo is in the frame: left, top and side, in shares of the photo. */
  window() {
    return { x: -this.x / this.scale, y: -this.y / this.scale, side: 1 / this.scale };
  }

  listenToDrags(frame) {
    let from = null, moved = false;
    frame.addEventListener("pointerdown", (event) => {
      moved = false;
      from = this.scale > 1 && event.isPrimary && event.button === 0
        ? { ...this.pointIn(frame, event), left: this.x, top: this.y } : null;
    });
    frame.addEventListener("pointermove", (event) => {
      if (!from || !event.isPrimary || !event.buttons) return;
      const { x, y } = this.pointIn(frame, event), { width } = frame.getBoundingClientRect();
      if (!moved && Math.hypot(x - from.x, y - from.y) * width < 4) return;
      if (!moved) frame.setPointerCapture(event.pointerId);
      moved = true;
      this.to(this.scale, from.left + x - from.x, from.top + y - from.y);
    });
    frame.addEventListener("click", (event) => { // the end of a drag chooses nothing
      if (moved) event.stopPropagation();
      moved = false;
    }, { capture: true });
  }

  listenToFingers(frame) {
    let apart = 0;
    const measured = ([one, other]) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    frame.addEventListener("touchstart", ({ touches }) => { if (touches.length === 2) apart = measured(touches); }, { passive: true });
    frame.addEventListener("touchmove", (event) => {
      const { touches: [one, other], touches } = event;
      if (touches.length !== 2) return;
      event.preventDefault();
      const middle = { clientX: (one.clientX + other.clientX) / 2, clientY: (one.clientY + other.clientY) / 2 };
      this.by(measured(touches) / apart, this.pointIn(frame, middle));
      apart = measured(touches);
    }, { passive: false });
  }

  pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, select, textarea")) return;
    const pan = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
    const factor = { "+": STEP_IN, "=": STEP_IN, "-": 1 / STEP_IN, 0: 0 }[event.key];
    if (factor === undefined && !(pan && event.shiftKey && this.scale > 1)) return;
    event.preventDefault();
    event.stopPropagation();
    if (factor !== undefined) this.by(factor);
    else this.to(this.scale, this.x + pan[0], this.y + pan[1]);
  }
}
