// What `mvc diff --html` shows: the overview, the heat map, and the table of tensors.

/** Returns `old → new`, or one of them if both are the same. */
function beforeAfter(old, now) {
  return old === now ? now : `${old} → ${now}`;
}

/** Returns a figure of a row, or undefined if nothing was compared. */
const get = (row, name) => row.statistics?.[name];
const badIn = (health) => health.nan + health.inf;
const isBroken = (row) => Boolean(row.statistics) && badIn(row.statistics.new) > badIn(row.statistics.old);
const numberOf = (name) => (row) => numberText(get(row, name));
const normText = (row) => beforeAfter(numberOf("norm_old")(row), numberOf("norm_new")(row));
const healthText = (row, name) => beforeAfter(numberText(get(row, "old")?.[name]), numberText(get(row, "new")?.[name]));

function shapeText(row) {
  if (!row.dtype) return "–";
  const text = (dtype, shape) => `${dtype}[${shape.join(", ")}]`;
  return beforeAfter(text(row.old_dtype ?? row.dtype, row.old_shape ?? row.shape), text(row.dtype, row.shape));
}

function cosineText(value) {
  return typeof value === "number" ? String(Number(value.toFixed(6))) : numberText(value);
}

const BADGES = { added: "good", removed: "bad", renamed: "quiet" };

function makeBadges(row) {
  return [row.status in BADGES && make("span", { class: `badge ${BADGES[row.status]}` }, row.status),
    isBroken(row) && make("span", { class: "badge bad" }, "NaN or Inf")];
}

const COLUMNS = [
  { title: "Tensor", about: "Sort by name", value: (row) => row.name, badges: makeBadges },
  { title: "σ", about: "Σ|A−B| / (Σ|A|+Σ|B|)", value: (row) => get(row, "sigma"), text: (row) => numberText(get(row, "sigma")) },
  { title: "changed", about: "Share of elements that differ in a bit", value: (row) => get(row, "share_changed"), text: (row) => percentText(get(row, "share_changed")) },
  { title: "rel. L2", about: "‖A−B‖ / ‖A‖", value: (row) => get(row, "relative_l2"), text: (row) => numberText(get(row, "relative_l2")), wide: true },
  { title: "cosine", about: "Cosine of the angle between old and new", value: (row) => get(row, "cosine"), text: (row) => cosineText(get(row, "cosine")), wide: true },
  { title: "max |Δ|", about: "Largest difference of an element", value: (row) => get(row, "max"), text: numberOf("max"), wide: true },
  { title: "norm", about: "‖A‖ → ‖B‖", value: (row) => get(row, "norm_new"), text: normText, wide: true },
  { title: "type, shape", about: "Sort by size", value: (row) => row.size_bytes ?? 0, text: shapeText, wide: true },
];

/** Returns how far rows moved when those of the same token are compared, where the tokenizer changed. */
function tokenFacts(name) {
  const found = report.tokens?.statistics;
  if (!found || !Object.hasOwn(found, name)) return [];
  const { sigma, relative_l2: distance, cosine } = found[name] ?? { sigma: 0, relative_l2: 0, cosine: 1 };
  return [["σ by token", numberText(sigma)], ["relative L2 by token", numberText(distance)], ["cosine by token", cosineText(cosine)]];
}

function spectrumFacts(spectrum) {
  if (!spectrum) return [];
  const { sigma_1: largest, stable_rank: stable, rank_90: rank90, rank_99: rank99, full_rank: full } = spectrum;
  return [["largest singular value of Δ", numberText(largest)], ["stable rank of Δ", numberText(stable)],
    ["rank for 90 %, 99 % of Δ", `${numberText(rank90)}, ${numberText(rank99)} of ${numberText(full)}`]];
}

