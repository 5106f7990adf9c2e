"use strict";
// Draws the drawings of a page on two-dimensional canvases, of which a page may have any number.

for (const place of document.querySelectorAll(".drawing")) {
  const data = JSON.parse(place.querySelector("script").textContent), frames = data.frames;
  const canvas = place.querySelector("canvas"), brush = canvas.getContext("2d"), slider = place.querySelector("input");
  const title = place.querySelector("h3"), tip = place.querySelector(".tip");
  const [low, high] = data.limits, size = [high[0] - low[0], high[1] - low[1]];
  let width = 0, height = 0, zoom = 1, centre = [0.5, 0.5], now = frames.length - 1, grip = null;
  const left = data.y_title ? 24 : 4, below = data.x_title ? 24 : 4;
  const unpacked = ([x, y]) => [low[0] + (size[0] * x) / data.grid, low[1] + (size[1] * y) / data.grid];
  for (const frame of frames) {
    for (const layer of frame.layers) layer.lines = layer.lines.map((line) => line.map(unpacked));
    for (const points of frame.points) points.places = points.places.map(unpacked);
  }

  // From places of the drawing to pixels.
  const scale = () => Math.min((width - left - 4) / size[0], (height - below - 4) / size[1]) * zoom;
  const at = ([x, y]) => {
    const k = scale(), middle = [left + (width - left) / 2, (height - below) / 2];
    return [middle[0] + (x - low[0] - centre[0] * size[0]) * k, middle[1] - (y - low[1] - centre[1] * size[1]) * k];
  };

  const ink = () => getComputedStyle(place).color;
  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  // A colour that can be read on the background: on a dark one, lighter.
  const readable = (colour) => !dark() ? colour
    : "#" + [1, 3, 5].map((from) => Math.round(0.62 * parseInt(colour.slice(from, from + 2), 16) + 0.38 * 255).toString(16).padStart(2, "0")).join("");

  function draw() {
    const ratio = devicePixelRatio || 1, frame = frames[now];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    brush.clearRect(0, 0, width, height);
    brush.save();
    brush.beginPath();
    brush.rect(left, 0, width - left, height - below);
    brush.clip();
    for (const layer of frame.layers) {
      brush.strokeStyle = layer.stands_out ? readable("#d62f2f") : ink();
      brush.globalAlpha = 0.8;
      brush.lineWidth = Math.max(0.6, Math.min(1.8, 45 / Math.sqrt(Math.max(1, layer.lines.length)))) * Math.sqrt(zoom);
      brush.beginPath();
      for (const line of layer.lines) line.forEach((point, index) => (index ? brush.lineTo(...at(point)) : brush.moveTo(...at(point))));
      brush.stroke();
    }
    brush.globalAlpha = 1;
    for (const points of frame.points) {
      const radius = (0.7 + 0.9 * points.size) * Math.min(2.5, Math.sqrt(zoom));
      points.places.forEach((point, index) => {
        const [x, y] = at(point);
        brush.fillStyle = readable(frame.palette[points.colours[index]]);
        brush.beginPath();
        brush.arc(x, y, radius, 0, 7);
        brush.fill();
      });
    }
    brush.restore();
    brush.fillStyle = ink();
    brush.font = "11px system-ui, sans-serif";
    brush.textAlign = "center";
    for (const text of frame.texts) brush.fillText(text.text, ...at(text.place));
    if (data.x_title) brush.fillText(data.x_title, left + (width - left) / 2, height - 6, width - left);
    if (data.y_title) {
      brush.save();
      brush.translate(14, (height - below) / 2);
      brush.rotate(-Math.PI / 2);
      brush.fillText(data.y_title, 0, 0, height - below);
      brush.restore();
    }
    canvas.style.touchAction = zoom > 1 ? "none" : "pan-y";
    place.querySelector("[data-by='0']").disabled = zoom === 1;
  }

  function show(index) {
    now = index;
    title.textContent = frames[now].title;
    if (slider) slider.setAttribute("aria-valuetext", frames[now].title);
    draw();
  }

  function resize() {
    width = canvas.parentElement.clientWidth;
    const most = Math.max(280, innerHeight * 0.75);
    height = Math.min(most, (width - left) * Math.max(0.3, Math.min(1.3, size[1] / size[0])) + below);
    canvas.style.height = `${height}px`;
    draw();
  }

  function magnify(by, [x, y] = [left + (width - left) / 2, (height - below) / 2]) {
    const before = scale(), middle = [left + (width - left) / 2, (height - below) / 2];
    zoom = by ? Math.max(1, Math.min(60, zoom * by)) : 1;
    const after = scale(), gained = 1 / before - 1 / after;
    centre = zoom === 1 ? [0.5, 0.5] : [centre[0] + ((x - middle[0]) * gained) / size[0], centre[1] - ((y - middle[1]) * gained) / size[1]];
    draw();
  }

  function nearest(x, y) {
    let found = "", best = 12;
    const near = (point, name) => {
      const [a, b] = at(point), away = Math.hypot(a - x, b - y);
      if (name && away < best) [best, found] = [away, name];
    };
    for (const layer of frames[now].layers) layer.lines.forEach((line, index) => near(line[line.length >> 1], layer.names[index]));
    for (const points of frames[now].points) points.places.forEach((point, index) => near(point, points.names[index]));
    return found;
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (zoom === 1) return;
    grip = [event.offsetX, event.offsetY];
    canvas.setPointerCapture(event.pointerId);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { grip = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (grip) {
      const k = scale();
      centre = [centre[0] - (event.offsetX - grip[0]) / k / size[0], centre[1] + (event.offsetY - grip[1]) / k / size[1]];
      grip = [event.offsetX, event.offsetY];
      return draw();
    }
    const name = data.named ? nearest(event.offsetX, event.offsetY) : "";
    tip.hidden = !name;
    tip.textContent = name;
    tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, width - tip.offsetWidth))}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => magnify(2, [event.offsetX, event.offsetY]));
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // the wheel alone scrolls the page
    event.preventDefault();
    magnify(Math.exp(-event.deltaY / 300), [event.offsetX, event.offsetY]);
  }, { passive: false });
  for (const button of place.querySelectorAll("button")) button.addEventListener("click", () => magnify(Number(button.dataset.by)));
  if (slider) slider.addEventListener("input", () => show(Number(slider.value)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("resize", resize);
  resize();
  show(now);
}
