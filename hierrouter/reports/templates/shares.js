// Which routes are taken on which dataset: two heat maps.

// How many have a column of their own, on a desk and on a phone; the rest shares the last one.
const MOST_ROUTES = matchMedia("(max-width: 40rem)").matches ? 6 : 10;
const ALL = "all";

/** Nodes with a column: those that oracle and router take most often over all alphas. */
function shownRoutes(priced) {
  const taken = [...priced.usage.keys()].filter((node) => priced.usage[node] > 0);
  const often = taken.sort((a, b) => priced.usage[b] - priced.usage[a]);
  const nodes = often.slice(0, MOST_ROUTES).sort((a, b) => a - b);
  return { nodes, rest: often.length > MOST_ROUTES };
}

/** Two tables with the same columns; made anew where prices or models change. */
function shareTables(cache, priced, tables) {
  const { nodes, rest } = shownRoutes(priced);
  const titles = [...nodes.map((node) => routeName(cache, node)), ...(rest ? ["other"] : [])];
  const columns = titles.map((title) => ({ title, format: "percent", paint: paintShare }));
  const column = new Int32Array(cache.size).fill(nodes.length);
  nodes.forEach((node, at) => (column[node] = at));
  return {
    column,
    count: titles.length,
    tables: tables.map((table) => {
      table.tHead?.remove();
      for (const body of [...table.tBodies]) body.remove();
      return new NumberTable(table, [{ title: "dataset" }, ...columns]);
    }),
  };
}

function paintShare(cell, share) {
  cell.style.setProperty("--share", share === null ? 0 : share.toFixed(3));
  cell.classList.toggle("nothing", !share);
}

/** Shares of each dataset's queries by route; a dash where a policy has no endings. */
function showShares(cache, { tables, column, count }, policies) {
  tables.forEach((table, which) => {
    const counted = policies[which] && countEnds(cache, policies[which].ends, column, count);
    table.fill([...cache.datasets, ALL].map((name, dataset) => ({
      name,
      kind: dataset === cache.datasets.length ? "total" : "",
      values: Array.from({ length: count }, (_, at) =>
        counted ? counted[dataset * count + at] / cache.sizes[dataset] : null),
    })));
  });
}

function countEnds(cache, ends, column, count) {
  const every = cache.datasets.length, found = new Float64Array((every + 1) * count);
  for (let query = 0; query < cache.count; query++) {
    const at = column[cache.route[ends[query]]];
    found[cache.dataset[query] * count + at] += 1;
    found[every * count + at] += 1;
  }
  return found;
}
