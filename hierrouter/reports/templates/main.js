// The state of the page, and one drawing for all that changes between two frames.

const HASH_DELAY = 250; // milliseconds; browsers limit how often an address may change
const LONGEST_NOTE = 200; // characters of an address that is not understood

/** Everything, once the data are there. */
function start(cache) {
  const EVERY = cache.datasets.length;
  const boxes = [...document.querySelectorAll(".legend input")];
  const keys = boxes.map(({ dataset }) => dataset.key);
  const state = {
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
    tree: new QueryTree(cache, redraw),
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
    const found = frontierOf(cache, priced, scene, state.column, isShown);
    drawFrontier(byId("frontier"), found, state.logarithmic, cache.unit);
    showTables();
    showList();
    clearTimeout(saving);
    saving = setTimeout(saveView, HASH_DELAY);
  }

  const isShown = (key) => !state.without.has(key);
  const shownPolicies = () => policiesOf(priced, scene).filter(({ key }) => isShown(key));

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
    for (const box of boxes) box.checked = isShown(box.dataset.key);
  }

  function routerNote(router) {
    if (!priced.router) return `${router.name} needs training again: it knows the whole pool only.`;
    const repriced = [...state.choice.factors.values()].some((factor) => factor !== 1);
    const old = " It chose its routes under the old prices; their cost is told under the new ones.";
    return `${router.name}: ${router.note}.${repriced ? old : ""}`;
  }

  function showTables() {
    showPolicies(cache, views.policies, shownPolicies(), scene.alpha, state.column);
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
    const { kept } = state.choice;
    if (state.query !== null) views.tree.show(state.query, priced, scene, kept, shownPolicies());
  }

  function pick(query) {
    state.query = query;
    redraw();
    requestAnimationFrame(() => views.list.reveal(query));
  }

  function move(positions) {
    const last = cache.alphas.length - 1;
    state.position = Math.min(last, Math.max(0, state.position + positions));
    redraw();
  }

  /** The view as the end of the address, in the place of the one before. */
  function saveView() {
    history.replaceState(null, "", `#${addressOf(cache, state, scene.alpha)}`);
  }

  /** Set all as an address says; what it does not name is as on a fresh page. */
  function goTo(address) {
    const { found, refused } = settingsIn(cache, address, keys);
    Object.assign(state, {
      position: found.alpha.length ? nearest(found.alpha[0]) : cache.start,
      query: found.query[0] ?? null,
      column: found.dataset[0] ?? EVERY,
      order: found.order[0] ?? "regret",
      text: found.find[0] ?? "",
      logarithmic: found.axis.length ? Boolean(found.axis[0]) : state.spread,
      without: new Set(found.without),
    });
    if (cache.routers.length) state.choice.router = found.router[0] ?? 0;
    setPrices(new Map(found.price), found.models.map((action) => cache.models[action]));
    for (const id of ["order", "log", "dataset", "router", "search"]) show[id](byId(id));
    stale.listed = true;
    byId("address-note").hidden = !refused.length;
    const named = refused.join(", ");
    const cut = named.length > LONGEST_NOTE ? `${named.slice(0, LONGEST_NOTE)}…` : named;
    byId("address-note").textContent = `Left out of the address, as this page has no such thing: ${cut}`;
    redraw();
    if (state.query !== null) pick(state.query);
  }

  const show = {
    order: (element) => (element.value = state.order),
    log: (element) => (element.checked = state.logarithmic),
    dataset: (element) => (element.value = state.column),
    router: (element) => (element.value = state.choice.router),
    search: (element) => (element.value = state.text),
  };

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

  function saveOnClick(id, name, type, text) {
    byId(id).addEventListener("click", () => save(name, type, text()));
  }

  byId("alpha").max = cache.alphas.length - 1;
  fillChoice(byId("dataset"), [...cache.datasets, ALL], EVERY);
  fillChoice(byId("router"), cache.routers.map(({ name }) => name), state.choice.router);
  state.spread = spreadWide(pricedScene(cache, state.choice));
  const setPrices = makePrices(cache, byId("prices"), (changed) => {
    Object.assign(state.choice, changed);
    stale.priced = true;
    redraw();
  });
  listen("reset", "click", () => setPrices(new Map(), []));
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
  listen("log", "change", ({ checked }) => (state.logarithmic = checked));
  listen("all-routes", "toggle", () => {});
  for (const box of boxes) {
    box.addEventListener("change", () => {
      state.without[box.checked ? "delete" : "add"](box.dataset.key);
      redraw();
    });
  }
  const seen = () => `alpha ${scene.alpha}, ${[...cache.datasets, ALL][state.column]}`;
  saveOnClick("save-figures", "figures.csv", "text/csv", () => {
    const policies = [...shownPolicies(), ...(isShown("route") ? priced.routes : [])];
    return figuresCsv(cache, policies, scene.alpha, state.column);
  });
  saveOnClick("save-queries", "queries.csv", "text/csv", () =>
    queriesCsv(cache, views.list.order, shownPolicies(), scene));
  saveOnClick("save-frontier", "frontier.svg", "image/svg+xml", () =>
    standalone(byId("frontier"), `Mean quality over mean cost: ${seen()}`));
  listenToKeys(byId("keys"), byId("signs"), {
    ArrowLeft: (far) => move(far ? -10 : -1),
    ArrowRight: (far) => move(far ? 10 : 1),
    j: () => views.list.walk(1),
    k: () => views.list.walk(-1),
    "/": () => byId("search").focus(),
    "?": () => byId("keys").showModal(),
  });
  addEventListener("resize", redraw);
  // The event's own address: by now the page may have written another one.
  addEventListener("hashchange", ({ newURL }) => goTo(newURL));
  goTo(location.href);
}

inflated(byId("data").textContent).then(
  (text) => start(readCache(text)),
  () => {
    byId("address-note").hidden = false;
    byId("address-note").textContent = "This browser cannot unpack the page; take one of 2023 or later.";
  },
);
