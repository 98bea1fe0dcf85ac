// One table, as a list that sorts or as modules that fold; filters hold in both.

const MOST_ROWS = 200;
const FIRST_ROWS = 8;

/** Returns a test for names: words that must all occur; one with * or ? has to match the whole name. */
function nameTest(query) {
  const tests = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    if (!/[*?]/.test(word)) return (name) => name.includes(word);
    const pattern = word.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
    const whole = new RegExp(`^${pattern}$`, "s");
    return (name) => whole.test(name);
  });
  return (name) => tests.every((test) => test(name));
}

/** Returns the modules of rows as a tree; a module with a single child is one with it. */
function growTree(rows) {
  const top = { children: new Map(), path: "" };
  for (const row of rows) {
    let node = top;
    row.parts ??= row.name.split(".", 16);
    row.parts.slice(0, -1).forEach((part) => {
      const path = node === top ? part : `${node.path}.${part}`;
      const key = `m${part}`;
      if (!node.children.has(key)) node.children.set(key, { children: new Map(), path, count: 0 });
      node = node.children.get(key);
      node.count += 1;
    });
    node.children.set(`t${row.key}`, row);
  }
  return top;
}

function onlyChild(node) {
  let shownNode = node;
  while (shownNode.children?.size === 1) [shownNode] = shownNode.children.values();
  return shownNode;
}

/** Opens the modules with the most differences until there is something to look at. */
function openUntil(tree, open, moduleOf) {
  const weight = (node) => [moduleOf(node.path)?.differing ?? 0, node.count];
  let seen = [...tree.children.values()].map(onlyChild);
  while (seen.length < FIRST_ROWS) {
    const [largest] = seen.filter((node) => node.children && !open.has(node.path))
      .sort((a, b) => weight(b)[0] - weight(a)[0] || weight(b)[1] - weight(a)[1]);
    if (!largest) return;
    open.add(largest.path);
    seen = [...seen, ...[...largest.children.values()].map(onlyChild)];
  }
}

/**
 * Returns a table of `rows`: each has key and name.
 *
 * `columns` are {title, about, value(row), text(row), wide}; the first names the row. `moduleOf(path)`
 * returns the figures of a module, or null; `detailOf(row)` an element; `choices` are
 * [name, test] that a menu offers; rows with `isQuiet` stand back.
 */
