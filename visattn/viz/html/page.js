// A page of a photo: rows of maps to choose from, such as the words of a caption or the steps of an answer.

const { rows, together } = page; // rows of several models are shown together, of one model one by one
const state = { row: rows[0], pinned: null, hovered: null, boxes: true, groups: [] };
const current = () => state.hovered ?? state.pinned;
const rowOf = (at) => rows.find(({ views }) => views.includes(at)) ?? state.row;

/** What is drawn: a map of a row, or what `heads` makes of a head of a layer; null for the photo alone. */
const viewOf = (at) => at && (at.values ? at : heads.view(at));

let desk, candidates, heads = null;

/** A button for a map, with its probability and its gate. */
function viewButton(view) {
  const gauges = view.facts.filter(({ kind }) => kind);
  const button = radio("", made("span", { class: "word" }, view.label), ...gauges.map(({ kind, share, text }) =>
    made("span", { class: `gauge ${kind}`, dir: "ltr" }, bar(share), made("span", {}, text))));
  button.at = view;
  button.classList.toggle("known", view.boxes.length > 0);
  button.setAttribute("aria-label", [view.label, view.which, ...gauges.map(({ name, text }) => `${name} ${text}`)].join(", "));
  return button;
}

/** Make the rows of buttons: a group each. */
function fillRows() {
  state.groups = (together ? rows : [state.row]).map((row) => {
    const group = new Choice(made("div", { class: "words", role: "radiogroup", "aria-label": row.name || "Maps" }),
      (index) => choose(row, row.views[index]));
    group.fill(row.views.map(viewButton));
    return { row, group };
  });
  $("rows").replaceChildren(...state.groups.flatMap(({ row, group }) =>
    row.name ? [made("p", { class: "which" }, row.name), group.group] : [group.group]));
}

/** The words of a question: those that the shown step attends to are shaded. */
function tokensOf({ tokens, most, unknown }, view) {
  return tokens.map((word, index) => {
    const token = made("span", { class: "token" }, made("span", { class: "word" }, word));
    if (unknown.includes(word)) {
      token.classList.add("unknown");
      token.title = "The model does not know this word.";
    }
    const weight = view?.weights[index];
    if (weight === undefined) return token;
    token.style.setProperty("--here", `${Math.round((90 * weight) / most)}%`);
    token.append(made("span", { class: "chance", dir: "ltr" }, percent(weight)));
    return token;
  });
}

function show() {
  const at = current(), row = rowOf(at), found = viewOf(at), view = found && scaled(found);
  desk.show(view, view && state.boxes ? view.boxes : [], view && state.boxes ? view.outlines : []);
  for (const { row: { views }, group } of state.groups) {
    group.buttons.forEach((button, index) => button.classList.toggle("shown", views[index] === at));
    group.mark(views.indexOf(state.pinned));
  }
  heads?.mark(state.pinned);
  candidates.mark(rows.indexOf(state.row));
  $("mean").setAttribute("aria-pressed", String(at !== null && at === row.mean));
  $("alone").setAttribute("aria-pressed", String(at === null));
  $("title").replaceChildren(...(row.tokens ? tokensOf(row, view) : [row.title]));
  $("read").hidden = !view?.weights.length;
  describe(row, view);
}

/** Write what is known of the map that is shown, and of its row. */
function describe(row, view) {
  const none = row.views.length || heads ? "Photo alone" : "This model has no attention map.";
  const { title, which, facts, details = [], about } = view ?? { title: none, which: "", facts: [], about: null };
  const [peak = [], ...more] = view ? mapFacts(view) : [];
  $("which").textContent = which;
  $("chosen").textContent = title;
  $("facts").replaceChildren(...facts.concat(peak).flatMap(factRow));
  $("more").replaceChildren(...[...details, ...more].flatMap(factRow));
  $("details").hidden = !view;
  $("about").hidden = !about;
  $("about-title").textContent = about?.title ?? "";
  $("about-facts").replaceChildren(...(about?.facts ?? []).flatMap(factRow));
  $("answer").hidden = !row.answer;
  $("answer-title").textContent = row.answer;
  $("answers").replaceChildren(...row.facts.flatMap(factRow));
  $("notes").replaceChildren(...row.notes.map((note) => made("li", {}, note)));
  const place = view ? peakPlace(view) : "";
  clearTimeout(state.saying); // said to those who cannot see it, once it stays
  state.saying = setTimeout(() => { $("spoken").textContent = [title, which, place && `peak: ${place}`].filter(Boolean).join(", "); }, 300);
}

