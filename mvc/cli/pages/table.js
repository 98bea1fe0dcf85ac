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
 * A table of `rows`: each has key and name.
 *
 * `columns` are {title, about, value(row), text(row), wide}; the first names the row and may have
 * badges(row). `moduleOf(path)` returns the figures of a module, `detailOf(row)` an element; `choices`
 * are [name, test] that a menu offers. Rows with `isQuiet` stand back. `onClear` is called when a
 * selection made by `choose` ends.
 */
class Table {
  constructor(options) {
    const usual = { moduleOf: null, sortBy: null, folded: false, limit: MOST_ROWS, isQuiet: () => false, onClear: () => {} };
    Object.assign(this, usual, options);
    this.open = new Set();
    this.details = new Set();
    this.only = null;
    this.sort = this.folded ? null : this.sortBy;
    this.most = this.limit;
    this.element = this.makeElement();
    if (this.folded) openUntil(growTree(this.rows), this.open, this.moduleOf);
    this.draw();
  }

  makeElement() {
    const again = () => this.drawAgain();
    this.head = make("tr", {}, this.columns.map((column, at) => this.makeHead(column, at)));
    this.body = make("tbody", { onkeydown: (event) => this.moveFocus(event) });
    this.status = make("p", { class: "quiet", role: "status" });
    this.more = make("button", { onclick: () => { this.most += MOST_ROWS; this.draw(); } });
    this.menu = make("select", { "aria-label": "Show", onchange: again }, this.choices.map(([name]) => make("option", {}, name)));
    this.search = make("input", {
      type: "search", placeholder: "Filter by name, such as mlp or *.norm.*", "aria-label": `Filter the ${this.noun}s by name`,
      spellcheck: "false", autocomplete: "off", oninput: again,
    });
    this.picked = make("button", { hidden: true, onclick: () => this.choose(null) });
    this.modes = [true, false].map((isFolded) =>
      make("button", { onclick: () => this.setFolded(isFolded) }, isFolded ? "Modules" : "List"));
    const arrange = this.moduleOf && make("div", { class: "both", role: "group", "aria-label": "Arrange" }, this.modes);
    const isLong = this.rows.length > FIRST_ROWS || this.moduleOf;
    return makeSection(this.title,
      isLong && make("div", { class: "tools" }, this.search, this.menu, this.picked, arrange), this.status,
      make("div", { class: "scroll" }, make("table", { role: "treegrid", "aria-label": this.title }, make("thead", {}, this.head), this.body)),
      this.more);
  }

  makeHead(column, at) {
    const sort = () => {
      this.sort = { at, isDown: this.sort?.at === at ? !this.sort.isDown : at > 0 };
      this.draw();
    };
    return make("th", { scope: "col", class: `${at ? "" : "name"} ${column.wide ? "wide" : ""}` },
      make("button", { title: column.about, onclick: sort }, column.title));
  }

  setFolded(isFolded) {
    this.folded = isFolded;
    this.sort = isFolded ? null : this.sortBy;
    this.drawAgain();
  }

  /** Shows some rows alone, under a name; null shows all again. */
  choose(some, name = "") {
    this.only = some && new Set(some);
    if (some) {
      this.folded = false;
      this.sort ??= this.sortBy;
    } else this.onClear();
    this.picked.hidden = !some;
    this.picked.textContent = `${shown(name)} ✕`;
    this.picked.setAttribute("aria-label", `Show all again, not only ${shown(name)}`);
    this.drawAgain();
  }

  inOrder(some, figuresOf = (row) => row) {
    if (!this.sort) return some;
    const { value } = this.columns[this.sort.at];
    const way = this.sort.isDown ? -1 : 1;
    const compare = this.sort.at ? (a, b) => rank(a) - rank(b) || 0 : (a, b) => a.localeCompare(b, "en", { numeric: true });
    return [...some].sort((a, b) => way * compare(value(figuresOf(a)), value(figuresOf(b))));
  }

