// Figures open at their full size; on narrow screens each cell of a table of results has its heading.
addEventListener("DOMContentLoaded", () => {
  for (const image of document.querySelectorAll("article p > img:only-child")) {
    image.addEventListener("click", () => open(image.src, "_blank"));
  }
  for (const table of document.querySelectorAll("table.results")) {
    const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const row of table.tBodies[0].rows) {
      for (const cell of row.cells) {
        if (cell.textContent.trim()) cell.dataset.name = names[cell.cellIndex];
      }
    }
    table.classList.add("named");
  }
});
