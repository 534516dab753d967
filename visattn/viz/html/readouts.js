function phraseRows(phrase, word) {
  const inside = phrase.correctness[word], lift = inside - phrase.baseline;
  if (inside === undefined) return textRow("Inside the boxes", "not seen by the network");
  return [
    ...barRow("Inside the boxes", inside, inside.toFixed(2), phrase.baseline),
    ...textRow("By chance", phrase.baseline.toFixed(2)),
    ...textRow("Lift", `${lift < 0 ? "\u2212" : "+"}${Math.abs(lift).toFixed(2)}`),
    ...textRow("Peak of the phrase", phrase.pointed ? "inside \u2713" : "outside \u2717"),
  ];
}

/** Write what is known of a word, or of all of them together. */
function tell(caption, maps, at) {
  const rows = [], count = caption.words.length, words = caption.phrases.length ? "known" : "";
  const mean = at === MEAN || at === null;
  $("which").textContent = mean ? `All ${count} words` : `Word ${at + 1} of ${count}`;
  $("word").textContent = at === null ? "Photo alone" : mean ? "Mean of all maps" : caption.words[at];
  if (!mean && caption.chances.length) rows.push(...barRow("Probability", caption.chances[at], percent(caption.chances[at])));
  if (!mean && caption.gates.length) rows.push(...barRow("Gate \u03b2", caption.gates[at], caption.gates[at].toFixed(2)));
  if (at !== null) rows.push(...mapRows(mean ? maps[count] : maps[at]));
  $("facts").replaceChildren(...rows);
  const phrase = mean ? null : phraseOf(caption, at);
  $("found").hidden = !words;
  if (!words) return;
  $("phrase").textContent = phrase
    ? caption.words.slice(phrase.first, phrase.first + phrase.words).join(" ")
    : "No boxes are known for " + (mean ? "this" : "this word");
  $("judged").replaceChildren(...(phrase ? phraseRows(phrase, at - phrase.first) : []));
}

function phraseOf(caption, at) {
  return caption.phrases.find(({ first, words }) => at >= first && at < first + words);
}
