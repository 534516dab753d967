"use strict";

const filter = document.getElementById("filter"), count = document.getElementById("count");
const cards = [...document.querySelectorAll("#cards li")];
const texts = cards.map((card) => card.textContent.toLowerCase());
const whole = count.textContent;

const shown = () => cards.filter((card) => !card.hidden).map((card) => card.firstElementChild);

/** Show the cards that hold all words that were typed, or their beginnings. */
function filterCards() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let left = 0;
  cards.forEach((card, index) => {
    card.hidden = !words.every((word) => texts[index].includes(word));
    left += card.hidden ? 0 : 1;
  });
  count.textContent = words.length ? `${left.toLocaleString("en")} of ${whole}` : whole;
  document.getElementById("none").hidden = left > 0;
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

filter.addEventListener("input", filterCards);
document.getElementById("search").hidden = false;
filterCards(); // what was typed may have stayed when one comes back to the page
