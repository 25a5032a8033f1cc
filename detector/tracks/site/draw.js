// Draw lines and zones over a picture with a mouse or finger: on the pages of `detect-video zones` and of a run.
"use strict";

// `board` gets the drawing, over its content; `panel` gets the buttons. `shapes`: {kind, name, points, in, out}, in
// pixels of the picture. `changed` gets the text after each change.
function drawLines({ width, height, board, panel, shapes = [], changed = () => {} }) {
  const over = new AbortController();
  let kind = "line", open = null, held = null;

  function make(tag, attributes, ...children) {
    const svg = ["svg", "g", "polygon", "polyline", "circle", "text"].includes(tag);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) if (typeof value === "function") element.addEventListener(key, value); else element.setAttribute(key, value);
    element.append(...children);
    return element;
  }
  const button = (text, click, more = {}) => make("button", { type: "button", click, ...more }, text);

  const layer = make("g", {}), svg = make("svg", { viewBox: `0 0 ${width} ${height}` }, layer);
  const kinds = ["line", "zone"].map((one) => button(one === "line" ? "Line" : "Zone", () => { close(); kind = one; draw(); }, { class: `draw-${one}` }));
  const help = make("p", {}), wrong = make("p", { class: "wrong", role: "alert" }), list = make("ul", {});
  const done = button("Close zone", () => close(), { class: "draw-done" });
  panel.append(make("div", { class: "row" }, ...kinds, button("Undo", undo), done), help, list, wrong);
  board.append(svg);

  function at(event) {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    return [[x, width], [y, height]].map(([value, most]) => Math.round(Math.min(Math.max(value, 0), most)));
  }
  function freeName() {
    let n = 1;
    while (shapes.some((one) => one.name === `${kind}${n}`)) n += 1;
    return `${kind}${n}`;
  }
  const isWhole = (one) => one.points.length >= (one.kind === "line" ? 2 : 3);
  function remove(shape) {
    shapes.splice(shapes.indexOf(shape), 1);
    if (shape === open) open = null;
    draw();
  }
  function close() {
    if (open && !isWhole(open)) remove(open);
    open = null;
    draw();
  }
  function undo() {
    open = open ?? shapes.at(-1) ?? null;
    open?.points.pop();
    if (open && !open.points.length) remove(open); else draw();
  }
  svg.addEventListener("pointerdown", (event) => {
    if (event.target.dataset.point) {
      held = [shapes[event.target.dataset.shape].points, Number(event.target.dataset.point)];
      svg.setPointerCapture(event.pointerId);
      return;
    }
    const point = at(event);
    if (!open) shapes.push(open = { kind, name: freeName(), points: [] });
    if (String(open.points.at(-1)) !== String(point)) open.points.push(point);
    if (open.kind === "line" && isWhole(open)) close(); else draw();
  });
  svg.addEventListener("pointermove", (event) => { if (held) { held[0][held[1]] = at(event); draw(); } });
  svg.addEventListener("pointerup", () => { held = null; });
  svg.addEventListener("dblclick", close);
  addEventListener("keydown", (event) => { if (["Enter", "Escape"].includes(event.key) && !["INPUT", "BUTTON"].includes(event.target.tagName)) close(); }, { signal: over.signal });

  // Return an arrow from the middle of a line to its side "in".
  function arrow([[x1, y1], [x2, y2]], unit) {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1, reach = Math.min(0.15 * length, 4 * unit);
    const along = [(x2 - x1) / length, (y2 - y1) / length], right = [-along[1], along[0]];
    const tip = [(x1 + x2) / 2, (y1 + y2) / 2].map((one, i) => one + right[i] * reach);
    const barb = (turn) => tip.map((one, i) => one - right[i] * reach * 0.35 + turn * along[i] * reach * 0.25);
    return [[(x1 + x2) / 2, (y1 + y2) / 2], tip, barb(1), tip, barb(-1)];
  }
  function draw() {
    // Texts and points are large enough for a small screen.
    const unit = Math.max(Math.max(width, height) / 100, 6 * width / (svg.clientWidth || width));
    const stroke = { fill: "none", stroke: "#ffdc3c", "stroke-width": 2, "vector-effect": "non-scaling-stroke" };
    const words = (text, x, y, size) => make("text", { x, y, "font-size": size * unit, fill: "#ffdc3c", stroke: "#000",
      "stroke-width": 0.2 * size * unit, "paint-order": "stroke", "font-weight": 600, "pointer-events": "none" }, text);
    layer.replaceChildren(...shapes.flatMap((shape, number) => {
      const zone = shape.kind === "zone" && shape !== open, [[left, top]] = shape.points;
      const drawn = [make(zone ? "polygon" : "polyline", { ...stroke, points: shape.points.join(" "), fill: zone ? "#ffdc3c22" : "none" })];
      if (shape.kind === "line" && isWhole(shape)) {
        const way = arrow(shape.points, unit), [x, y] = way[1];
        drawn.push(make("polyline", { ...stroke, points: way.join(" ") }), words(shape.in || "in", x + unit / 2, y + unit, 1.6));
      }
      drawn.push(...shape.points.map(([cx, cy], point) => make("circle", { cx, cy, r: 0.6 * unit, fill: "#ffdc3c", stroke: "transparent",
        "stroke-width": 14, "vector-effect": "non-scaling-stroke", cursor: "move", "data-shape": number, "data-point": point })));
      return [...drawn, words(shape.name, left + unit, Math.max(top, 3 * unit) - unit, 2)];
    }));
    kinds.forEach((one) => one.setAttribute("aria-pressed", one.className === `draw-${kind}`));
    done.hidden = open?.kind !== "zone";
    help.textContent = !done.hidden ? "Click the corners. Press Enter or double-click to close the zone."
      : "Click two points for a line, or choose Zone. Drag points to move them. The arrow points in: over a line drawn "
        + "from left to right, moving down is in (as in ultralytics; supervision calls that out). Reverse turns it.";
    list.replaceChildren(...shapes.map(row));
    const names = shapes.map((one) => one.name), twice = names.find((one, i) => names.indexOf(one) !== i);
    wrong.textContent = twice ? `The name ${twice} is used twice.` : "";
    changed(text());
  }
  function row(shape) {
    const field = (key, label, more) => {
      const before = key === "name" ? shape.name : "";
      const take = () => { shape[key] = input.value.trim() || before; changed(text()); };
      const input = make("input", { "aria-label": label, input: take, change: () => { take(); draw(); }, ...more });
      input.value = shape[key] || "";
      return input;
    };
    const side = (key) => field(key, `what ${key} is called`, { placeholder: key, size: 8 });
    const ofLine = shape.kind === "line" ? [side("in"), side("out"), button("Reverse", () => { shape.points.reverse(); draw(); })] : [];
    return make("li", { class: "row" }, field("name", `name of the ${shape.kind}`, { size: 12 }), ...ofLine, button("Remove", () => remove(shape)));
  }
  // Return a section of the file of --zones. `unfinished`: include an unfinished shape.
  function text(unfinished = false) {
    const lines = [`size: [${width}, ${height}]`];
    for (const group of ["line", "zone"]) {
      const some = shapes.filter((one) => one.kind === group && (unfinished || one !== open));
      if (some.length) lines.push(`${group}s:`);
      for (const one of some) {
        const points = one.points.map((point) => `[${point.map((value) => Math.round(value * 1e6) / 1e6).join(", ")}]`).join(", ");
        lines.push(`  ${JSON.stringify(one.name)}:`, `    points: [${points}]`);
        for (const key of ["in", "out"]) if (one[key]) lines.push(`    ${key}: ${JSON.stringify(one[key])}`);
      }
    }
    return `${lines.join("\n")}\n`;
  }
  draw();
  return { text, complain: (why) => { wrong.textContent = why; }, end: () => { over.abort(); svg.remove(); } };
}
