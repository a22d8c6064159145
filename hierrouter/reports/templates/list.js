// The queries, as a list of which only what is in sight is made.

const ROW_HEIGHT = 46; // pixels, as in explore.css
const BEYOND = 6; // rows made above and below what is in sight

/** Names in lower case, with the question where it is here, to be searched. */
function haystacks(cache) {
  return cache.ids.map((id, query) => {
    const texts = cache.texts.get(query);
    return `${nameOf(cache, query)} ${texts?.question ?? ""}`.toLowerCase();
  });
}

const nameOf = (cache, query) => `${cache.datasets[cache.dataset[query]]}/${cache.ids[query]}`;

const ORDERS = {
  regret: (regret) => (a, b) => regret[b] - regret[a] || a - b,
  collected: () => (a, b) => a - b,
};

class QueryList {
  /** `onPick` is told the query that the reader goes to. */
  constructor(cache, box, onPick) {
    this.cache = cache;
    this.box = box;
    this.onPick = onPick;
    this.rows = box.firstElementChild;
    this.found = haystacks(cache);
    this.order = [];
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    box.addEventListener("keydown", (event) => this.#key(event));
    this.rows.addEventListener("click", ({ target }) => {
      const option = target.closest("[role=option]");
      if (option) this.onPick(Number(option.dataset.query));
    });
  }

  /** Which queries are listed: those of a column that hold the text. */
  filter(column, text) {
    const { cache, found } = this, wanted = text.trim().toLowerCase();
    const every = column === cache.datasets.length;
    this.listed = Array.from({ length: cache.count }, (_, query) => query).filter(
      (query) => (every || cache.dataset[query] === column) && found[query].includes(wanted),
    );
  }

  /** In which order, and with which regrets. */
  show(regret, order, chosen) {
    this.regret = regret;
    this.order = this.listed.toSorted(ORDERS[order](regret));
    this.chosen = chosen;
    this.draw();
  }

  draw() {
    const { box, rows, order } = this;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - BEYOND);
    const count = Math.ceil(box.clientHeight / ROW_HEIGHT) + 2 * BEYOND;
    rows.style.setProperty("height", `${order.length * ROW_HEIGHT}px`);
    rows.replaceChildren(
      ...order.slice(first, first + count).map((query, at) => this.#option(query, first + at)),
    );
    const shown = rows.querySelector("[aria-selected=true]");
    box.setAttribute("aria-activedescendant", shown?.id ?? "");
  }

  /** Bring a query into sight. */
  reveal(query) {
    const at = this.order.indexOf(query), { box } = this;
    if (at < 0) return;
    const top = at * ROW_HEIGHT, bottom = top + ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight;
    this.draw();
  }

  #option(query, at) {
    const { cache, regret } = this;
    const option = make(
      "div",
      {
        role: "option",
        id: `query-${query}`,
        "data-query": query,
        "aria-selected": query === this.chosen,
        "aria-posinset": at + 1,
        "aria-setsize": this.order.length,
      },
      make("span", { kind: "id", text: cache.ids[query] }),
      make("span", { kind: "regret", text: regret[query].toFixed(3) }),
      make("span", { kind: "of", text: cache.datasets[cache.dataset[query]] }),
      make("span", { kind: "of", text: cache.texts.has(query) ? "" : "no texts" }),
    );
    option.style.setProperty("top", `${at * ROW_HEIGHT}px`);
    return option;
  }

  /** Pick a query so many places further down. */
  walk(places) {
    const last = this.order.length - 1, goal = this.order.indexOf(this.chosen) + places;
    if (last >= 0) this.onPick(this.order[Math.min(last, Math.max(0, goal))]);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1);
    const { length } = this.order, steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
    const places = { ...steps, Home: -length, End: length }[event.key];
    if (places === undefined) return;
    event.preventDefault();
    this.walk(places);
  }
}
