// Elements and words. Data from the servers becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// These change the document only if something is new.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.dataset[name] !== String(value)) element.dataset[name] = value;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Characters that are invisible, or that change the direction of text, are shown by number.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;

export function visible(text) {
  return String(text).replace(UNSEEN, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);
}

// Names as part of the page's address. A lone surrogate cannot be part of one.
export const addressOf = (name) => `#lock=${encodeURIComponent(String(name).replace(/[\ud800-\udfff]/gu, "\ufffd"))}`;

export const NOTHING = "–";

export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NOTHING;
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(value);

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
