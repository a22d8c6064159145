// One query: its tree with every answer, and what each policy chose in it.

const WHOLE_TREE = 60; // calls; of larger trees only what some route passes is unfolded

/** Right or wrong; imported scores may lie between. */
function verdict(accuracy) {
  if (Number.isNaN(accuracy)) return "not judged";
  if (accuracy === 1) return "right";
  return accuracy === 0 ? "wrong" : `${accuracy.toFixed(2)} right`;
}

const calledInTree = ({ kind, name }) => (kind === "router" ? "HierRouter" : name);

class QueryTree {
  /** `onBuilt` is told where a part of a large tree is unfolded for the first time. */
  constructor(cache, onBuilt) {
    this.cache = cache;
    this.onBuilt = onBuilt;
    this.whole = cache.size <= WHOLE_TREE;
    this.table = new NumberTable(byId("chosen-table"), [
      { title: "who" },
      { title: "Q", format: "fixed" },
      { title: "C", format: "cost" },
      { title: "R", format: "fixed" },
      { title: "regret", hint: "R of the oracle less R", format: "fixed" },
    ]);
  }

  /** Show a query under a scene. */
  show(query, priced, scene, kept, policies) {
    if (query !== this.query) this.#build(query);
    const ends = this.#ends(policies);
    if (this.fresh) this.#unfold(ends);
    this.#fillNodes(priced, scene, ends, kept);
    this.table.fill(policies.filter(({ at }) => at).map((policy) => this.#row(policy, scene)));
  }

  #build(query) {
    const { cache } = this, texts = cache.texts.get(query);
    this.query = query;
    this.fresh = true;
    byId("chosen-name").textContent = nameOf(cache, query);
    byId("chosen-question").textContent = texts?.question ?? "";
    byId("chosen-reference").textContent = texts?.references.join(" | ") ?? "";
    byId("chosen-texts").hidden = !texts;
    byId("chosen-lacking").hidden = Boolean(texts);
    this.items = [];
    byId("chosen-tree").replaceChildren(this.#calls(0, texts && answersOf(texts)));
  }

  /** The calls made from a node, each with those made from it. */
  #calls(node, answers) {
    const list = make("ul", { kind: "calls" });
    for (const child of this.#childrenOf(node)) list.append(this.#call(child, answers));
    return list;
  }

  /** The nodes after a node that this query has; draws of one call are neighbours. */
  #childrenOf(node) {
    const { cache, query } = this, found = cache.children[node].filter((child) => hasNode(cache, child, query));
    return found.sort((a, b) => actionOf(cache, a) - actionOf(cache, b) || cache.draw[a] - cache.draw[b]);
  }

  #call(node, answers) {
    const { cache } = this, draw = drawName(cache, node, this.query);
    const [marks, numbers] = ["marks", "numbers"].map((kind) => make("span", { kind }));
    const item = { marks, numbers };
    const name = make("b", { text: cache.models[actionOf(cache, node)] });
    const head = [name, ...(draw ? [" ", make("span", { kind: "draw", text: draw })] : []), " ", marks, " ", numbers];
    const said = answers?.(node);
    const answer = said !== undefined && make("q", { text: said || "(empty answer)" });
    if (this.#childrenOf(node).length) {
      const summary = make("summary", {}, make("span", {}, ...head));
      item.details = make("details", {}, summary, ...(answer ? [answer] : []));
      item.build = () => {
        item.details.append(this.#calls(node, answers));
        item.build = null;
      };
      if (this.whole) item.build();
      item.details.addEventListener("toggle", () => {
        if (item.details.open && item.build) this.onBuilt(item.build());
      });
      item.element = make("li", {}, item.details);
    } else {
      item.element = make("li", {}, ...head, ...(answer ? [answer] : []));
    }
    this.items[node] = item;
    return item.element;
  }

  /** Who ends where, by the order in which they are told; a direct call is not in the tree. */
  #ends(policies) {
    const routing = policies.filter(({ ends }) => ends && ends[this.query] < this.cache.size);
    return routing.map((policy) => [calledInTree(policy), policy.kind, policy.ends[this.query]]);
  }

  #unfold(ends) {
    const passed = ends.flatMap(([, , node]) => wayTo(this.cache, node));
    const unfolded = this.whole ? this.items.keys() : passed.toSorted((a, b) => a - b);
    for (const node of unfolded) {
      const item = this.items[node];
      item?.build?.();
      if (item?.details) item.details.open = true;
    }
    this.fresh = false;
  }

  #fillNodes(priced, scene, ends, kept) {
    const { cache, query } = this, blamed = ends[0]?.[1] === "router" ? ends[0][2] : 0;
    const taken = new Set(wayTo(cache, blamed));
    this.items.forEach((item, node) => {
      const at = node * cache.count + query, { nodes } = cache;
      const quality = nodes.score[at], cost = priced.cost[at];
      const isJudged = !cache.judged || cache.judged[at] === 1;
      const worth = isJudged ? `, R ${(quality - scene.alpha * cost).toFixed(3)}` : "";
      item.numbers.textContent =
        (isJudged ? `Q ${quality.toFixed(3)}, ${verdict(nodes.accuracy[at])}, ` : "not judged, ") +
        `${nodes.tokensIn[at]}+${nodes.tokensOut[at]} tokens, ` +
        `C ${short(cost)}${worth}`;
      item.element.classList.toggle("taken", taken.has(node));
      const left = wayTo(cache, node).every((on) => kept[actionOf(cache, on)]);
      item.element.classList.toggle("gone", !left);
      this.#fillMarks(item, ends.filter(([, , end]) => end === node));
    });
  }

  #fillMarks(item, ends) {
    const names = ends.map(([name]) => name).join("\n");
    if (item.names === names) return;
    item.names = names;
    item.marks.replaceChildren(
      ...ends.flatMap(([name, kind]) => [make("span", { kind: `badge ${kind}`, text: name }), " "]),
    );
  }

  #row({ at, ends, ...policy }, scene) {
    const { cache, query } = this, [quality, , cost] = at(query);
    const reward = quality - scene.alpha * cost;
    const best = worthOf(scene.oracle, query, scene.alpha);
    const name = ends
      ? `${calledInTree(policy)}: ${endName(cache, ends[query])}`
      : `${policy.name}, called directly`;
    return { name, kind: policy.kind, values: [quality, cost, reward, best - reward] };
  }
}
