let stage, hops, candidates, views, desk;
const state = { question: 0, hop: null };

/** One map per hop of a question. */
function hopViews({ hops, maps, scale }) {
  const { grid, geometry } = pageData, all = floats(maps), cells = grid[0] * grid[1];
  return hops.map((name, hop) => ({ name, values: all.subarray(hop * cells, (hop + 1) * cells), grid, geometry, scale,
    range: scale, unit: "attention per cell", even: 1 / cells }));
}

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
  const { hops: names, weights, answers } = entry(), hop = state.hop, view = hop === null ? null : views[hop];
  const place = view ? peakPlace(view) : "";
  desk.show(view, [], entry().boxes[hop] || []);
  hops.buttons.forEach((button, index) => button.classList.toggle("shown", index === hop));
  hops.mark(hop === null ? -1 : hop);
  candidates.mark(state.question);
  $("alone").setAttribute("aria-pressed", String(hop === null));
  $("question").replaceChildren(...wordTokens(entry(), hop));
  $("read").hidden = hop === null || !weights.length;
  $("answer").textContent = answers[0][0];
  $("answers").replaceChildren(...answers.flatMap(([text, share]) => barRow(text, share, percent(share))));
  $("which").textContent = hop === null ? (names.length ? "Photo alone" : "This model has no attention map.") : names[hop];
  $("facts").replaceChildren(...(view ? mapRows(view.values, place) : []));
  desk.say([`Answer: ${answers[0][0]}`, $("which").textContent, place && `peak: ${place}`].filter(Boolean).join(", "));
}

function chooseHop(hop) {
  state.hop = hop;
  show();
}

function chooseQuestion(index) {
  state.question = index;
  const { hops: names, notes } = entry();
  views = hopViews(entry());
  hops.fill(names.map((name) => made("button", { type: "button", role: "radio" }, name)));
  if (state.hop !== null || names.length) state.hop = names.length ? Math.min(state.hop ?? 0, names.length - 1) : null;
  for (const id of ["scale", "drawing", "comparing", "alone"]) $(id).hidden = !names.length;
  $("notes").replaceChildren(...notes.map((note) => made("li", {}, note)));
  show();
}

/** Keys work wherever the focus is, but for where they have a meaning already. */
function pressed(event) {
  if (event.target.closest?.("input, select, textarea, a, [role=radiogroup]") || !entry().hops.length) return;
  if (event.key === "Escape") return chooseHop(null);
  const vertical = event.key === "ArrowUp" || event.key === "ArrowDown"; // these scroll the page
  const to = vertical ? null : stepped(event, state.hop ?? -1, entry().hops.length);
  if (to === null) return;
  event.preventDefault();
  chooseHop(to);
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
  $("others").hidden = pageData.questions.length < 2;
  $("alone").addEventListener("click", () => chooseHop(null));
  desk = new Desk(stage, show);
  document.addEventListener("keydown", pressed);
  chooseQuestion(0);
  desk.set({});
  document.documentElement.classList.add("alive");
}

start();
