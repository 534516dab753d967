const MEAN = "mean"; // instead of a word: all words together

/** Label of the gates: a symbol such as β, or words such as "on the photo". */
const gateLabel = () => pageData.gateSymbol.length > 1 ? pageData.gateSymbol : `gate ${pageData.gateSymbol}`;

/** A button for each word, with its probability and a strip for its gate. */
function wordButtons(caption) {
  const known = new Set(caption.phrases.flatMap(({ first, words }) =>
    Array.from({ length: words }, (_, offset) => first + offset)));
  return caption.words.map((word, index) => {
    const chance = caption.chances[index], gate = caption.gates[index];
    const label = [`${word}, word ${index + 1} of ${caption.words.length}`];
    const button = made("button", { type: "button", role: "radio" }, made("span", { class: "word" }, word));
    if (gate !== undefined) {
      const strip = made("i");
      strip.style.width = `${100 * Math.min(Math.max(gate, 0), 1)}%`;
      button.append(made("span", { class: "gate" }, strip));
      label.push(`${gateLabel()} ${gate.toFixed(2)}`);
    }
    if (chance !== undefined) {
      button.append(made("span", { class: "chance", dir: "ltr" }, percent(chance)));
      label.push(`probability ${percent(chance)}`);
    }
    if (known.has(index)) button.classList.add("known");
    button.setAttribute("aria-label", label.join(", "));
    return button;
  });
}

/** A button for each candidate; words that the best caption has not are stronger. */
function candidateButtons(captions) {
  const best = new Set(captions[0].words);
  return captions.map((caption, index) => {
    const words = caption.words.flatMap((word) => [best.has(word) ? word : made("b", {}, word), " "]);
    const score = caption.score === null ? "" : `\u2212${Math.abs(caption.score).toFixed(2)}`;
    const said = made("span", { class: "line", lang: "", dir: "auto" }, ...words);
    if (!caption.finished) said.append("\u2026");
    return made("button", { type: "button", role: "radio" },
      made("span", { class: "rank" }, String(index + 1)), said, made("span", { class: "score" }, score));
  });
}

function phraseRows(phrase, word) {
  const inside = phrase.correctness[word], lift = inside - phrase.baseline;
  if (inside === undefined) return textRow("Inside the boxes", "outside the model's input");
  return [
    ...barRow("Inside the boxes", inside, inside.toFixed(2), phrase.baseline),
    ...textRow("Uniform attention", phrase.baseline.toFixed(2)),
    ...textRow("Difference", `${lift < 0 ? "\u2212" : "+"}${Math.abs(lift).toFixed(2)}`),
    ...textRow("Peak of the phrase", phrase.pointed ? "inside \u2713" : "outside \u2717"),
  ];
}

/** Write what is known of a word, or of all of them together. */
function showDetails(caption, maps, at) {
  const rows = [], count = caption.words.length, words = caption.phrases.length ? "known" : "";
  const mean = at === MEAN || at === null;
  $("which").textContent = mean ? `All ${count} words` : `Word ${at + 1} of ${count}`;
  $("word").textContent = at === null ? $("alone").textContent : mean ? "Mean of all maps" : caption.words[at];
  if (!mean && caption.chances.length) rows.push(...barRow("Probability", caption.chances[at], percent(caption.chances[at])));
  if (!mean && caption.gates.length) rows.push(...barRow(gateLabel().replace(/^./, (letter) => letter.toUpperCase()), caption.gates[at], caption.gates[at].toFixed(2)));
  if (at !== null) rows.push(...mapRows(mean ? maps[count] : maps[at], pageData.quantity === "attention"));
  $("facts").replaceChildren(...rows);
  const phrase = mean ? null : phraseOf(caption, at);
  const texts = mean ? undefined : caption.texts[at], most = Math.max(...(texts ?? []).map(([, weight]) => weight), 1e-9);
  $("reads").hidden = !texts?.length;
  $("read-texts").replaceChildren(...(texts ?? []).flatMap(([text, weight]) => barRow(text, weight / most, weight.toPrecision(2))));
  $("grounding").hidden = !words;
  if (!words) return;
  $("phrase").textContent = phrase
    ? caption.words.slice(phrase.first, phrase.first + phrase.words).join(" ")
    : "No boxes are known for " + (mean ? "this" : "this word");
  $("grounding-scores").replaceChildren(...(phrase ? phraseRows(phrase, at - phrase.first) : []));
}

function phraseOf(caption, at) {
  return caption.phrases.find(({ first, words }) => at >= first && at < first + words);
}

