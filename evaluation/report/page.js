// Press a column's name to sort by it; blocks of rows stay together.
for (const header of document.querySelectorAll("table thead th")) {
  header.tabIndex = 0;
  header.setAttribute("aria-sort", "none");
  const sort = () => {
    const column = [...header.parentNode.children].indexOf(header);
    const sign = header.getAttribute("aria-sort") === "descending" ? 1 : -1;
    for (const other of header.parentNode.children) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const value = (row) => {
      const text = row.children[column].textContent.trim();
      const number = parseFloat(text.replaceAll(",", ""));
      return Number.isNaN(number) ? text : number;
    };
    const compare = (a, b) => {
      const [one, other] = [value(a), value(b)];
      if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
      return sign * (typeof one === "number" ? one - other : one.localeCompare(other));
    };
    for (const body of header.closest("table").tBodies) body.append(...[...body.rows].sort(compare));
  };
  header.addEventListener("click", sort);
  header.addEventListener("keydown", (event) => {
    if (event.key === "Enter") sort();
  });
}
