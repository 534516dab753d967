// From a place on the photo to one of the network's input, and back.

/** Where a mouse or a finger is on the network's input, as shares; null where it saw nothing. */
function placeOf(event) {
  const area = $("frame").getBoundingClientRect(), [height, width] = told.geometry.image_size;
  const x = ((event.clientX - area.left) / area.width) * width;
  const y = ((event.clientY - area.top) / area.height) * height;
  const [left, top, right, bottom] = told.geometry.region;
  if (x < left || x >= right || y < top || y >= bottom) return null;
  const [[xx, xy, x0], [yx, yy, y0]] = told.geometry.matrix, [tall, wide] = told.geometry.input_size;
  const [along, down] = xy ? [(y - y0) / yx, (x - x0) / xy] : [(x - x0) / xx, (y - y0) / yy];
  return { x: along / wide, y: down / tall };
}

/** The box of a cell of the input's grid, as shares of the image. */
function boxOf([row, column], [rows, columns]) {
  const [[xx, xy, x0], [yx, yy, y0]] = told.geometry.matrix, [tall, wide] = told.geometry.input_size;
  const [height, width] = told.geometry.image_size;
  const corner = (down, along) => {
    const y = (down / rows) * tall, x = (along / columns) * wide;
    return [(xx * x + xy * y + x0) / width, (yx * x + yy * y + y0) / height];
  };
  const [[x1, y1], [x2, y2]] = [corner(row, column), corner(row + 1, column + 1)];
  return [Math.min(x1, x2), Math.min(y1, y2), Math.max(x1, x2), Math.max(y1, y2)];
}
