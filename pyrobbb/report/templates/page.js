"use strict";
const PRINTED = 440; // width of a chart on paper, whose letters then have their own size
for (const script of document.querySelectorAll("script[data-for]")) {
  const place = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  spec.description = place.dataset.words;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  vegaEmbed(place, spec, { renderer: "svg", actions: false, tooltip: { theme: dark ? "dark" : "light" } }).then(({ view }) => {
    addEventListener("beforeprint", () => view.signal("width", PRINTED).run());
    addEventListener("afterprint", () => view.signal("width", place.clientWidth).run());
  }).catch((error) => {
    place.textContent = "This chart could not be drawn; the table has its numbers.";
    console.error(error);
  });
}

for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}

for (const button of document.querySelectorAll(".sortable th button")) {
  const head = button.parentElement, row = head.parentElement, body = row.closest("table").tBodies[0];
  const column = [...row.cells].indexOf(head);
  const key = (line) => {
    const { sort } = line.cells[column].dataset;
    return sort === undefined ? line.cells[column].textContent.trim() : Number(sort);
  };
  const compare = (a, b) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what has no number goes last
    return typeof a === "number" ? a - b : a.localeCompare(b);
  };
  button.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of row.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const lines = [...body.rows].sort((a, b) => (down ? compare(key(b), key(a)) : compare(key(a), key(b))));
    body.append(...lines);
  });
}
