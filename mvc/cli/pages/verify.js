// What `mvc verify --html` shows: a verdict for each layer, outputs as distributions, and tables.

const badge = (row) => (row.passed ? [] : [make("span", { class: "badge bad" }, "failed")]);
const number = (title, about, of, wide = false) => ({ title, about, value: of, text: (row) => numberText(of(row)), wide });
const named = (title) => ({ title, about: "Sort by name", value: (row) => row.name, badges: badge });
const PASSES = [["All", () => true], ["Failed", (row) => !row.passed], ["Passed", (row) => row.passed]];

function makePart(title, noun, rows, columns, sortAt, detailOf) {
  const known = rows.map((row, key) => ({ ...row, key, name: row.name || "the whole model" }))
    .sort((a, b) => a.passed - b.passed || rank(columns[sortAt].value(b)) - rank(columns[sortAt].value(a)));
  return new Table({ title, noun, rows: known, columns, choices: PASSES, detailOf, limit: 20 }).element;
}

const factsOf = (row, facts) => make("div", {}, make("div", { class: "mono" }, row.name), makeFacts(facts));

const MODULE_COLUMNS = [
  named("Module"),
  number("rel. L2", "‖A−B‖ / ‖A‖ of what the module returns", (row) => row.relative_l2),
  { title: "cosine", about: "Cosine of the angle between both", value: (row) => row.cosine, text: (row) => numberText(row.cosine, 8) },
  number("max |Δ|", "Largest difference of a number", (row) => row.largest_difference, true),
  { title: "class", about: "Class of the module", value: (row) => row.kind, text: (row) => row.kind, wide: true },
];
const makeModules = (title, found) => makePart(title, "module", found.modules, MODULE_COLUMNS, 1, (row) => factsOf(row, [
  ["class", row.kind], ["calls", numberText(row.calls)], ["numbers compared", numberText(row.elements)],
  ["cosine", numberText(row.cosine, 8)], ["relative L2", numberText(row.relative_l2)],
  ["max |Δ|", numberText(row.largest_difference)], ["not compared", row.reason ?? "–"]]));

const at = (index) => (index ? ` at [${index.join(", ")}]` : "");
const TENSOR_COLUMNS = [
  named("Tensor that differs"),
  number("max |Δ|", "Largest difference of an element", (row) => row.largest?.absolute),
  { title: "changed", about: "Elements that differ", value: (row) => row.elements.changed, text: (row) => numberText(row.elements.changed) },
  number("beyond", "Elements further apart than allowed", (row) => row.elements.beyond, true),
];
const makeTensors = (unit) => makePart("Tensors that differ", "tensor", unit.tensors, TENSOR_COLUMNS, 1, (row) => factsOf(row, [
  ["status", row.status], ["elements", numberText(row.elements.total)], ["changed", numberText(row.elements.changed)],
  ["beyond the tolerance", numberText(row.elements.beyond)],
  ["max |Δ|", numberText(row.largest?.absolute) + at(row.largest?.index)],
  ["first difference", row.first ? `${numberText(row.first.old, 9)} → ${numberText(row.first.new, 9)}${at(row.first.index)}` : "–"],
  ["in ULPs", numberText(row.first?.ulps)]]));

const TEST_COLUMNS = [
  named("Test"),
  number("statistic", "Value of the statistic", (row) => row.statistic),
  number("p", "How likely so large a value is if the models are alike", (row) => row.p, true),
  number("p, corrected", "After Holm's correction for all tests together", (row) => row.p_adjusted),
];

document.body.append(make("main", {}, makeOverview(report.overview),
  report.overview.histograms.map((one) => makeSection(one.title, makeHistogram(one))),
  report.system && makePart("Tests of the outputs", "test", report.system.tests, TEST_COLUMNS, 1, (row) => factsOf(row, [])),
  report.settings.map((one) => makeModules(`${one.setting}: ${one.old} and ${one.new}`, one)),
  report.module && makeModules("Modules", report.module),
  report.unit?.tensors.length > 0 && makeTensors(report.unit)));
