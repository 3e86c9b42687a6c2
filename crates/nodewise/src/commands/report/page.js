const body = document.querySelector("#memory tbody");
const text = (row, column) => row.cells[column].textContent;
const order = (a, b) => {
  const [x, y] = [parseFloat(a), parseFloat(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
};
document.querySelectorAll("#memory th").forEach((head, column, heads) => {
  head.querySelector("button").addEventListener("click", () => {
    const descends = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", descends ? "descending" : "ascending");
    const sorted = [...body.rows].sort((a, b) => order(text(a, column), text(b, column)));
    body.append(...(descends ? sorted.reverse() : sorted));
  });
});
document.querySelector("#filter").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
