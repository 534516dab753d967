const MEAN = "mean"; // instead of a word: all words together

/** What a gate says, for the legend. */
const gateMeaning = () => /^on /.test(caption().gateSymbol)
  ? `${gateLabel()}: share of the word's attention that lies there`
  : `${gateLabel()}: how much the image counts for the word, 0 to 1; a word with a low gate follows from the words before it`;

/** Label of the gates: a symbol such as β, or words such as "on the photo". */
const gateLabel = ({ gateSymbol } = caption()) => gateSymbol.length > 3 ? gateSymbol : `gate ${gateSymbol}`;

/** A bar with its number beside it: both of one quantity. */
function gauge(kind, share, text) {
  const fill = made("i");
  fill.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  return made("span", { class: `gauge ${kind}`, dir: "ltr" }, made("span", { class: "track" }, fill), made("span", {}, text));
}

/** A button for each word, with its probability and its gate. */
function wordButtons(caption) {
  const known = new Set(caption.phrases.flatMap(({ first, words }) =>
    Array.from({ length: words }, (_, offset) => first + offset)));
  return caption.words.map((word, index) => {
    const chance = caption.chances[index], gate = caption.gates[index];
    const label = [`${word}, word ${index + 1} of ${caption.words.length}`];
    const button = made("button", { type: "button", role: "radio" }, made("span", { class: "word" }, word));
    if (chance !== undefined) {
      button.append(gauge("chance", chance, percent(chance)));
      label.push(`probability ${percent(chance)}`);
    }
    if (gate !== undefined) {
      button.append(gauge("gate", gate, gate.toFixed(2)));
      label.push(`${gateLabel(caption)} ${gate.toFixed(2)}`);
    }
    if (known.has(index)) button.classList.add("known");
    button.setAttribute("aria-label", label.join(", "));
    return button;
  });
}

/** What stands before a word: a space, or nothing in scripts that write none. */
const before = (caption, index) => (index === 0 || caption.spaces[index] === false ? "" : " ");

/** The words of a caption from one index up to another as a line. */
const lineOf = (caption, first = 0, stop = caption.words.length) => caption.words.slice(first, stop)
  .map((word, index) => before(caption, first + index) + word).join("").trim();

/** A button for each candidate; words that the best caption has not are stronger. */
function candidateButtons(captions) {
  const best = new Set(captions[0].words);
  return captions.map((caption, index) => {
    const words = caption.words.flatMap((word, index) =>
      [before(caption, index), best.has(word) ? word : made("b", {}, word)]);
    const score = caption.score === null ? "" : `\u2212${Math.abs(caption.score).toFixed(2)}`;
    const said = made("span", { class: "line", lang: "", dir: "auto" }, ...words);
    if (!caption.finished) said.append(" \u2026");
    return made("button", { type: "button", role: "radio" },
      made("span", { class: "rank" }, String(index + 1)), said, made("span", { class: "score" }, score));
  });
}

