// What each head of each layer gave to each place: codes of 8 bits, from which values come back.

const SQUARES = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);
const MEAN = "mean"; // all patches together ask
const READ = "read"; // the tokens that the scores read ask, by their shares
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

const layers = page.layers.map((layer) => ({
  ...layer,
  cells: layer.keys[0] * layer.keys[1],
  patches: layer.count - layer.query_roles.length,
}));
const within = (at, count) => Math.min(Math.max(at, 0), count - 1);

/** Which rows of a layer a query means; none where the layer has no such token. */
function asking(layer, query) {
  const before = layer.query_roles.length;
  if (layer.is_pooling) return [0]; // a pool, which asks for all
  if (query === READ) return layer.shares.flatMap((share, row) => (share > 0 ? [row] : []));
  if (query === MEAN) return Array.from({ length: layer.patches }, (_, patch) => before + patch);
  if (query.role !== undefined) {
    const rows = layer.query_roles.flatMap((role, row) => (role === query.role ? [row] : []));
    return rows.slice(query.ordinal, query.ordinal + 1);
  }
  if (!layer.patches) return [];
  const [row, column] = cellOf(layer, query);
  return [before + row * layer.grid[1] + column];
}

/** The maps of a layer, one for each head and at the end their mean; null if the layer has no such query. */
function fieldsOf(layer, query) {
  const rows = asking(layer, query);
  if (!rows.length) return null;
  const mean = new Float32Array(layer.cells);
  const maps = layer.heads.map((_, head) => {
    const map = new Float32Array(layer.cells);
    for (const row of rows) {
      const share = query === READ && !layer.is_pooling ? layer.shares[row] : 1 / rows.length;
      const at = head * layer.count + row, start = at * layer.cells, top = layer.tops[at] * share;
      for (let cell = 0; cell < map.length; cell++) map[cell] += top * SQUARES[layer.codes[start + cell]];
    }
    map.forEach((value, cell) => { mean[cell] += value / layer.heads.length; });
    return map;
  });
  return [...maps, mean];
}

/** All who can ask: tokens before the patches, by name, and the patches together. */
function queryChoices() {
  const counted = layers.flatMap(({ query_roles: roles }) => roles.map((role, row) =>
    ({ role, ordinal: roles.slice(0, row).filter((other) => other === role).length })));
  const all = [...new Map(counted.map((query) => [`${query.role} ${query.ordinal}`, query])).values()];
  const several = (role) => all.filter((one) => one.role === role).length > 1;
  const named = all.map((query) => ({ query,
    name: several(query.role) ? `${query.role} ${query.ordinal + 1}` : `${query.role} token` }));
  if (layers.some(({ patches }) => patches)) named.push({ query: MEAN, name: "all patches" });
  if (page.read && page.read !== MEAN) named.unshift({ query: READ, name: page.read });
  return named;
}

/** How the queries of a layer lie on the photo: as its keys, of whose grid theirs is or is made. */
function geometryOf({ grid, keys, geometry, averaged }) {
  return geometry && (averaged || String(grid) === String(keys)) ? geometry : page.geometry;
}

/** The cell of a layer's grid in which a place of the network's input lies. */
function cellOf(layer, query) {
  const [rows, columns] = layer.grid, { x, y } = sharesOf(geometryOf(layer), pointOf(page.geometry, query));
  return [within(Math.floor(y * rows), rows), within(Math.floor(x * columns), columns)];
}

/** The box of a cell of a layer's queries, as shares of the photo. */
function boxOf([row, column], layer) {
  const [rows, columns] = layer.grid, [height, width] = page.geometry.image_size;
  const [one, other] = [0, 1].map((end) =>
    pointOf(geometryOf(layer), { x: (column + end) / columns, y: (row + end) / rows }));
  const [left, right] = [one.x / width, other.x / width].sort((a, b) => a - b);
  const [top, bottom] = [one.y / height, other.y / height].sort((a, b) => a - b);
  return [left, top, right, bottom];
}

