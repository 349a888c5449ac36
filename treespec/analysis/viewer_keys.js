// Keys and controls; at the end, the page begins.

function nextNode(direction) {
  const tree = step(), depths = depthsOf(tree.parents);
  const order = tree.tokens.map((_, node) => node)
    .sort((a, b) => tree.x[a] - tree.x[b] || depths[a] - depths[b]);
  const at = order.indexOf(state.node) + direction;
  const node = order[Math.max(0, Math.min(order.length - 1, at))];
  const hasFocus = $("tree").contains(document.activeElement);
  choose(node);
  reveal(node);
  // Whoever walks by Tab goes on from where the arrows have led, and hears it.
  if (hasFocus) nodeGroups[node]?.focus({ preventScroll: true });
}
function toggleTheme() {
  const { dataset } = document.documentElement;
  dataset.theme = dataset.theme === "dark" ? "light" : "dark";
}
const KEYS = {
  ArrowLeft: () => { pause(); go(state.step - 1); },
  ArrowRight: () => { pause(); go(state.step + 1); },
  Home: () => { pause(); go(0); },
  End: () => { pause(); go(Infinity); },
  PageUp: () => { pause(); go(state.step - 10); },
  PageDown: () => { pause(); go(state.step + 10); },
  ArrowUp: () => nextNode(-1),
  ArrowDown: () => nextNode(1),
  j: () => goPrompt(state.prompt + 1),
  k: () => goPrompt(state.prompt - 1),
  n: () => nextHit(1),
  N: () => nextHit(-1),
  "/": () => { $("search").focus(); $("search").select(); },
  "?": () => $("help").showModal(),
  t: toggleTheme,
  " ": play,
};
const SCROLLS = new Set(["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End", " "]);
document.addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (target === $("search")) {
    if (key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    if (key === "Escape") target.blur();
    return;
  }
  const presses = target.tagName === "BUTTON" || target.closest(".node");
  const native = target.tagName === "SELECT" || (target === $("slider") && key.length > 1)
    || (target === $("text") && SCROLLS.has(key))
    || (presses && (key === " " || key === "Enter"));
  const stepless = !prompt().steps.length && !"jk/?nNt".includes(key);
  if (native || stepless || !Object.hasOwn(KEYS, key)) return;
  event.preventDefault();
  KEYS[key]();
});
const clicks = {
  first: KEYS.Home, back: KEYS.ArrowLeft, forward: KEYS.ArrowRight, last: KEYS.End,
  play, theme: toggleTheme, "open-help": KEYS["?"],
};
for (const [id, act] of Object.entries(clicks)) {
  $(id).addEventListener("click", () => {
    if (prompt().steps.length || id === "theme" || id === "open-help") act();
  });
}
$("slider").addEventListener("input", (event) => { pause(); go(Number(event.target.value)); });
$("prompts").addEventListener("change", (event) => goPrompt(Number(event.target.value)));
const pointer = { x: NaN, y: NaN };
const chooseAt = (event) => {
  const group = event.target.closest(".node");
  if (group && Number(group.dataset.node) !== state.node) choose(Number(group.dataset.node));
};
$("tree").addEventListener("pointermove", (event) => {
  // A tree that is drawn below a pointer at rest must not choose a node.
  if (event.clientX === pointer.x && event.clientY === pointer.y) return;
  [pointer.x, pointer.y] = [event.clientX, event.clientY];
  chooseAt(event);
});
$("tree").addEventListener("click", chooseAt);
$("tree").addEventListener("focusin", chooseAt);
let typing = null;
$("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => search(event.target.value), 120);
});
let resizing = null;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => show(state.step));
});

const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = dark ? "dark" : "light";
$("run-name").textContent = data.name;
$("note").textContent = data.note;
$("note").hidden = !data.note;
$("facts").replaceChildren(...data.facts.map(([name, value]) => {
  const item = make("div");
  item.append(make("dt", "", name), make("dd", "", value));
  return item;
}));
$("prompts").replaceChildren(...data.prompts.map((item, place) => {
  const option = make("option", "", item.id);
  option.value = place;
  return option;
}));
$("meanings").replaceChildren(...data.kinds.map((kind, place) => {
  const item = make("li");
  item.append(make("b", "", data.marks[place]), ` ${kind}: ${MEANINGS[kind]}`);
  return item;
}));
const place = new URLSearchParams(location.hash.slice(1));
const asked = (name) => Number.parseInt(place.get(name), 10) || 0;
goPrompt(asked("prompt"), asked("step"));
