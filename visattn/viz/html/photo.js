const $ = (id) => document.getElementById(id);

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Arrays stand in a page as `{"u1": base64}` and `{"f4": base64}`. */
const unpacked = (_, value) => {
  if (value?.u1 !== undefined) return bytes(value.u1);
  return value?.f4 === undefined ? value : new Float32Array(bytes(value.f4).buffer);
};

const page = JSON.parse($("page-data").textContent, unpacked);

/** Make an element; whatever a text holds, it stays a text. */
function made(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
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

/** Paint values on a plain gray canvas: what explains colors looks like them. */
function paintPlain(canvas, values, grid, options) {
  const { width, height } = canvas, size = [height, width];
  const geometry = { matrix: [[1, 0, 0], [0, 1, 0]], input_size: size, image_size: size, region: [0, 0, width, height] };
  canvas.painter ??= new Painter(new Uint8ClampedArray(4 * width * height).fill(150), height, width, page.tables);
  const place = placement(geometry, grid, height, width, options.smooth);
  canvas.getContext("2d").putImageData(canvas.painter.paint(values, place, options), 0, 0);
}

/** The photo, what is drawn on it, and what is pointed at on it. */
class Stage {
  constructor(canvas) {
    const [height, width] = page.size;
    // A small photo is drawn larger, so that cells have sharp edges and lines are thin.
    const times = Math.min(8, Math.max(1, Math.round(960 / Math.max(height, width))));
    Object.assign(canvas, { width: width * times, height: height * times });
    this.canvas = canvas;
    this.pen = canvas.getContext("2d", { willReadFrequently: true });
    this.pen.imageSmoothingQuality = "high";
    this.pen.drawImage($("photo"), 0, 0, canvas.width, canvas.height);
    const photo = this.pen.getImageData(0, 0, canvas.width, canvas.height).data;
    this.painter = new Painter(photo, canvas.height, canvas.width, page.tables);
  }

  /** How the grid of a map lies on the canvas. */
  place({ grid, geometry = page.geometry }, smooth) {
    return placement(geometry, grid, this.canvas.height, this.canvas.width, smooth);
  }

  /** Show a map, or the photo alone where there is none. */
  show(view, options) {
    this.canvas.hidden = !view;
    if (!view) return;
    this.pen.putImageData(this.painter.paint(view.values, this.place(view, options.smooth), options), 0, 0);
  }

  /** The value of a map at a point of the photo; NaN where nothing was seen. */
  under({ x, y }, view, smooth) {
    const { height, width } = this.canvas, row = new Float32Array(width);
    sampler(view.values, this.place(view, smooth))(Math.floor(y * height), row);
    return row[Math.floor(x * width)];
  }
}

/** Where a mouse or a finger is on the photo, in shares of its sides. */
function placeOf({ clientX, clientY }) {
  const area = $("photo").getBoundingClientRect();
  return { x: (clientX - area.left) / area.width, y: (clientY - area.top) / area.height };
}

/** Draw boxes, given as shares of the photo: known ones, and dashed those of a map. */
function outline(known, ofMap) {
  const line = ([left, top, right, bottom], kind) => {
    const rectangle = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const sides = { x: left, y: top, width: right - left, height: bottom - top };
    for (const [side, share] of Object.entries(sides)) rectangle.setAttribute(side, `${100 * share}%`);
    rectangle.setAttribute("class", kind);
    return rectangle;
  };
  const lines = (boxes, over) => boxes.flatMap((box) => [line(box, "under"), line(box, over)]);
  $("boxes").replaceChildren(...lines(known, "over"), ...lines(ofMap, "over dashed"));
}
