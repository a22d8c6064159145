// What there is to see: under chosen prices and models, and at one alpha.

const MOST_STEPS = 4e6; // of comparing endings for a curve; with more, it has fewer points

/** Rates of a list of models under the reader's factors. */
function ratesOf(names, rates, factors) {
  return rates.map(([rateIn, rateOut], at) => {
    const factor = factors.get(names[at]) ?? 1;
    return [rateIn * factor, rateOut * factor];
  });
}

/**
 * All that depends on prices, models and router, whatever alpha.
 * `choice`: factors by model, kept by action, router by number.
 */
function pricedScene(cache, choice) {
  const { count } = cache, router = cache.routers[choice.router] ?? null;
  const rates = ratesOf(cache.models, cache.nodes.rate, choice.factors);
  const cost = costsOfNodes(cache, rates);
  const endings = endingsOf(cache, choice.kept, router?.stop ?? false);
  const scene = {
    cost,
    rates,
    endings,
    router: choice.kept.every(Boolean) ? router : null,
    routes: endings.map((node) => ({
      name: routeName(cache, node),
      kind: "route",
      node,
      sums: tally(cache, cache.nodes, cost, (query) => node * count + query),
    })),
    calls: directCalls(cache, choice),
    train: cache.train?.columns.map(
      (column) => column && { column, cost: meanCosts(cache, column, rates) },
    ),
  };
  return { ...scene, ...curvesOf(cache, scene) };
}

/** The direct calls that are left: of models kept, and of reference models. */
function directCalls(cache, choice) {
  const { direct, count } = cache;
  const cost = costsOfDirect(cache, ratesOf(direct.models, direct.rate, choice.factors));
  return direct.models
    .map((name, row) => ({
      name,
      kind: direct.inPool[row] ? "single" : "reference",
      row,
      sums: tally(cache, direct, cost, (query) => row * count + query),
      cost: (query) => cost[row * count + query],
    }))
    .filter(({ name }) => choice.kept[cache.models.indexOf(name)] ?? true);
}

/** Oracle and router along the grid of alphas, and how often each route is taken there. */
function curvesOf(cache, scene) {
  const { alphas, count } = cache, usage = new Float64Array(cache.size);
  const every = Math.ceil((alphas.length * count * scene.endings.length) / MOST_STEPS);
  const grid = [...alphas.keys()].filter((at) => at % every === 0 || at === alphas.length - 1);
  const along = (endsAt) => grid.map((at) => {
    const ends = endsAt(at);
    for (const node of ends) usage[node] += 1;
    return tally(cache, cache.nodes, scene.cost, (query) => ends[query] * count + query);
  });
  return {
    oracleCurve: along((at) => bestEndings(cache, scene.cost, alphas[at], scene.endings)),
    routerCurve: scene.router ? along((at) => scene.router.ends[at]) : null,
    usage,
  };
}

/** All that depends on alpha, too. */
function sceneAt(cache, priced, position) {
  const { count } = cache, alpha = cache.alphas[position];
  const oracle = bestEndings(cache, priced.cost, alpha, priced.endings);
  const router = priced.router ? priced.router.ends[position] : null;
  const trained = priced.train ? trainChoices(cache, priced, alpha) : null;
  const ending = (name, kind, ends) => ({
    name,
    kind,
    ends,
    sums: tally(cache, cache.nodes, priced.cost, (query) => ends[query] * count + query),
  });
  const fixed = trained && priced.routes.find(({ node }) => node === trained.overall);
  const scene = {
    alpha,
    position,
    oracle: ending("oracle", "oracle", oracle),
    router: router && ending(priced.router.name, "router", router),
    fixed: fixed && { ...fixed, name: "best fixed route (train)", route: fixed.name },
    byDataset:
      trained && ending("best route per dataset", "baseline", everyDataset(cache, trained.choices)),
    worth: (node, query) =>
      cache.nodes.score[node * count + query] - alpha * priced.cost[node * count + query],
    random: { name: "random", kind: "baseline", sums: meanTally(priced.routes.map((r) => r.sums)) },
  };
  return { ...scene, regret: regretOf(scene) };
}

/** The fixed route that is best on the train fold: over all, and for each dataset. */
function trainChoices(cache, priced, alpha) {
  const choose = ({ column, cost }) => bestRoute(column, cost, alpha, priced.endings);
  const overall = choose(priced.train.at(-1));
  const choices = priced.train.slice(0, -1).map((known) => (known ? choose(known) : overall));
  return { overall, choices };
}

const everyDataset = (cache, choices) =>
  Uint32Array.from(cache.dataset, (number) => choices[number]);

/** float64[queries]: what the router loses to the oracle; without one, the best fixed route. */
function regretOf({ oracle, worth, ...scene }) {
  const blamed = blamedOf(scene);
  const end = (query) => blamed.ends?.[query] ?? blamed.node;
  const lost = (best, query) => worth(best, query) - worth(end(query), query);
  return blamed ? Float64Array.from(oracle.ends, lost) : new Float64Array(oracle.ends.length);
}

/** Whose regret is told. */
const blamedOf = (scene) => scene.router ?? scene.fixed;

/** The fixed route with the highest R on the queries of a column; the cheaper one on a tie. */
function bestFixed(cache, priced, scene, column) {
  const worth = (route) => figuresOf(cache, route.sums, scene.alpha, column);
  return priced.routes.reduce((best, route) => {
    const here = worth(route), there = worth(best);
    const better =
      here.reward > there.reward || (here.reward === there.reward && here.cost < there.cost);
    return better ? route : best;
  });
}

/** Share of the gap that the router closes on a column; null without a router or a gap. */
function gapAt(cache, priced, scene, column) {
  if (!scene.router) return null;
  const fixed = bestFixed(cache, priced, scene, column);
  const [router, route, oracle] = [scene.router, fixed, scene.oracle].map(
    ({ sums }) => figuresOf(cache, sums, scene.alpha, column).reward,
  );
  return gapClosed(router, route, oracle);
}
