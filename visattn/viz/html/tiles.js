/** The wall of tiles: a row for each layer, a tile for each head, and at the end their mean. */
class Tiles {
  constructor(choose) {
    this.group = $("tiles");
    this.columns = Math.max(0, ...layers.map(({ heads }) => heads.length)) + 1;
    this.group.style.gridTemplateColumns = `max-content repeat(${this.columns}, minmax(0, 1fr))`;
    this.group.classList.toggle("wide", this.columns < 9);
    this.buttons = layers.map((layer, row) => [...layer.heads, "mean"].map((head, column) =>
      this.button(layer, row, head, column)));
    this.group.append(...this.labels(), ...this.buttons.flat());
    this.group.addEventListener("click", (event) => {
      const at = this.at(event.target.closest("button"));
      if (at) choose(at);
    });
    this.group.addEventListener("keydown", (event) => this.step(event, choose));
  }

  button(layer, row, head, column) {
    const canvas = made("canvas", { width: layer.keys[1], height: layer.keys[0], "aria-hidden": "true" });
    const name = head === "mean" ? "mean of all heads" : `head ${head}`;
    const button = made("button", { type: "button", role: "radio", title: `layer ${layer.number}, ${name}`,
      "aria-label": `layer ${layer.number}, ${name}` }, canvas);
    const place = head === "mean" ? this.columns - 1 : column;
    button.style.gridArea = `${row + 2} / ${place + 2}`;
    return button;
  }

  labels() {
    const longest = layers.find(({ heads }) => heads.length === this.columns - 1);
    const sparse = this.columns > 17;
    const heads = longest.heads.map((head, column) => [sparse && column % 4 ? "" : head, 1, column + 2]);
    const rows = layers.map(({ number }, row) => [number, row + 2, 1]);
    return [...heads, ["mean", 1, this.columns + 1], ...rows].map(([text, row, column]) => {
      const label = made("span", column === 1 ? { class: "row" } : {}, String(text));
      label.style.gridArea = `${row} / ${column}`;
      return label;
    });
  }

  /** Layer and head of a tile. */
  at(button) {
    const layer = this.buttons.findIndex((row) => row.includes(button));
    return layer < 0 || button.disabled ? null : { layer, head: this.buttons[layer].indexOf(button) };
  }

  step(event, choose) {
    const from = this.at(document.activeElement);
    const to = from && { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
      Home: [0, -Infinity], End: [0, Infinity] }[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const within = (at, count) => Math.min(Math.max(at, 0), count - 1);
    const layer = within(from.layer + to[0], layers.length);
    const head = within(from.head + to[1], this.buttons[layer].length);
    if (this.buttons[layer][head].disabled) return;
    choose({ layer, head });
    this.buttons[layer][head].focus();
  }

  /** Draw all maps in the colors that they have on a gray photo, by the value at which each shows in full. */
  draw(fields, top, options) {
    const levels = Float32Array.from({ length: 256 }, (_, level) => level), plain = { matrix: [[1, 0, 0], [0, 1, 0]],
      input_size: [1, 256], image_size: [1, 256], region: [0, 0, 256, 1] };
    this.painter ??= plainPainter(1, 256);
    const { data: table } = this.painter.paint(levels, placement(plain, [1, 256], 1, 256, false), { ...options, low: 255 * options.threshold, high: 255 });
    $("tile-ramp").getContext("2d").putImageData(scaledRows(table, $("tile-ramp").height), 0, 0);
    this.buttons.forEach((row, layer) => row.forEach((button, head) => {
      button.disabled = !fields[layer];
      if (!fields[layer]) return;
      const canvas = button.firstElementChild, image = new ImageData(canvas.width, canvas.height);
      const step = 255 / top(layer, head);
      fields[layer][head].forEach((value, cell) => {
        const level = 4 * Math.min(255, Math.round(value * step));
        image.data.set([table[level], table[level + 1], table[level + 2], 255], 4 * cell);
      });
      canvas.getContext("2d").putImageData(image, 0, 0);
    }));
  }

  mark(at) {
    this.buttons.forEach((row, layer) => row.forEach((button, head) => {
      const chosen = at !== null && at.layer === layer && at.head === head;
      button.setAttribute("aria-checked", String(chosen));
      button.tabIndex = chosen || (at === null && !layer && !head) ? 0 : -1;
    }));
  }
}

/** An image whose rows are all the same. */
function scaledRows(row, height) {
  const image = new ImageData(row.length / 4, height);
  for (let y = 0; y < height; y++) image.data.set(row, y * row.length);
  return image;
}