  /** Yields a line for each module and row below a node; those of closed modules are left out. */
  * walk(node, depth) {
    const figuresOf = (one) => (one.children ? this.moduleOf(one.path) ?? { name: one.path } : one);
    const start = node.path ? node.path.length + 1 : 0;
    for (const child of this.inOrder([...node.children.values()].map(onlyChild), figuresOf)) {
      const isModule = Boolean(child.children);
      const label = (isModule ? child.path : child.name).slice(start);
      const isOpen = isModule ? this.open.has(child.path) : this.details.has(child.key);
      yield { depth, node: child, figures: figuresOf(child), label, isModule, isOpen };
      if (isModule && isOpen) yield* this.walk(child, depth + 1);
    }
  }

  * list(rows) {
    for (const row of this.inOrder(rows)) {
      yield { depth: 0, node: row, figures: row, label: row.name, isModule: false, isOpen: this.details.has(row.key) };
    }
  }

  toggle({ node, isModule }) {
    const [set, key] = isModule ? [this.open, node.path] : [this.details, node.key];
    if (!set.delete(key)) set.add(key);
    this.draw();
    [...this.body.children].find((row) => row.dataset.key === String(key))?.focus();
  }

  makeLine(line, at) {
    const { node, figures, depth, isModule, isOpen } = line;
    const row = make("tr", {
      class: `${isModule ? "module" : ""} ${this.isQuiet(figures) ? "quiet" : ""}`, tabindex: at ? -1 : 0,
      "aria-level": depth + 1, "aria-expanded": String(isOpen), onclick: () => this.toggle(line),
      onkeydown: (event) => {
        const isWanted = { Enter: true, " ": true, ArrowRight: !isOpen, ArrowLeft: isOpen }[event.key];
        if (isWanted) { event.preventDefault(); this.toggle(line); }
      },
    }, this.makeName(line), this.columns.slice(1).map((column) =>
      make("td", { class: column.wide && "wide" }, column.text(figures))));
    row.dataset.key = isModule ? node.path : node.key;
    if (isModule || !isOpen) return [row];
    return [row, make("tr", { class: "detail" }, make("td", { colspan: this.columns.length }, this.detailOf(node)))];
  }

  makeName({ node, figures, depth, label, isModule, isOpen }) {
    const sign = make("span", { class: "fold", "aria-hidden": "true" }, isModule ? (isOpen ? "▾" : "▸") : "");
    const badges = isModule ? make("span", { class: "badge quiet" }, countText(node.count, this.noun)) : this.columns[0].badges?.(node);
    const cell = make("td", { class: "name", title: figures.name }, make("div", {}, this.folded && sign, label, badges));
    if (this.folded) cell.style.paddingLeft = `${0.5 + depth * 1.1}rem`;
    return cell;
  }

  moveFocus(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const rows = [...this.body.querySelectorAll("tr[tabindex]")];
    const next = step && rows[rows.indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  drawAgain() {
    this.most = this.limit;
    this.draw();
  }

  draw() {
    const isNamed = nameTest(this.search.value);
    const isAllowed = this.choices[this.menu.selectedIndex][1];
    const left = this.rows.filter((row) => (!this.only || this.only.has(row)) && isAllowed(row)
      && isNamed((row.searched ??= row.name.toLowerCase())));
    const lines = [];
    for (const line of this.folded ? this.walk(growTree(left), 0) : this.list(left)) {
      lines.push(line);
      if (lines.length > this.most) break;
    }
    this.body.replaceChildren(...lines.slice(0, this.most).flatMap((line, at) => this.makeLine(line, at)));
    this.more.hidden = lines.length <= this.most;
    this.more.textContent = this.folded ? "Show more" : `Show ${Math.min(MOST_ROWS, left.length - this.most)} more`;
    this.drawState(left.length);
  }

  drawState(count) {
    const total = countText(this.rows.length, this.noun);
    this.status.textContent = count === this.rows.length ? total : `${count.toLocaleString("en-US")} of ${total}`;
    [...this.head.children].forEach((cell, at) => cell.setAttribute("aria-sort",
      this.sort?.at !== at ? "none" : this.sort.isDown ? "descending" : "ascending"));
    this.modes.forEach((button, at) => button.setAttribute("aria-pressed", String(this.folded === !at)));
  }
}
