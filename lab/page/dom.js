// Elements and numbers. Data from the lab becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// These run five times a second, so they change the document only if something is new.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttr(element, attribute, value) {
  if (value === null || value === false || value === undefined) element.removeAttribute(attribute);
  else if (element.getAttribute(attribute) !== String(value)) element.setAttribute(attribute, value);
}

const NOTHING = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const known = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (known(value) ? whole.format(value) : NOTHING);

export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 0.9995) return `${whole.format(value * 1000)} ms`;
  return `${value.toFixed(value < 9.995 ? 2 : 1)} s`;
}

// "36 / 112 ms": a common unit appears once.
export function twoTimes(first, second) {
  const [one, two] = [seconds(first), seconds(second)];
  if (one === NOTHING && two === NOTHING) return NOTHING;
  return one.split(" ")[1] === two.split(" ")[1] ? `${one.split(" ")[0]} / ${two}` : `${one} / ${two}`;
}

export function rate(value) {
  if (!known(value)) return NOTHING;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : whole.format(value)} /s`;
}

// "the key `lock` is gone": text between backticks is code.
export function prose(text) {
  const parts = text.replace(/\s+/g, " ").trim().split("`");
  return parts.map((part, i) => (i % 2 ? el("code", {}, part) : part));
}

export function paragraphs(text) {
  return String(text ?? "").split(/\n\s*\n/).filter((part) => part.trim()).map((part) => el("p", {}, ...prose(part)));
}