/** The row of a gate, whose bar has the color of the gates below the words. */
function gateRow(gate) {
  const [name, value] = barRow(gateLabel().replace(/^./, (letter) => letter.toUpperCase()), gate, gate.toFixed(2));
  value.classList.add("gate");
  return [name, value];
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
function showDetails(caption, view, at) {
  const rows = [], count = caption.words.length, words = caption.phrases.length ? "known" : "";
  const mean = at === MEAN || at === null, place = view ? peakPlace(view) : "";
  $("which").textContent = mean ? `All ${count} words` : `Word ${at + 1} of ${count}`;
  $("word").textContent = at === null ? $("alone").textContent : mean ? "Mean of all maps" : caption.words[at];
  if (!mean && caption.chances.length) rows.push(...barRow("Probability", caption.chances[at], percent(caption.chances[at])));
  if (!mean && caption.gates.length) rows.push(...gateRow(caption.gates[at]));
  if (view) rows.push(...mapRows(view.values, place, caption.quantity === "attention"));
  $("facts").replaceChildren(...rows);
  desk.say([$("word").textContent, $("which").textContent, place && `peak: ${place}`].filter(Boolean).join(", "));
  const phrase = mean ? null : phraseOf(caption, at);
  $("grounding").hidden = !words;
  if (!words) return;
  $("phrase").textContent = phrase
    ? lineOf(caption, phrase.first, phrase.first + phrase.words)
    : "No boxes are known for " + (mean ? "this" : "this word");
  $("grounding-scores").replaceChildren(...(phrase ? phraseRows(phrase, at - phrase.first) : []));
}

function phraseOf(caption, at) {
  return caption.phrases.find(({ first, words }) => at >= first && at < first + words);
}

/** One map per word, and their mean at the end. */
function wordViews(caption) {
  const all = floats(caption.maps), cells = all.length / caption.words.length;
  const maps = caption.words.map((_, word) => all.subarray(word * cells, (word + 1) * cells));
  const mean = new Float32Array(cells);
  for (const map of maps) map.forEach((value, cell) => { mean[cell] += value / maps.length; });
  const { grid, geometry, scale, peak, quantity, even } = caption;
  const common = { grid, geometry: geometry ?? pageData.geometry, scale, range: [0, peak], even, cells: several && !caption.smooth,
    unit: quantity === "attention" ? "attention per cell" : quantity };
  return [...maps, mean].map((values, word) => ({ ...common, values, name: caption.words[word] ?? "mean of all words" }));
}

let stage, rows, candidates, views, desk, scales;
const state = { candidate: 0, hoveredRow: null, pinned: null, hovered: null, boxes: true, ends: "shared" };
const ENDS = ["shared", "own", "greatest"];

/** Captions of several models have a row of words each; of one model, the candidate that is chosen has one. */
const several = pageData.models.length > 1;
const active = () => (state.hovered === null ? state.candidate : state.hoveredRow);
const caption = () => pageData.captions[active()];
const current = () => (state.hovered === null ? state.pinned : state.hovered);
const viewAt = (at) => (at === null ? null : scaled(views[active()][at === MEAN ? caption().words.length : at]));

/** A map with the ends of its colors: those of all words, its own peak, or the greatest one. */
function scaled(view) {
  const [low, high] = view.scale, own = peakOf(view.values), [, peak] = view.range;
  const top = { shared: high, own, greatest: peak }[state.ends];
  return { ...view, scale: [low, top > low ? top : high], range: [low, state.ends === "own" ? own : peak] };
}

function show() {
  const at = current(), view = viewAt(at);
  const phrase = typeof at === "number" ? phraseOf(caption(), at) : null;
  desk.show(view, phrase && state.boxes ? phrase.boxes : [], state.boxes && caption().boxes[at] || []);
  for (const { row, words } of rows) {
    words.buttons.forEach((button, index) => button.classList.toggle("shown", row === active() && index === at));
    words.mark(typeof state.pinned === "number" && row === state.candidate ? state.pinned : -1);
  }
  candidates.mark(state.candidate);
  $("mean").setAttribute("aria-pressed", String(at === MEAN));
  $("alone").setAttribute("aria-pressed", String(at === null));
  showDetails(caption(), view, at);
}

function pin(at) {
  Object.assign(state, { pinned: at, hovered: null });
  show();
}

function chooseCandidate(index) {
  Object.assign(state, { candidate: index, hovered: null });
  if (!several || !rows) fillRows();
  if (typeof state.pinned === "number") state.pinned = Math.min(state.pinned, caption().words.length - 1);
  $("caption").textContent = lineOf(caption());
  show();
}

/** Make the rows of words: a group of buttons each. */
function fillRows() {
  const shown = several ? pageData.captions.map((_, index) => index) : [state.candidate];
  rows = shown.map((row) => {
    const group = made("div", { class: "words", role: "radiogroup", "aria-label": pageData.models[row] ?? "Words" });
    const words = new Choice(group, (index) => { state.candidate = row; pin(index); });
    words.fill(wordButtons(pageData.captions[row]));
    return { row, words };
  });
  $("words").replaceChildren(...rows.flatMap(({ row, words: { group } }) =>
    several ? [made("p", { class: "which" }, pageData.models[row]), group] : [group]));
}

/** Under the mouse: how strongly each word looked at this place. */
function pointAt(event) {
  for (const { row, words } of rows) {
    const maps = views[row].slice(0, -1), { grid, geometry } = maps[0];
    const values = event && stage.under(stage.pointed(event), maps.map((map) => map.values), { smooth: drawing.smooth, grid, geometry });
    $("words").classList.toggle("pointed", Boolean(values));
    words.buttons.forEach((button, index) => {
      const share = values ? Math.min(1, Math.max(0, values[index] / scaled(maps[index]).scale[1])) : 0;
      button.style.setProperty("--here", `${Math.round(100 * share)}%`);
    });
  }
}

function listen() {
  $("words").addEventListener("pointerover", (event) => {
    const button = event.target.closest("button");
    if (event.pointerType !== "mouse" || !button) return;
    const { row, words } = rows.find(({ words: { buttons } }) => buttons.includes(button));
    Object.assign(state, { hoveredRow: row, hovered: words.buttons.indexOf(button) });
    show();
  });
  $("words").addEventListener("pointerleave", () => {
    if (state.hovered === null) return;
    state.hovered = null;
    show();
  });
  $("frame").addEventListener("pointermove", pointAt);
  $("frame").addEventListener("pointerdown", pointAt);
  $("frame").addEventListener("pointerleave", (event) => event.pointerType === "mouse" && pointAt(null));
  $("mean").addEventListener("click", () => pin(MEAN));
  $("alone").addEventListener("click", () => pin(null));
  $("outlined").addEventListener("change", () => { state.boxes = $("outlined").checked; show(); });
  document.addEventListener("keydown", pressed);
}

/** Keys work wherever the focus is, but for where they have a meaning already. */
function pressed(event) {
  if (event.target.closest?.("input, select, textarea, a, [role=radiogroup]:not(.words)")) return;
  if (event.key === "Escape") return pin(null);
  const vertical = event.key === "ArrowUp" || event.key === "ArrowDown"; // these scroll the page
  const from = typeof state.pinned === "number" ? state.pinned : -1;
  const to = vertical ? null : stepped(event, from, caption().words.length);
  if (to === null) return;
  event.preventDefault();
  pin(to);
}

/** The word to begin with: one whose boxes are known, or else that with the clearest map. */
function initialWord({ words: said, phrases }) {
  if (phrases.length) return phrases[0].first + phrases[0].words - 1; // mostly the noun
  const peaks = views[0].slice(0, -1).map(({ values }) => Math.max(...values));
  if (said.length > 1) peaks[0] = 0; // mostly an article, which looks around
  return peaks.indexOf(Math.max(...peaks));
}

async function start() {
  await $("photo").decode();
  stage = new Stage();
  views = pageData.captions.map(wordViews);
  candidates = new Choice($("candidates"), chooseCandidate);
  candidates.fill(candidateButtons(pageData.captions));
  state.pinned = initialWord(caption());
  $("others").hidden = several || pageData.captions.length < 2;
  $("sign-chance").hidden = !caption().chances.length;
  $("sign-gate").hidden = !caption().gates.length;
  $("gate-name").textContent = gateMeaning();
  $("notes").hidden = !pageData.notes;
  $("notes").textContent = pageData.notes;
  $("outlines").hidden = !pageData.captions.some(({ phrases, boxes }) => phrases.length || boxes.length);
  desk = new Desk(stage, show);
  scales = segmented("ends", ENDS, state.ends, (ends) => { state.ends = ends; show(); });
  chooseCandidate(0);
  listen();
  desk.set({});
  document.documentElement.classList.add("alive");
}

start();
