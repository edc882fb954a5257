"use strict";
document.documentElement.classList.add("scripted");
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const textOf = (id) => JSON.parse(document.getElementById(id).textContent);

// Copy buttons: the text goes to the clipboard and the button says so; without a clipboard it is selected.
async function copy(button, text, selectable) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    if (selectable) getSelection().selectAllChildren(selectable);
    button.textContent = selectable ? "Selected: press Ctrl+C" : "No clipboard here";
  }
  setTimeout(() => { button.textContent = label; }, 2500);
}
for (const button of all("[data-copy]")) {
  const code = button.parentElement.querySelector("code");
  button.addEventListener("click", () => copy(button, code.textContent, code));
}
for (const button of all("[data-copy-from]")) {
  button.addEventListener("click", () => copy(button, textOf(button.dataset.copyFrom)));
}

for (const button of all("[data-download]")) {
  button.addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([textOf(button.dataset.download)], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href: url, download: "measurements.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  });
}

// Sorting: by a cell's own number where it has one, else by its text; what has no figure goes last either way.
function sort(table, column, direction) {
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.classList.contains("n") ? null : cell.textContent;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (typeof a === "number" ? a - b : a.localeCompare(b));
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => compare(a, b));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}
const heads = [];
for (const head of all("#measured thead th")) {
  const button = document.createElement("button");
  heads.push([head, button]);
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    sort(head.closest("table"), head.cellIndex, direction);
  });
}

// Filter: a row stays if each word begins one of its own: phase, context, x16 for 16 requests, status, flags.
for (const input of all("[data-filter]")) {
  const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
  const shown = document.querySelector(`[data-shown="${input.dataset.filter}"]`);
  const apply = () => {
    const words = input.value.toLowerCase().split(/[\s×]+/).filter(Boolean);
    for (const row of rows) {
      const own = row.dataset.words.split(" ");
      row.hidden = !words.every((word) => own.some((one) => one.startsWith(word)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    shown.textContent = !words.length ? `${rows.length} rows` : left ? `${left} of ${rows.length} rows`
      : "No row has all of these words: try decode, 8K, x16, valid";
  };
  input.addEventListener("input", apply);
  apply();
}

// On paper nothing can be opened or clicked: everything is open, and heads are text (a browser repeats no buttons).
let closed = [];
addEventListener("beforeprint", () => {
  closed = all("details:not([open])");
  for (const one of closed) one.open = true;
  for (const [head, button] of heads) head.textContent = button.textContent;
});
addEventListener("afterprint", () => {
  for (const one of closed) one.open = false;
  for (const [head, button] of heads) head.replaceChildren(button);
});

// Charts: the still picture gives way to a living one; if that fails, the picture stays.
for (const holder of all("[data-chart]")) {
  const spec = document.querySelector(`[data-spec="${holder.dataset.chart}"]`);
  if (!spec || !window.vegaEmbed) continue;
  const living = document.createElement("div");
  vegaEmbed(living, JSON.parse(JSON.parse(spec.textContent)), { renderer: "svg", actions: false, mode: "vega-lite" })
    .then(() => holder.replaceChildren(living))
    .catch((error) => console.error(error));
}
