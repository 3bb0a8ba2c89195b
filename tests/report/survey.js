// What is wrong with the page as it is laid out now: a list of sentences for each kind of fault.
// pageWidth: of the window in pixels; smallest: font in pixels that can be read.
async (pageWidth, smallest) => {
  const all = [...document.body.querySelectorAll("*")];
  const style = document.head.appendChild(document.createElement("style"));
  // Whatever is painted is to be found by its place, also where clicks are to go through it.
  style.textContent = "* { pointer-events: auto !important } svg * { pointer-events: visiblePainted !important }";
  const width = document.documentElement.clientWidth;

  function named(element) {
    const text = (element.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40).toWellFormed();
    const drawing = element.closest("svg[aria-label]");
    if (drawing) return `"${text}" in "${drawing.getAttribute("aria-label")}"`;
    const names = [];
    for (let at = element; at && at !== document.body && names.length < 4; at = at.parentElement) {
      const classes = (at.getAttribute("class") || "").trim().split(/\s+/).join(".");
      names.unshift(at.tagName.toLowerCase() + (at.id ? "#" + at.id : "") + (classes && "." + classes));
    }
    return `${names.join(" > ")} "${text}"`;
  }

  const isSvg = (element) => element instanceof SVGElement;
  const isSeen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  // Kept for readers' software alone: a box of a pixel.
  const isForSoftware = (element) => {
    const box = element.closest(".visually-hidden, .sr-only");
    return Boolean(box && box.getBoundingClientRect().width <= 2);
  };
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);

  function stickingOut() {
    const found = [];
    const page = document.scrollingElement;
    if (page.scrollWidth > page.clientWidth)
      found.push(`the page is ${page.scrollWidth} px wide, the window ${page.clientWidth} px`);
    if (window.innerWidth !== pageWidth)
      found.push(`the window shows ${window.innerWidth} px, not ${pageWidth}: the page does not fit`);
    const outside = new Set();
    for (const element of all) {
      if (!isSeen(element) || isForSoftware(element)) continue;
      if (isSvg(element) && element.tagName !== "svg") continue;
      const box = element.getBoundingClientRect();
      let isMovable = false; // a wide table may be moved to and fro inside of its box
      for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
        isMovable ||= scrolls(at);
      if (box.width && !isMovable && (box.right > width + 1 || box.left < -1)) {
        outside.add(element);
        if (!outside.has(element.parentElement))
          found.push(`from ${box.left.toFixed(0)} to ${box.right.toFixed(0)} px: ${named(element)}`);
      }
      const style = getComputedStyle(element);
      const isBox = !isSvg(element) && !["inline", "contents"].includes(style.display);
      if (!isBox || element.scrollWidth <= element.clientWidth + 2) continue;
      if (style.overflowX === "visible" && ![...element.children].some((child) => outside.has(child)))
        found.push(`its content is ${element.scrollWidth} px wide, it ${element.clientWidth}: ${named(element)}`);
      if (style.overflowX === "hidden" && style.textOverflow !== "ellipsis")
        found.push(`cut off: ${named(element)}`);
    }
    return found;
  }

  function cutOffInDrawings() {
    const found = [];
    for (const text of document.querySelectorAll("svg text")) {
      if (!isSeen(text) || !text.textContent.trim()) continue;
      const inner = text.getBoundingClientRect();
      const outer = text.ownerSVGElement.getBoundingClientRect();
      if (inner.left < outer.left - 1.5 || inner.right > outer.right + 1.5 ||
          inner.top < outer.top - 1.5 || inner.bottom > outer.bottom + 1.5)
        found.push(`text outside of its drawing: ${named(text)}`);
    }
    return found;
  }

  function overlappingInDrawings() {
    const found = [];
    for (const drawing of document.querySelectorAll("svg:not(.picture svg, svg.picture)")) {
      if (drawing.querySelector("image")) continue; // labels of neighbouring boxes may meet
      const texts = [...drawing.querySelectorAll("text")].filter((text) => isSeen(text) && text.textContent.trim());
      // Turned text has a box much larger than itself.
      const boxes = texts.map((text) => text.getBoundingClientRect());
      const straight = texts.map((text) => Math.abs(text.getScreenCTM().b) < 0.01);
      for (let i = 0; i < texts.length; i++)
        for (let j = 0; j < i; j++) {
          if (!straight[i] || !straight[j]) continue;
          const across = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
          const down = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
          if (across > 2 && down > 4)
            found.push(`"${texts[i].textContent.trim()}" lies on "${texts[j].textContent.trim()}": ${named(drawing)}`);
        }
    }
    return found;
  }

  // Every element with text of its own, with the middle of that text.
  function texts() {
    const found = new Map();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || found.has(element)) continue;
      if (["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "title", "desc", "style"].includes(element.tagName)) continue;
      if (!isSeen(element) || isForSoftware(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      const box = [...range.getClientRects()].find((part) => part.width > 1 && part.height > 1);
      if (box) found.set(element, box);
    }
    return found;
  }

  function tooSmall() {
    const found = [];
    for (const element of texts().keys()) {
      const matrix = isSvg(element) && element.getScreenCTM();
      const scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
      const size = parseFloat(getComputedStyle(element).fontSize) * scale;
      if (size < smallest) found.push(`${size.toFixed(1)} px: ${named(element)}`);
    }
    return found;
  }

  // Any colour of CSS as red, green, blue (0 to 255) and alpha (0 to 1).
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const knownColours = new Map();
  function colour(text) {
    if (!knownColours.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
      knownColours.set(text, [red, green, blue, alpha / 255]);
    }
    return knownColours.get(text);
  }
  const over = (top, bottom) => [0, 1, 2].map((i) => top[i] * top[3] + bottom[i] * (1 - top[3])).concat(1);
  function luminance(rgb) {
    const [red, green, blue] = rgb.map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }
  const knownOpacities = new Map([[null, 1]]);
  function opacity(element) {
    if (!knownOpacities.has(element))
      knownOpacities.set(element, parseFloat(getComputedStyle(element).opacity) * opacity(element.parentElement));
    return knownOpacities.get(element);
  }
  // The cells of a heat map are an image without loss; what lies on a photograph may be anything.
  const cells = new Map();
  async function readCells() {
    for (const image of document.querySelectorAll('svg image[href^="data:image/png"]')) {
      const copy = new Image();
      copy.src = image.getAttribute("href");
      if (!(await copy.decode().then(() => true, () => false))) continue; // told by notDecoded
      const context = new OffscreenCanvas(copy.naturalWidth, copy.naturalHeight).getContext("2d");
      context.drawImage(copy, 0, 0);
      cells.set(image, context.getImageData(0, 0, copy.naturalWidth, copy.naturalHeight));
    }
  }
  function cell(image, x, y) {
    const { data, width, height } = cells.get(image);
    const place = new DOMPoint(x, y).matrixTransform(image.getScreenCTM().inverse());
    const column = Math.floor(((place.x - image.x.baseVal.value) / image.width.baseVal.value) * width);
    const row = Math.floor(((place.y - image.y.baseVal.value) / image.height.baseVal.value) * height);
    const start = 4 * (row * width + column);
    return [data[start], data[start + 1], data[start + 2], data[start + 3] / 255];
  }
  function paint(element, x, y) {
    const style = getComputedStyle(element);
    if (element.tagName === "IMG") return "picture";
    if (!isSvg(element) || element.tagName === "svg") return colour(style.backgroundColor);
    if (element.tagName === "image") return cells.has(element) ? cell(element, x, y) : "picture";
    if (["text", "tspan", "g", "use", "a"].includes(element.tagName) || style.fill === "none") return [0, 0, 0, 0];
    if (style.fill.startsWith("url")) return "picture";
    const [red, green, blue, alpha] = colour(style.fill);
    return [red, green, blue, alpha * parseFloat(style.fillOpacity)];
  }
  // What lies under a text: a colour, or "picture".
  function ground(element, x, y) {
    const style = getComputedStyle(element);
    if (isSvg(element) && style.paintOrder.startsWith("stroke") && style.stroke !== "none")
      return colour(style.stroke); // a halo
    const stack = document.elementsFromPoint(x, y);
    if (!stack.includes(element)) return "cut off"; // below the edge of a box that scrolls
    const layers = [];
    for (const below of stack) {
      const layer = paint(below, x, y);
      if (layer === "picture") return layer;
      const seen = layer[3] * opacity(below);
      layers.push([...layer.slice(0, 3), seen]);
      if (seen > 0.999) break;
    }
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    const canvasColour = colour(scheme === "dark" || (scheme.includes("dark") &&
      matchMedia("(prefers-color-scheme: dark)").matches) ? "rgb(18, 18, 18)" : "white");
    return layers.reverse().reduce((bottom, top) => over(top, bottom), canvasColour);
  }

  function tooFaint() {
    const found = [];
    let numJudged = 0;
    for (const [element, box] of texts()) {
      const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
      const below = ground(element, x, y);
      if (below === "cut off") continue;
      numJudged += 1;
      if (below === "picture") {
        found.push(`on a picture without a plate: ${named(element)}`);
        continue;
      }
      const style = getComputedStyle(element);
      const own = [...colour(isSvg(element) ? style.fill : style.color)];
      own[3] *= opacity(element) * (isSvg(element) ? parseFloat(style.fillOpacity) : 1);
      const [light, dark] = [luminance(over(own, below)), luminance(below)].sort((a, b) => b - a);
      const contrast = (light + 0.05) / (dark + 0.05);
      const size = parseFloat(style.fontSize);
      const isLarge = size >= 24 || (size >= 18.6 && parseInt(style.fontWeight) >= 700);
      if (contrast < (isLarge ? 3 : 4.5))
        found.push(`contrast ${contrast.toFixed(2)} (${own.slice(0, 3)} on ${below.slice(0, 3).map(Math.round)}): ${named(element)}`);
    }
    if (numJudged < texts().size / 2) found.push(`only ${numJudged} of ${texts().size} texts could be judged`);
    return found;
  }

  async function notDecoded() {
    const found = [];
    for (const image of document.querySelectorAll("img, svg image")) {
      const address = image.currentSrc || image.src || image.getAttribute("href") || image.getAttribute("xlink:href");
      const copy = new Image();
      copy.src = typeof address === "string" ? address : "";
      try {
        await copy.decode();
      } catch (error) {
        found.push(`${error}: ${named(image)} ${String(address).slice(0, 60)}`);
        continue;
      }
      if (!(copy.naturalWidth > 0)) found.push(`without a width: ${named(image)}`);
      if (image.tagName === "IMG" && !(image.naturalWidth > 0)) found.push(`not shown: ${named(image)}`);
      if (image.tagName === "IMG" && !image.hasAttribute("alt")) found.push(`without a text: ${named(image)}`);
    }
    return found;
  }

  function wrongReferences() {
    const found = [];
    const ids = all.map((element) => element.id).filter(Boolean);
    const known = new Set(ids);
    if (known.size < ids.length) {
      const twice = ids.filter((id, i) => ids.indexOf(id) < i);
      found.push(`ids that are not unique: ${[...new Set(twice)].slice(0, 9).join(", ")}`);
    }
    for (const element of all)
      for (const attribute of element.attributes) {
        const wanted = [...attribute.value.matchAll(/url\(["']?#([^"')]+)/g)].map((match) => match[1]);
        if (["href", "xlink:href"].includes(attribute.name) && attribute.value.startsWith("#"))
          wanted.push(decodeURIComponent(attribute.value.slice(1)));
        if (["for", "aria-labelledby", "aria-describedby", "aria-controls"].includes(attribute.name))
          wanted.push(...attribute.value.split(/\s+/));
        for (const id of wanted)
          if (id && !known.has(id)) found.push(`there is no ${id}: ${named(element)}`);
      }
    return found;
  }

  await readCells();
  return {
    "sticks out": stickingOut(),
    "cut off in a drawing": cutOffInDrawings(),
    "overlaps in a drawing": overlappingInDrawings(),
    "too small": tooSmall(),
    "too faint": tooFaint(),
    "not decoded": await notDecoded(),
    "wrong reference": wrongReferences(),
    hostile: [...document.querySelectorAll("[data-hostile]")].map(named).concat(
      window.hacked === undefined ? [] : [`a script has run: ${window.hacked}`]),
  };
}
