// A click on a heading sorts its table (again: the other way round); words in the box hide rows that lack one of them.
const units = { s: 1, min: 60, h: 3600, d: 86400 };
function key(text) {
  const found = /^-?[\d,]*\.?\d+(e[+-]?\d+)?/i.exec(text);
  if (!found) return null;
  const unit = text.slice(found[0].length).trim().split(" ")[0];
  return parseFloat(found[0].replaceAll(",", "")) * (units[unit] || 1);
}
for (const table of document.querySelectorAll("table")) {
  const [head, ...rows] = table.rows;
  [...head.cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.textContent = cell.textContent;
    cell.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = cell.getAttribute("aria-sort") !== "ascending";
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", up ? "ascending" : "descending");
      const of = (row) => row.cells[column].textContent;
      rows.sort((a, b) => {
        const x = key(of(a)), y = key(of(b));
        const less = x !== null && y !== null ? x - y : of(a).localeCompare(of(b));
        return up ? less : -less;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
document.querySelector("input[type=search]").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const table of document.querySelectorAll("table"))
    for (const row of [...table.rows].slice(1))
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
});
