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

/** Where a key leads from a card; null if it leads nowhere. */
function reached(key, links, from) {
  const tops = links.map((link) => link.parentElement.offsetTop), row = tops.filter((top) => top === tops[0]).length;
  return { ArrowRight: from + 1, ArrowLeft: from - 1, ArrowDown: from < 0 ? 0 : from + row,
    ArrowUp: from - row, Home: 0, End: links.length - 1 }[key] ?? null;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const typing = document.activeElement === filter;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    return filter.focus();
  }
  if (event.key === "Escape" && typing && !filter.value) return filter.blur();
  if (document.activeElement.matches("input, select") && !(typing && event.key === "ArrowDown")) return;
  const links = shown(), to = reached(event.key, links, links.indexOf(document.activeElement));
  if (!links.length || to === null) return;
  event.preventDefault();
  if (event.key === "ArrowUp" && to < 0) return filter.focus();
  links[Math.min(Math.max(to, 0), links.length - 1)].focus();
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
