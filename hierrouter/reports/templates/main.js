// The state of the page, and one drawing for all that changes between two frames.

const HASH_DELAY = 250; // milliseconds; browsers limit how often an address may change

const cache = readCache(byId("data").textContent);
const EVERY = cache.datasets.length;
const state = {
  position: cache.start,
  column: EVERY,
  query: null,
  order: "regret",
  text: "",
  choice: {
    factors: new Map(),
    kept: cache.models.map(() => true),
    router: cache.routers.length ? 0 : null,
  },
};
const views = {
  policies: policyTable(byId("policies")),
  routes: policyTable(byId("routes")),
  datasets: datasetTable(byId("datasets")),
  list: new QueryList(cache, byId("list"), pick),
  tree: new QueryTree(cache),
};
const stale = { priced: true, listed: true };
let priced, scene, shares, frame = 0, saving = 0;

/** Draw before the next frame, however often it is asked for. */
function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    draw();
  });
}

function draw() {
  if (stale.priced) {
    priced = pricedScene(cache, state.choice);
    shares = shareTables(cache, priced, [byId("shares-router"), byId("shares-oracle")]);
  }
  if (stale.listed) views.list.filter(state.column, state.text);
  stale.priced = stale.listed = false;
  scene = sceneAt(cache, priced, state.position);
  showAlpha();
  showHeadlines(cache, priced, scene, state.column, lacking());
  const found = frontierOf(cache, priced, scene, state.column);
  drawFrontier(byId("frontier"), found, byId("log").checked, cache.unit);
  showTables();
  showList();
  saveSoon();
}

/** Why there is no number for the router. */
function lacking() {
  if (!cache.routers.length) return "nothing trained";
  return "needs training again: a model was dropped";
}

function showAlpha() {
  const alpha = String(scene.alpha);
  byId("alpha").value = state.position;
  byId("alpha").setAttribute("aria-valuetext", `alpha ${alpha}`);
  byId("alpha-value").textContent = alpha;
  const router = cache.routers[state.choice.router];
  byId("router-note").textContent = router ? routerNote(router) : "";
  byId("blamed").textContent = blamedOf(scene)?.name ?? "nothing";
}

function routerNote(router) {
  if (!priced.router) return `${router.name} needs training again: it knows the whole pool only.`;
  const repriced = [...state.choice.factors.values()].some((factor) => factor !== 1);
  const old = " It chose its routes under the old prices; their cost is told under the new ones.";
  return `${router.name}: ${router.note}.${repriced ? old : ""}`;
}

function showTables() {
  showPolicies(cache, views.policies, policiesOf(priced, scene), scene.alpha, state.column);
  if (byId("all-routes").open) {
    showPolicies(cache, views.routes, priced.routes, scene.alpha, state.column);
  }
  showDatasets(cache, views.datasets, priced, scene);
  byId("shares-router").parentElement.hidden = !scene.router;
  showShares(cache, shares, [scene.router, scene.oracle]);
}

function showList() {
  views.list.show(scene.regret, state.order, state.query);
  const { length } = views.list.order;
  byId("found").textContent = [length, cache.count].map(FORMATS.count).join(" of ");
  if (state.query === null && length) {
    state.query = views.list.order[0];
    views.list.show(scene.regret, state.order, state.query);
  }
  if (state.query !== null) views.tree.show(state.query, priced, scene, state.choice.kept);
}

function pick(query) {
  state.query = query;
  redraw();
  requestAnimationFrame(() => views.list.reveal(query));
}

/** The view as the end of the address, so that it can be linked. */
function saveSoon() {
  clearTimeout(saving);
  saving = setTimeout(() => {
    const view = { alpha: String(scene.alpha) };
    if (state.query !== null) view.query = nameOf(cache, state.query);
    history.replaceState(null, "", `#${new URLSearchParams(view)}`);
  }, HASH_DELAY);
}

/** Go where an address says; what is not here is left as it is. */
function goTo(address) {
  const wanted = new URLSearchParams(new URL(address).hash.slice(1));
  const alpha = Number(wanted.get("alpha") ?? NaN), name = wanted.get("query");
  if (Number.isFinite(alpha)) state.position = nearest(alpha);
  const query = name === null ? -1 : cache.ids.findIndex((_, at) => nameOf(cache, at) === name);
  if (query >= 0) pick(query);
  redraw();
}

/** The position whose alpha is nearest. */
function nearest(alpha) {
  const away = cache.alphas.map((one) => Math.abs(one - alpha));
  return away.indexOf(Math.min(...away));
}

function listen(id, event, change) {
  byId(id).addEventListener(event, ({ currentTarget }) => {
    change(currentTarget);
    redraw();
  });
}

function start() {
  byId("alpha").max = cache.alphas.length - 1;
  fillChoice(byId("dataset"), [...cache.datasets, ALL], EVERY);
  fillChoice(byId("router"), cache.routers.map(({ name }) => name), state.choice.router);
  byId("log").checked = spreadWide(pricedScene(cache, state.choice));
  const reset = makePrices(cache, byId("prices"), (changed) => {
    Object.assign(state.choice, changed);
    stale.priced = true;
    redraw();
  });
  listen("reset", "click", reset);
  listen("alpha", "input", ({ value }) => (state.position = Number(value)));
  listen("dataset", "change", ({ value }) => {
    state.column = Number(value);
    stale.listed = true;
  });
  listen("router", "change", ({ value }) => {
    state.choice.router = Number(value);
    stale.priced = true;
  });
  listen("order", "change", ({ value }) => (state.order = value));
  listen("search", "input", ({ value }) => {
    state.text = value;
    stale.listed = true;
  });
  listen("log", "change", () => {});
  listen("all-routes", "toggle", () => {});
  addEventListener("resize", redraw);
  // The event's own address: by now the page may have written another one.
  addEventListener("hashchange", ({ newURL }) => goTo(newURL));
  goTo(location.href);
}

start();
