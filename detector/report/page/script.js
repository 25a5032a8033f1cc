"use strict";
// Tables: a click on a column's head sorts by it, a second one turns the order; a filter above hides rows.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = x !== "" && y !== "" && !isNaN(x) && !isNaN(y) ? x - y : x.localeCompare(y);
        return falling ? -order : order;
      });
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      body.append(...rows);
    });
  });
}
for (const input of document.querySelectorAll("input.filter")) {
  const body = document.getElementById(input.dataset.table).tBodies[0];
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
// The timeline: the wheel (with Ctrl) zooms around the pointer, dragging moves, a double click shows all again.
for (const svg of document.querySelectorAll("svg.zoom")) {
  const whole = svg.viewBox.baseVal.width, height = svg.viewBox.baseVal.height;
  let left = 0, width = whole, from = null;
  const show = () => {
    width = Math.min(whole, Math.max(whole / 200, width));
    left = Math.min(whole - width, Math.max(0, left));
    svg.setAttribute("viewBox", `${left} 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
  };
  const at = (event) => left + ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * width;
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const point = at(event), factor = event.deltaY > 0 ? 1.25 : 0.8;
    left = point - (point - left) * factor;
    width *= factor;
    show();
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => { from = at(event); });
  svg.addEventListener("pointermove", (event) => { if (from !== null) { left += from - at(event); show(); } });
  addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("dblclick", () => { left = 0; width = whole; show(); });
}
