// The maps of a page, each with all that is needed to draw it: of this page, or of another that is opened beside it.

/** Numbers of a map, as they stand in a page. */
const floats = (text) => new Float32Array(bytes(text).buffer);

/** One map per word, and their mean at the end. */
function wordViews(caption, data = pageData) {
  const all = floats(caption.maps), cells = all.length / caption.words.length;
  const maps = caption.words.map((_, word) => all.subarray(word * cells, (word + 1) * cells));
  const mean = new Float32Array(cells);
  for (const map of maps) map.forEach((value, cell) => { mean[cell] += value / maps.length; });
  const place = data.images ? {} : { grid: data.grid, geometry: data.geometry }; // several images have their own
  const common = { ...place, scale: data.scale, range: [0, data.peak],
    unit: data.quantity === "attention" ? "attention per cell" : data.quantity, even: data.even?.[0] };
  return [...maps, mean].map((values, word) => ({ ...common, values, name: caption.words[word] ?? "mean of all words" }));
}

/** One map per hop of a question. */
function hopViews({ hops, maps, scale }, data = pageData) {
  const all = floats(maps), cells = data.grid[0] * data.grid[1];
  return hops.map((name, hop) => ({ name, values: all.subarray(hop * cells, (hop + 1) * cells), grid: data.grid,
    geometry: data.geometry, scale, range: scale, unit: "attention per cell", even: 1 / cells }));
}

/** One map per method. */
function methodViews(data = pageData) {
  return data.maps.map((map) => ({ geometry: data.geometry, ...map, values: floats(map.values),
    unit: map.signed ? "against \u00b7 for" : map.unit }));
}

/** The maps of each class in each layer: rows of layers, which have a scale each. */
function classViews({ classes, ...data } = pageData) {
  if (!classes) return [];
  return classes.layers.map(({ site, grid, geometry, values, top }) => {
    const all = floats(values), cells = grid[0] * grid[1];
    return classes.names.map(([name, share], index) => ({ name: `${classes.method}, ${site}: ${name}`, site, share,
      label: name, values: all.subarray(index * cells, (index + 1) * cells), grid, geometry: geometry ?? data.geometry,
      scale: [0, top], range: [0, top], unit: "attribution" }));
  });
}

/** The map of an image after each step of a training; null where there is none. */
function stepViews({ steps, geometry, top: most }, { unit, shared = true } = pageData) {
  return steps.map(({ step, note, values, grid, signed, top }) => values && ({ name: `step ${step.toLocaleString("en")}`,
    detail: note, values: floats(values), grid, geometry, scale: [0, shared ? most : top], range: [signed ? -top : 0, top], signed,
    unit: signed ? "against \u00b7 for" : unit }));
}

/** For each image of a page, a function that returns the part of a map that lies on it. */
function partsOf(images) {
  let begin = 0;
  return images.map(({ grid: [rows, columns] }) => {
    const from = begin, to = begin += rows * columns;
    return (values) => values.subarray(from, to);
  });
}

/** A map of all images of a page as maps on each of them. */
function imageViews(view, images) {
  const parts = partsOf(images);
  return images.map(({ name: photo, grid, geometry }, index) => ({ ...view, photo, name: `${photo}, ${view.name}`,
    values: parts[index](view.values), grid, geometry }));
}

/** All maps of a page; of several photos each map says on which one it lies. */
function viewsOf(data) {
  const captions = data.captions ?? [], rows = data.rows ?? [];
  const said = captions.flatMap((caption, index) => wordViews(caption, data).map((view, word) => ({ ...view,
    name: `${captions.length > 1 ? `caption ${index + 1}, ` : ""}${word < caption.words.length ? `word ${word + 1}: ` : ""}${view.name}` })));
  return [
    ...(data.images ? said.flatMap((view) => imageViews(view, data.images)) : said),
    ...(data.questions ?? []).flatMap((question) => hopViews(question, data).map((view) => ({ ...view,
      name: `${question.question} ${view.name}` }))),
    ...(data.maps ? methodViews(data) : []),
    ...classViews(data).flat(),
    ...rows.flatMap((row) => stepViews(row, data).filter(Boolean).map((view) => ({ ...view,
      photo: row.name, name: `${row.name}, ${view.name}` }))),
  ];
}
