// Layers × kinds as coloured cells. Arrow keys move between them; a click or Enter chooses one.

/**
 * Returns the map that the report came with, of `rows` as its cells number them.
 * `textOf(rows)` explains a cell; `choose(rows, name)` is called with a cell's rows, or null.
 */
function makeHeatMap(map, { rows, textOf, choose, label }) {
  const first = map.cells.some((cell) => cell.column === 0) ? 0 : 1;
  const names = map.columns.slice(first);
  const grid = make("div", { class: "heat", role: "grid", "aria-label": label });
  grid.style.gridTemplateColumns = `max-content repeat(${names.length}, minmax(0.95rem, 1fr))`;
  grid.style.maxWidth = `${16 + 3 * names.length}rem`;
  let chosen = null;
  const stackOf = ["", ...map.stacks.flatMap(([name, count]) => Array(count).fill(name))];
  const clear = () => { chosen?.setAttribute("aria-selected", "false"); chosen = null; };
  const makeCell = (cell) => {
    const some = cell.spots.map((place) => rows[place]);
    const layer = map.columns[cell.column];
    const stack = map.stacks.length > 1 ? stackOf[cell.column] : "layer";
    const name = [layer && `${stack} ${layer}`, map.kinds[cell.kind]].filter(Boolean).join(" · ");
    const button = make("button", {
      role: "gridcell", tabindex: -1, class: cell.state, "aria-label": `${name}: ${textOf(some).replaceAll("\n", ", ")}`,
      onclick: () => {
        const isAgain = chosen === button;
        clear();
        if (!isAgain) { chosen = button; button.setAttribute("aria-selected", "true"); }
        choose(isAgain ? null : some, name);
      },
    }, { broken: "!", unmeasured: "×", added: "+", removed: "−" }[cell.state] ?? "");
    if (cell.state === "changed") button.dataset.shade = cell.shade;
    explain(button, () => `${name}\n${textOf(some)}`);
    return button;
  };
  const lines = map.kinds.map(() => names.map(() => null));
  for (const cell of map.cells) lines[cell.kind][cell.column - first] = makeCell(cell);
  lines.forEach((line, at) => grid.append(make("div", { role: "row" },
    make("span", { class: "kind", role: "rowheader", title: map.kinds[at] }, map.kinds[at]),
    line.map((cell) => cell ?? make("span", { class: "gap", role: "gridcell" })))));
  const every = Math.ceil(names.length / 24);
  grid.append(make("div", { role: "row" },
    make("span", { class: "kind quiet", role: "columnheader" }, names.length + first > 1 ? "layer" : ""),
    names.map((name, at) => make("span", { class: "layer", role: "columnheader" }, name && (at + first - 1) % every ? "" : name || "–"))));
  if (map.stacks.length > 1) grid.append(makeStacks(map.stacks, first));
  moveWithArrows(grid);
  const scale = make("span", { class: "ramp" });
  const paint = () => {
    const stops = getComputedStyle(root).getPropertyValue("--ramp").trim().split(/\s*,\s*/);
    for (const button of grid.querySelectorAll("[data-shade]")) {
      button.style.background = rampColour(stops, Number(button.dataset.shade));
    }
    scale.style.background = `linear-gradient(to right, ${stops})`;
  };
  new MutationObserver(paint).observe(root, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
  const legend = make("p", { class: "legend" },
    make("span", {}, `${shortText(map.span[0])} `, scale, ` ${shortText(map.span[1])}`),
    [["same", "unchanged"], ["broken", "NaN or Inf"]].map(([state, word]) =>
      make("span", {}, make("span", { class: `swatch ${state}` }), word)),
    make("span", {}, "+ added, − removed, × changed without figures"),
    map.kinds_left_out ? make("span", {}, `${countText(map.kinds_left_out, "kind")} more in the table`) : null);
  return { element: make("div", {}, make("div", { class: "scroll" }, grid), legend), clear };
}

/** Returns a row that names the stacks of layers, each below its columns. */
function makeStacks(stacks, first) {
  const names = stacks.map(([name, count]) => {
    const element = make("span", { class: "stack", role: "columnheader", title: name }, name);
    element.style.gridColumn = `span ${count}`;
    return element;
  });
  return make("div", { role: "row" }, make("span", { class: "kind" }), first ? null : make("span", {}), names);
}

function moveWithArrows(grid) {
  const rows = [...grid.querySelectorAll("[role=row]")].map((row) => [...row.children].slice(1));
  const first = grid.querySelector("button");
  if (first) first.tabIndex = 0;
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    let y = rows.findIndex((row) => row.includes(event.target));
    let x = rows[y].indexOf(event.target);
    do { y += step[0]; x += step[1]; } while (rows[y]?.[x] && rows[y][x].tagName !== "BUTTON");
    if (rows[y]?.[x]) {
      event.target.tabIndex = -1;
      rows[y][x].tabIndex = 0;
      rows[y][x].focus();
    }
  });
}
