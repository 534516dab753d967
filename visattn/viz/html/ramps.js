/** The ramp of a scale, painted as the photo is: it looks like what it explains. */
function paintRamp([bottom, top], clipped, { low, high, ...options }) {
  const canvas = $("ramp"), { width, height } = canvas;
  const painter = (paintRamp.painter ??= new Painter(
    Uint8ClampedArray.from({ length: 4 * width * height }, () => 150), height, width, glow));
  const geometry = { matrix: [[1, 0, 0], [0, 1, 0]], input_size: [height, width],
    image_size: [height, width], region: [0, 0, width, height] };
  const ramp = Float32Array.from({ length: width }, (_, x) => bottom + ((x + 0.5) / width) * (top - bottom));
  const place = placement(geometry, [1, width], height, width, true);
  canvas.getContext("2d").putImageData(painter.paint(ramp, place, { low, high, ...options }), 0, 0);
  $("low").textContent = numbered(bottom);
  $("high").textContent = (clipped ? "\u2265 " : "") + numbered(top);
}

function numbered(value) {
  return value === 0 ? "0" : value.toPrecision(2).replace("-", "\u2212");
}
