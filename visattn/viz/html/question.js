let stage, hops, candidates, maps;
const state = {
  question: 0, hop: null,
  opacity: pageData.opacity, threshold: 0, style: pageData.style, smooth: pageData.smooth,
};

const entry = () => pageData.questions[state.question];

/** The words of the question; those that this hop attends to are shaded. */
function wordTokens({ words, weights, unknown }, hop) {
  const most = Math.max(...weights.flat());
  return words.map((word, index) => {
    const token = made("span", { class: "token" }, made("span", { class: "word" }, word));
    if (unknown.includes(word)) {
      token.classList.add("unknown");
      token.title = "The model does not know this word.";
    }
    const weight = hop === null ? undefined : weights[hop]?.[index];
    if (weight === undefined) return token;
    token.style.setProperty("--here", `${Math.round((90 * weight) / most)}%`);
    token.classList.toggle("strong", weight > most / 2);
    token.append(made("span", { class: "chance", dir: "ltr" }, percent(weight)));
    return token;
  });
}

function show() {
  const { hops: names, scale, weights, answers } = entry(), hop = state.hop;
  const [low, high] = scale;
  const options = { ...state, low: low + state.threshold * (high - low), high, grid: pageData.grid };
  stage.show(hop === null ? null : maps[hop], options);
  stage.outline([], entry().boxes[hop] || []);
  hops.buttons.forEach((button, index) => button.classList.toggle("shown", index === hop));
  hops.mark(hop === null ? -1 : hop);
  candidates.mark(state.question);
  $("alone").setAttribute("aria-pressed", String(hop === null));
  $("question").replaceChildren(...wordTokens(entry(), hop));
  $("read").hidden = hop === null || !weights.length;
  $("answer").textContent = answers[0][0];
  $("answers").replaceChildren(...answers.flatMap(([text, share]) => barRow(text, share, percent(share))));
  $("which").textContent = hop === null ? (names.length ? "Photo alone" : "This model has no attention map.") : names[hop];
  $("facts").replaceChildren(...(hop === null ? [] : mapRows(maps[hop])));
  drawLegend(options, scale);
}

function drawLegend(options, scale) {
  paintRamp(scale, scale, options);
  const even = 1 / (pageData.grid[0] * pageData.grid[1]);
  $("even").hidden = even > scale[1];
  $("even").style.left = `${(100 * (even - scale[0])) / (scale[1] - scale[0])}%`;
}

function chooseHop(hop) {
  state.hop = hop;
  show();
}

function chooseQuestion(index) {
  state.question = index;
  const { hops: names, maps: packed, notes } = entry();
  maps = names.length ? unpacked({ words: names, maps: packed }) : [];
  hops.fill(names.map((name) => made("button", { type: "button", role: "radio" }, name)));
  if (state.hop !== null || names.length) state.hop = names.length ? Math.min(state.hop ?? 0, names.length - 1) : null;
  for (const id of ["scale", "drawing", "alone"]) $(id).hidden = !names.length;
  $("notes").replaceChildren(...notes.map((note) => made("li", {}, note)));
  show();
}

/** Keys work wherever the focus is, but for where they have a meaning already. */
function pressed(event) {
  if (event.target.closest?.("input, a, [role=radiogroup]") || !entry().hops.length) return;
  if (event.key === "Escape") return chooseHop(null);
  const vertical = event.key === "ArrowUp" || event.key === "ArrowDown"; // these scroll the page
  const to = vertical ? null : stepped(event, state.hop ?? -1, entry().hops.length);
  if (to === null) return;
  event.preventDefault();
  chooseHop(to);
}

function set(changes) {
  Object.assign(state, changes);
  $("opacity").disabled = state.style === "light"; // light has all of its own
  $("opacity-out").textContent = percent(state.opacity);
  $("threshold-out").textContent = state.threshold ? percent(state.threshold) : "off";
  show();
}

function questionButtons() {
  return pageData.questions.map(({ question, answers }, index) =>
    made("button", { type: "button", role: "radio" }, made("span", { class: "rank" }, String(index + 1)),
      made("span", { class: "line", lang: "", dir: "auto" }, question), made("span", { class: "score" }, answers[0][0])));
}

async function start() {
  await $("photo").decode();
  stage = new Stage();
  hops = new Choice($("hops"), chooseHop);
  candidates = new Choice($("candidates"), chooseQuestion);
  candidates.fill(questionButtons());
  segmented("style", ["heat", "light"], state.style, (style) => set({ style }));
  segmented("cells", [true, false], state.smooth, (smooth) => set({ smooth }));
  $("others").hidden = pageData.questions.length < 2;
  $("unseen").hidden = !stage.place(true).x.seen.includes(0) && !stage.place(true).y.seen.includes(0);
  $("alone").addEventListener("click", () => chooseHop(null));
  for (const id of ["opacity", "threshold"]) {
    $(id).addEventListener("input", () => set({ [id]: Number($(id).value) / 100 }));
  }
  document.addEventListener("keydown", pressed);
  document.documentElement.classList.add("alive");
  chooseQuestion(0);
  set({});
}

start();
