"use strict";
// Tables can be sorted by their headings; before printing, nothing stays folded.

const missing = (text) => text === "" || text === "n/a";

function compare(one, other, isNumber) {
  if (missing(one) || missing(other)) return missing(one) - missing(other);
  return isNumber ? Number(one) - Number(other) : one.localeCompare(other, "en", { numeric: true });
}

function sortRows(table, column, isNumber, isDescending) {
  const body = table.tBodies[0];
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value ?? cell.textContent.trim();
  };
  const rows = [...body.rows].map((row, index) => ({ row, index, key: key(row) }));
  rows.sort((one, other) => {
    const order = compare(one.key, other.key, isNumber);
    const isTurned = isDescending && !missing(one.key) && !missing(other.key);
    return (isTurned ? -order : order) || one.index - other.index;
  });
  body.append(...rows.map((entry) => entry.row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const isNumber = heading.dataset.type === "number";
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      // The first click shows the largest numbers, or the first words.
      const isDescending = before === "none" ? isNumber : before === "ascending";
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      sortRows(table, column, isNumber, isDescending);
    });
  });
}

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
