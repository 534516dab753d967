/** One map per method. */
function methodViews() {
  return pageData.maps.map((map) => ({ geometry: pageData.geometry, ...map, values: floats(map.values),
    unit: map.signed ? "against \u00b7 for" : map.unit }));
}

/** The maps of each class in each layer: rows of layers, which have a scale each. */
function classViews() {
  const { classes } = pageData;
  if (!classes) return [];
  return classes.layers.map(({ site, grid, geometry, values, top }) => {
    const all = floats(values), cells = grid[0] * grid[1];
    return classes.names.map(([name, share], index) => ({ name: `${classes.method}, ${site}: ${name}`, site, share,
      label: name, values: all.subarray(index * cells, (index + 1) * cells), grid, geometry: geometry ?? pageData.geometry,
      scale: [0, top], range: [0, top], unit: "attribution" }));
  });
}

let stage, tiles, queries, methods, classes, fields, desk, player;
const maps = methodViews(), byLayer = classViews();
const choices = queryChoices();
const state = { pinned: null, hovered: null, query: null, head: null, class: { depth: byLayer.length - 1, label: 0 }, shared: true };
const current = () => state.hovered ?? state.pinned;
const isHead = (at) => at !== null && at.layer !== undefined;
const isClass = (at) => at !== null && at.depth !== undefined;
const isMethod = (at) => at !== null && at.method !== undefined;

/** What is drawn for a head, a class in a layer, or a method: values, their grid, and their scale. */
function drawn(at) {
  if (at === null) return null;
  if (isMethod(at)) return maps[at.method];
  if (isClass(at)) return byLayer[at.depth][at.label];
  if (!fields[at.layer]) return null;
  const top = topOf(fields, at.layer, at.head, state.shared), values = fields[at.layer][at.head];
  const { keys: grid, geometry } = layers[at.layer];
  return { name: headName(at), values, grid, geometry: geometry ?? pageData.geometry, scale: [0, top], range: [0, peakOf(values)],
    unit: "attention per cell", even: 1 / (grid[0] * grid[1]) };
}

function show() {
  const at = current(), shown = drawn(at);
  const place = isHead(at) && shown && state.query.x !== undefined ? layers[at.layer] : null;
  desk.show(shown, place ? [boxOf(cellOf(place, state.query), place)] : []);
  tiles?.mark(isHead(state.pinned) ? state.pinned : null);
  methods.mark(isMethod(state.pinned) ? state.pinned.method : -1);
  classes.mark(isClass(state.pinned) ? state.pinned.label : -1);
  queries.mark(choices.findIndex(({ query }) => query === state.query));
  $("alone").setAttribute("aria-pressed", String(at === null));
  $("depth").value = state.class.depth;
  $("depth-out").textContent = byLayer.length ? `${state.class.depth + 1} of ${byLayer.length}` : "";
  $("depth").setAttribute("aria-valuetext", byLayer[state.class.depth]?.[0].site ?? "");
  showDetails(at, shown);
}

function headName({ layer, head: column }) {
  const { heads, number } = layers[layer], head = heads[column];
  return `Layer ${number}, ${head === undefined ? "mean of all heads" : `head ${head}`}`;
}

/** Two lines: what is shown, and of what. */
function title(at = current(), shown = drawn(at)) {
  if (at === null) return ["Photo alone", pageData.title];
  if (isHead(at)) return [headName(at), `${shown ? "query: " : "no such query in this layer: "}${queryName()} \u00b7 ${layers[at.layer].site}`];
  if (isMethod(at)) return [maps[at.method].name, pageData.title];
  return [`${pageData.classes.method}, layer ${shown.site}`, `${shown.label}, ${percent(shown.share)}`];
}

/** Write what is known of the map that is shown. */
function showDetails(at, shown) {
  const place = shown ? peakPlace(shown) : "", lines = title(at, shown);
  [$("shown").textContent, $("query").textContent] = lines;
  $("facts").replaceChildren(...(shown ? factsOf(at, shown, place) : []));
  desk.say([...lines, place && `peak: ${place}`].filter(Boolean).join(", "));
}

function queryName() {
  const known = choices.find(({ query }) => query === state.query);
  if (known) return known.query.role === undefined ? known.name : `the ${known.name}`;
  return "this patch";
}

function factsOf(at, { values, grid, scale }, place) {
  const lies = place ? textRow("Peak lies", place) : [];
  if (isMethod(at)) return [...maps[at.method].facts.flatMap(([name, text]) => textRow(name, text)), ...lies];
  if (isClass(at)) return [...textRow("Peak", `${numbered(peakOf(values))} of ${numbered(scale[1])}`), ...lies, ...textRow("Grid", grid.join(" \u00d7 "))];
  const sum = values.reduce((all, value) => all + value, 0), rows = mapRows(values, place);
  if (layers[at.layer].before) rows.push(...barRow("On the image", sum, percent(Math.min(1, sum))));
  const far = reach(values, layers[at.layer], state.query);
  if (far !== null) rows.push(...textRow("Mean distance", `${far.toFixed(1)} cells`));
  return rows;
}

function pin(at) {
  Object.assign(state, { pinned: at, hovered: null });
  if (isHead(at)) state.head = at;
  if (isClass(at)) state.class = at;
  show();
}

