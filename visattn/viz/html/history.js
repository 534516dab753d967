let stage, images, desk, player, views;
const state = { row: 0, step: 0, shared: true };

const row = () => pageData.rows[state.row];

function show() {
  const view = views[state.step], { note } = row().steps[state.step];
  const place = view ? peakPlace(view) : "";
  desk.show(view);
  images.mark(state.row);
  $("step").value = state.step;
  $("step-out").textContent = `${state.step + 1} of ${views.length}`;
  [$("shown").textContent, $("step-note").textContent] = title();
  $("step").setAttribute("aria-valuetext", $("shown").textContent);
  $("facts").replaceChildren(...(view ? [...mapRows(view.values.map(Math.abs), place, false)] : []));
  desk.say([$("shown").textContent, note, place && `peak: ${place}`].filter(Boolean).join(", "));
}

function title() {
  const { step, note } = row().steps[state.step];
  return [`Step ${step.toLocaleString("en")}`, [row().name, note].filter(Boolean).join(", ")];
}

async function chooseImage(index) {
  state.row = index;
  const framed = await framePhoto(row());
  if (!framed) return;
  stage = framed;
  views = stepViews(row(), { ...pageData, shared: state.shared });
  if (desk) desk.comparison.renew(); // which shows all anew
}

function chooseStep(index) {
  state.step = index;
  show();
}

function forward() {
  chooseStep(state.step + 1);
  return state.step < views.length - 1;
}

function address() {
  return { image: state.row ? state.row + 1 : null, step: row().steps[state.step].step, shared: state.shared ? null : 0 };
}

async function restore(fields) {
  const image = numberIn(fields.image ?? "1", 1, pageData.rows.length);
  const step = row().steps.findIndex((each) => String(each.step) === fields.step);
  if (step >= 0) state.step = step;
  if (fields.shared === "0") share(false);
  if (image !== null && image - 1 !== state.row) await chooseImage(image - 1);
}

function share(shared) {
  state.shared = shared;
  views = stepViews(row(), { ...pageData, shared });
  scales.mark(shared ? 0 : 1);
  show();
}

let scales;

function pressed(event) {
  if (event.target.closest?.("input, select, textarea, a, main table, [role=radiogroup]")) return;
  const to = /Up|Down/.test(event.key) ? null : stepped(event, state.step, views.length);
  if (to === null) return;
  event.preventDefault();
  player.play(false);
  chooseStep(to);
}

async function start() {
  if (!pageData.rows.length) return; // no map whose values are kept: the table alone
  images = new Choice($("images"), chooseImage);
  images.fill(pageData.rows.map(({ name }) => made("button", { type: "button", role: "radio", class: "pill" }, name)));
  await chooseImage(0);
  state.step = views.length - 1;
  $("step").max = views.length - 1;
  $("step").addEventListener("input", () => { player.play(false); chooseStep(Number($("step").value)); });
  player = new Player("Play, step by step", () => chooseStep(0), forward);
  desk = new Desk({ stages: () => [{ stage, part: (values) => values }],
    photo: () => row().name, show, address, restore, title });
  scales = segmented("shared", [true, false], state.shared, share);
  document.addEventListener("keydown", pressed);
  desk.set({});
  desk.address.begin();
  document.documentElement.classList.add("alive");
}

start();
