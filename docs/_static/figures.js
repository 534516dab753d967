// Figures open at their full size.
addEventListener("DOMContentLoaded", () => {
  for (const image of document.querySelectorAll("article p > img:only-child")) {
    image.addEventListener("click", () => open(image.src, "_blank"));
  }
});
