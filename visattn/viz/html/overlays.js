"use strict";

// The same steps, in the same order and with the same rounding, as AttentionMap.resize_to_image and
// visattn/viz/heatmap.py, with the tables that it writes into the page: a test compares the pixels.

/** Where the pixels of one axis of the image fall on the cells of the grid. */
function axis(count, length, scale, shift, cells, input, from, to, smooth) {
  const before = new Int32Array(count), after = new Int32Array(count);
  const share = new Float32Array(count), seen = new Uint8Array(count);
  for (let pixel = 0; pixel < count; pixel++) {
    const center = (pixel + 0.5) * (length / count);
    let at = ((center - shift) / scale) * cells / input;
    seen[pixel] = from < to && center >= from && center <= to ? 1 : 0;
    if (smooth) {
      at = Math.min(Math.max(at - 0.5, 0), cells - 1);
      before[pixel] = Math.min(Math.floor(at), Math.max(cells - 2, 0));
      after[pixel] = Math.min(before[pixel] + 1, cells - 1);
      share[pixel] = at - before[pixel];
    } else {
      before[pixel] = after[pixel] = Math.min(Math.max(Math.floor(at), 0), cells - 1);
    }
  }
  return { before, after, share, seen };
}

/** How a grid lies on an image that is drawn `height` by `width` pixels large. */
function placement({ matrix, input_size, image_size, region }, [rows, columns], height, width, smooth) {
  const [[scaleX, , x0], [, scaleY, y0]] = matrix, [left, top, right, bottom] = region;
  return {
    x: axis(width, image_size[1], scaleX, x0, columns, input_size[1], left, right, smooth),
    y: axis(height, image_size[0], scaleY, y0, rows, input_size[0], top, bottom, smooth),
    columns,
  };
}

/** Return what fills one row of pixels with the values of a grid; NaN where nothing was seen. */
function sampler(values, place) {
  const { x, y, columns } = place;
  const line = new Float32Array(columns);
  return (row, out) => {
    if (!y.seen[row]) return void out.fill(NaN);
    const one = y.before[row] * columns, other = y.after[row] * columns, share = y.share[row];
    for (let cell = 0; cell < columns; cell++) {
      const first = values[one + cell];
      line[cell] = first + share * (values[other + cell] - first);
    }
    for (let column = 0; column < out.length; column++) {
      const first = line[x.before[column]];
      const value = first + x.share[column] * (line[x.after[column]] - first);
      out[column] = x.seen[column] ? value : NaN;
    }
  };
}

function gray(photo, at) {
  return (photo[at] * 19595 + photo[at + 1] * 38470 + photo[at + 2] * 7471 + 0x8000) >> 16;
}

/** The image where there is no attention: dimmer and with less color. */
function quieted(photo, { grayness, dimming }) {
  const out = new Uint8ClampedArray(photo.length);
  for (let at = 0; at < photo.length; at += 4) {
    const level = gray(photo, at);
    for (let channel = at; channel < at + 3; channel++) {
      out[channel] = dimming[Math.trunc(photo[channel] + grayness * (level - photo[channel]))];
    }
  }
  return out;
}

/** Return which pixels of an axis are seen, or lie in the line around those that are. */
function framed(seen, line) {
  const first = seen.indexOf(1), last = seen.lastIndexOf(1);
  return seen.map((_, at) => (first >= 0 && at >= first - line && at <= last + line ? 1 : 0));
}

function mixed(bright, quiet, strength) {
  const sum = bright * strength + quiet * (255 - strength) + 128;
  return ((sum >> 8) + sum) >> 8;
}

/** Draws grids of values on one image (RGBA bytes), which may be painted again and again. */
class Painter {
  constructor(photo, height, width, tables) {
    Object.assign(this, { photo, height, width, tables, quiet: {}, image: new ImageData(width, height) });
    this.image.data.fill(255);
    this.line = Math.max(1, Math.floor(Math.min(height, width) / 240)); // around what the model saw
  }

  /** Return the image with `values` on it, as `place` lays them. */
  paint(values, place, { low, high, opacity, style, signed = false }) {
    const { photo, width, image: { data } } = this, tables = this.tables[style];
    const quiet = (this.quiet[style] ??= quieted(photo, tables));
    const strength = tables.cover.map((share) => Math.round(255 * (style === "light" ? 1 : opacity) * share));
    const [warm, cold] = signed ? [tables.positive, tables.negative] : [tables.colors, tables.colors];
    const inFrame = [place.y.seen, place.x.seen].map((seen) => framed(seen, this.line));
    const fill = sampler(values, place), row = new Float32Array(width), step = 255 / (high - low);
    for (let y = 0, at = 0; y < this.height; y++) {
      fill(y, row);
      for (let x = 0; x < width; x++, at += 4) {
        if (row[x] !== row[x]) { // NaN: not seen
          const dark = Math.round(tables.unseen * gray(photo, at)) + 14;
          data[at] = data[at + 1] = data[at + 2] = inFrame[0][y] && inFrame[1][x] ? 190 : dark;
        } else {
          const size = signed ? Math.abs(row[x]) : row[x], colors = row[x] < 0 ? cold : warm;
          const level = Math.min(Math.max((size - low) * step + 0.5, 0), 255) | 0;
          const cover = strength[level];
          for (let channel = 0; channel < 3; channel++) {
            const bright = style === "light" ? photo[at + channel] : colors[level * 3 + channel];
            data[at + channel] = mixed(bright, quiet[at + channel], cover);
          }
        }
      }
    }
    return this.image;
  }
}
