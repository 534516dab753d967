const PANEL = 640, SPACE = 16, DOTS = 2; // width and space in units of the figure; pixels a unit of a PNG

/** What one takes along: the view as PNG or SVG, its link, and how to cite it. */
class Exports {
  constructor(desk) {
    this.desk = desk;
    $("save-png").addEventListener("click", () => this.png());
    $("save-svg").addEventListener("click", () => this.save(new Blob([this.svg().text], { type: "image/svg+xml" }), "svg"));
    $("copy-link").addEventListener("click", () => this.copy(location.href.replace(/#.*|$/, `#${desk.address.text()}`), "The link"));
    $("cite").addEventListener("click", () => this.copy(this.citation(), "The citation"));
  }

  /** The view as a figure: images as they are on the page, text as text. */
  svg() {
    const { desk } = this, { view, comparison } = desk, other = comparison.view && comparison.stage ? comparison : null;
    const stages = [desk.page.stages()[0].stage, ...(other ? [other.stage] : [])];
    const heights = stages.map(({ canvas }) => (PANEL * canvas.height) / canvas.width);
    const width = stages.length * (PANEL + SPACE) - SPACE, high = Math.max(...heights), parts = [];
    stages.forEach((stage, index) => parts.push(imagePart(stage, index * (PANEL + SPACE), heights[index], desk.zoom.window())));
    const [title, detail] = desk.page.title(), second = other ? `${other.view.name} (${rangeOf(other.view)})` : "";
    let down = high + 26;
    if (second) parts.push(textPart(second, PANEL + SPACE, down, 18));
    parts.push(textPart(title, 0, down, 18), textPart(detail, 0, (down += 20), 13, "#55575d"));
    if (view) parts.push(...scaleParts(view, (down += 14)));
    down += view ? 34 : 0;
    parts.push(textPart([pageData.name, pageData.model].filter(Boolean).join(" \u00b7 "), 0, (down += 18), 13, "#55575d"));
    const height = Math.ceil(down + 10);
    const text = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="Helvetica, Arial, sans-serif"><rect width="100%" height="100%" fill="#fff"/>${parts.join("")}</svg>`;
    return { text, width, height };
  }

  async png() {
    const { text, width, height } = this.svg(), image = made("img");
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = made("canvas", { width: DOTS * width, height: DOTS * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => this.save(blob, "png"), "image/png");
  }

  save(blob, ending) {
    const address = URL.createObjectURL(blob);
    const words = [pageData.name, ...this.desk.page.title()].join(" ").replace(/[^\p{L}\p{N}.-]+/gu, "_").slice(0, 80);
    made("a", { href: address, download: `${words}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
    this.tell(`Saved as ${ending.toUpperCase()}.`);
  }

  citation() {
    const { method, paper, software } = pageData.citation, [title, detail] = this.desk.page.title();
    const source = this.desk.view?.paper ?? paper, what = [this.desk.view?.method ?? method, source && `(${source})`];
    return [`${[title, detail].filter(Boolean).join(", ")}. ${[pageData.model, pageData.name].filter(Boolean).join(", ")}.`,
      what.filter(Boolean).join(" "), software].filter(Boolean).join("\n");
  }

  async copy(text, name) {
    $("copied").hidden = false;
    $("copied").value = text;
    try {
      await navigator.clipboard.writeText(text);
      this.tell(`${name} is in the clipboard.`);
    } catch { // no clipboard here: pages from another computer without https, or a browser that forbids it
      $("copied").select();
      this.tell(`${name} is selected: copy it with the keyboard or the menu.`);
    }
  }

  tell(text) {
    $("taken").textContent = text;
  }
}

const xml = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "")
  .replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

function textPart(text, x, y, size, color = "#23252b") {
  const most = Math.floor((1.8 * PANEL) / size), shown = text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
  return `<text x="${x}" y="${y}" font-size="${size}" fill="${color}">${xml(shown)}</text>`;
}

/** A stage at its place in a figure: of a zoomed photo what the page shows of it, with its boxes. */
function imagePart(stage, left, height, shown = { x: 0, y: 0, side: 1 }) {
  const box = [shown.x * PANEL, shown.y * height, shown.side * PANEL, shown.side * height].join(" ");
  const lines = [...stage.boxes.querySelectorAll("rect")].map((line) => {
    const [x, y, wide, high] = ["x", "y", "width", "height"].map((side) => parseFloat(line.getAttribute(side)) / 100);
    const under = line.classList.contains("under"), dash = line.classList.contains("dashed") ? ' stroke-dasharray="7 4"' : "";
    return `<rect x="${x * PANEL}" y="${y * height}" width="${wide * PANEL}" height="${high * height}" fill="none" stroke="${under ? "#000a" : "#fff"}" stroke-width="${(under ? 4 : 2) * shown.side}"${dash}/>`;
  });
  return `<svg x="${left}" y="0" width="${PANEL}" height="${height}" viewBox="${box}" preserveAspectRatio="none"><image href="${stage.png()}" width="${PANEL}" height="${height}" preserveAspectRatio="none"/>${lines.join("")}</svg>`;
}

/** The scale of a map, with its ends. */
function scaleParts({ unit }, top) {
  const line = (text, x, anchor) => `<text x="${x}" y="${top + 26}" font-size="12" fill="#55575d" text-anchor="${anchor}">${xml(text)}</text>`;
  return [`<image href="${$("ramp").toDataURL("image/png")}" x="0" y="${top}" width="320" height="12" preserveAspectRatio="none"/>`,
    line($("low").textContent, 0, "start"), line(unit, 160, "middle"), line($("high").textContent, 320, "end")];
}
