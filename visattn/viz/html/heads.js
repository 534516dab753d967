// What each head of each layer gave to each place: codes of 8 bits, from which values come back.

const SQUARES = Float32Array.from({ length: 256 }, (_, code) => (code / 255) ** 2);
const MEAN = "mean"; // all patches together ask
const READ = "read"; // the tokens that the scores read ask, by their shares

const layers = pageData.layers.map((layer) => ({
  ...layer,
  codes: bytes(layer.codes),
  tops: floats(layer.tops),
  cells: layer.keys[0] * layer.keys[1],
  patches: layer.count - layer.query_roles.length,
}));

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

/** The cell of a layer's grid in which a place of the network's input lies. */
function cellOf(layer, query) {
  const [rows, columns] = layer.grid, { x, y } = sharesOf(geometryOf(layer), pointOf(pageData.geometry, query));
  const within = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
  return [within(y, rows), within(x, columns)];
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


/** The value that shows in full: of one map, or of all heads whose maps have as many cells. */
function topOf(fields, layer, head, shared) {
  const { cells } = layers[layer];
  if (!shared) return peakOf(fields[layer][head]) || 1;
  const alike = fields.filter((maps, index) => maps && layers[index].cells === cells);
  const peaks = alike.flatMap((maps) => maps.slice(0, -1).map(peakOf)).sort((a, b) => a - b);
  return Math.max(peaks[Math.floor((peaks.length - 1) / 2)], 4 / cells);
}

/** All who can ask: tokens before the patches, by name, and the patches together. */
function queryChoices() {
  const found = new Map();
  for (const { query_roles: roles } of layers) {
    const counts = {};
    for (const role of roles) {
      const ordinal = (counts[role] = (counts[role] ?? -1) + 1);
      found.set(`${role} ${ordinal}`, { role, ordinal });
    }
  }
  const all = [...found.values()];
  const several = (role) => all.filter((one) => one.role === role).length > 1;
  const named = all.map(({ role, ordinal }) => ({
    query: { role, ordinal }, name: several(role) ? `${role} ${ordinal + 1}` : `${role} token` }));
  if (layers.some(({ patches }) => patches)) named.push({ query: MEAN, name: "all patches" });
  if (pageData.read && pageData.read !== MEAN) named.unshift({ query: READ, name: pageData.read });
  return named;
}

/** How far from the asking cell attention lies on average, in cells. */
function reach(map, layer, query) {
  if (query.x === undefined || String(layer.grid) !== String(layer.keys)) return null;
  const [row, column] = cellOf(layer, query), columns = layer.keys[1];
  let sum = 0, far = 0;
  map.forEach((value, cell) => {
    sum += value;
    far += value * Math.hypot(Math.floor(cell / columns) - row, (cell % columns) - column);
  });
  return sum > 0 ? far / sum : null;
}

/** How the queries of a layer lie on the photo: as its keys, of whose grid theirs is or is made. */
function geometryOf({ grid, keys, geometry, averaged }) {
  return geometry && (averaged || String(grid) === String(keys)) ? geometry : pageData.geometry;
}

/** The place of the network's input at a point of the photo, as shares; null where it saw nothing. */
function placeOf({ x: across, y: down }) {
  const [height, width] = pageData.geometry.image_size, x = across * width, y = down * height;
  const [left, top, right, bottom] = pageData.geometry.region;
  if (x < left || x >= right || y < top || y >= bottom) return null;
  return sharesOf(pageData.geometry, { x, y });
}

/** The box of a cell of a layer's queries, as shares of the photo. */
function boxOf([row, column], layer) {
  const [rows, columns] = layer.grid, [height, width] = pageData.geometry.image_size;
  const corner = (down, along) => {
    const { x, y } = pointOf(geometryOf(layer), { x: along / columns, y: down / rows });
    return [x / width, y / height];
  };
  const [[x1, y1], [x2, y2]] = [corner(row, column), corner(row + 1, column + 1)];
  return [Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)];
}
