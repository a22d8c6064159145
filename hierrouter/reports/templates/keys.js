// Keys that work wherever the reader is.

/** `moves`: what each key does; only while the help is closed and nothing is typed. */
function listenToKeys(help, signs, moves) {
  byId("help").addEventListener("click", () => help.showModal());
  help.querySelector("button").addEventListener("click", () => help.close());
  addEventListener("keydown", (event) => {
    const { key, target } = event, move = Object.hasOwn(moves, key) && moves[key];
    const sign = key.length === 1;
    if (!move || help.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("input[type=search], select") || (sign && !signs.checked)) return;
    // Sliders, lists and tables that scroll have arrows of their own.
    if (!sign && target.closest("input:not([type=checkbox]), [tabindex]")) return;
    event.preventDefault();
    move(event.shiftKey);
  });
}
