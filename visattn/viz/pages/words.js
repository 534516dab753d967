const MEAN = "mean"; // instead of a word: all words together

function percent(share) {
  if (share < 0.01) return "<1 %";
  return share > 0.995 && share < 1 ? ">99 %" : `${Math.round(100 * share)} %`;
}

/** A group of buttons of which one is chosen; arrow keys, Home and End go from one to the next. */
class Choice {
  constructor(group, choose) {
    this.group = group;
    this.buttons = [];
    group.addEventListener("click", (event) => {
      const button = event.target.closest("[role=radio]");
      if (button) choose(this.buttons.indexOf(button));
    });
    group.addEventListener("keydown", (event) => {
      const from = this.buttons.indexOf(document.activeElement);
      const to = stepped(event, from, this.buttons.length);
      if (from < 0 || to === null) return;
      event.preventDefault();
      event.stopPropagation();
      choose(to);
      this.buttons[to].focus();
    });
  }

  fill(buttons) {
    this.buttons = buttons;
    this.group.replaceChildren(...buttons);
  }

  /** Mark one as chosen; the Tab key leads to it, or to the first where none is. */
  mark(chosen) {
    this.buttons.forEach((button, index) => {
      button.setAttribute("aria-checked", String(index === chosen));
      button.tabIndex = index === Math.max(chosen, 0) ? 0 : -1;
    });
  }
}

/** Return where a key leads from one of `count` places, or null if it leads nowhere. */
function stepped({ key, ctrlKey, altKey, metaKey }, from, count) {
  if (ctrlKey || altKey || metaKey) return null;
  const to = { ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1,
    Home: 0, End: count - 1 }[key];
  return to === undefined ? null : (Math.max(to, -1) + count) % count;
}

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
      label.push(`gate ${gate.toFixed(2)}`);
    }
    if (chance !== undefined) {
      button.append(made("span", { class: "chance" }, percent(chance)));
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
