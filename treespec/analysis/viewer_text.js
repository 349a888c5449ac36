// The text so far, and what the step did and cost.

function showPrompt() {
  const { id, category, lossless, finish, pieces, prefill, decode } = prompt();
  const facts = [category, many(pieces.length, "new token"), `ended by ${finish}`,
    `lossless: ${lossless}`, `first token ${ms(prefill)}, the rest ${ms(decode)}`];
  $("prompt-facts").textContent = facts.filter(Boolean).join(" · ");
  $("prompts").value = state.prompt;
  const box = $("text");
  box.replaceChildren(promptText(prompt().prompt));
  tokenSpans = pieces.map((piece) => append(make("bdi", "own"), piece, spanSign));
  box.append(...tokenSpans.slice(0, 1));
  spans = prompt().steps.map((tree, index) => {
    const span = make("span", "step future");
    span.title = `step ${tree.step}`;
    for (let place = 0; place < tree.num_committed; place++) {
      const token = tokenSpans[tree.start + place];
      token.className = place < tree.num_accepted ? "accepted" : "own";
      span.append(token);
    }
    span.addEventListener("click", () => go(index));
    box.append(span);
    return span;
  });
  $("slider").max = Math.max(0, spans.length - 1);
  showBars();
}
function promptText(text) {
  const box = make("span", "prompt");
  const chars = [...text];
  if (chars.length <= PROMPT_SHOWN) return append(box, text, spanSign);
  const more = make("button", "", `… all ${chars.length.toLocaleString("en")} characters of the prompt`);
  more.type = "button";
  more.addEventListener("click", () => {
    more.remove();
    box.replaceChildren();
    append(box, text, spanSign);
  });
  box.append(more, " ");
  return append(box, chars.slice(-PROMPT_SHOWN).join(""), spanSign);
}
function showText(before) {
  const [from, to] = [Math.min(before, state.step), Math.max(before, state.step)];
  for (let index = Math.max(0, from); index <= to && index < spans.length; index++) {
    spans[index].classList.toggle("future", index > state.step);
  }
  spans[before]?.classList.remove("now");
  const now = spans[state.step];
  if (!now) return;
  now.classList.add("now");
  const box = $("text"), place = now.offsetTop - box.offsetTop;
  if (place < box.scrollTop || place + now.offsetHeight > box.scrollTop + box.clientHeight - 8) {
    box.scrollTop = place + now.offsetHeight - box.clientHeight + 30;
  }
}

function row(list, name, value, share, kind) {
  list.append(make("dt", "", name));
  if (share !== undefined) {
    const meter = make("div", `meter ${kind ?? ""}`), bar = make("i");
    bar.style.width = `${Math.min(1, Math.max(0, share ?? 0)) * 100}%`;
    meter.append(bar);
    list.append(meter);
  }
  const cell = make("dd", share === undefined ? "wide" : "");
  cell.append(value);
  list.append(cell);
}
function showStep() {
  const tree = step(), list = make("dl", "figures");
  const own = tree.next_kind ? `, 1 ${tree.next_kind}` : ", cut";
  const kept = tree.num_nodes
    ? `${tree.num_accepted} of ${many(tree.num_nodes, "draft")} accepted` : "nothing drafted";
  $("headline").replaceChildren(`Step ${tree.step} `, make("span", "dim", `${kept}${own}`));
  data.phases.forEach((name, place) => {
    const seconds = tree.times[place];
    row(list, name, ms(seconds), seconds / (tree.step_s || 1));
  });
  row(list, "step", ms(tree.step_s));
  row(list, "per token", ms(tree.step_s / Math.max(1, tree.num_committed)));
  list.append(make("div", "rule"));
  if (tree.reason !== null) row(list, "reason", tree.reason);
  const expected = [];
  if (tree.expected_accepted !== null) expected.push(`${tree.expected_accepted.toFixed(2)} accepted`);
  if (tree.expected_s !== null) expected.push(ms(tree.expected_s));
  if (expected.length) row(list, "forecast", expected.join(", "));
  row(list, "budget", `${tree.max_depth} deep, ${tree.max_width} wide, ${many(tree.max_nodes, "node")}`);
  row(list, "set by", tree.budget_by);
  row(list, "drafted", tree.num_candidates === tree.num_nodes
    ? `${tree.num_nodes}, none pruned` : `${tree.num_candidates}, ${tree.num_nodes} verified`);
  row(list, "draft forwards", String(tree.num_draft_forwards));
  row(list, "unread before", many(tree.num_unread, "token"));
  $("step-facts").replaceChildren(list);
}