let stages, words, candidates, maps;
const state = {
  candidate: 0, pinned: null, hovered: null, playing: 0,
  opacity: pageData.opacity, threshold: 0, style: pageData.style, smooth: pageData.smooth, boxes: true,
  ends: "shared",
};
const STEP = 900; // milliseconds a word, when the caption is played

const caption = () => pageData.captions[state.candidate];
const current = () => (state.hovered === null ? state.pinned : state.hovered);

/** Lower and upper end of the colors of a map: those of all words, its own peak, or the greatest one. */
function scaleOf(map) {
  const [low, high] = pageData.scale;
  const top = state.ends === "own" && map ? peakOf(map) : state.ends === "greatest" ? pageData.peak : high;
  return [low, top > low ? top : high];
}

function show() {
  const at = current(), count = caption().words.length;
  const map = at === null ? null : maps[at === MEAN ? count : at];
  const [low, high] = scaleOf(map);
  const options = { ...state, low: low + state.threshold * (high - low), high };
  const phrase = typeof at === "number" ? phraseOf(caption(), at) : null;
  for (const { stage, part } of stages) {
    stage.show(map && part(map), options);
    stage.outline(phrase && state.boxes ? phrase.boxes : [], state.boxes && caption().boxes[at] || []);
  }
  showShares(map);
  words.buttons.forEach((button, index) => button.classList.toggle("shown", index === at));
  words.mark(typeof state.pinned === "number" ? state.pinned : -1);
  candidates.mark(state.candidate);
  $("mean").setAttribute("aria-pressed", String(at === MEAN));
  $("alone").setAttribute("aria-pressed", String(at === null));
  showDetails(caption(), maps, at);
  drawLegend([low, high], options);
}

/** Below each of several images: its share of the map that is shown. */
function showShares(map) {
  if (stages.length < 2) return;
  const sum = (values) => values.reduce((all, value) => all + Math.max(value, 0), 0);
  const shares = map ? stages.map(({ part }) => sum(part(map))) : stages.map(() => 0);
  const total = Math.max(shares.reduce((all, share) => all + share, 0), 1e-12), most = Math.max(...shares, 1e-12);
  stages.forEach(({ figure }, index) => {
    figure.querySelector(".bar i").style.width = `${100 * shares[index] / most}%`;
    figure.querySelector(".number").textContent = map ? percent(shares[index] / total) : "";
    figure.classList.toggle("most", Boolean(map) && shares[index] === most);
  });
}

/** The images of the page, and the part of a map that lies on each. */
function imageStages() {
  let begin = 0;
  return [...document.querySelectorAll(".seen figure")].map((figure, index) => {
    const own = pageData.images?.[index] ?? pageData, from = begin;
    const to = begin += own.grid[0] * own.grid[1];
    const [image, canvas, boxes] = figure.querySelector(".frame").children;
    const stage = new Stage({ ...own, image, canvas, boxes });
    const alone = !pageData.images;
    return { figure, stage, part: (map) => (alone ? map : map.subarray(from, to)) };
  });
}

function pin(at) {
  Object.assign(state, { pinned: at, hovered: null });
  show();
}

function chooseCandidate(index) {
  state.candidate = index;
  maps = unpacked(caption());
  words.fill(wordButtons(caption()));
  if (typeof state.pinned === "number") state.pinned = Math.min(state.pinned, caption().words.length - 1);
  state.hovered = null;
  $("caption").textContent = caption().words.join(" ");
  show();
}

function play(on) {
  clearInterval(state.playing);
  state.playing = on ? setInterval(forward, STEP) : 0;
  $("play").setAttribute("aria-pressed", String(on));
  $("play").setAttribute("aria-label", on ? "Pause" : "Play, word by word");
  if (on) pin(0);
}

function forward() {
  const next = typeof state.pinned === "number" ? state.pinned + 1 : 0;
  if (next < caption().words.length) return pin(next);
  play(false);
  pin(MEAN);
}

function drawLegend([bottom, top], options) {
  paintRamp([bottom, top], [bottom, state.ends === "own" ? top : pageData.peak], options);
  if (pageData.even) $("even").style.left = `${Math.min(100, (100 * (pageData.even[0] - bottom)) / (top - bottom))}%`;
}

