let stage, tiles, queries, methods, fields;
const maps = pageData.maps.map((map) => ({ ...map, values: new Float32Array(bytes(map.values).buffer) }));
const choices = queryChoices();
const state = {
  pinned: null, hovered: null, query: null, head: null, shared: true,
  opacity: pageData.opacity, threshold: 0, style: pageData.style, smooth: true,
};
const current = () => state.hovered ?? state.pinned;
const isHead = (at) => at !== null && at.layer !== undefined;

/** What is drawn for a head or a method: values, their grid, and their scale. */
function drawn(at) {
  if (!isHead(at)) return maps[at.method];
  if (!fields[at.layer]) return null;
  const top = topOf(fields, at.layer, at.head, state.shared), values = fields[at.layer][at.head];
  const { keys: grid, geometry } = layers[at.layer];
  return { values, grid, geometry, scale: [0, top], range: [0, peakOf(values)], signed: false };
}

function show() {
  const at = current(), shown = at === null ? null : drawn(at);
  const [low, high] = shown?.scale ?? [0, 1];
  const options = { ...state, low: low + state.threshold * (high - low), high,
    grid: shown?.grid, geometry: shown?.geometry, signed: shown?.signed };
  stage.show(shown ? shown.values : null, options);
  const place = isHead(at) && shown && state.query.x !== undefined ? layers[at.layer] : null;
  stage.outline(place ? [boxOf(cellOf(place, state.query), place)] : []);
  tiles?.mark(isHead(state.pinned) ? state.pinned : null);
  methods.mark(state.pinned !== null && !isHead(state.pinned) ? state.pinned.method : -1);
  queries.mark(choices.findIndex(({ query }) => query === state.query));
  $("alone").setAttribute("aria-pressed", String(at === null));
  showDetails(at, shown);
  if (shown) drawLegend(at, shown, options);
}

function drawLegend(at, { scale: [low, high], range, signed, grid, note }, options) {
  paintRamp([signed ? -high : low, high], range, options);
  $("note").textContent = note ?? "";
  const even = isHead(at) ? (1 / (grid[0] * grid[1]) - low) / (high - low) : -1;
  $("unit").textContent = isHead(at) ? "attention per cell" : signed ? "against \u00b7 for" : maps[at.method].unit;
  $("even").hidden = $("evenly").hidden = !(even >= 0 && even <= 1);
  $("even").style.left = `${100 * even}%`;
}

/** Write what is known of the map that is shown. */
function showDetails(at, shown) {
  $("facts").replaceChildren(...(shown ? factsOf(at, shown) : []));
  if (at === null) [$("shown").textContent, $("query").textContent] = ["Photo alone", pageData.title];
  else if (isHead(at)) {
    const { heads, number, site } = layers[at.layer], head = heads[at.head];
    $("shown").textContent = `Layer ${number}, ${head === undefined ? "mean of all heads" : `head ${head}`}`;
    $("query").textContent = `${shown ? "query: " : "no such query in this layer: "}${queryName()} \u00b7 ${site}`;
  } else {
    $("shown").textContent = maps[at.method].name;
    $("query").textContent = pageData.title;
  }
}

function queryName() {
  const known = choices.find(({ query }) => query === state.query);
  if (known) return known.query.role === undefined ? known.name : `the ${known.name}`;
  return "this patch";
}

function factsOf(at, { values }) {
  if (!isHead(at)) return maps[at.method].facts.flatMap(([name, text]) => textRow(name, text));
  const sum = values.reduce((all, value) => all + value, 0), rows = mapRows(values);
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

/** select another query: all tiles change, and the photo shows the head that was looked at. */
function ask(query) {
  state.query = query;
  renew();
  pin(isHead(state.pinned) ? state.pinned : state.head);
}

function renew() {
  fields = layers.map((layer) => fieldsOf(layer, state.query));
  tiles.draw(fields, (layer, head) => topOf(fields, layer, head, state.shared));
}

function set(changes) {
  Object.assign(state, changes);
  if (tiles && "shared" in changes) renew();
  $("opacity").disabled = state.style === "light"; // light has all of its own
  $("opacity-out").textContent = percent(state.opacity);
  $("threshold-out").textContent = state.threshold ? percent(state.threshold) : "off";
  $("tiles").classList.toggle("crisp", !state.smooth);
  show();
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
  const frame = $("frame"), choose = (event) => { const place = placeOf(event); if (place) ask(place); };
  frame.tabIndex = 0;
  frame.setAttribute("role", "application");
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
  for (const id of ["opacity", "threshold"]) {
    $(id).addEventListener("input", () => set({ [id]: Number($(id).value) / 100 }));
  }
  segmented("style", ["heat", "light"], state.style, (style) => set({ style }));
  segmented("cells", [true, false], state.smooth, (smooth) => set({ smooth }));
  segmented("shared", [true, false], state.shared, (shared) => set({ shared }));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") pin(null); });
}

function methodButton({ name, ends }) {
  return made("button", { type: "button", role: "radio" },
    made("span", {}, name), made("span", { class: "said-of" }, ends));
}

async function start() {
  await $("photo").decode();
  stage = new Stage();
  queries = new Choice($("queries"), (index) => ask(choices[index].query));
  queries.fill(choices.map(({ name }) => made("button", { type: "button", role: "radio", class: "pill" },
    name[0].toUpperCase() + name.slice(1))));
  methods = new Choice($("maps"), (index) => pin({ method: index }));
  methods.fill(maps.map(methodButton));
  $("heads").hidden = $("hint").hidden = !layers.length;
  $("methods").hidden = !maps.length;
  const any = stage.place(true, [1, 1]);
  $("unseen").hidden = !any.x.seen.includes(0) && !any.y.seen.includes(0);
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
  set({});
  document.documentElement.classList.add("alive");
}

start();
