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

// What keys need to scroll, and what the theme leaves out for screen readers.
addEventListener("load", () => {
  const focusable = () => {
    for (const each of document.querySelectorAll("pre, article p, .table-wrapper, .chart, .equation")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
      else each.removeAttribute("tabindex");
    }
  };
  focusable();
  addEventListener("resize", focusable);
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
});
