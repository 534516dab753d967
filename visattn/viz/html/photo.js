const pageData = JSON.parse(document.getElementById("page-data").textContent);
const tables = unpackedTables(pageData.tables);

const $ = (id) => document.getElementById(id);

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** Numbers of maps, as they stand in a page. */
const floats = (text) => new Float32Array(bytes(text).buffer);

/** Colors and curves of overlays, as visattn/viz/heatmap.py writes them. */
function unpackedTables(styles) {
  const unpacked = Object.entries(styles).map(([style, { cover, grayness, unseen, ...tables }]) => {
    const colors = Object.entries(tables).map(([name, table]) => [name, bytes(table)]);
    return [style, { cover, grayness, unseen, ...Object.fromEntries(colors) }];
  });
  return Object.fromEntries(unpacked);
}

/** Make an element; whatever a text holds, it stays a text. */
function made(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

/** Paint on a plain gray photo: what explains colors looks like them. */
function plainPainter(height, width) {
  return new Painter(Uint8ClampedArray.from({ length: 4 * width * height }, () => 150), height, width, tables);
}

// From a place on the photo to one of the network's input, and back.

/** The pixel of the photo at a place of a grid, which is given in shares of its sides. */
function pointOf({ matrix: [[xx, xy, x0], [yx, yy, y0]], input_size: [tall, wide] }, { x, y }) {
  return { x: xx * x * wide + xy * y * tall + x0, y: yx * x * wide + yy * y * tall + y0 };
}

/** The place of a grid at a pixel of the photo, in shares of its sides. */
function sharesOf({ matrix: [[xx, xy, x0], [yx, yy, y0]], input_size: [tall, wide] }, { x, y }) {
  const [along, down] = xy ? [(y - y0) / yx, (x - x0) / xy] : [(x - x0) / xx, (y - y0) / yy];
  return { x: along / wide, y: down / tall };
}

/** The photo, what is drawn on it, and what is pointed at on it. */
class Stage {
  /** @param own The canvas, if it is not that of the first map, and the grid of maps that have none. */
  constructor({ canvas = $("overlay"), grid = pageData.grid } = {}) {
    const [height, width] = pageData.size, image = $("photo");
    Object.assign(this, { image, canvas, grid, geometry: pageData.geometry });
    // A small photo is drawn larger, so that cells have sharp edges and lines are thin.
    const times = Math.min(8, Math.max(1, Math.round(960 / Math.max(height, width))));
    this.canvas.width = width * times;
    this.canvas.height = height * times;
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.pen.imageSmoothingQuality = "high";
    this.pen.drawImage(image, 0, 0, this.canvas.width, this.canvas.height);
    const photo = this.pen.getImageData(0, 0, this.canvas.width, this.canvas.height).data;
    this.painter = new Painter(photo, this.canvas.height, this.canvas.width, tables);
    this.places = {};
  }

  /** How a grid lies on the canvas. */
  place(smooth, grid = this.grid, geometry = this.geometry) {
    const { height, width } = this.painter;
    const key = `${smooth} ${grid} ${geometry.matrix} ${geometry.input_size} ${geometry.region}`;
    return (this.places[key] ??= placement(geometry, grid, height, width, smooth));
  }

  /** Show a map, or the photo alone where there is none. */
  show(values, { smooth, grid, geometry, ...options }) {
    this.canvas.hidden = !values;
    if (values) this.pen.putImageData(this.painter.paint(values, this.place(smooth, grid, geometry), options), 0, 0);
  }

  /** Draw boxes, given as shares of the image: known ones, and dashed those of a map. */
  outline(known, ofMap = []) {
    const kinds = [[known, ["under", "over"]], [ofMap, ["under", "over dashed"]]];
    const lines = kinds.flatMap(([boxes, styles]) => boxes.flatMap((box) => styles.map((kind) => [box, kind]))).map(([[left, top, right, bottom], kind]) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const sides = { x: left, y: top, width: right - left, height: bottom - top };
      for (const [side, share] of Object.entries(sides)) line.setAttribute(side, `${100 * share}%`);
      line.setAttribute("class", kind);
      return line;
    });
    $("boxes").replaceChildren(...lines);
  }

  /** Where a mouse or a finger is on the image, in shares of its sides. */
  pointed({ clientX, clientY }) {
    const area = this.image.getBoundingClientRect();
    return { x: (clientX - area.left) / area.width, y: (clientY - area.top) / area.height };
  }

  /** Return the value of each map at a point of the image; none where nothing was seen. */
  under(point, maps, { smooth, grid, geometry }) {
    const column = Math.floor(point.x * this.painter.width), row = Math.floor(point.y * this.painter.height);
    const { x, y, columns } = this.place(smooth, grid, geometry);
    if (!(x.seen[column] && y.seen[row])) return null;
    const at = (down, along) => y[down][row] * columns + x[along][column];
    const ends = [["before", "before"], ["before", "after"], ["after", "before"], ["after", "after"]];
    const shares = [(1 - x.share[column]) * (1 - y.share[row]), x.share[column] * (1 - y.share[row]),
      (1 - x.share[column]) * y.share[row], x.share[column] * y.share[row]];
    return maps.map((map) => ends.reduce((sum, end, i) => sum + shares[i] * map[at(...end)], 0));
  }
}
