const models = JSON.parse(document.getElementById("models").textContent);
const model = document.getElementById("model");
const fields = document.getElementById("fields");
const shown = document.getElementById("answer");
const problem = document.querySelector("[role=alert]");
const button = document.querySelector("form button");

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.append(text);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Splits a text by spans {start, end}, counted in characters as Python counts them, to strings and
// spans with `parts` of their own. Of two spans that cross, the second ends with the first.
function parts(text, spans) {
  const letters = Array.from(text);
  const root = {end: letters.length, parts: []};
  const open = [root];
  let place = 0;
  function goOn(until) {
    while (open.length > 1 && open.at(-1).end <= until) {
      const span = open.pop();
      span.parts.push(letters.slice(place, span.end).join(""));
      place = span.end;
    }
    open.at(-1).parts.push(letters.slice(place, until).join(""));
    place = until;
  }
  for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
    if (span.end <= span.start) continue;
    goOn(span.start);
    const inner = {...span, end: Math.min(span.end, open.at(-1).end), parts: []};
    open.at(-1).parts.push(inner);
    open.push(inner);
  }
  goOn(letters.length);
  return root.parts.filter(part => part !== "");
}

// The colour of a group, as many as there are far apart.
function hue(group) {
  return group * 137.5 % 360;
}

function fill(made, found) {
  for (const part of found) {
    if (typeof part === "string") { made.append(part); continue; }
    const mark = element("mark", "", {class: "both", "data-note": part.note, title: part.title ?? ""});
    if (part.group !== undefined) {
      mark.dataset.group = part.group;
      mark.style.background = `hsl(${hue(part.group)} 60% 60% / .35)`;
      mark.style.borderColor = `hsl(${hue(part.group)} 60% 45%)`;
    }
    if (part.isLinked) mark.tabIndex = 0;
    fill(mark, part.parts);
    made.append(mark);
  }
  return made;
}

function markedText(text, spans) {
  return fill(element("p", "", {dir: "auto"}), parts(text, spans));
}

function bars(rows) {  // [name, share]
  const table = element("table");
  for (const [name, share] of rows) {
    const row = element("tr");
    row.append(element("td", name, {dir: "auto"}));
    const cell = element("td");
    cell.append(element("meter", "", {value: share, "aria-label": name}), ` ${share.toFixed(4)}`);
    row.append(cell);
    table.append(row);
  }
  return table;
}

function listed(answer) {
  return Array.isArray(answer) ? answer : [answer];
}

function labels(answer) {
  return bars(listed(answer).map(found => [found.label, found.score]));
}

// The number of a regression, which is no share.
function number(found) {
  return element("p", `${found.label}: ${found.score.toFixed(4)}`);
}

// Replaces each [MASK] by its best filling, and says where they stand.
function filledText(text, masks) {
  const [first, ...others] = text.split("[MASK]");
  let letters = Array.from(first);
  const spans = [];
  others.forEach((other, index) => {
    const best = masks[index][0]?.token_str.replace(/^##/, "") ?? "[MASK]";
    spans.push({start: letters.length, end: letters.length + Array.from(best).length, note: String(index + 1)});
    letters = letters.concat(Array.from(best), Array.from(other));
  });
  return markedText(letters.join(""), spans);
}

function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, index) => sum + value * y[index], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

const views = {
  named_entities: (input, answer) => {
    const types = [...new Set(answer.map(entity => entity.entity_group))];
    return [markedText(input.text, answer.map(entity => ({...entity, note: entity.entity_group,
      group: types.indexOf(entity.entity_group), title: entity.score.toFixed(4)})))];
  },
  coreference: (input, answer) => {
    const titles = answer.strings.map(strings => strings.slice(0, 10).join(", "));  // of books, some
    return [markedText(answer.text, answer.clusters.flatMap((spans, index) =>
      spans.map(([start, end]) => ({start, end, note: String(index + 1), group: index,
        title: titles[index], isLinked: true}))))];
  },
  question_answering: (input, answer) => {
    const best = listed(answer)[0];
    const span = {start: best.start, end: best.end, note: "answer", title: best.score.toFixed(4)};
    return [markedText(input.context, best.answer ? [span] : []),
      bars(listed(answer).map(found => [found.answer || "no answer", found.score]))];
  },
  text_classification: (input, answer) => [
    describe().settings.is_regression ? number(listed(answer)[0]) : labels(answer)],
  relation_extraction: (input, answer) => {
    const spans = ["subject", "object"].map((role, group) => (
      {start: input[role][0], end: input[role][1], note: role, group, isLinked: false}));
    return [markedText(input.text, spans), labels(answer)];
  },
  fill_mask: (input, answer) => {
    const masks = Array.isArray(answer[0]) ? answer : [answer];
    return [filledText(input.text, masks), ...masks.flatMap((mask, index) => [
      element("h2", `mask ${index + 1}`), bars(mask.map(found => [found.token_str, found.score]))])];
  },
  text_embedding: (input, answer) => [element("h2", "similarity"),
    bars([["cosine", cosine(answer[0].embedding, answer[1].embedding)]])],
};

function describe() {
  return models[model.value];
}

// Vectors are compared, so their texts are two.
const isCompared = () => describe().task === "text_embedding";