/** Select another query: all tiles change, and the photo shows the head that was looked at. */
function ask(query) {
  state.query = query;
  renew();
  pin(isHead(state.pinned) ? state.pinned : state.head);
}

function renew() {
  fields = layers.map((layer) => fieldsOf(layer, state.query));
  paintTiles();
}

function paintTiles() {
  $("tiles").classList.toggle("crisp", !drawing.smooth);
  tiles.draw(fields, (layer, head) => topOf(fields, layer, head, state.shared), drawing);
  const tops = new Set(fields.flatMap((maps, layer) => (maps ? [topOf(fields, layer, 0, true)] : [])));
  $("tile-top").textContent = !state.shared ? "maximum of each tile" : tops.size === 1 ? `\u2265 ${numbered([...tops][0])}` : "maximum of each grid";
}

/** Keys on the photo move the asking patch by a cell. */
function moveQuery(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const layer = layers[(isHead(state.pinned) ? state.pinned : state.head).layer], [rows, columns] = layer.grid;
  const [row, column] = cellOf(layer, state.query.x === undefined ? { x: 0.5, y: 0.5 } : state.query);
  const within = (at, count) => Math.min(Math.max(at, 0), count - 1);
  const center = { x: (within(column + step[1], columns) + 0.5) / columns, y: (within(row + step[0], rows) + 0.5) / rows };
  ask(sharesOf(pageData.geometry, pointOf(geometryOf(layer), center)));
}

function listenToPhoto() {
  const frame = $("frame"), choose = (event) => { const place = placeOf(stage.pointed(event)); if (place) ask(place); };
  frame.tabIndex = 0;
  frame.setAttribute("role", "application");
  frame.setAttribute("aria-label", "The photo: click a patch, or move with the arrow keys, to select the query");
  frame.addEventListener("click", choose);
  frame.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && event.buttons === 1) choose(event);
  });
  frame.addEventListener("keydown", moveQuery);
  $("tiles").addEventListener("pointerover", (event) => {
    const at = event.pointerType === "mouse" ? tiles.at(event.target.closest("button")) : null;
    if (at) { state.hovered = at; show(); }
  });
  $("tiles").addEventListener("pointerleave", () => {
    if (state.hovered !== null) { state.hovered = null; show(); }
  });
}

/** Whether layers are played of a head or of a class: of what is shown, or of what there is. */
const playsClass = () => isClass(state.pinned) || !layers.length;

function layerAt(index) {
  if (playsClass()) return pin({ ...state.class, depth: index });
  const { heads } = layers[index], { head, layer } = state.head, last = layers[layer].heads.length;
  pin({ layer: index, head: head === last ? heads.length : Math.min(head, heads.length - 1) });
}

function forward() {
  const next = (playsClass() ? state.class.depth : state.head.layer) + 1;
  layerAt(next);
  return next < (playsClass() ? byLayer : layers).length - 1;
}

function choose(at) {
  player.play(false);
  pin(at);
}

function listen() {
  player = new Player("Play, layer by layer", () => layerAt(0), forward);
  $("alone").addEventListener("click", () => choose(null));
  $("depth").addEventListener("input", () => choose({ ...state.class, depth: Number($("depth").value) }));
  segmented("shared", [true, false], state.shared, (shared) => { state.shared = shared; paintTiles(); show(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose(null); });
}

function methodButton({ name, ends }) {
  return made("button", { type: "button", role: "radio" },
    made("span", {}, name), made("span", { class: "said-of" }, ends));
}

function classButton({ label, share }) {
  return made("button", { type: "button", role: "radio" },
    made("span", {}, label), made("span", { class: "said-of" }, percent(share)));
}

async function start() {
  await $("photo").decode();
  stage = new Stage({ grid: [1, 1] });
  queries = new Choice($("queries"), (index) => ask(choices[index].query));
  queries.fill(choices.map(({ name }) => made("button", { type: "button", role: "radio", class: "pill" },
    name[0].toUpperCase() + name.slice(1))));
  methods = new Choice($("maps"), (index) => choose({ method: index }));
  methods.fill(maps.map(methodButton));
  classes = new Choice($("class-list"), (label) => choose({ ...state.class, label }));
  classes.fill((byLayer[0] ?? []).map(classButton));
  $("depth").max = byLayer.length - 1;
  $("heads").hidden = $("hint").hidden = !layers.length;
  $("methods").hidden = !maps.length;
  $("classes").hidden = !byLayer.length;
  $("play").hidden = layers.length < 2 && byLayer.length < 2;
  $("pooled").hidden = !pageData.pooled;
  $("pooled").textContent = pageData.pooled;
  desk = new Desk(stage, () => { if (tiles) paintTiles(); show(); });
  listen();
  if (layers.length) {
    tiles = new Tiles(choose);
    state.query = pageData.read === MEAN ? MEAN : choices[0]?.query ?? MEAN;
    const last = layers.length - 1;
    state.head = { layer: last, head: layers[last].heads.length };
    renew();
    listenToPhoto();
  }
  state.pinned = maps.length ? { method: 0 } : state.head;
  desk.set({});
  document.documentElement.classList.add("alive");
}

start();
