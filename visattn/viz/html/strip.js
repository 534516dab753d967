// The images of a page of several, side by side below the one in the frame.

/** The small images of a page of several, and the part of a map that lies on each. */
function stripStages() {
  const parts = partsOf(pageData.images ?? []);
  return [...document.querySelectorAll(".strip figure")].map((figure, index) => {
    const [image, canvas, boxes] = figure.querySelector(".pan").children;
    return { figure, stage: new Stage({ ...pageData.images[index], image, canvas, boxes }), part: parts[index] };
  });
}

/** Below each of several images: its share of the map that is shown. */
function showShares(strip, map) {
  if (!strip.length) return;
  const sum = (values) => values.reduce((all, value) => all + Math.max(value, 0), 0);
  const shares = map ? strip.map(({ part }) => sum(part(map))) : strip.map(() => 0);
  const total = Math.max(shares.reduce((all, share) => all + share, 0), 1e-12), most = Math.max(...shares, 1e-12);
  strip.forEach(({ figure }, index) => {
    figure.querySelector(".bar i").style.width = `${100 * shares[index] / most}%`;
    figure.querySelector(".number").textContent = map ? percent(shares[index] / total) : "";
    figure.classList.toggle("most", Boolean(map) && shares[index] === most);
  });
}