function fieldNames() {
  if (isCompared()) return ["text", "other text"];
  const others = Object.entries(describe().example).filter(([, value]) => typeof value === "string");
  return [...new Set([...describe().fields, ...others.map(([name]) => name)])];
}

// The characters that are selected in a text, as [start, end] in characters as Python counts them.
function selectedPlace(area) {
  const count = end => Array.from(area.value.slice(0, end)).length;
  return [count(area.selectionStart), count(area.selectionEnd)];
}

function showFields() {
  document.getElementById("task").textContent = describe().task.replaceAll("_", " ");
  fields.replaceChildren();
  for (const name of fieldNames()) {
    const label = element("label", name.replaceAll("_", " "));
    const isPlace = Array.isArray(describe().example[name]);
    const isLong = isCompared() || describe().fields.includes(name);  // others may be left empty
    const area = element(isLong && !isPlace ? "textarea" : "input", "", {name, dir: "auto"});
    label.append(area);
    fields.append(label);
    if (isPlace) {
      const take = element("button", `${name} is the selected text`, {type: "button"});
      take.addEventListener("click", () => {
        area.value = JSON.stringify(selectedPlace(fields.querySelector("[name=text]")));
      });
      fields.append(take);
    }
  }
  shown.replaceChildren();
  problem.textContent = "";
}

function readInput() {
  const input = {};
  for (const area of fields.querySelectorAll("[name]")) {
    const isPlace = Array.isArray(describe().example[area.name]);
    input[area.name] = isPlace ? JSON.parse(area.value || "[]") : area.value;
  }
  return input;
}

function showExample() {
  for (const area of fields.querySelectorAll("[name]")) {
    const value = describe().example[area.name] ?? "The street is wet.";
    area.value = typeof value === "string" ? value : JSON.stringify(value);
  }
}

function curl(asked) {
  const quoted = asked.replaceAll("'", "'\\''");
  const key = document.getElementById("key") ? ' -H "Authorization: Bearer $KEY"' : "";
  return `curl${key} -d '${quoted}' ${location.origin}/answer`;
}

// Shows the progress in the lines of a response, and returns what the last line says.
async function lastLine(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", found;
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    const lines = (rest + read.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      found = JSON.parse(line);
      if (found.tokens < found.of) shown.replaceChildren(element("progress", "", {value: found.tokens, max: found.of}));
    }
  }
  return rest ? JSON.parse(rest) : found;  // an error is no line
}

async function ask(event) {
  event?.preventDefault();
  if (button.disabled) return;
  problem.textContent = "";
  button.disabled = true;
  shown.setAttribute("aria-busy", "true");
  try {
    const input = readInput();
    const name = model.value, described = describe();
    const inputs = isCompared() ? Object.values(input) : input;
    const asked = JSON.stringify({model: name, inputs, top_k: described.top_k});
    const headers = {"Content-Type": "application/json", Accept: "application/x-ndjson"};
    const key = document.getElementById("key");
    if (key) headers.Authorization = `Bearer ${key.value}`;
    document.getElementById("curl").textContent = curl(asked);
    const response = await fetch("/answer", {method: "POST", headers, body: asked});
    const answer = await lastLine(response);
    if (model.value !== name) return;  // another model was chosen meanwhile
    const json = JSON.stringify(answer, null, 1);
    document.getElementById("json").textContent = json.length > 1e6 ? `${json.slice(0, 1e6)} …` : json;
    if (answer.error) throw new Error(answer.error);
    const view = views[described.task] ?? (() => [element("pre", JSON.stringify(answer))]);
    shown.replaceChildren(...view(input, answer));
  } catch (error) {
    shown.replaceChildren();
    problem.textContent = error.message;
  } finally {
    button.disabled = false;
    shown.removeAttribute("aria-busy");
  }
}

// Lines from each mention of a cluster to the next one.
function showLinks(event) {
  hideLinks();
  const mark = event.target.closest?.("mark[tabindex]");
  if (!mark) return;
  const group = [...shown.querySelectorAll("mark")].filter(other => other.dataset.group === mark.dataset.group);
  group.forEach(other => other.classList.add("linked"));
  const frame = shown.getBoundingClientRect();
  const places = group.map(other => other.getClientRects()[0]).map(box => (
    `${box.left + box.width / 2 - frame.left},${box.bottom - frame.top}`));
  const lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  lines.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(lines.namespaceURI, "polyline");
  line.setAttribute("points", places.join(" "));
  line.style.stroke = `hsl(${hue(mark.dataset.group)} 60% 45%)`;
  lines.append(line);
  shown.append(lines);
}

function hideLinks() {
  shown.querySelectorAll("svg").forEach(lines => lines.remove());
  shown.querySelectorAll(".linked").forEach(mark => mark.classList.remove("linked"));
}

document.querySelector("form").addEventListener("submit", ask);
document.getElementById("example").addEventListener("click", () => { showExample(); ask(); });
document.addEventListener("keydown", event => {
  if (event.ctrlKey && event.key === "Enter") ask();
  if (event.key === "Escape") hideLinks();
});
for (const name of ["mouseover", "focusin"]) shown.addEventListener(name, showLinks);
for (const name of ["mouseleave", "focusout"]) shown.addEventListener(name, hideLinks);
model.addEventListener("change", showFields);
showFields();
