/** One map per method. */
function methodViews() {
  return pageData.maps.map((map) => ({ geometry: pageData.geometry, ...map, values: floats(map.values),
    unit: map.signed ? "against \u00b7 for" : map.unit }));
}

let stage, tiles, queries, methods, fields, desk;
const maps = methodViews();
const choices = queryChoices();
const state = { pinned: null, hovered: null, query: null, head: null, shared: true };
const current = () => state.hovered ?? state.pinned;
const isHead = (at) => at !== null && at.layer !== undefined;
const isMethod = (at) => at !== null && at.method !== undefined;

/** What is drawn for a head or a method: values, their grid, and their scale. */
function drawn(at) {
  if (at === null) return null;
  if (isMethod(at)) return maps[at.method];
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
  queries.mark(choices.findIndex(({ query }) => query === state.query));
  $("alone").setAttribute("aria-pressed", String(at === null));
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
  return [maps[at.method].name, pageData.title];
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

function factsOf(at, { values }, place) {
  const lies = place ? textRow("Peak position", place) : [];
  if (isMethod(at)) return [...maps[at.method].facts.flatMap(([name, text]) => textRow(name, text)), ...lies];
  const sum = values.reduce((all, value) => all + value, 0), rows = mapRows(values, place);
  if (layers[at.layer].before) rows.push(...barRow("On the image", sum, percent(Math.min(1, sum))));
  const far = reach(values, layers[at.layer], state.query);
  if (far !== null) rows.push(...textRow("Mean distance", `${far.toFixed(1)} cells`));
  return rows;
}

function pin(at) {
  Object.assign(state, { pinned: at, hovered: null });
  if (isHead(at)) state.head = at;
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

function listen() {
  $("alone").addEventListener("click", () => pin(null));
  segmented("shared", [true, false], state.shared, (shared) => { state.shared = shared; paintTiles(); show(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") pin(null); });
}

function methodButton({ name, ends }) {
  return made("button", { type: "button", role: "radio" },
    made("span", {}, name), made("span", { class: "said-of" }, ends));
}

async function start() {
  await $("photo").decode();
  stage = new Stage({ grid: [1, 1] });
  queries = new Choice($("queries"), (index) => ask(choices[index].query));
  queries.fill(choices.map(({ name }) => made("button", { type: "button", role: "radio", class: "pill" },
    name[0].toUpperCase() + name.slice(1))));
  methods = new Choice($("maps"), (index) => pin({ method: index }));
  methods.fill(maps.map(methodButton));
  $("heads").hidden = $("hint").hidden = !layers.length;
  $("methods").hidden = !maps.length;
  $("pooled").hidden = !pageData.pooled;
  $("pooled").textContent = pageData.pooled;
  desk = new Desk(stage, () => { if (tiles) paintTiles(); show(); });
  listen();
  if (layers.length) {
    tiles = new Tiles(pin);
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