function makeDetail(row) {
  const ulps = ["ulp_50", "ulp_99", "ulp_max"].map((name) => numberOf(name)(row)).join(", ");
  const place = get(row, "max_index");
  const facts = [
    ["elements compared", numberOf("elements")(row)], ["elements changed", percentText(get(row, "share_changed"))],
    ["σ", numberOf("sigma")(row)], ["relative L2", numberOf("relative_l2")(row)], ["cosine", cosineText(get(row, "cosine"))],
    ["max |Δ|", numberOf("max")(row) + (place?.length ? ` at [${place.join(", ")}]` : "")],
    ["ULP 50 %, 99 %, max", ulps === "–, –, –" ? "–" : ulps], ["norm", normText(row)],
    ["NaN", healthText(row, "nan")], ["Inf", healthText(row, "inf")], ["zeros", healthText(row, "zeros")],
    ["saturated", healthText(row, "saturated")], ...tokenFacts(row.name), ...spectrumFacts(row.spectrum)];
  const counts = get(row, "histogram") ?? [];
  return make("div", {}, make("div", { class: "mono" }, row.name),
    row.old_name && make("div", { class: "quiet mono" }, `was ${row.old_name}`),
    make("div", { class: "quiet" }, `${row.path} · ${row.kind} · ${shapeText(row)}`),
    row.statistics && makeFacts(facts),
    counts.length > 1 && makeHistogram(spread(counts)));
}

/** Returns the histogram of one tensor: exponents of two, each with its count, as buckets. */
function spread(counts) {
  const found = new Map(counts);
  const [low, high] = [counts[0][0], counts[counts.length - 1][0]];
  const exponents = Array.from({ length: high - low + 2 }, (_, at) => low + at);
  const series = [{ name: "", counts: exponents.slice(0, -1).map((exponent) => found.get(exponent) ?? 0) }];
  return { title: "Sizes of the differences", axis: "|new − old|", edges: exponents.map((exponent) => 2 ** exponent), series };
}

/** Returns what a cell of the heat map stands for in words. */
function cellText(rows) {
  const worst = rows.reduce((a, b) => (rank(get(b, "sigma")) > rank(get(a, "sigma")) ? b : a));
  const lines = [`σ ${numberOf("sigma")(worst)}, ${percentText(get(worst, "share_changed"))} changed, max |Δ| ${numberOf("max")(worst)}`];
  if (!worst.statistics) lines[0] = worst.status;
  if (rows.length > 1) lines.push(`the largest of ${countText(rows.length, "tensor")}`);
  else lines.push(shapeText(worst));
  if (rows.some((row) => isBroken(row))) lines.push("NaN or Inf");
  return lines.join("\n");
}

const rows = report.tensors.map((row, key) => Object.assign(row, { key }));
const modules = new Map(report.modules.map((row) => [row.name, row]));
const table = new Table({
  title: "Tensors", noun: "tensor", rows, columns: COLUMNS, folded: true, sortBy: { at: 1, isDown: true },
  moduleOf: (path) => modules.get(path), detailOf: makeDetail,
  isQuiet: (row) => (row.status ? row.status === "unchanged" : row.differing === 0),
  choices: [["All", () => true], ["That differ", (row) => row.status !== "unchanged"],
    ["Changed", (row) => row.status === "modified"], ["Added", (row) => row.status === "added"],
    ["Removed", (row) => row.status === "removed"], ["Renamed", (row) => row.status === "renamed"],
    ["NaN or Inf", (row) => isBroken(row)]],
});
const heat = makeHeatMap(report.overview.heat, {
  rows, textOf: cellText, choose: (some, name) => table.choose(some, name), label: report.overview.heat_title,
});
table.onClear = heat.clear;

function showTensors(names, text) {
  const wanted = new Set(names);
  table.choose(rows.filter((row) => wanted.has(row.name)), text);
  table.element.scrollIntoView({ block: "start" });
}

document.body.append(make("main", {}, ...makeOverview(report.overview, showTensors),
  makeSection(report.overview.heat_title, heat.element),
  report.overview.histograms.map((one) => makeSection(one.title, makeHistogram(one))), table.element));
