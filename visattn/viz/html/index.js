"use strict";

const $ = (id) => document.getElementById(id);
const { labels, sorts } = JSON.parse($("page-data").textContent);
const filter = $("filter"), settings = { search: filter, sort: $("sort"), class: $("label") };
const cards = [...$("cards").children], whole = $("count").textContent;

const ORDERS = {
  class: (a, b) => a.dataset.label.localeCompare(b.dataset.label),
  probability: (a, b) => (b.dataset.probability ?? 0) - (a.dataset.probability ?? 0),
  "wrong first": (a, b) => ("wrong" in b.dataset) - ("wrong" in a.dataset),
};

const shown = () => [...$("cards").querySelectorAll("li:not([hidden]) a")];

/** Show the cards of a class that hold all words that were typed, or their beginnings, in order; the address keeps it. */
function update() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), label = $("label").value;
  for (const card of cards) {
    const text = card.textContent.toLowerCase();
    card.hidden = !words.every((word) => text.includes(word)) || (label !== "" && card.dataset.label !== label);
  }
  $("cards").replaceChildren(...cards.toSorted(ORDERS[$("sort").value] ?? (() => 0)));
  const left = shown().length;
  $("count").textContent = words.length || label ? `${left.toLocaleString("en")} of ${whole}` : whole;
  $("none").hidden = left > 0;
  const kept = Object.entries(settings).map(([name, { value }]) => [name, value]).filter(([, value]) => value && value !== sorts[0]);
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
}

/** Arrow keys go from card to card, a slash to the search. */
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.activeElement.matches("input, select")) return;
  const links = shown(), from = links.indexOf(document.activeElement);
  const to = { "/": filter, ArrowRight: links[from + 1], ArrowLeft: links[from - 1], Home: links[0], End: links.at(-1) }[event.key];
  if (!to) return;
  event.preventDefault();
  to.focus();
});

$("sort").append(...sorts.map((name) => new Option(`sort by ${name}`.replace("by wrong", "wrong"), name)));
$("label").append(...labels.map((name) => new Option(name, name)));
const address = new URLSearchParams(location.hash.slice(1));
for (const [name, control] of Object.entries(settings)) {
  if (address.has(name)) control.value = address.get(name);
  if (control.selectedIndex < 0) control.selectedIndex = 0; // an address of another page
  control.addEventListener("input", update);
}
$("sort").hidden = sorts.length < 2;
$("label").hidden = labels.length < 2;
$("search").hidden = false;
update(); // what was typed may have stayed when one comes back to the page
document.documentElement.classList.add("alive");
