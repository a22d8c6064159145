// Elements, numbers as text, and tables that are filled again and again.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

/** An element; text is only ever text. */
function make(name, { text, kind, ...attributes } = {}, ...children) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function makeSvg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

/** A number to `digits` significant ones, without an exponent where it can be read. */
function short(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-5) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(digits)));
}

const FORMATS = {
  fixed: (value) => value.toFixed(3),
  cost: (value) => short(value),
  share: (value) => `${(100 * value).toFixed(1)}%`,
  percent: (value) => (value === 0 ? "·" : `${Math.max(100 * value, 1).toFixed(0)}%`),
  count: (value) => value.toLocaleString("en"),
};

/** Put a number into an element: short for the eye, whole for whoever reads `data` elements. */
function showNumber(element, value, format) {
  let datum = element.firstElementChild;
  if (!datum) element.replaceChildren((datum = make("data")));
  datum.value = value ?? "";
  datum.textContent = value === null || value === undefined ? "–" : FORMATS[format](value);
}

/** What a click on a link with a file would do. */
function save(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

/** A table whose rows keep their elements as long as their names stay the same. */
class NumberTable {
  constructor(table, columns) {
    this.columns = columns;
    this.body = make("tbody");
    const head = make("tr");
    for (const { title, hint } of columns) {
      const cell = make("th", { scope: "col", ...(hint ? { title: hint } : {}) });
      head.append(cell);
      // A route may be broken after each of its calls, and the longest name of a policy.
      cell.append(...title.split(/(?<=>|Hier)/).flatMap((part) => [part, make("wbr")]));
    }
    table.append(make("thead", {}, head), this.body);
  }

  /** Rows: `name`, `kind` and a number or null for each column after the first. */
  fill(rows) {
    const names = JSON.stringify(rows.map(({ name, kind }) => [name, kind]));
    if (names !== this.names) this.#build(rows);
    this.names = names;
    rows.forEach(({ values }, row) => {
      values.forEach((value, column) => {
        const cell = this.body.rows[row].cells[column + 1];
        showNumber(cell, value, this.columns[column + 1].format);
        this.columns[column + 1].paint?.(cell, value);
      });
    });
  }

  #build(rows) {
    this.body.replaceChildren(
      ...rows.map(({ name, kind }) =>
        make("tr", { kind, "data-name": name }, make("th", { text: name, scope: "row" }),
          ...this.columns.slice(1).map(() => make("td")))),
    );
  }
}
