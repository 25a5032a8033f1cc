"use strict";
// Tables: a click on a column's head sorts by it, a second click reverses the order; a filter hides rows.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const absent = (row) => row.cells[column].classList.contains("none"); // last in either order
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (absent(a) || absent(b)) return absent(a) - absent(b);
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
    body.parentElement.classList.toggle("filtered", wanted !== ""); // a filter searches folded rows, too
  });
}
for (const button of document.querySelectorAll("button.more")) {
  const table = document.getElementById(button.dataset.table), more = button.textContent;
  button.addEventListener("click", () => {
    const folded = table.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!folded));
    button.textContent = folded ? more : `show the first ${table.dataset.most} only`;
  });
}
// The timeline: buttons, or the wheel with Ctrl or Shift, zoom; dragging moves; a double click shows all again. Only the
// view of the inner SVG with the slices changes; the marks of the axis are replaced.
for (const svg of document.querySelectorAll("svg.zoom")) {
  const inner = svg.querySelector("svg"), marks = svg.querySelector(".ticks");
  const whole = inner.viewBox.baseVal.width, height = inner.viewBox.baseVal.height;
  const span = Number(svg.dataset.span), edge = Number(svg.dataset.left), below = svg.viewBox.baseVal.height - 6;
  let left = 0, width = whole, from = null;
  const show = () => {
    width = Math.min(whole, Math.max(whole / 500, width));
    left = Math.min(whole - width, Math.max(0, left));
    inner.setAttribute("viewBox", `${left} 0 ${width} ${height}`);
    const start = (left / whole) * span, shown = (width / whole) * span;
    const power = 10 ** Math.floor(Math.log10(shown / 8));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= shown / 8);
    marks.replaceChildren();
    for (let at = Math.ceil(start / step); at * step <= start + shown; at += 1) {
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.setAttribute("x", edge + ((at * step - start) / shown) * whole);
      text.setAttribute("y", below);
      text.setAttribute("text-anchor", "middle");
      text.setAttribute("class", "dim");
      text.textContent = `${Number((at * step).toPrecision(6))} ms`;
      marks.append(text);
    }
  };
  const at = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width - edge;
    return left + (x / whole) * width;
  };
  const zoom = (point, factor) => {
    left = point - (point - left) * factor;
    width *= factor;
    show();
  };
  const all = () => { left = 0; width = whole; show(); };
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    zoom(at(event), (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8);
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => { from = at(event); });
  svg.addEventListener("pointermove", (event) => { if (from !== null) { left += from - at(event); show(); } });
  addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("dblclick", all);
  for (const button of svg.closest("section").querySelectorAll("button[data-zoom]")) {
    const factor = Number(button.dataset.zoom);
    button.addEventListener("click", () => (factor ? zoom(left + width / 2, factor) : all()));
  }
}