/** The wall of tiles, a row for each layer and a tile for each head and their mean, and the query that asks. */
class Heads {
  constructor() {
    this.choices = queryChoices();
    this.query = page.read === MEAN ? MEAN : this.choices[0]?.query ?? MEAN;
    this.queries = new Choice($("queries"), (index) => this.ask(this.choices[index].query));
    this.queries.fill(this.choices.map(({ name }) => made("button", { type: "button", role: "radio", class: "pill" },
      name[0].toUpperCase() + name.slice(1))));
    this.columns = Math.max(...layers.map(({ heads }) => heads.length)) + 1;
    $("tiles").style.gridTemplateColumns = `max-content repeat(${this.columns}, minmax(0, 1fr))`;
    this.tiles = layers.map((layer, row) => [...layer.heads, "mean"].map((head, column) => this.tile(layer, row, head, column)));
    this.chosen = this.tiles.at(-1).at(-1).at;
    $("tiles").append(...this.labels(), ...this.tiles.flat());
    $("pooled").textContent = page.pooled;
    $("heads").hidden = $("hint").hidden = false;
    const frame = $("frame"), tiles = $("tiles");
    tiles.addEventListener("click", (event) => this.choose(atOf(event.target.closest("button"))));
    tiles.addEventListener("keydown", (event) => this.step(event));
    preview(tiles);
    frame.tabIndex = 0;
    frame.setAttribute("role", "application");
    frame.setAttribute("aria-label", "The photo: click a patch, or move with the arrow keys, to select the query");
    frame.addEventListener("click", (event) => this.askAt(placeOf(event)));
    frame.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" && event.buttons === 1) this.askAt(placeOf(event));
    });
    frame.addEventListener("keydown", (event) => this.moveQuery(event));
    this.renew();
  }

  tile(layer, row, head, column) {
    const canvas = made("canvas", { width: layer.keys[1], height: layer.keys[0], "aria-hidden": "true" });
    const name = `layer ${layer.number}, ${head === "mean" ? "mean of all heads" : `head ${head}`}`;
    const button = made("button", { type: "button", role: "radio", title: name, "aria-label": name }, canvas);
    button.at = { layer: row, head: column };
    button.style.gridArea = `${row + 2} / ${(head === "mean" ? this.columns - 1 : column) + 2}`;
    return button;
  }

  labels() {
    const longest = layers.find(({ heads }) => heads.length === this.columns - 1);
    const heads = longest.heads.map((head, column) => [this.columns > 17 && column % 4 ? "" : head, 1, column + 2]);
    const rows = layers.map(({ number }, row) => [number, row + 2, 1]);
    return [...heads, ["mean", 1, this.columns + 1], ...rows].map(([text, row, column]) => {
      const label = made("span", column === 1 ? { class: "row" } : {}, String(text));
      label.style.gridArea = `${row} / ${column}`;
      return label;
    });
  }

  choose(at) {
    if (!at) return;
    this.chosen = at;
    pin(at);
  }

  step(event) {
    const from = atOf(document.activeElement);
    const to = from && { ...MOVES, Home: [0, -Infinity], End: [0, Infinity] }[event.key];
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const row = this.tiles[within(from.layer + to[0], layers.length)];
    const tile = row[within(from.head + to[1], row.length)];
    this.choose(atOf(tile));
    if (!tile.disabled) tile.focus();
  }

  /** Select another query: all tiles change, and the photo shows the head that was looked at. */
  ask(query) {
    this.query = query;
    this.renew();
    if (!this.fields[this.chosen.layer]) this.chosen = this.tiles[this.fields.findLastIndex(Boolean)].at(-1).at;
    pin(this.chosen);
  }

  /** Select the patch at a point of the photo, given in shares of its sides; none where nothing was seen. */
  askAt({ x: across, y: down }) {
    const [height, width] = page.geometry.image_size, x = across * width, y = down * height;
    const [left, top, right, bottom] = page.geometry.region;
    if (x >= left && x < right && y >= top && y < bottom) this.ask(sharesOf(page.geometry, { x, y }));
  }

  /** Keys on the photo move the asking patch by a cell. */
  moveQuery(event) {
    const step = MOVES[event.key], layer = layers[this.chosen.layer], [rows, columns] = layer.grid;
    if (event.key === "Escape") return pin(null);
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [row, column] = cellOf(layer, this.query.x === undefined ? { x: 0.5, y: 0.5 } : this.query);
    const center = { x: (within(column + step[1], columns) + 0.5) / columns, y: (within(row + step[0], rows) + 0.5) / rows };
    this.ask(sharesOf(page.geometry, pointOf(geometryOf(layer), center)));
  }

  /** Compute all maps of the query, and by layer the value that shows in full and the greatest one. */
  renew() {
    this.fields = layers.map((layer) => fieldsOf(layer, this.query));
    this.tops = layers.map(({ cells }) => {
      const alike = this.fields.filter((maps, index) => maps && layers[index].cells === cells);
      const peaks = alike.flatMap((maps) => maps.slice(0, -1).map(peakOf)).sort((a, b) => a - b);
      const shared = Math.max(peaks[Math.floor(0.8 * (peaks.length - 1))], 4 / cells);
      return [shared, Math.max(shared, peaks.at(-1))];
    });
    this.paint();
  }

  /** Draw all maps in the colors that they have on the photo. */
  paint() {
    $("tiles").classList.toggle("crisp", !drawing.smooth);
    for (const button of this.tiles.flat()) {
      button.disabled = !this.fields[button.at.layer];
      if (button.disabled) continue;
      const view = scaled(this.view(button.at));
      paintPlain(button.firstElementChild, view.values, view.grid, { ...optionsOf(view), smooth: false });
    }
    const tops = new Set(this.tops.filter((_, layer) => this.fields[layer]).map(([top]) => numbered(top)));
    $("tile-top").textContent = drawing.ends === "own" ? "maximum of each tile" : tops.size === 1 && drawing.ends === "shared"
      ? `\u2265 ${[...tops][0]}` : "maximum of each grid";
  }

  /** A head as a map of the page. */
  view({ layer: number, head }) {
    const layer = layers[number], values = this.fields[number][head], { keys: grid, geometry, cells } = layer;
    const [top, greatest] = this.tops[number], name = layer.heads[head];
    const known = this.choices.find(({ query }) => query === this.query);
    const asked = !known ? "this patch" : known.query.role === undefined ? known.name : `the ${known.name}`;
    const sum = values.reduce((all, value) => all + value, 0);
    const facts = layer.before ? [{ name: "On the image", text: percent(Math.min(1, sum)), share: sum }] : [];
    return { title: `Layer ${layer.number}, ${name === undefined ? "mean of all heads" : `head ${name}`}`,
      which: `query: ${asked} \u00b7 ${layer.site}`, values, grid, geometry, scale: [0, top], range: [0, greatest],
      unit: "attention per cell", even: 1 / cells, signed: false, facts, about: null, outlines: [], weights: [],
      boxes: this.query.x === undefined ? [] : [boxOf(cellOf(layer, this.query), layer)] };
  }

  mark(at) {
    this.queries.mark(this.choices.findIndex(({ query }) => query === this.query));
    for (const button of this.tiles.flat()) {
      button.setAttribute("aria-checked", String(button.at === at));
      button.tabIndex = button.at === (at?.layer === undefined ? this.tiles[0][0].at : at) ? 0 : -1;
    }
  }
}
