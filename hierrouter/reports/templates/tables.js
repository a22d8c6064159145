// Headlines and tables.

const CARDS = ["router", "fixed", "oracle", "gap"];

/** The numbers for a reader in a hurry. */
function showHeadlines(cache, priced, scene, column, lacking) {
  const fixed = bestFixed(cache, priced, scene, column);
  const figures = (policy) => policy && figuresOf(cache, policy.sums, scene.alpha, column);
  const told = {
    router: [figures(scene.router), scene.router ? scene.router.name : lacking],
    fixed: [figures(fixed), fixed ? fixed.name : "no route is offered for all queries"],
    oracle: [figures(scene.oracle), "best route of each query, in hindsight"],
  };
  for (const [key, [found, detail]] of Object.entries(told)) {
    const card = byId(`card-${key}`);
    showNumber(card.querySelector("strong"), found?.reward, "fixed");
    const parts = found ? `Q ${found.quality.toFixed(3)}, C ${short(found.cost)}` : "";
    card.querySelector(".numbers").textContent = parts;
    card.querySelector(".detail").textContent = detail;
  }
  const gap = byId("card-gap");
  showNumber(gap.querySelector("strong"), gapAt(cache, priced, scene, column), "share");
  const width = fixed ? told.oracle[0].reward - told.fixed[0].reward : null;
  gap.querySelector(".detail").textContent =
    width === null ? "" : `of ${width.toFixed(3)} from fixed route to oracle`;
}

const FIGURES = [
  { key: "quality", title: "Q", hint: "mean quality", format: "fixed" },
  { key: "accuracy", title: "accuracy", hint: "share of right answers", format: "share" },
  { key: "cost", title: "C", hint: "mean cost of a query", format: "cost" },
  { key: "reward", title: "R", hint: "Q − alpha C", format: "fixed" },
];

const policyTable = (table) => new NumberTable(table, [{ title: "policy" }, ...FIGURES]);

/** Policies on the queries of one column. */
function showPolicies(cache, table, policies, alpha, column) {
  table.fill(policies.map(({ name, kind, sums }) => {
    const found = figuresOf(cache, sums, alpha, column);
    return { name, kind, values: FIGURES.map(({ key }) => found[key]) };
  }));
}

const datasetTable = (table) =>
  new NumberTable(table, [
    { title: "dataset" },
    { title: "queries", format: "count" },
    { title: "R HierRouter", format: "fixed" },
    { title: "R best fixed", hint: "the best fixed route on these very queries", format: "fixed" },
    { title: "R oracle", format: "fixed" },
    { title: "gap closed", format: "share" },
    { title: "Q HierRouter", format: "fixed" },
    { title: "C HierRouter", format: "cost" },
  ]);

/** One row a dataset, all queries last. */
function showDatasets(cache, table, priced, scene) {
  const figures = (policy, column) =>
    policy ? figuresOf(cache, policy.sums, scene.alpha, column) : {};
  table.fill([...cache.datasets, ALL].map((name, column) => {
    const router = figures(scene.router, column);
    return {
      name,
      kind: column === cache.datasets.length ? "total" : "",
      values: [
        cache.sizes[column],
        router.reward,
        figures(bestFixed(cache, priced, scene, column), column).reward,
        figures(scene.oracle, column).reward,
        gapAt(cache, priced, scene, column),
        router.quality,
        router.cost,
      ],
    };
  }));
}