function choose(row, at) {
  const changed = row !== state.row;
  Object.assign(state, { row, pinned: at, hovered: null });
  if (changed && !together) fillRows();
  show();
}

const pin = (at) => choose(rowOf(at), at);

/** What a button stands for: a map of a row, or a head of a layer. */
const atOf = (button) => (button?.disabled ? null : button?.at ?? null);

/** What a button stands for is shown while the mouse is over it. */
function preview(group) {
  const hover = (at) => {
    if (state.hovered === at) return;
    state.hovered = at;
    show();
  };
  group.addEventListener("pointerover", (event) => {
    const at = event.pointerType === "mouse" ? atOf(event.target.closest("button")) : null;
    if (at) hover(at);
  });
  group.addEventListener("pointerleave", () => hover(null));
}

/** Another caption or question: its map of the same number. */
function chooseRow(row) {
  const at = state.row.views.indexOf(state.pinned);
  const kept = at < 0 && state.pinned ? row.mean : row.views[Math.min(at, row.views.length - 1)];
  choose(row, kept ?? null);
  for (const id of ["scale", "drawing", "comparing", "alone"]) $(id).hidden = !row.views.length && !heads;
  $("mean").hidden = !row.mean;
}

/** Under the mouse or finger: how strongly each word looked at this place. */
function pointAt(at) {
  for (const { row: { views }, group } of state.groups) {
    group.group.classList.toggle("pointed", at !== null);
    group.buttons.forEach((button, index) => {
      const view = scaled(views[index]), value = at && desk.stage.under(at, view, optionsOf(view).smooth);
      button.style.setProperty("--here", `${Math.round(100 * Math.min(1, Math.max(0, value / view.scale[1])) || 0)}%`);
    });
  }
}

/** Keys work wherever the focus is, but for where they have a meaning already. */
function pressed(event) {
  if (event.target.closest?.("input, select, textarea, a, summary, [role=radiogroup]:not(.words), [role=application]")) return;
  if (event.key === "Escape") return pin(null);
  const { views } = state.row, vertical = event.key === "ArrowUp" || event.key === "ArrowDown"; // these scroll the page
  const to = vertical || !views.length ? null : stepped(event, views.indexOf(state.pinned), views.length);
  if (to === null) return;
  event.preventDefault();
  choose(state.row, views[to]);
}

async function start() {
  await $("photo").decode();
  const kinds = new Set(rows.flatMap(({ views }) => views.flatMap(({ facts }) => facts.map(({ kind }) => kind))));
  $("sign-chance").hidden = !kinds.has("chance");
  $("sign-gate").hidden = !kinds.has("gate");
  $("gate-name").textContent = page.gate;
  $("outlines").hidden = !rows.some(({ views }) => views.some(({ boxes, outlines }) => boxes.length || outlines.length));
  $("others").hidden = together || rows.length < 2;
  candidates = new Choice($("candidates"), (index) => chooseRow(rows[index]));
  // Words that the best caption has not are stronger.
  candidates.fill(rows.map(({ line, score }, index) => {
    const words = line.map(([text, strong]) => (strong ? made("b", {}, text) : text));
    return radio("", made("span", { class: "rank" }, String(index + 1)),
      made("span", { class: "line", lang: "", dir: "auto" }, ...words), made("span", { class: "score" }, score));
  }));
  desk = new Desk(() => { heads?.paint(); show(); }, pointAt);
  heads = page.layers.length ? new Heads() : null;
  state.pinned = rows[0].views[page.first] ?? heads?.chosen ?? null;
  fillRows();
  chooseRow(rows[0]);
  preview($("rows"));
  $("mean").addEventListener("click", () => pin(state.row.mean));
  $("alone").addEventListener("click", () => pin(null));
  $("outlined").addEventListener("change", () => { state.boxes = $("outlined").checked; show(); });
  document.addEventListener("keydown", pressed);
  desk.set({});
  document.documentElement.classList.add("alive");
}

start();