/** Under the mouse: how strongly each word looked at this place. */
function pointAt(event, { stage, part } = {}) {
  const values = event && stage.under(event, maps.slice(0, -1).map(part), state.smooth);
  words.group.classList.toggle("pointed", Boolean(values));
  words.buttons.forEach((button, index) => {
    const share = values ? Math.min(1, Math.max(0, values[index] / scaleOf(maps[index])[1])) : 0;
    button.style.setProperty("--here", `${Math.round(100 * share)}%`);
  });
}

function listen() {
  const line = words.group;
  line.addEventListener("pointerover", (event) => {
    const button = event.target.closest("button");
    if (event.pointerType !== "mouse" || !button || state.playing) return;
    state.hovered = words.buttons.indexOf(button);
    show();
  });
  line.addEventListener("pointerleave", () => {
    if (state.hovered === null) return;
    state.hovered = null;
    show();
  });
  for (const each of stages) {
    const frame = each.figure.querySelector(".frame");
    frame.addEventListener("pointermove", (event) => pointAt(event, each));
    frame.addEventListener("pointerdown", (event) => pointAt(event, each));
    frame.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointAt(null));
  }
  $("play").addEventListener("click", () => play(!state.playing));
  $("mean").addEventListener("click", () => { play(false); pin(MEAN); });
  $("alone").addEventListener("click", () => { play(false); pin(null); });
  for (const id of ["opacity", "threshold"]) {
    $(id).addEventListener("input", () => set({ [id]: Number($(id).value) / 100 }));
  }
  $("outlined").addEventListener("change", () => set({ boxes: $("outlined").checked }));
  document.addEventListener("keydown", pressed);
}

/** Keys work wherever the focus is, but for where they have a meaning already. */
function pressed(event) {
  if (event.target.closest?.("input, a, [role=radiogroup]:not(#words)")) return;
  if (event.key === " " && !event.target.closest?.("button")) {
    event.preventDefault();
    return play(!state.playing);
  }
  if (event.key === "Escape") { play(false); return pin(null); }
  const vertical = event.key === "ArrowUp" || event.key === "ArrowDown"; // these scroll the page
  const from = typeof state.pinned === "number" ? state.pinned : -1;
  const to = vertical ? null : stepped(event, from, caption().words.length);
  if (to === null) return;
  event.preventDefault();
  play(false);
  pin(to);
}

function set(changes) {
  Object.assign(state, changes);
  $("opacity").disabled = state.style === "light"; // light has all of its own
  $("opacity-out").textContent = percent(state.opacity);
  $("threshold-out").textContent = state.threshold ? percent(state.threshold) : "off";
  show();
}

/** The word to begin with: one whose boxes are known, or else that with the clearest map. */
function initialWord({ words: said, phrases, ...rest }) {
  if (phrases.length) return phrases[0].first + phrases[0].words - 1; // mostly the noun
  const peaks = unpacked({ words: said, ...rest }).slice(0, -1).map((map) => Math.max(...map));
  if (said.length > 1) peaks[0] = 0; // mostly an article, which looks around
  return peaks.indexOf(Math.max(...peaks));
}

async function start() {
  await Promise.all([...document.querySelectorAll(".frame img")].map((image) => image.decode()));
  stages = imageStages();
  words = new Choice($("words"), (index) => { play(false); pin(index); });
  candidates = new Choice($("candidates"), (index) => { play(false); chooseCandidate(index); });
  candidates.fill(candidateButtons(pageData.captions));
  segmented("style", ["heat", "light"], state.style, (style) => set({ style }));
  segmented("cells", [true, false], state.smooth, (smooth) => set({ smooth }));
  segmented("ends", ["shared", "own", "greatest"], state.ends, (ends) => set({ ends }));
  state.pinned = initialWord(caption());
  $("others").hidden = pageData.captions.length < 2;
  $("unseen").hidden = stages.every(({ stage }) => !stage.place(true).x.seen.includes(0) && !stage.place(true).y.seen.includes(0));
  $("gated").hidden = !caption().gates.length;
  $("gated").lastChild.textContent = gateLabel();
  if (stages.length > 1) $("alone").textContent = "Images alone";
  $("even").hidden = $("evenly").hidden = !pageData.even;
  if (pageData.even) $("even-name").textContent = pageData.even[1];
  $("quantity").textContent = pageData.quantity === "attention" ? "attention per cell" : pageData.quantity;
  $("notes").hidden = !pageData.notes;
  $("notes").textContent = pageData.notes;
  $("outlines").hidden = !pageData.captions.some(({ phrases, boxes }) => phrases.length || boxes.length);
  chooseCandidate(0);
  listen();
  set({});
  document.documentElement.classList.add("alive");
}

start();
