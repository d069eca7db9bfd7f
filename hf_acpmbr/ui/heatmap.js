// Draws one matrix on a canvas; `element`, `props` and `watch` come from gradio. Values are float32, base64, row by row.
const COLOURS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
let panels = [];
let current = "target";

const find = (name) => element.querySelector(name);

function colour(share) {
  const place = Math.min(Math.max(share, 0), 1) * (COLOURS.length - 1);
  const low = Math.min(Math.floor(place), COLOURS.length - 2);
  const part = place - low;
  return COLOURS[low].map((value, k) => Math.round(value + part * (COLOURS[low + 1][k] - value)));
}

function decoded(panel) {
  const bytes = Uint8Array.from(atob(panel.data), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

function read() {
  const data = props.value;
  if (!data || !data.panels) return false;
  panels = data.panels.map((panel) => ({ ...panel, values: decoded(panel) }));
  return true;
}

function draw() {
  const box = find(".map-box");
  if (!box) return;
  const ready = read() && panels.length > 0;
  box.hidden = !ready;
  find(".map-empty").hidden = ready;
  if (!ready) return;
  if (!panels.some((panel) => panel.key === current)) current = panels[0].key;
  const shown = panels.find((panel) => panel.key === current);
  const tabs = panels.map((panel) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", "tab");
    button.dataset.key = panel.key;
    button.textContent = panel.title;
    button.setAttribute("aria-selected", String(panel.key === current));
    return button;
  });
  find(".map-tabs").replaceChildren(...tabs);
  const canvas = find("canvas");
  const size = props.value.texts.length;
  canvas.width = canvas.height = size;
  find(".map-hover").textContent = "Point at a cell to see both texts and the score.";
  const image = canvas.getContext("2d").createImageData(size, size);
  const { low, high } = props.value;
  shown.values.forEach((value, k) => {
    const known = Number.isFinite(value);
    const rgb = known ? colour((value - low) / (high - low)) : [128, 128, 128];
    image.data.set([...rgb, known ? 255 : 40], 4 * k);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  const all = size * size;
  const part = shown.scored === all ? "all" : `${shown.scored.toLocaleString("en")} of`;
  find(".map-title").textContent = `${part} ${all.toLocaleString("en")} pairs`;
  find(".map-low").textContent = low.toFixed(1);
  find(".map-high").textContent = high.toFixed(1);
  find(".map-scale").style.background = `linear-gradient(to right, ${COLOURS.map((c) => `rgb(${c})`).join(",")})`;
}

function point(event) {
  const shown = panels.find((panel) => panel.key === current);
  if (!shown) return;
  const canvas = find("canvas");
  const place = canvas.getBoundingClientRect();
  const size = props.value.texts.length;
  const column = Math.min(size - 1, Math.max(0, Math.floor(((event.clientX - place.left) / place.width) * size)));
  const row = Math.min(size - 1, Math.max(0, Math.floor(((event.clientY - place.top) / place.height) * size)));
  const value = shown.values[row * size + column];
  const score = Number.isFinite(value) ? value.toFixed(2) : "not scored";
  const hover = find(".map-hover");
  hover.replaceChildren();
  const lines = [
    [shown.title, score],
    [`candidate ${row + 1}`, props.value.texts[row]],
    [`reference ${column + 1} (drawn ${props.value.counts[column]}×)`, props.value.texts[column]],
  ];
  for (const [name, text] of lines) {
    const line = document.createElement("div");
    const label = document.createElement("b");
    label.textContent = `${name}: `;
    line.append(label, text);
    hover.append(line);
  }
}

// Listeners sit on the component itself, which stays when its inside is drawn anew.
element.addEventListener("click", (event) => {
  const button = event.target.closest(".map-tabs button");
  if (button) {
    current = button.dataset.key;
    draw();
  } else if (event.target.tagName === "CANVAS") {
    point(event);
  }
});
element.addEventListener("pointermove", (event) => {
  if (event.target.tagName === "CANVAS") point(event);
});
watch("value", draw);
draw();
