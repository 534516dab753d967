const MEAN = "mean"; // instead of a word: all words together

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
      button.append(made("span", { class: "chance", dir: "ltr" }, percent(chance)));
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
