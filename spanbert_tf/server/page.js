const models = JSON.parse(document.getElementById("models").textContent);
const model = document.getElementById("model");
const fields = document.getElementById("fields");
const shown = document.getElementById("answer");
const problem = document.querySelector("[role=alert]");

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.append(text);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Splits a text by spans {start, end, note, title}, counted in characters as Python counts them.
// A span that begins inside of another is left out.
function parts(text, spans) {
  const letters = Array.from(text);
  const found = [];
  let place = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
    if (span.start < place || span.end <= span.start) continue;
    found.push({text: letters.slice(place, span.start).join("")});
    found.push({...span, text: letters.slice(span.start, span.end).join("")});
    place = span.end;
  }
  found.push({text: letters.slice(place).join("")});
  return found;
}

function markedText(text, spans) {
  const made = element("p", "");
  for (const part of parts(text, spans)) {
    if (!part.note) { made.append(part.text); continue; }
    const mark = element("mark", part.text, {class: "both", "data-note": part.note, title: part.title});
    if (part.hue !== undefined) mark.style.background = `hsl(${part.hue} 60% 60% / .35)`;
    made.append(mark);
  }
  return made;
}

function bars(rows) {  // [name, share]
  const table = element("table", "");
  for (const [name, share] of rows) {
    const row = element("tr", "");
    row.append(element("td", name));
    const cell = element("td", "");
    cell.append(element("meter", "", {value: share}), ` ${share.toFixed(4)}`);
    row.append(cell);
    table.append(row);
  }
  return table;
}

function listed(answer) {
  return Array.isArray(answer) ? answer : [answer];
}

const views = {
  named_entities: (input, answer) => [markedText(input.text, answer.map(entity => (
    {start: entity.start, end: entity.end, note: entity.entity_group, title: entity.score.toFixed(4)})))],
  coreference: (input, answer) => [markedText(answer.text, answer.clusters.flatMap((spans, index) =>
    spans.map(([start, end]) => (
      {start, end, note: String(index + 1), title: answer.strings[index].join(", "), hue: index * 137 % 360}))))],
  question_answering: (input, answer) => {
    const best = listed(answer)[0];
    const span = {start: best.start, end: best.end, note: "answer", title: best.score.toFixed(4)};
    return [markedText(input.context, best.answer ? [span] : []),
      bars(listed(answer).map(found => [found.answer || "no answer", found.score]))];
  },
  text_classification: (input, answer) => [bars(listed(answer).map(found => [found.label, found.score]))],
  relation_extraction: (input, answer) => [bars(listed(answer).map(found => [found.label, found.score]))],
  fill_mask: (input, answer) => (Array.isArray(answer[0]) ? answer : [answer]).flatMap((mask, index) => [
    element("h2", `mask ${index + 1}`), bars(mask.map(found => [found.token_str, found.score]))]),
};

function describe() {
  return models[model.value];
}

function showFields() {
  fields.replaceChildren();
  for (const name of describe().fields) {
    const label = element("label", name);
    label.append(element("textarea", "", {name, dir: "auto"}));
    fields.append(label);
  }
  shown.replaceChildren();
}

// Places of entities are lists of numbers; all else is text.
function readInput() {
  const input = {};
  for (const area of fields.querySelectorAll("textarea")) {
    const text = area.value;
    input[area.name] = /^\s*\[[\d\s,]+\]\s*$/.test(text) && area.name !== "text" ? JSON.parse(text) : text;
  }
  return input;
}

function showExample() {
  for (const area of fields.querySelectorAll("textarea")) {
    const value = describe().example[area.name];
    area.value = typeof value === "string" ? value : JSON.stringify(value);
  }
}

async function ask(event) {
  event?.preventDefault();
  problem.textContent = "";
  try {
    const input = readInput();
    const asked = JSON.stringify({model: model.value, inputs: input, top_k: describe().top_k});
    const headers = {"Content-Type": "application/json"};
    const key = document.getElementById("key");
    if (key) headers.Authorization = `Bearer ${key.value}`;
    const quoted = asked.replaceAll("'", "'\\''");
    document.getElementById("curl").textContent = `curl -d '${quoted}' ${location.origin}/answer`;
    const response = await fetch("/answer", {method: "POST", headers, body: asked});
    const answer = await response.json();
    document.getElementById("json").textContent = JSON.stringify(answer, null, 1);
    if (!response.ok) throw new Error(answer.error);
    const view = views[describe().task] ?? (() => [element("pre", JSON.stringify(answer))]);
    shown.replaceChildren(...view(input, answer));
  } catch (error) {
    shown.replaceChildren();
    problem.textContent = error.message;
  }
}

document.querySelector("form").addEventListener("submit", ask);
document.getElementById("example").addEventListener("click", () => { showExample(); ask(); });
document.addEventListener("keydown", event => {
  if (event.ctrlKey && event.key === "Enter") ask();
});
model.addEventListener("change", showFields);
showFields();
