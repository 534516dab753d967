"use strict";

const $ = (id) => document.getElementById(id);
const filter = $("filter"), count = $("count"), { labels, sorts } = JSON.parse($("page-data").textContent);
let cards = [...document.querySelectorAll("#cards li")];
const asWritten = cards, texts = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));
const whole = count.textContent;

const shown = () => cards.filter((card) => !card.hidden).map((card) => card.firstElementChild);

const ORDERS = {
  name: () => 0,
  photo: () => 0,
  class: (a, b) => a.dataset.label.localeCompare(b.dataset.label),
  probability: (a, b) => (b.dataset.probability ?? 0) - (a.dataset.probability ?? 0),
  "wrong first": (a, b) => ("wrong" in b.dataset) - ("wrong" in a.dataset),
};

/** Show the cards of a class that hold all words that were typed, or their beginnings; the address keeps it. */
function filterCards() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), label = $("label").value;
  for (const card of cards) {
    card.hidden = !words.every((word) => texts.get(card).includes(word)) || (label !== "" && card.dataset.label !== label);
  }
  const left = shown().length, state = { search: filter.value, sort: $("sort").value, class: label };
  count.textContent = words.length || label ? `${left.toLocaleString("en")} of ${whole}` : whole;
  $("none").hidden = left > 0;
  const kept = Object.entries(state).filter(([, value]) => value && value !== sorts[0]);
  history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
}

function sortCards() {
  cards = [...asWritten].sort(ORDERS[$("sort").value]);
  $("cards").replaceChildren(...cards);
  filterCards();
}

/** Choices of a list, of which one alone needs no list. */
function fill(list, values, text) {
  list.append(...values.map((value) => new Option(text(value), value)));
  list.hidden = values.length < 2;
}

/** How many cards lie in the first row. */
function columns(links) {
  const tops = links.map((link) => link.parentElement.offsetTop);
  const wrapped = tops.findIndex((top) => top > tops[0]);
  return wrapped < 0 ? links.length : wrapped;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = document.activeElement === filter;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    return filter.focus();
  }
  if (event.key === "Escape" && typing && !filter.value) return filter.blur();
  if (typing && event.key !== "ArrowDown") return;
  const links = shown(), from = links.indexOf(document.activeElement);
  if (!links.length) return;
  const row = columns(links);
  const to = { ArrowRight: from + 1, ArrowLeft: from - 1, ArrowDown: from < 0 ? 0 : from + row,
    ArrowUp: from - row, Home: 0, End: links.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  if (event.key === "ArrowUp" && to < 0) return filter.focus();
  links[Math.min(Math.max(to, 0), links.length - 1)].focus();
});

fill($("sort"), sorts, (name) => `sort by ${name}`.replace("by wrong", "wrong"));
fill($("label"), labels, String);
const address = new URLSearchParams(location.hash.slice(1));
for (const [name, list] of [["search", filter], ["sort", $("sort")], ["class", $("label")]]) {
  if (address.has(name)) list.value = address.get(name);
}
if ($("sort").selectedIndex < 0) $("sort").selectedIndex = 0; // an address of another page
if ($("label").selectedIndex < 0) $("label").selectedIndex = 0;
filter.addEventListener("input", filterCards);
$("label").addEventListener("change", filterCards);
$("sort").addEventListener("change", sortCards);
$("search").hidden = false;
sortCards(); // what was typed may have stayed when one comes back to the page
document.documentElement.classList.add("alive");