function makeTable({ title, noun, rows, columns, moduleOf, detailOf, choices, sortBy = null, folded = false, limit = MOST_ROWS, isQuiet = () => false }) {
  const state = { folded, query: "", choice: 0, only: null, sort: null, open: new Set(), details: new Set(), limit };
  if (!folded) state.sort = sortBy;
  const head = make("tr", {}), body = make("tbody"), status = make("p", { class: "quiet", role: "status" });
  const more = make("button", { onclick: () => { state.limit += MOST_ROWS; draw(); } });

  columns.forEach((column, at) => {
    const cell = make("th", { scope: "col", class: `${at ? "" : "name"} ${column.wide ? "wide" : ""}` },
      make("button", {
        title: column.about,
        onclick: () => {
          const isDown = state.sort?.at === at ? !state.sort.isDown : at > 0;
          state.sort = { at, isDown };
          draw();
        },
      }, column.title));
    head.append(cell);
  });

  const compare = (a, b) => {
    const { at, isDown } = state.sort;
    const [one, two] = [columns[at].value(a), columns[at].value(b)];
    const order = typeof one === "string" && at === 0
      ? one.localeCompare(two, "en", { numeric: true }) : rank(one) - rank(two) || 0;
    return isDown ? -order : order;
  };
  const inOrder = (some, figuresOf) => (state.sort === null ? some
    : [...some].sort((a, b) => compare(figuresOf(a), figuresOf(b))));

  function* walk(node, depth) {
    const figures = (one) => (one.children ? moduleOf(one.path) ?? { name: one.path } : one);
    for (const child of inOrder([...node.children.values()].map(onlyChild), figures)) {
      const from = node.path ? node.path.length + 1 : 0;
      yield { depth, node: child, figures: figures(child), label: (child.children ? child.path : child.name).slice(from) };
      if (child.children && state.open.has(child.path)) yield* walk(child, depth + 1);
    }
  }

  const toggle = (line) => {
    const [set, key] = line.node.children ? [state.open, line.node.path] : [state.details, line.node.key];
    if (!set.delete(key)) set.add(key);
    draw(key);
  };

  const makeLine = (line, at) => {
    const { node, figures, label, depth } = line;
    const isModule = Boolean(node.children);
    const isOpen = isModule ? state.open.has(node.path) : state.details.has(node.key);
    const sign = isModule ? (isOpen ? "▾" : "▸") : "";
    const row = make("tr", {
      class: `${isModule ? "module" : ""} ${isQuiet(figures) ? "quiet" : ""}`, tabindex: at ? -1 : 0, "aria-level": depth + 1,
      "aria-expanded": String(isOpen), onclick: () => toggle(line),
      onkeydown: (event) => {
        const isWanted = { Enter: true, " ": true, ArrowRight: !isOpen, ArrowLeft: isOpen }[event.key];
        if (isWanted) { event.preventDefault(); toggle(line); }
      },
    });
    row.dataset.key = isModule ? node.path : node.key;
    columns.forEach((column, place) => {
      const content = place ? column.text(figures) : make("div", {},
        state.folded && make("span", { class: "fold", "aria-hidden": "true" }, sign),
        label, isModule ? make("span", { class: "badge quiet" }, countText(node.count, noun)) : column.badges?.(node));
      const cell = make("td", { class: `${place ? "" : "name"} ${column.wide ? "wide" : ""}`, title: place ? null : figures.name }, content);
      if (!place && state.folded) cell.style.paddingLeft = `${0.5 + depth * 1.1}rem`;
      row.append(cell);
    });
    return row;
  };

  const draw = (focusKey) => {
    const test = nameTest(state.query);
    const allowed = choices[state.choice][1];
    const left = rows.filter((row) => (!state.only || state.only.has(row)) && allowed(row)
      && test((row.searched ??= row.name.toLowerCase())));
    const lines = [];
    let isCut = false;
    const all = state.folded ? walk(growTree(left), 0)
      : inOrder(left, (row) => row).map((row) => ({ node: row, figures: row, label: row.name, depth: 0 }));
    for (const line of all) {
      if (lines.length === state.limit) { isCut = true; break; }
      lines.push(line);
    }
    body.replaceChildren(...lines.flatMap((line, at) => {
      const row = makeLine(line, at);
      if (line.node.children || !state.details.has(line.node.key)) return [row];
      return [row, make("tr", { class: "detail" }, make("td", { colspan: columns.length }, detailOf(line.node)))];
    }));
    [...head.children].forEach((cell, at) => {
      const way = state.sort?.at === at ? (state.sort.isDown ? "descending" : "ascending") : "none";
      cell.setAttribute("aria-sort", way);
    });
    for (const [at, button] of modes.entries()) button.setAttribute("aria-pressed", String(state.folded === !at));
    more.hidden = !isCut;
    more.textContent = state.folded ? "Show more" : `Show ${Math.min(MOST_ROWS, left.length - lines.length)} more`;
    status.textContent = left.length === rows.length ? countText(rows.length, noun)
      : `${left.length.toLocaleString("en-US")} of ${countText(rows.length, noun)}`;
    if (focusKey !== undefined) {
      const row = [...body.children].find((one) => one.dataset.key === String(focusKey));
      row?.focus();
    }
  };

  const again = () => { state.limit = limit; draw(); };
  const setFolded = (isFolded) => { state.folded = isFolded; state.sort = isFolded ? null : sortBy; again(); };
  const modes = [
    make("button", { onclick: () => setFolded(true) }, "Modules"),
    make("button", { onclick: () => setFolded(false) }, "List")];
  const picked = make("button", { hidden: true, onclick: () => choose(null, "") });
  const choose = (some, name, clear) => {
    state.only = some && new Set(some);
    if (some) { state.folded = false; state.sort ??= sortBy; }
    picked.hidden = !some;
    picked.textContent = `${shown(name)} ✕`;
    picked.setAttribute("aria-label", `Show all again, not only ${shown(name)}`);
    if (!some) onClear?.();
    again();
  };
  let onClear = null;

  body.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const lines = [...body.querySelectorAll("tr[tabindex]")];
    const next = lines[lines.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) { event.preventDefault(); event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });
  const menu = make("select", { "aria-label": "Show", onchange: () => { state.choice = menu.selectedIndex; again(); } },
    choices.map(([name]) => make("option", {}, name)));
  const search = make("input", {
    type: "search", placeholder: "Filter by name, such as mlp or *.norm.*", "aria-label": `Filter the ${noun}s by name`,
    spellcheck: "false", autocomplete: "off", oninput: () => { state.query = search.value; again(); },
  });
  if (folded) openUntil(growTree(rows), state.open, moduleOf);
  draw();
  const element = makeSection(title,
    rows.length > FIRST_ROWS && make("div", { class: "tools" }, search, menu, picked,
      moduleOf && make("div", { class: "both", role: "group", "aria-label": "Arrange" }, modes)),
    status, make("div", { class: "scroll" }, make("table", { role: "treegrid", "aria-label": title }, make("thead", {}, head), body)), more);
  return { element, choose, set clear(action) { onClear = action; }, show: (at) => { menu.selectedIndex = at; state.choice = at; again(); } };
}
