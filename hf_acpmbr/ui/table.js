// Sorts the rows of a table by the column whose header is pressed; `element` comes from gradio.
function value(row, column) {
  const cell = row.children[column];
  const number = Number(cell.textContent);
  return !cell.classList.contains("number") ? cell.textContent : Number.isNaN(number) ? null : number;
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  return typeof one === "string" ? one.localeCompare(other) : one - other;
}

// The listener sits on the component itself, which stays when its inside is drawn anew.
element.addEventListener("click", (event) => {
  const header = event.target.closest("th");
  if (!header) return;
  const column = [...header.parentNode.children].indexOf(header);
  const descending = header.getAttribute("aria-sort") === "ascending";
  for (const each of header.parentNode.children) each.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = header.closest("table").tBodies[0];
  const sign = descending ? -1 : 1;
  const rows = [...body.rows].sort((a, b) => sign * compare(value(a, column), value(b, column)));
  body.append(...rows);
});
