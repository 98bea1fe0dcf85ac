// What every report is made of: elements, numbers as text, the theme, one tip for all of the page.

/** Returns the report as `--json` prints it: lists of objects come as their columns. */
function unpack(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(unpack);
  if (!Array.isArray(value.columns) || !Array.isArray(value.keys)) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, unpack(item)]));
  }
  const columns = value.columns.map(unpack);
  return columns[0].map((_, at) => {
    const known = value.keys.map((key, place) => [key, columns[place][at]]).filter(([, item]) => item !== null);
    return known.length ? Object.fromEntries(known) : null;
  });
}

const report = unpack(JSON.parse(document.getElementById("report").textContent));

/** Returns text with every sign escaped that would not simply be shown: names may be hostile. */
function shown(text) {
  return String(text).replace(
    /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\u2028\u2029]/gu,
    (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`,
  );
}

/** Returns a new element; `on…` attributes are listeners, and strings become text, never markup. */
function make(tag, attributes, ...children) {
  const isSvg = /^(svg|g|rect|line|text|title|path)$/.test(tag);
  const element = isSvg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : shown(value));
    }
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : shown(child));
    }
  }
  return element;
}

/** Returns a number of the report: "nan" and "inf", which JSON lacks, come first in a ranking. */
function rank(value) {
  if (value === null || value === undefined) return -Infinity;
  return typeof value === "number" ? value : value === "-inf" ? -Number.MAX_VALUE : Infinity;
}

function numberText(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value.replace("nan", "NaN").replace("inf", "Inf");
  if (value === 0 || Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) return String(Number(value.toPrecision(digits)));
  return value.toExponential(2).replace("e+", "e");
}

/** Returns numbers of an axis with as many digits as tell them apart, two or more; null has no text. */
function edgeTexts(edges) {
  for (let digits = 2; ; digits += 1) {
    const texts = edges.map((edge) => edge === null ? "" : shortText(edge, digits));
    if (digits === 9 || new Set(texts).size === new Set(edges).size) return texts;
  }
}

function shortText(value, digits = 2) {
  return Math.abs(value) >= 1e-3 || value === 0 ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 2);
}

function percentText(share) {
  if (typeof share !== "number") return "–";
  const percent = 100 * share;
  if (percent === 0 || percent >= 9.95) return `${percent.toFixed(percent > 99.95 && share < 1 ? 2 : 0)} %`;
  return `${percent < 0.01 ? "< 0.01" : Number(percent.toPrecision(2))} %`;
}

function countText(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

const tip = document.body.appendChild(make("div", { id: "tip", hidden: true, "aria-hidden": "true" }));

/** Shows text beside whatever the pointer or the focus is on. */
function explain(element, text) {
  const show = () => {
    tip.textContent = text().split("\n").map(shown).join("\n");
    tip.hidden = false;
    const at = element.getBoundingClientRect();
    const left = Math.min(at.left, innerWidth - tip.offsetWidth - 8);
    const isAbove = at.bottom + tip.offsetHeight + 8 > innerHeight;
    tip.style.left = `${Math.max(left, 8)}px`;
    tip.style.top = `${isAbove ? at.top - tip.offsetHeight - 6 : at.bottom + 6}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const name of ["pointerenter", "focus"]) element.addEventListener(name, show);
  for (const name of ["pointerleave", "blur"]) element.addEventListener(name, hide);
}
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });

const root = document.documentElement;
function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Returns a colour between the stops of a ramp; 0 is its low end, 1 its high end. */
function rampColour(stops, place) {
  const at = Math.min(Math.max(place, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return `color-mix(in srgb, ${stops[low + 1]} ${100 * (at - low)}%, ${stops[low]})`;
}

/**
 * Returns what was compared, and what came of it in words and figures.
 * `show(names, text)` is called to look at the tensors that a verdict rests on.
 */
function makeOverview({ title, sides, verdicts, cards }, show) {
  const label = () => (isDark() ? "Light" : "Dark");
  const theme = make("button", {
    id: "theme", "aria-label": "Switch between light and dark",
    onclick: () => { root.dataset.theme = isDark() ? "light" : "dark"; theme.textContent = label(); },
  }, label());
  const boxes = sides.map((side) => make("div", { class: "side" }, make("strong", {}, side.label),
    side.lines.map((line) => make("div", { class: "quiet" }, line))));
  return [
    make("header", {}, make("h1", {}, title), theme),
    make("div", { class: "sides" }, boxes.flatMap((box, at) =>
      (at ? [make("div", { class: "arrow", role: "img", "aria-label": "against" }, "→"), box] : [box]))),
    verdicts.length > 0 && makeSection("Verdict", make("ul", { class: "verdicts" },
      verdicts.map(({ level, text, tensors }) => make("li", { class: level }, make("span", {}, text, " ",
        show && tensors?.length > 0 && make("button", { class: "link", onclick: () => show(tensors, text) },
          `show ${countText(tensors.length, "tensor")}`)))))),
    make("dl", { class: "cards" }, cards.map(({ name, figure, level, remark }) =>
      make("div", { class: `card ${level ?? ""}` }, make("dt", {}, name),
        make("dd", {}, figure, remark && make("div", { class: "quiet" }, remark)))))];
}

function makeSection(title, ...children) {
  const head = make("h2", { id: title.toLowerCase().replace(/[^a-z]+/g, "-") }, title);
  return make("section", { "aria-labelledby": head.id }, head, ...children);
}


/** Returns figures with their names, without those that are not known. */
function makeFacts(facts) {
  return make("dl", { class: "facts" }, facts.filter(([, value]) => value !== "–").map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}
