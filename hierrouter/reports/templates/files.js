// What is seen, as files: tables as CSV, the frontier as SVG.

const FORMULA = /^\s*[=+\-@\t\r\n]/; // what a spreadsheet would work out, see tables.py

function csvCell(value) {
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value ?? "") ? `'${value}` : value ?? "";
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csvOf = (rows) => rows.map((row) => `${row.map(csvCell).join(",")}\n`).join("");

/** The figures of policies on the queries of one column. */
function figuresCsv(cache, policies, alpha, column) {
  const dataset = [...cache.datasets, ALL][column], keys = FIGURES.map(({ key }) => key);
  const rows = policies.map(({ name, kind, sums }) => {
    const found = figuresOf(cache, sums, alpha, column);
    return [name, kind, dataset, cache.sizes[column], alpha, ...keys.map((key) => found[key])];
  });
  return csvOf([["policy", "kind", "dataset", "queries", "alpha", ...keys], ...rows]);
}

/** Queries in their order, and what each policy does on them. */
function queriesCsv(cache, queries, policies, scene) {
  const shown = policies.filter(({ at }) => at), figures = ["quality", "accuracy", "cost", "reward"];
  const titles = shown.flatMap(({ name, ends }) =>
    [...(ends ? ["route"] : []), ...figures].map((title) => `${name}: ${title}`));
  const rows = queries.map((query) => [
    cache.ids[query],
    cache.datasets[cache.dataset[query]],
    cache.texts.get(query)?.question,
    scene.alpha,
    scene.regret[query],
    ...shown.flatMap(({ ends, at }) => {
      const values = at(query), reward = values[0] - scene.alpha * values[2];
      return [...(ends ? [endName(cache, ends[query])] : []), ...values.map((value) => (Number.isNaN(value) ? null : value)), reward];
    }),
  ]);
  return csvOf([["query", "dataset", "question", "alpha", "regret", ...titles], ...rows]);
}

const INLINED = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
  "paint-order", "opacity", "font-family", "font-size", "text-anchor",
];

/** A drawing that needs no style sheet, on the ground that it has here. */
function standalone(svg, title) {
  const copy = svg.cloneNode(true), ground = getComputedStyle(svg.closest("figure")).backgroundColor;
  const targets = [copy, ...copy.querySelectorAll("*")];
  [svg, ...svg.querySelectorAll("*")].forEach((element, at) => {
    const style = getComputedStyle(element);
    if (!["title", "g"].includes(element.localName)) {
      for (const key of INLINED) targets[at].setAttribute(key, style.getPropertyValue(key));
    }
    targets[at].removeAttribute("class");
  });
  copy.querySelector("title").textContent = title;
  copy.querySelector("g").before(makeSvg("rect", { width: "100%", height: "100%", fill: ground }));
  return new XMLSerializer().serializeToString(copy);
}
